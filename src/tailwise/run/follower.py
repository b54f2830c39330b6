"""What a rank besides the first does: the same as the first, when it says so (`sharded.py`)."""

from __future__ import annotations

from tailwise.core.errors import TailwiseError
from tailwise.learner.rollout import Rollout
from tailwise.run.ranks import next_order
from tailwise.run.sharded import learn
from tailwise.run.trainer import Trainer
from tailwise.run.worlds import make_world


def follow() -> None:
    """Carry out the orders of the first rank until it ends. This one writes nothing."""
    trainer: Trainer | None = None
    rollout: Rollout | None = None
    try:
        while True:
            name, arguments = next_order()
            if name == "end":
                return
            if name == "begin":
                if trainer is not None:
                    trainer.driver.close()
                (config,) = arguments
                trainer = Trainer(config, make_world(config))
                trainer.use_threads()
                continue
            if trainer is None:
                raise TailwiseError(f"the first rank ordered '{name}' before 'begin'; are all ranks of one version?")
            if name == "collect":
                rollout, _ = trainer.collector.collect(*arguments)
                trainer.driver.pop_episodes()
            elif name == "learn":
                assert rollout is not None
                knobs, trainer.backend.config = arguments
                learn(trainer.group, trainer.backend, rollout, knobs)
            elif name == "load":
                trainer.collector.load(*arguments)
            elif name == "forget":
                trainer.collector.forget()
            elif name == "reset":
                trainer.driver.reset()
            elif name == "get_state":
                trainer.driver.get_state()
            elif name == "set_state":
                trainer.driver.set_state(*arguments)
            else:
                raise TailwiseError(f"the first rank ordered '{name}', which this version does not know")
    finally:
        if trainer is not None:
            trainer.driver.close()

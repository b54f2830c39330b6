"""The training of a challenger: from the deployed policy, on the newest bars, with the update of every training.

Updates on ordered segments of the deployed policy take turns with updates on fresh rollouts of the challenger in the
simulator on the same bars. The result depends on the policy, the bars, the settings and the number of the challenger
alone, so a training that was killed is done again with the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.learner.config import NoAdversary, NoImitation
from tailwise.market.env_config import NO_TERMS
from tailwise.online.segments import Segment, check_order, collect, kl_from, learn_from
from tailwise.online.settings import LearnSettings
from tailwise.online.window import NewestBars
from tailwise.run.collector import Collector
from tailwise.run.config import Config
from tailwise.run.ensemble import Ensemble
from tailwise.run.notify import NotifyConfig
from tailwise.run.policy import Policy, Trader
from tailwise.run.policy_files import load_policy_tensors
from tailwise.run.trainer import Trainer

_TURNS = 2  # every second update learns from a segment, as long as there are any


@dataclass(frozen=True)
class Trained:
    """A challenger.

    updates, refused   that were made, and refused by the learner
    segments, stale    of the deployed policy that were learnt from, and that had become too old
    kl                 mean KL(deployed || challenger), nats per decision; of several policies the largest
    stopped            why before the last update; None: it was not
    """

    policy: Trader
    updates: int
    refused: int
    segments: int
    stale: int
    kl: float
    stopped: str | None

    def facts(self) -> dict[str, Any]:
        """Plain values, for the audit."""
        names = ("updates", "refused", "segments", "stale", "kl", "stopped")
        return {name: getattr(self, name) for name in names}


def policies_of(trader: Trader) -> list[Policy]:
    """The policies that decide."""
    if isinstance(trader, Ensemble):
        return trader.members
    if isinstance(trader, Policy):
        return [trader]
    raise ConfigError("online learning needs a policy that was loaded from a run, or several of one run.")


def train_challenger(trader: Trader, bars: Sequence[Bars], settings: LearnSettings, *, number: int) -> Trained:
    """Challenger `number` of the deployed `trader`: every policy of it is trained on its own."""
    parts = [_train_one(one, bars, settings, number=number) for one in policies_of(trader)]
    policies = [one.policy for one in parts]
    together = policies[0]
    if isinstance(trader, Ensemble):
        together = Ensemble([one for each in policies for one in policies_of(each)], trader.how, config=trader.config)
    return Trained(
        together,
        sum(one.updates for one in parts),
        sum(one.refused for one in parts),
        sum(one.segments for one in parts),
        sum(one.stale for one in parts),
        max(one.kl for one in parts),
        next((one.stopped for one in parts if one.stopped is not None), None),
    )


def _train_one(policy: Policy, bars: Sequence[Bars], settings: LearnSettings, *, number: int) -> Trained:
    config = online_config(policy.config, settings, number=number)
    world = NewestBars(policy, bars).with_config(config).market()
    trainer = Trainer(config, world)
    torch.set_num_threads(1)
    model, backend, controllers = trainer.model, trainer.backend, trainer.controllers
    trainer.begin()
    load_policy_tensors(model, policy.model.state_dict(), source="the deployed policy")
    backend.warm_up(lambda _: None, trainer.driver.venv)
    waiting = deployed_segments(trainer, world)
    deployed = list(waiting)
    update = steps = refused = learnt = stale = 0
    kl, stopped = 0.0, None
    total = config.run.total_steps
    while update < settings.updates:
        knobs = controllers.knobs(
            trainer.config.learner,
            trainer.narrowing,
            trainer.prior,
            update=update,
            steps=steps,
            total_steps=total,
            measure_terms=False,
        )
        report, rollout = None, None
        if update % _TURNS == 0 and waiting:
            segment = waiting.pop(0)
            report = learn_from(backend, segment, knobs, update=update, staleness=settings.staleness)
            rollout = segment.rollout
            learnt, stale = learnt + (report is not None), stale + (report is None)
        if report is None:
            rollout, _ = trainer.collector.collect(update)
            report = backend.update(rollout, knobs)
        assert rollout is not None
        update += 1
        refused += not report.committed
        moved = kl_from(deployed, model)
        if not moved <= settings.kl:  # also where it is not a number
            if report.before is not None:  # else the update changed nothing
                backend.restore(report.before)
            stopped = f"update {update} would have moved it {moved:.3g} nats from the deployed policy"
            break
        kl, steps = moved, steps + int(np.count_nonzero(rollout.valid.numpy()))
        controllers.adapt(trainer.config.learner, report, update=update, noise=model.law.noise, prior=trainer.prior)
        trainer.risk.after(update, rollout, report)
    trainer.driver.close()
    made = Policy(model, policy.config, masked=policy.needs_mask(), features=policy.features)
    return Trained(made, update, refused, learnt, stale, kl, stopped)


def online_config(config: Config, settings: LearnSettings, *, number: int) -> Config:
    """The configuration of a run for the training of challenger `number`: a seed of its own, no evaluations, and
    schedules that end with its last update.

    Left out is what segments of the deployed policy do not have (demonstrations, terms of env.reward: the reward of
    both kinds of experience is the log-return), an adversary, whose paths this training would not renew, and messages
    about alerts. So no code is executed beyond that which opening the policy needs.
    """
    steps = config.run.environments * config.run.rollout_steps * settings.updates
    alone = {"total_steps": steps, "tensorboard": False, "seeds": 1, "threads": 1, "shards": 1}
    plain = {"imitation": NoImitation(), "adversary": NoAdversary()}
    return config.model_copy(
        update={
            "seed": Streams(config.seed).integer(f"online/{number}") % 2**62,
            "run": config.run.model_copy(update=alone),
            "env": config.env.model_copy(update={"reward": NO_TERMS}) if config.env.market is not None else config.env,
            "evaluate": config.evaluate.model_copy(update={"every": None, "patience": None}),
            "learner": config.learner.model_copy(update=plain),
            "notify": NotifyConfig(),
        }
    )


def deployed_segments(trainer: Trainer, world: NewestBars | Any) -> list[Segment]:
    """What the policy in `trainer` does on the bars of `world`, in their order, with sampled actions: as many accounts
    as training has, each from the first bar, in segments as long as a rollout; what is left over is not used."""
    run = trainer.config.run
    alone = world.episodes(1)
    driver = world.side_by_side(-(-run.environments // alone)).eval_env("train", episodes=1, seed=trainer.config.seed)
    driver.reset()
    bars = min(len(one.close) - 1 - one.first_valid for one in world.dataset.train_tables(together=world.portfolio))
    if bars < run.rollout_steps:
        raise ConfigError(
            f"the newest bars of a training have {bars} decisions, and one rollout of this run has "
            f"{run.rollout_steps}; give a larger --learning window."
        )
    collector = Collector(driver, trainer.backend, trainer.streams, steps=run.rollout_steps)
    segments = list(collect(collector, bars // run.rollout_steps))
    driver.close()
    check_order(segments)
    for one in segments:
        one.check(trainer.backend)
    return segments

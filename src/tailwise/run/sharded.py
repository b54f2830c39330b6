"""A run in shards: several groups of its environments, played by one process or by the ranks of torchrun.

Every process has the whole learner. It plays the environments of its own shards; then all have the whole rollout, and
learn from it in step with one another, each making the gradients of its own shards (`learner/shards.py`). What a rank
besides the first does, the first one orders (`follower.py`); both run the same code here, and the first one alone
steers, evaluates and writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.backend import Backend, Knobs, UpdateReport
from tailwise.learner.rollout import Past, Rollout, side_by_side
from tailwise.learner.shards import OneProcess, Shards
from tailwise.run.collector import AGE, PAST_REWARD, STATE, Collector, check_carried
from tailwise.run.envs import Driver
from tailwise.run.health.probes import StepFacts
from tailwise.run.seeded_envs import RestoreReport
from tailwise.run.worlds import World


class Group(Shards, Protocol):
    """The processes that share the shards of a run. words: how many they are and how they talk; None: one alone."""

    @property
    def words(self) -> str | None: ...

    def order(self, name: str, *arguments: Any) -> None:
        """Tell the other ranks what this one does next; nothing on those that follow."""

    def share_learner(self, backend: Backend) -> None:
        """Give the learner of the first rank to all others."""

    def check_learner(self, backend: Backend) -> None:
        """Raise unless all ranks have the same learner, to the last bit."""


class Alone(OneProcess):
    """One process with all shards: there is nobody to tell anything."""

    words: str | None = None

    def order(self, name: str, *arguments: Any) -> None:
        """See `Group.order`."""

    def share_learner(self, backend: Backend) -> None:
        """See `Group.share_learner`."""

    def check_learner(self, backend: Backend) -> None:
        """See `Group.check_learner`."""


class Collecting(Protocol):
    """What a trainer asks of its collector; see `Collector`."""

    facts: StepFacts
    broken_off: bool

    @property
    def past(self) -> Past | None: ...

    @property
    def state_is_finite(self) -> bool: ...

    def collect(self, update: int) -> tuple[Rollout, int]: ...

    def forget(self) -> None: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def check(self, tensors: Mapping[str, Tensor]) -> None: ...

    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


def training_driver(world: World, group: Group) -> Driver:
    """The environments of a run, whole or in shards."""
    return world.training() if group.count == 1 else ShardedDriver(world, group)


def make_collector(
    driver: Any, backend: Backend, streams: Streams, group: Group, *, steps: int, history: int
) -> Collecting:
    """The collector for what `training_driver` gave."""
    make = Collector if group.count == 1 else ShardedCollector
    collector: Collecting = make(driver, backend, streams, steps=steps, history=history)
    return collector


def learn(group: Group, backend: Backend, rollout: Rollout, knobs: Knobs) -> UpdateReport:
    """One update, on every rank."""
    group.order("learn", knobs, backend.config)
    report = backend.update(rollout, knobs)
    group.check_learner(backend)
    return report


class ShardedDriver:
    """The drivers of this process's shards, with what all shards together say; see `Driver`."""

    def __init__(self, world: World, group: Group) -> None:
        run = world.config.run
        group.order("begin", world.config)
        self.group, self.num_envs = group, run.environments
        self.size = run.environments // run.shards  # environments of a shard
        self.drivers = [world.training(range(k * self.size, (k + 1) * self.size)) for k in group.mine]
        first = self.drivers[0]
        self.venv, self.spaces = first.venv, first.spaces
        self.exact_resume, self.exact_resume_reason = first.exact_resume, first.exact_resume_reason
        self.finished: list[tuple[float, int]] = []  # episodes that ended in the newest rollout, shard by shard

    @property
    def mask(self) -> Any:
        """Of the first own shard."""
        return self.drivers[0].mask

    def reset(self) -> None:
        """See `EnvDriver.reset`."""
        self.group.order("reset")
        for driver in self.drivers:
            driver.reset()

    def pop_episodes(self) -> list[tuple[float, int]]:
        """See `EnvDriver.pop_episodes`."""
        finished, self.finished = self.finished, []
        return finished

    def get_state(self) -> dict[str, Any]:
        """Of all shards, by their numbers."""
        self.group.order("get_state")
        states = self.group.exchange([driver.get_state() for driver in self.drivers])
        return {str(shard): state for shard, state in enumerate(states)}

    def set_state(self, state: Mapping[str, Any]) -> RestoreReport:
        """See `EnvDriver.set_state`; exact where it is in every shard."""
        self.group.order("set_state", state)
        mine = [
            driver.set_state(state[str(shard)]) for shard, driver in zip(self.group.mine, self.drivers, strict=True)
        ]
        reports = self.group.exchange([RestoreReport(one.exact, one.reason) for one in mine])
        return next((one for one in reports if not one.exact), reports[0])

    def close(self) -> None:
        """Close the environments of this process."""
        for driver in self.drivers:
            driver.close()


@dataclass(frozen=True)
class _Collected:
    """What the rollout of one shard brought; carried: `Collector.tensors` after it."""

    rollout: Rollout
    anomalies: int
    facts: StepFacts
    finished: list[tuple[float, int]]
    carried: dict[str, Tensor]


class ShardedCollector:
    """The collectors of this process's shards; their rollouts become one on every rank. See `Collector`."""

    def __init__(
        self, driver: ShardedDriver, backend: Backend, streams: Streams, *, steps: int, history: int = 0
    ) -> None:
        self.driver, self.backend, self.group = driver, backend, driver.group
        self.collectors = [
            Collector(one, backend, streams, steps=steps, history=history, first_environment=shard * driver.size)
            for shard, one in zip(self.group.mine, driver.drivers, strict=True)
        ]
        self.facts = StepFacts()
        self.broken_off = False
        self._carried = [self.collectors[0].tensors()] * self.group.count  # of all shards

    @property
    def past(self) -> Past | None:
        """Of the first own shard."""
        return self.collectors[0].past

    @property
    def state_is_finite(self) -> bool:
        """See `Collector.state_is_finite`."""
        return all(bool(torch.isfinite(one[STATE]).all()) for one in self._carried)

    def collect(self, update: int) -> tuple[Rollout, int]:
        """See `Collector.collect`."""
        self.group.order("collect", update)
        self.group.share_learner(self.backend)
        self.broken_off = True
        mine = []
        for one in self.collectors:
            rollout, anomalies = one.collect(update)
            mine.append(_Collected(rollout, anomalies, one.facts, one.driver.pop_episodes(), one.tensors()))
        every = self.group.exchange(mine)
        self.facts = StepFacts.of_all([one.facts for one in every])
        self.driver.finished += [episode for one in every for episode in one.finished]
        self._carried = [one.carried for one in every]
        self.broken_off = False
        return side_by_side([one.rollout for one in every]), sum(one.anomalies for one in every)

    def forget(self) -> None:
        """See `Collector.forget`."""
        self.group.order("forget")
        for one in self.collectors:
            one.forget()
        fresh = self.collectors[0].state
        self._carried = [{**carried, STATE: fresh} for carried in self._carried]

    def tensors(self) -> dict[str, Tensor]:
        """See `Collector.tensors`: of all shards, as if they were one."""
        return {name: torch.cat([one[name] for one in self._carried], _along(name)) for name in self._carried[0]}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Collector.check`."""
        check_carried(self.tensors(), tensors)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Collector.load`."""
        carried = {name: tensors[name] for name in self._carried[0] if name in tensors}
        self.group.order("load", carried)
        parts = {name: tensor.chunk(self.group.count, _along(name)) for name, tensor in carried.items()}
        own = [{name: part[shard].clone() for name, part in parts.items()} for shard in range(self.group.count)]
        for shard, collector in zip(self.group.mine, self.collectors, strict=True):
            collector.load(own[shard])
        self._carried = [{**before, **after} for before, after in zip(self._carried, own, strict=True)]


def _along(name: str) -> int:
    """The axis of environments."""
    return {STATE: 0, PAST_REWARD: 1, AGE: 0}[name]


def learner_tensors(backend: Backend) -> dict[str, Tensor]:
    """Everything that an update changes: weights, normaliser and return scale, and the optimiser's state."""
    return {**{f"model/{k}": v for k, v in backend.model.state_dict().items()}, **backend.optimiser.tensors()}


def load_learner(backend: Backend, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `learner_tensors`."""
    model = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    backend.model.load_state_dict(model)
    backend.optimiser.load({name: tensor for name, tensor in tensors.items() if name.startswith("optimiser/")})


def shares_of(count: int, ranks: int) -> Sequence[range]:
    """The shards of each rank."""
    each = count // ranks
    return [range(rank * each, (rank + 1) * each) for rank in range(ranks)]

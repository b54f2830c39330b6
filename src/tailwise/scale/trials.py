"""Random search, grid search and proposals of a model: independent trainings, of which the worse half is ended early.

Trials are trained in rounds, a round in parts. After each part a trial goes on only while it is not worse than the
median of all trials at that part, those of earlier rounds included. Steps of all rounds form one list, from which
everything follows; the rounds do not depend on how many jobs run side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import Field

from tailwise.core.config import Section
from tailwise.core.errors import ConfigError
from tailwise.scale.population import Draws, Measured, Member, Ranking, Step, Trained
from tailwise.scale.space import Space, Value

MOST_TRIALS = 10_000


class TrialSettings(Section):
    """Settings of searches whose trainings are independent."""

    trials: int = Field(16, ge=1, le=MOST_TRIALS, description="trainings; of a grid, as many as it has points")
    round: int = Field(4, ge=1, le=1000, description="trials that are begun together; proposals follow earlier rounds")
    generations: int = Field(5, ge=1, le=1000, description="parts of a training, after each of which trials may end")
    prune: bool = Field(True, description="end trials that are worse than the median of their part")
    points: int = Field(3, ge=2, le=100, description="values of a range in a grid")


class Proposer(Protocol):
    """Says which values the trials of a round have."""

    @property
    def name(self) -> str:
        """Of the search."""

    @property
    def exact(self) -> bool:
        """Whether another machine proposes the same to the last digit."""

    def propose(self, first: int, count: int, ended: Sequence[Trained]) -> list[dict[str, Value]]:
        """Values of `count` trials from number `first` on. ended: earlier trials with their last results."""


@dataclass(frozen=True)
class RandomProposer:
    """Draws every value by itself, evenly on its scale."""

    space: Space
    seed: int
    name: str = "random"
    exact: bool = True

    def propose(self, first: int, count: int, ended: Sequence[Trained]) -> list[dict[str, Value]]:
        return [self._drawn(first + place) for place in range(count)]

    def _drawn(self, number: int) -> dict[str, Value]:
        levels = Draws(self.seed).levels("random", generation=0, member=number, count=len(self.space.entries))
        return {key: entry.at(level) for (key, entry), level in zip(self.space, levels, strict=True)}


@dataclass(frozen=True)
class GridProposer:
    """Every combination of the values of a grid, the last key fastest."""

    space: Space
    points: int
    name: str = "grid"
    exact: bool = True

    @property
    def combinations(self) -> int:
        """How many there are."""
        count = 1
        for _, entry in self.space:
            count *= len(entry.grid(self.points))
        return count

    def propose(self, first: int, count: int, ended: Sequence[Trained]) -> list[dict[str, Value]]:
        keys = [key for key, _ in self.space]
        points = itertools.product(*(entry.grid(self.points) for _, entry in self.space))
        return [dict(zip(keys, point, strict=True)) for point in itertools.islice(points, first, first + count)]


@dataclass(frozen=True)
class ToldProposer:
    """Proposes what was written down."""

    values: Sequence[dict[str, Value]]
    name: str = "told"
    exact: bool = True

    def propose(self, first: int, count: int, ended: Sequence[Trained]) -> list[dict[str, Value]]:
        return list(self.values[:count])


def checked_grid(space: Space, settings: TrialSettings) -> TrialSettings:
    """The settings with as many trials as the grid has points."""
    combinations = GridProposer(space, settings.points).combinations
    if combinations > MOST_TRIALS:
        raise ConfigError(
            f"the grid has {combinations:,} points; at most {MOST_TRIALS:,} are trained: lower --points, or use "
            "--search random."
        )
    return settings.model_copy(update={"trials": combinations})


@dataclass(frozen=True)
class TrialSearch:
    """The search. seed: of all runs: what differs between trials are their values."""

    settings: TrialSettings
    proposer: Proposer
    ranking: Ranking
    seed: int

    def plan(self) -> dict[str, Any]:
        return {"search": self.proposer.name, **self.settings.model_dump(mode="json")}

    def size(self) -> str:
        return f"{self.settings.trials} trials"

    def next(self, done: Sequence[Step]) -> tuple[Member, ...]:
        if done:
            part = done[-1][0].member.generation + 1
            alive = self._alive(done) if part < self.settings.generations else []
            if alive:
                return tuple(self._part(one.member, part) for one in alive)
        first = self._begun(done)
        count = min(self.settings.round, self.settings.trials - first)
        if count <= 0:
            return ()
        proposed = self.proposer.propose(first, count, self._ended(done))
        return tuple(
            Member(number=first + place, generation=0, folder=folder_of(first + place), seed=self.seed, values=values)
            for place, values in enumerate(proposed)
        )

    def follows(self, members: Sequence[Member], done: Sequence[Step]) -> bool:
        """A model fitted elsewhere may differ in the last digits: what it proposed is taken as it stands."""
        told = self if self.proposer.exact else replace(self, proposer=ToldProposer([one.values for one in members]))
        return tuple(members) == told.next(done)

    def _part(self, member: Member, part: int) -> Member:
        return member.model_copy(update={"generation": part, "parent": member.number})

    def _begun(self, done: Sequence[Step]) -> int:
        return sum(len(step) for step in done if step[0].member.generation == 0)

    def _alive(self, done: Sequence[Step]) -> list[Trained]:
        """Of the newest step, those that go on: failed ones never do."""
        step = done[-1]
        going = [one for one in step if one.measured.smoothed is not None]
        if not self.settings.prune:
            return going
        part = step[0].member.generation
        keys = sorted(
            self.ranking.key(one.measured) for other in done for one in other if one.member.generation == part
        )
        median = keys[len(keys) // 2]
        return [one for one in going if self.ranking.key(one.measured) >= median]

    def _ended(self, done: Sequence[Step]) -> list[Trained]:
        """All trials with their last results, in the order of their numbers."""
        last = {one.member.number: one for step in done for one in step}
        return [last[number] for number in sorted(last)]

    def smooth(self, member: Member, measured: Measured, done: Sequence[Step]) -> Measured:
        """As it is: each trial is compared at the same part of its training."""
        return measured.model_copy(update={"smoothed": measured.value, "smoothed_tail": measured.tail})

    def finalists(self, done: Sequence[Step]) -> Step:
        last = self.settings.generations - 1
        return [one for step in done for one in step if one.member.generation == last]


def folder_of(number: int) -> str:
    """Name of the run folder of a trial."""
    return f"trial-{number:04d}"

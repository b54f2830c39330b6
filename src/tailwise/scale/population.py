"""Members of a population, what became of them, and how they are ranked. A search decides from these records alone.

A search is a pure function of the steps that are done: asked again after a kill, it gives the same next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from tailwise.core.parsing import Stored
from tailwise.core.streams import Streams
from tailwise.scale.space import Value


class Member(Stored):
    """One training of one step, planned. What it becomes depends on this record and on the folder it begins from.

    number       of the member in the population, or of the trial
    generation   how many parts of the training come before this one
    folder       of its run, below that of the search
    seed         of the run; a copy has its donor's, and differs from it in its values alone
    values       of the searched keys
    begins       folder of the run whose newest checkpoint it begins from; None: from the beginning, or where it is
    parent       number of the member whose state that is; None in the first generation
    copied       whether it was replaced by that member
    """

    number: int = Field(ge=0)
    generation: int = Field(ge=0)
    folder: str = Field(pattern=r"^[a-z0-9-]{1,40}$")
    seed: int = Field(ge=0)
    values: dict[str, Value]
    begins: str | None = Field(None, pattern=r"^[a-z0-9-]{1,40}$")
    parent: int | None = None
    copied: bool = False

    @property
    def label(self) -> str:
        return f"generation {self.generation}, member {self.number}"


class Measured(Stored):
    """What a training came to on the select window, or on the seeded episodes of selection.

    steps      environment steps behind it
    value      log-return per year of a market, mean over its accounts; else mean return of an episode. None: it failed
    tail       measure of `risk.limit` on what was realised; None where nothing is as long as the horizon, or no tail
               is measured
    error      standard error of value, over the bars of the window or over the episodes; None where it has none
    freedom    degrees of freedom of error; None where there is none
    smoothed   value, and smoothed_tail: tail, averaged over the generations of its lineage
    failed     why it has no value, a sentence
    weights    sha256 of the policy's tensors
    checkpoint name of the checkpoint that was judged
    """

    steps: int = Field(ge=0)
    value: float | None
    tail: float | None
    error: float | None = None
    freedom: int | None = Field(default=None, ge=1)
    smoothed: float | None = None
    smoothed_tail: float | None = None
    failed: str | None = None
    weights: str | None = None
    checkpoint: str | None = None


class Trained(Stored):
    """A member and what became of it."""

    member: Member
    measured: Measured


Step = Sequence[Trained]  # in the order of the members' numbers


@dataclass(frozen=True)
class Ranking:
    """The order of results: first those that keep the limit, by their value; then the others, by their tail.

    limit: lowest allowed tail, reward units; None without one. Smoothed numbers count.
    """

    limit: float | None = None

    def keeps(self, one: Measured) -> bool | None:
        """Whether the limit is kept; None without one. A tail that could not be measured keeps none."""
        if self.limit is None:
            return None
        return one.smoothed_tail is not None and one.smoothed_tail >= self.limit

    def key(self, one: Measured) -> tuple[int, float]:
        """Larger is better."""
        if one.smoothed is None:
            return (0, 0.0)
        if self.keeps(one) is False:
            return (1, 0.0) if one.smoothed_tail is None else (2, one.smoothed_tail)
        return (3, one.smoothed)

    def worst_first(self, step: Step) -> list[Trained]:
        """Members of a step, ties by their numbers."""
        return sorted(step, key=lambda one: (*self.key(one.measured), one.member.number))

    def best(self, step: Step) -> Trained | None:
        """The best member, of several equal ones the first; None when all failed."""
        alive = [one for one in step if one.measured.smoothed is not None]
        return max(alive, key=lambda one: (*self.key(one.measured), -one.member.number), default=None)


class Search(Protocol):
    """Decides what is trained next."""

    def plan(self) -> dict[str, Any]:
        """All that its decisions follow from beside the results, as JSON values."""

    def size(self) -> str:
        """How many trainings there are, in words."""

    def next(self, done: Sequence[Step]) -> tuple[Member, ...]:
        """The members of the step after those that are done; none when the search is over."""

    def follows(self, members: Sequence[Member], done: Sequence[Step]) -> bool:
        """Whether a step that was written down can be the one after those that are done."""

    def smooth(self, member: Member, measured: Measured, done: Sequence[Step]) -> Measured:
        """The result with its smoothed numbers, which decisions follow."""

    def finalists(self, done: Sequence[Step]) -> Step:
        """The members that were trained to the end, among which the best one is chosen."""


@dataclass(frozen=True)
class Draws:
    """Random numbers addressed by (seed, purpose, generation, member): no draw depends on who was trained before."""

    seed: int
    streams: Streams = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", Streams(self.seed))

    def levels(self, purpose: str, *, generation: int, member: int, count: int) -> list[float]:
        """So many numbers in (0, 1)."""
        drawn = self.streams.uniforms(
            f"tune/{purpose}", update=generation, environments=np.array([member]), steps=1, draws=count
        )
        return [float(level) for level in drawn[0, 0]]


def newest(step: Step) -> dict[int, Trained]:
    """The members of a step by number."""
    return {one.member.number: one for one in step}

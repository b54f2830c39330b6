"""Population-based training by generations, as a pure function of (seed, generation, scores).

After each generation the worst fifth takes over everything of a member from the best fifth, then moves to other
hyperparameters; arXiv 1711.09846. A member that failed (its numbers broke, a health rule stopped it) is replaced too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from tailwise.core.config import Section
from tailwise.core.errors import ConfigError, DataError
from tailwise.run.config import Config
from tailwise.run.controllers import KEYS
from tailwise.scale.population import Draws, Measured, Member, Ranking, Step, Trained, newest
from tailwise.scale.space import Space, Value, Values


class PbtSettings(Section):
    """Settings of population-based training."""

    population: int = Field(8, ge=2, le=1000, description="members")
    generations: int = Field(10, ge=1, le=1000, description="parts of a training, with an exploit between two")
    share: float = Field(0.2, ge=0, le=0.5, description="worst members that are replaced by the best; 0: none")
    resample: float = Field(0.25, ge=0, le=1, description="probability that a value is drawn anew, not multiplied")
    up: float = Field(1.2, gt=1, le=10, description="factor that raises a value")
    down: float = Field(0.8, gt=0, lt=1, description="factor that lowers a value")
    optimiser: Literal["copy", "reset"] = Field("copy", description="what a copy does with its donor's moments")
    memory: float = Field(0.3, ge=0, lt=1, description="share of the earlier scores of a lineage in its smoothed score")

    @property
    def replaced(self) -> int:
        """Members that are replaced after a generation: at least one, none for share 0."""
        return max(1, int(self.share * self.population)) if self.share > 0 else 0


def check_changeable(space: Space, config: Config) -> None:
    """Raise for a key whose value cannot change while a run goes on."""
    fixed = [key for key, _ in space if key not in KEYS]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} cannot change while a run goes on, and population-based training changes values "
            f"between generations; leave it out, or use --search random, grid or optuna. What can change: "
            f"{', '.join(sorted(KEYS))}."
        )


@dataclass(frozen=True)
class PopulationBasedTraining:
    """The search. seed: of its draws, and of the first member's run."""

    settings: PbtSettings
    space: Space
    ranking: Ranking
    seed: int

    def plan(self) -> dict[str, Any]:
        return {"search": "pbt", **self.settings.model_dump(mode="json")}

    def size(self) -> str:
        return f"{self.settings.population} members"

    def next(self, done: Sequence[Step]) -> tuple[Member, ...]:
        generation = len(done)
        if generation == self.settings.generations:
            return ()
        if not done:
            return tuple(self._first(number) for number in range(self.settings.population))
        before = newest(done[-1])
        donors = self._donors(done[-1], generation)
        return tuple(
            self._copy(number, donors[number], generation)
            if number in donors
            else self._goes_on(before[number].member, generation)
            for number in range(self.settings.population)
        )

    def follows(self, members: Sequence[Member], done: Sequence[Step]) -> bool:
        return tuple(members) == self.next(done)

    def _first(self, number: int) -> Member:
        levels = Draws(self.seed).levels("first", generation=0, member=number, count=len(self.space.entries))
        values = {key: entry.at(level) for (key, entry), level in zip(self.space, levels, strict=True)}
        return Member(number=number, generation=0, folder=folder_of(0, number), seed=self.seed + number, values=values)

    def _goes_on(self, member: Member, generation: int) -> Member:
        return Member(
            number=member.number,
            generation=generation,
            folder=folder_of(generation, member.number),
            seed=member.seed,
            values=member.values,
            begins=member.folder,
            parent=member.number,
        )

    def _copy(self, number: int, donor: Member, generation: int) -> Member:
        return Member(
            number=number,
            generation=generation,
            folder=folder_of(generation, number),
            seed=donor.seed,
            values=self.explored(donor.values, generation=generation, member=number),
            begins=donor.folder,
            parent=donor.number,
            copied=True,
        )

    def _donors(self, step: Step, generation: int) -> dict[int, Member]:
        """Members that are replaced, and whose state they take over."""
        ranked = self.ranking.worst_first(step)
        alive = [one for one in ranked if one.measured.smoothed is not None]
        if not alive:
            reasons = "; ".join(f"member {one.member.number}: {one.measured.failed}" for one in step)
            raise DataError(f"every member of generation {generation - 1} failed ({reasons}); narrow the space.")
        count = self.settings.replaced
        best = alive[-max(1, count) :]
        replaced = [one for one in ranked if one.measured.smoothed is None]
        replaced += [one for one in alive[:count] if one not in best]
        donors = {}
        for one in replaced:
            (level,) = Draws(self.seed).levels("donor", generation=generation, member=one.member.number, count=1)
            donor = best[min(int(level * len(best)), len(best) - 1)]
            if self._better(donor, one):
                donors[one.member.number] = donor.member
        return donors

    def _better(self, donor: Trained, other: Trained) -> bool:
        """Of equal scores nobody is replaced: it would only make the population alike."""
        return self.ranking.key(donor.measured) > self.ranking.key(other.measured)

    def explored(self, values: Values, *, generation: int, member: int) -> dict[str, Value]:
        """The donor's values, each multiplied by one of two factors or drawn anew; within the bounds."""
        levels = Draws(self.seed).levels(
            "explore", generation=generation, member=member, count=3 * len(self.space.entries)
        )
        moved: dict[str, Value] = {}
        for place, (key, entry) in enumerate(self.space):
            anew, level, direction = levels[3 * place : 3 * place + 3]
            factor = self.settings.up if direction < 0.5 else self.settings.down
            moved[key] = entry.at(level) if anew < self.settings.resample else entry.moved(values[key], factor)  # type: ignore[arg-type]
        return moved

    def smooth(self, member: Member, measured: Measured, done: Sequence[Step]) -> Measured:
        """Averaged with the score of the member that it began from, so that a copy inherits its donor's."""
        earlier = None if member.parent is None else newest(done[-1])[member.parent].measured
        keep = self.settings.memory
        return measured.model_copy(
            update={
                "smoothed": _average(measured.value, None if earlier is None else earlier.smoothed, keep),
                "smoothed_tail": _average(measured.tail, None if earlier is None else earlier.smoothed_tail, keep),
            }
        )

    def finalists(self, done: Sequence[Step]) -> Step:
        return done[-1]


def _average(value: float | None, earlier: float | None, keep: float) -> float | None:
    """What is not there now is not made up from earlier."""
    return value if value is None or earlier is None else keep * earlier + (1.0 - keep) * value


def folder_of(generation: int, number: int) -> str:
    """Name of the run folder of a member."""
    return f"generation-{generation:03d}-member-{number:03d}"

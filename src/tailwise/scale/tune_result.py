"""What a search came to: the lineage with values and scores, the best member, its table and its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from scipy.stats import t as student

from tailwise.core.parsing import Stored
from tailwise.pages.population import Point
from tailwise.run.config import Words
from tailwise.scale.importance import rank_correlations
from tailwise.scale.population import Measured, Ranking, Step, Trained
from tailwise.scale.space import Range, Space, Value, Values

FILE = "tune.json"
CONFIDENCE = 0.95  # of the interval of a score


class TuneFile(Stored):
    """tune.json: the plan, and each step of the search, complete. best: folder of the best member, once it is over."""

    format: Literal[1]
    plan: dict[str, Any]
    steps: tuple[tuple[Trained, ...], ...] = Field(default=())
    best: str | None = None


@dataclass(frozen=True)
class TuneResult:
    """A search that is over.

    search       pbt, random, grid or optuna
    environment  where it trained
    words        for amounts
    ranking      how members were compared
    space        what was searched
    steps        everything that was trained, in order
    finalists    the members that were trained to the end
    best         the best of them; None when all failed
    configured   the configuration's own values of the searched keys, which no member need have
    facts        sentences about the search
    folder       where its files are
    """

    name: str
    search: str
    environment: str
    words: Words
    ranking: Ranking
    space: Space
    steps: Sequence[Step]
    finalists: Step
    best: Trained | None
    configured: Values
    facts: tuple[str, ...]
    folder: Path

    @property
    def best_run(self) -> Path | None:
        """The folder of the best member's run, which `tailwise.load` and `tailwise evaluate` open."""
        return None if self.best is None else self.folder / self.best.member.folder

    @property
    def trainings(self) -> int:
        """Members that were trained for a generation, each of which counts as a trial."""
        return sum(map(len, self.steps))

    @property
    def copies(self) -> list[Trained]:
        """Members that took over the state of another one."""
        return [one for step in self.steps for one in step if one.member.copied]

    @property
    def points(self) -> list[Point]:
        """The lineage for a picture."""
        ancestors = self._ancestors()
        return [
            Point(
                generation=one.member.generation,
                member=one.member.number,
                parent=one.member.parent,
                copied=one.member.copied,
                values=one.member.values,
                value=one.measured.value,
                kept=self.ranking.keeps(one.measured),
                ancestor=(one.member.generation, one.member.number) in ancestors,
            )
            for step in self.steps
            for one in step
        ]

    def _ancestors(self) -> set[tuple[int, int]]:
        """(generation, member) from the beginning to the best one."""
        if self.best is None:
            return set()
        known = {(one.member.generation, one.member.number): one.member for step in self.steps for one in step}
        path, at = set(), self.best.member
        while True:
            path.add((at.generation, at.number))
            if at.parent is None:
                return path
            at = known[at.generation - 1, at.parent]

    @property
    def logarithmic(self) -> list[str]:
        """Keys that are drawn on a logarithmic axis."""
        return [key for key, entry in self.space if isinstance(entry, Range) and entry.scale == "log"]

    def headings(self) -> list[str]:
        """Of `table`."""
        tail = ["tail", "limit"] if self.ranking.limit is not None else []
        return [
            "member",
            self.words.reward if self.words.percent else "return",
            "95%",
            *tail,
            *self.space.entries,
            "run",
        ]

    def table(self) -> list[list[str]]:
        """The members that were trained to the end, best first."""
        return [self._row(one) for one in reversed(self.ranking.worst_first(self.finalists))]

    def _row(self, one: Trained) -> list[str]:
        measured = one.measured
        tail = []
        if self.ranking.limit is not None:
            kept = self.ranking.keeps(measured)
            tail = [self.amount(measured.tail), "" if measured.value is None else "kept" if kept else "missed"]
        values = [shown(one.member.values[key]) for key in self.space.entries]
        value = "failed" if measured.value is None else self.amount(measured.value)
        return [str(one.member.number), value, self._interval(measured), *tail, *values, one.member.folder]

    def _interval(self, measured: Measured) -> str:
        """95% interval of a score by Student's law, over the bars of the window or over the episodes."""
        if measured.value is None or measured.error is None or measured.freedom is None:
            return "-"
        half = float(student.ppf(0.5 + CONFIDENCE / 2, measured.freedom)) * measured.error
        low, high = (self.amount(measured.value + side * half) for side in (-1, 1))
        return f"{low} to {high}"

    def amount(self, value: float | None) -> str:
        """A return or a tail with its unit."""
        return "-" if value is None else self.words.amount(value)

    def learnt(self) -> list[list[str]]:
        """By key: the configuration's value, the best member's, and how far the order of the members follows it."""
        best = {} if self.best is None else self.best.member.values
        importance = self.importance
        return [
            [
                key,
                shown(self.configured[key]) if key in self.configured else "-",
                shown(best[key]) if key in best else "-",
                f"{importance[key]:+.2f}" if key in importance else "-",
            ]
            for key in self.space.entries
        ]

    def verdict(self, run: str | None = None) -> list[str]:
        """What came out, and what it is not. run: what the best run is called; default: its path."""
        if self.best is None:
            return ["every member failed; narrow the space."]
        measured = self.best.measured
        assert measured.value is not None
        per = " per year" if self.words.percent else ""
        limit = ""
        if self.ranking.limit is not None:
            kept = "kept" if self.ranking.keeps(measured) else "missed"
            limit = f", tail {self.amount(measured.tail)}, limit {self.amount(self.ranking.limit)} {kept}"
        where = "the select window" if self.words.percent else "the episodes of selection"
        return [
            f"best: member {self.best.member.number} with {self.amount(measured.value)}{per} on {where}{limit}",
            f"{self.trainings} trainings were compared by that number, so it flatters the best one; tailwise evaluate "
            f"{run or self.best_run} tells what it does elsewhere",
            *self._learnt(),
        ]

    @property
    def importance(self) -> dict[str, float]:
        """How far the order of the members follows each value, -1 to 1; see `rank_correlations`."""
        return rank_correlations(self.steps, self.space.entries, self.ranking)

    def _learnt(self) -> list[str]:
        strongest = sorted(self.importance.items(), key=lambda item: -abs(item[1]))
        if not strongest:
            return []
        told = ", ".join(f"{key} {value:+.2f}" for key, value in strongest)
        return [f"rank correlation of a value with the score among members of one generation, mean over them: {told}"]

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `steps` as in tune.json."""
        return {
            "name": self.name,
            "search": self.search,
            "environment": self.environment,
            "limit": self.ranking.limit,
            "space": self.space.to_json(),
            "trainings": self.trainings,
            "importance": self.importance,
            "best": None if self.best is None else self.best.model_dump(mode="json"),
            "best_run": None if self.best_run is None else str(self.best_run),
            "steps": [[one.model_dump(mode="json") for one in step] for step in self.steps],
        }


def shown(value: Value) -> str:
    """A value of a key in a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

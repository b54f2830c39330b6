"""What the runs of a frontier come to: scores, bands over seeds, limits kept or missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SAMPLED, MOST_LIKELY = "sampled", "most likely"  # how actions are chosen; the limit speaks of sampled ones
CONFIDENCE = 0.95  # of the bands


@dataclass(frozen=True)
class Cell:
    """One run of a frontier; limit None is the unconstrained one."""

    limit: float | None
    seed: int

    @property
    def label(self) -> str:
        return f"{'unconstrained' if self.limit is None else f'limit {self.limit!r}'}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"{'unconstrained' if self.limit is None else f'limit_{self.limit!r}'}_seed_{self.seed}"


@dataclass(frozen=True)
class Score:
    """What one way of playing gave out of sample.

    mean_return  on a market log-return per year, mean over the accounts; elsewhere the mean discounted return of an
                 episode from its start, reward units
    cvar_return  CVaR of discounted returns over the horizon from every bar or step, all accounts and episodes pooled;
                 None when nothing is as long as the horizon
    cvar_bar     CVaR of log-returns per bar, or of rewards per step, pooled as well
    """

    mean_return: float
    cvar_return: float | None
    cvar_bar: float


@dataclass(frozen=True)
class Result:
    """One finished run, judged."""

    cell: Cell
    folder: str
    checkpoint: str
    steps: int
    ended: str  # why training ended, a sentence
    refused: bool  # it ended because too many updates in a row were refused
    updates: int
    limit_acted: bool | None  # whether the limit acted in any update; None without one
    scores: Mapping[str, Score]  # by how actions were chosen
    references: Mapping[str, Score]  # simple rules on the same bars; empty outside the market


@dataclass(frozen=True)
class Band:
    """Mean over seeds and half the width of its t interval (None with one seed); None of both when undefined."""

    mean: float | None
    half: float | None


@dataclass(frozen=True)
class Row:
    """One limit and one way of playing, over all seeds.

    kept: whether the mean of the realised tails is above the limit; seeds_kept: how many seeds kept it alone;
    seeds_acted: in how many of them the limit acted in training at all. None without a limit
    """

    limit: float | None
    played: str
    seeds: int
    mean_return: Band
    cvar_return: Band
    cvar_bar: Band
    kept: bool | None
    seeds_kept: int | None
    seeds_acted: int | None


def band(values: Sequence[float | None]) -> Band:
    """Mean of values, one per seed, with the half width of its 95% t interval."""
    known = np.array([value for value in values if value is not None])
    if len(known) < len(values):
        return Band(None, None)
    mean = float(known.mean())
    if len(known) == 1:
        return Band(mean, None)
    from scipy.stats import t

    error = float(known.std(ddof=1)) / len(known) ** 0.5
    return Band(mean, float(t.ppf(0.5 + CONFIDENCE / 2, len(known) - 1)) * error)


def summarise(results: Sequence[Result]) -> list[Row]:
    """Two rows per limit, unconstrained first and then from the loosest limit to the tightest."""
    limits = sorted({one.cell.limit for one in results}, key=lambda x: float("-inf") if x is None else x)
    return [_row(limit, played, results) for limit in limits for played in (SAMPLED, MOST_LIKELY)]


def _row(limit: float | None, played: str, results: Sequence[Result]) -> Row:
    chosen = [one for one in results if one.cell.limit == limit]
    scores = [one.scores[played] for one in chosen]
    tail = band([score.cvar_return for score in scores])
    kept, seeds_kept = None, None
    if limit is not None and tail.mean is not None:
        kept = tail.mean >= limit
        seeds_kept = sum(score.cvar_return is not None and score.cvar_return >= limit for score in scores)
    return Row(
        limit,
        played,
        len(scores),
        band([score.mean_return for score in scores]),
        tail,
        band([score.cvar_bar for score in scores]),
        kept,
        seeds_kept,
        None if limit is None else sum(one.limit_acted is True for one in chosen),
    )


@dataclass(frozen=True)
class Frontier:
    """What a frontier comes to: all that is printed, drawn and kept.

    name          of the page
    environment   its id, or the symbols of a market
    label         "real", or what synthetic bars are; empty outside the market
    market        whether returns are log-returns; elsewhere they have the unit of the reward
    alpha         tail probability
    gamma         discount per bar or step
    horizon       bars or steps over which a discounted return is realised
    episodes      played per run; None on a market, whose test window is played whole
    facts         sentences: what was trained on what
    results       every run, judged
    folder        where the files lie; not in them
    """

    name: str
    environment: str
    label: str
    market: bool
    alpha: float
    gamma: float
    horizon: int
    episodes: int | None
    facts: tuple[str, ...]
    results: tuple[Result, ...]
    folder: Path | None = None

    @property
    def rows(self) -> list[Row]:
        """Two per limit, one for each way of playing, over all seeds."""
        return summarise(self.results)

    @property
    def references(self) -> Mapping[str, Score]:
        """Simple rules on the same bars, by name."""
        return self.results[0].references

    @property
    def seeds(self) -> list[int]:
        return sorted({one.cell.seed for one in self.results})

    @property
    def refused(self) -> bool:
        """Whether a training ended because too many updates in a row were refused."""
        return any(one.refused for one in self.results)

    def to_json(self) -> dict[str, Any]:
        """What frontier.json holds."""
        parts = asdict(self)
        parts.pop("folder")
        runs = parts.pop("results")
        for run in runs:
            run |= run.pop("cell")
            run.pop("references")
        return {
            "format": 1,
            **parts,
            "confidence": CONFIDENCE,
            "seeds": self.seeds,
            "rows": [asdict(row) for row in self.rows],
            "references": {name: asdict(score) for name, score in self.references.items()},
            "runs": runs,
        }

"""What the runs of a frontier come to: scores, bands over seeds, limits kept or missed; its tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.evaluate.words import limit_word, percent

SAMPLED, MOST_LIKELY = "sampled", "most likely"  # how actions are chosen; the limit speaks of sampled ones
CONFIDENCE = 0.95  # of the bands
HOW = {SAMPLED: "sampled actions", MOST_LIKELY: "the most likely action"}
UNCONSTRAINED = "unconstrained"


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
    if any(value is None for value in values):
        return Band(None, None)
    scores = np.array(values, dtype=np.float64)
    mean = float(scores.mean())
    if len(scores) == 1:
        return Band(mean, None)
    from scipy.stats import t

    error = float(scores.std(ddof=1)) / len(scores) ** 0.5
    return Band(mean, float(t.ppf(0.5 + CONFIDENCE / 2, len(scores) - 1)) * error)


def summarise(results: Sequence[Result]) -> list[Row]:
    """Two rows per limit, unconstrained first and then from the loosest limit to the tightest."""
    limits = sorted({one.cell.limit for one in results}, key=lambda x: float("-inf") if x is None else x)
    return [_row(limit, played, results) for limit in limits for played in (SAMPLED, MOST_LIKELY)]


def _row(limit: float | None, played: str, results: Sequence[Result]) -> Row:
    runs = [one for one in results if one.cell.limit == limit]
    scores = [one.scores[played] for one in runs]
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
        None if limit is None else sum(one.limit_acted is True for one in runs),
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


def format_value(value: float | None, frontier: Frontier, digits: int = 1) -> str:
    """A return or a tail: percent on a market, reward units elsewhere."""
    if frontier.market:
        return percent(value, digits)
    return "-" if value is None else f"{value:.4g}"


def format_band(one: Band, frontier: Frontier, digits: int = 1) -> str:
    """Mean and half width of the interval."""
    half = "" if one.half is None else f" ± {format_value(one.half, frontier, digits)}"
    return format_value(one.mean, frontier, digits) + half


def format_limit(limit: float | None, frontier: Frontier) -> str:
    """A limit as it was given, not rounded."""
    if limit is None:
        return UNCONSTRAINED
    return f"{100 * limit:g}%" if frontier.market else f"{limit:g}"


def headings(frontier: Frontier) -> tuple[str, ...]:
    """Titles of the columns with their units."""
    unit = "bars" if frontier.market else "steps"
    tail = f"{100 * frontier.alpha:g}%"
    return (
        "limit",
        "log-return per year" if frontier.market else "mean discounted return",
        f"CVaR {tail}, {frontier.horizon} {unit}",
        f"CVaR {tail}, {'bar' if frontier.market else 'step'}",
        "limit kept",
    )


def table_rows(frontier: Frontier, played: str) -> list[tuple[str, ...]]:
    """Cells of the table of one way of playing: a row per limit, then the rules."""
    rows: list[tuple[str, ...]] = [
        (
            format_limit(row.limit, frontier),
            format_band(row.mean_return, frontier),
            format_band(row.cvar_return, frontier),
            format_band(row.cvar_bar, frontier, 2),
            verdict(row),
        )
        for row in frontier.rows
        if row.played == played
    ]
    for name, score in frontier.references.items():
        means = (score.mean_return, score.cvar_return)
        cells = [format_value(value, frontier) for value in means]
        rows.append((name, *cells, format_value(score.cvar_bar, frontier, 2), ""))
    return rows


def title(played: str) -> str:
    """How actions were chosen, as a heading."""
    return f"{HOW[played][0].upper()}{HOW[played][1:]}"


def verdict(row: Row) -> str:
    """Kept or missed by the mean over seeds, by how many seeds alone, and whether the limit acted in all of them."""
    if row.limit is None:
        return ""
    if row.kept is None:
        return "not measured"
    word = limit_word(row.kept, bool(row.seeds_acted))
    if row.seeds == 1 or not row.seeds_acted:
        return word
    acted = "" if row.seeds_acted == row.seeds else f"; it acted in {row.seeds_acted}"
    return f"{word}, {row.seeds_kept} of {row.seeds}{acted}"


def headline(frontier: Frontier) -> list[str]:
    """What came of the limits, a sentence for each way of playing, and what they cost where both can be measured."""
    sentences = []
    for played in (SAMPLED, MOST_LIKELY):
        rows = [row for row in frontier.rows if row.played == played]
        limited = [row for row in rows if row.limit is not None]
        if not limited:
            continue
        words = ", ".join(f"{format_limit(row.limit, frontier)} {verdict(row)}" for row in limited)
        sentences.append(f"{title(played)}: limit {words}{_cost(rows, limited, frontier)}.")
    return sentences


def _cost(rows: Sequence[Row], limited: Sequence[Row], frontier: Frontier) -> str:
    """What the tightest limit took of the mean return, with both means; nothing where one of them is missing."""
    free = next((row.mean_return.mean for row in rows if row.limit is None), None)
    tightest = max(limited, key=lambda row: row.limit if row.limit is not None else -math.inf)
    if free is None or tightest.mean_return.mean is None or not tightest.seeds_acted:
        return ""
    return (
        f"; {headings(frontier)[1]} {format_value(tightest.mean_return.mean, frontier)} at the tightest, "
        f"{format_value(free, frontier)} without a limit"
    )


def legend(frontier: Frontier) -> list[str]:
    """What the numbers mean, a sentence each."""
    where = (
        "the test window, played whole, after all costs"
        if frontier.market
        else f"{frontier.episodes:,} seeded test episodes per run"
    )
    pooled = "every bar of every account" if frontier.market else "every step of every episode whose future is known"
    what = "log-return" if frontier.market else "reward"
    seeds = len(frontier.seeds)
    bands = (
        "One seed: there is no band, and what another seed would give is unknown."
        if seeds == 1
        else f"± is the half width of the {100 * CONFIDENCE:g}% t interval of the mean over {seeds} seeds. Kept or "
        "missed is said of the mean; beside it, how many seeds kept the limit alone."
    )
    single = "bars" if frontier.market else "steps"
    return [
        f"Out of sample: {where}; the newest checkpoint of each run.",
        f"The limit speaks of the gamma {frontier.gamma:g} discounted {what} over the next {frontier.horizon} "
        f"{single}, pooled from {pooled}: the mean of its worst {100 * frontier.alpha:g}% is to stay above it. The "
        f"other CVaR is that of single {single}.",
        "Training constrains the policy that samples its actions; the most likely action is another policy.",
        bands,
    ]


def warnings_about(frontier: Frontier) -> list[str]:
    """Sentences about runs and numbers that are not what they should be."""
    sentences = [f"{one.cell.label}: {one.ended}" for one in frontier.results if one.refused]
    idle = [one for one in frontier.results if one.limit_acted is False]
    if idle:
        labels = "; ".join(one.cell.label for one in idle)
        limited = [one for one in frontier.results if one.cell.limit is not None]
        sentences.append(
            f"The limit never acted in {len(idle)} of {len(limited)} runs that have one ({labels}): training ended "
            f"within the warm-up, after {max(one.updates for one in idle)} updates, so that they follow the mean "
            "alone; train longer (risk.warmup says when a limit begins)."
        )
    if any(row.cvar_return.mean is None for row in frontier.rows):
        sentences.append(
            f"Episodes are cut before {frontier.horizon} steps, the horizon of gamma {frontier.gamma:g}, so that no "
            "return over it is known: the tail is not measured; lower learner.gamma or lengthen the episodes."
        )
    return sentences

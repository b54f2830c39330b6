"""The frontier in words: cells of its tables, what its numbers mean, and what is wrong with a run."""

from __future__ import annotations

from tailwise.evaluate.frontier_result import CONFIDENCE, MOST_LIKELY, SAMPLED, Band, Frontier, Row
from tailwise.evaluate.words import limit_word, percent

HOW = {SAMPLED: "sampled actions", MOST_LIKELY: "the most likely action"}
UNCONSTRAINED = "unconstrained"


def shown(value: float | None, frontier: Frontier, digits: int = 1) -> str:
    """A return or a tail: percent on a market, reward units elsewhere."""
    if frontier.market:
        return percent(value, digits)
    return "-" if value is None else f"{value:.4g}"


def shown_band(one: Band, frontier: Frontier, digits: int = 1) -> str:
    """Mean and half width of the interval."""
    half = "" if one.half is None else f" ± {shown(one.half, frontier, digits)}"
    return shown(one.mean, frontier, digits) + half


def shown_limit(limit: float | None, frontier: Frontier) -> str:
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
            shown_limit(row.limit, frontier),
            shown_band(row.mean_return, frontier),
            shown_band(row.cvar_return, frontier),
            shown_band(row.cvar_bar, frontier, 2),
            verdict(row),
        )
        for row in frontier.rows
        if row.played == played
    ]
    rows += [
        (
            name,
            shown(score.mean_return, frontier),
            shown(score.cvar_return, frontier),
            shown(score.cvar_bar, frontier, 2),
            "",
        )
        for name, score in frontier.references.items()
    ]
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
    found = [f"{one.cell.label}: {one.ended}" for one in frontier.results if one.refused]
    idle = [one for one in frontier.results if one.limit_acted is False]
    if idle:
        labels = "; ".join(one.cell.label for one in idle)
        limited = [one for one in frontier.results if one.cell.limit is not None]
        found.append(
            f"The limit never acted in {len(idle)} of {len(limited)} runs that have one ({labels}): training ended "
            f"within the warm-up, after {max(one.updates for one in idle)} updates, so that they follow the mean "
            "alone; train longer (risk.warmup says when a limit begins)."
        )
    if any(row.cvar_return.mean is None for row in frontier.rows):
        found.append(
            f"Episodes are cut before {frontier.horizon} steps, the horizon of gamma {frontier.gamma:g}, so that no "
            "return over it is known: the tail is not measured; lower learner.gamma or lengthen the episodes."
        )
    return found

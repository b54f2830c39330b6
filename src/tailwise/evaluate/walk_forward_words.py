"""The verdict of a walk-forward in sentences, and the rows of its table, from its result alone."""

from __future__ import annotations

from collections.abc import Callable

from tailwise.evaluate.bootstrap import Interval
from tailwise.evaluate.judgement import ALWAYS_IN, POLICY
from tailwise.evaluate.walk_forward_result import FoldRow, StitchedPath, WalkForward
from tailwise.evaluate.words import NEVER_ACTED, chance, earned, limit_word, listed, percent, plain, reservations


def verdict(result: WalkForward) -> list[str]:
    """What was tested, whether it earns, against whom, after how many trials, how seeds differ, is the limit kept."""
    found = [_what(result)]
    for one in result.headlines:
        found += [_earns(result, one), _against(one), *_deflated(one), _odds(one)]
    found += [*_seeds(result), *_overfitting(result)]
    for one in result.headlines:
        if one.limit is not None:
            said = one.limit.sentence + (f" ({NEVER_ACTED})" if result.limit_acted(one) is False else "")
            found.append(f"{_of(result, one)}{said[0].upper() if not _of(result, one) else said[0]}{said[1:]}.")
    return found


def who(result: WalkForward) -> str:
    """Who decides in the headline."""
    if result.ensemble is None:
        return f"seed {result.seeds[0]}"
    verb = "voting" if result.ensemble.how == "vote" else "averaged"
    return f"{len(result.seeds)} seeds {verb}"


def headings(result: WalkForward) -> tuple[str, ...]:
    """Titles of the columns of `table_rows`, with their units."""
    tail = f"CVaR {100 * result.alpha:g}%, {result.horizon:,} bars"
    rule = _always_in(result.rows[0])
    return ("fold, seed", "test", "Sharpe", "total return", "worst drawdown", tail, "limit", f"{rule}: Sharpe / return")


def _always_in(row: FoldRow | StitchedPath) -> str:
    return next(rule for rule in ALWAYS_IN if rule in row.statistics)


def table_rows(result: WalkForward) -> list[list[str]]:
    """One row per fold and seed of each account, then the stitched paths."""
    found = []
    several = len(result.symbols) > 1
    for row in result.rows:
        speaker = "ensemble" if row.seed is None else f"seed {row.seed}"
        name = f"fold {row.fold}, {speaker}" + (f", {row.account}" if several else "")
        test = row.windows.test
        found.append(_line(name, test.first_bar, test.last_bar, row, row.limit_acted))
    for one in result.stitched:
        speaker = "ensemble" if one.seed is None else f"seed {one.seed}"
        name = f"all folds, {speaker}" + (f", {one.account}" if several else "")
        found.append(_line(name, one.first_bar, one.last_bar, one, result.limit_acted(one)))
    return found


def _line(name: str, first: str, last: str, row: FoldRow | StitchedPath, acted: bool | None) -> list[str]:
    own = row.statistics[POLICY]
    held = row.statistics[_always_in(row)]
    limit = row.limit
    kept = "-" if limit is None else limit_word(limit.kept, acted)
    return [
        name,
        f"{first[:10]} to {last[:10]}",
        plain(own.sharpe),
        percent(own.total_return),
        percent(-own.max_drawdown),
        percent(own.cvar_return),
        kept,
        f"{plain(held.sharpe)} / {percent(held.total_return)}",
    ]


def _of(result: WalkForward, one: StitchedPath) -> str:
    return f"{one.account}: " if len(result.symbols) > 1 else ""


def _what(result: WalkForward) -> str:
    one = result.headlines[0]
    seeds = f"{len(result.seeds)} seeds" if len(result.seeds) > 1 else "one seed"
    return (
        f"Tested on {one.bars:,} bars ({result.label}) from {one.first_bar[:10]} to {one.last_bar[:10]}, "
        f"in {result.folds} {result.kind} folds with {seeds}; no policy saw the bars that it is tested on, and "
        f"{result.purge + result.embargo} bars between train and test were left out. All numbers after costs."
    )


def _earns(result: WalkForward, one: StitchedPath) -> str:
    mean, sharpe = one.evidence.mean_return, one.evidence.sharpe
    said = earned(one.evidence.verdict, mean.estimate, reserved(result, one))
    ratio = "undefined" if one.statistics[POLICY].sharpe is None else plain(sharpe.estimate)
    return (
        f"{_of(result, one)}{who(result)}: {said[0].lower()}{said[1:]}. Log-return {percent(mean.estimate)} per year, "
        f"{_interval(mean, percent)}; Sharpe ratio {ratio}, {_interval(sharpe, plain)}."
    )


def reserved(result: WalkForward, one: StitchedPath) -> list[str]:
    """What keeps a stitched path from being praised; its least trained policy counts."""
    return reservations(one.statistics[POLICY].mean_exposure, result.least_updates(one))


def _interval(interval: Interval, show: Callable[[float | None], str]) -> str:
    if interval.low is None:
        return "no interval"
    return f"{100 * interval.level:g}% interval {show(interval.low)} to {show(interval.high)}"


def _against(one: StitchedPath) -> str:
    by: dict[str, list[str]] = {"better": [], "worse": [], "no evidence": []}
    for name, comparison in one.against.items():
        by[comparison.verdict].append(name)
    parts = [f"{word} than {listed(by[word])}" for word in ("better", "worse") if by[word]]
    if by["no evidence"]:
        parts.append(f"no evidence of a difference from {listed(by['no evidence'])}")
    return f"Against simple rules on the same bars: {'; '.join(parts)}."


def _deflated(one: StitchedPath) -> list[str]:
    deflated = one.evidence.deflated
    if deflated is None:
        return ["The account never moved, so there is no Sharpe ratio to deflate."]
    count = deflated.trials
    return [
        f"{count} trial{'s' if count > 1 else ''} on these bars {'are' if count > 1 else 'is'} counted: without any "
        f"edge the best of them is expected to show a Sharpe ratio of {plain(deflated.expected_best)}; the "
        f"probability that the true one is above that is {percent(deflated.deflated, 0)} (above 0: "
        f"{percent(deflated.probabilistic, 0)})."
    ]


def _odds(one: StitchedPath) -> str:
    odds = one.odds
    assert odds is not None  # of a path that speaks
    drawn = odds.repetitions
    parts = [f"{chance(p, drawn)} for a drawdown of {100 * size:g}%" for size, p in odds.drawdowns[:3]]
    return (
        f"Odds over {odds.bars:,} bars that are put together from blocks of these: {', '.join(parts)}, "
        f"{chance(odds.loss, drawn)} for a loss at the end, {chance(odds.ruin, drawn)} for ruin."
    )


def _seeds(result: WalkForward) -> list[str]:
    found = result.across_seeds.sharpe
    if found is None or found.low is None:
        return []
    return [
        f"Over {found.seeds} seeds and {found.tasks} tests the interquartile mean of the Sharpe ratio is "
        f"{plain(found.iqm)}, {100 * found.level:g}% interval {plain(found.low)} to {plain(found.high)}."
    ]


def _overfitting(result: WalkForward) -> list[str]:
    found = result.overfitting
    if found is None:
        return []
    return [
        f"Choosing the best of {found.trials} trials by half of these bars puts it into the worse half on the other "
        f"bars with probability {percent(found.probability, 0)} (PBO; 50% is chance)."
    ]

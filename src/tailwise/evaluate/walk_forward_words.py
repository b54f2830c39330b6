"""The verdict of a walk-forward in sentences, and the rows of its table, from walk_forward.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailwise.evaluate.judgement import ALWAYS_IN, POLICY
from tailwise.evaluate.words import NEVER_ACTED, chance, earned, limit_word, listed, percent, plain, reservations

Told = Mapping[str, Any]


def verdict(told: Told) -> list[str]:
    """What was tested, whether it earns, against whom, after how many trials, how seeds differ, is the limit kept."""
    found = [_what(told)]
    for one in headlines(told):
        found += [_earns(told, one), _against(one), *_deflated(told, one), _odds(one)]
    found += [*_seeds(told), *_overfitting(told)]
    for one in headlines(told):
        if one["limit"] is not None:
            said = one["limit"]["sentence"] + (f" ({NEVER_ACTED})" if limit_acted(told, one) is False else "")
            found.append(f"{_of(told, one)}{said[0].upper() if not _of(told, one) else said[0]}{said[1:]}.")
    return found


def headlines(told: Told) -> list[Told]:
    """The stitched paths that speak: those of all seeds together, or of the only seed, one per account."""
    return [one for one in told["stitched"] if one["seed"] == told["headline"]["seed"]]


def who(told: Told) -> str:
    """Who decides in the headline."""
    if told["ensemble"] is None:
        return f"seed {told['seeds'][0]}"
    verb = "voting" if told["ensemble"]["how"] == "vote" else "averaged"
    return f"{len(told['seeds'])} seeds {verb}"


def headings(told: Told) -> tuple[str, ...]:
    """Titles of the columns of `table_rows`, with their units."""
    tail = f"CVaR {100 * told['alpha']:g}%, {told['horizon']:,} bars"
    rule = _always_in(told["rows"][0])
    return ("fold, seed", "test", "Sharpe", "total return", "worst drawdown", tail, "limit", f"{rule}: Sharpe / return")


def _always_in(row: Told) -> str:
    return next(rule for rule in ALWAYS_IN if rule in row["statistics"])


def table_rows(told: Told) -> list[list[str]]:
    """One row per fold and seed of each account, then the stitched paths."""
    found = []
    several = len(told["symbols"]) > 1
    for row in told["rows"]:
        speaker = "ensemble" if row["seed"] is None else f"seed {row['seed']}"
        name = f"fold {row['fold']}, {speaker}" + (f", {row['account']}" if several else "")
        test = row["windows"]["test"]
        found.append(_line(name, test["first_bar"], test["last_bar"], row, row["limit_acted"]))
    for one in told["stitched"]:
        speaker = "ensemble" if one["seed"] is None else f"seed {one['seed']}"
        name = f"all folds, {speaker}" + (f", {one['account']}" if several else "")
        found.append(_line(name, one["first_bar"], one["last_bar"], one, limit_acted(told, one)))
    return found


def _line(name: str, first: str, last: str, row: Told, acted: bool | None) -> list[str]:
    own = row["statistics"][POLICY]
    held = row["statistics"][_always_in(row)]
    limit = row["limit"]
    kept = "-" if limit is None else limit_word(limit["kept"], acted)
    return [
        name,
        f"{first[:10]} to {last[:10]}",
        plain(own["sharpe"]),
        percent(own["total_return"]),
        percent(-own["max_drawdown"]),
        percent(own["cvar_return"]),
        kept,
        f"{plain(held['sharpe'])} / {percent(held['total_return'])}",
    ]


def _of(told: Told, one: Told) -> str:
    return f"{one['account']}: " if len(told["symbols"]) > 1 else ""


def _what(told: Told) -> str:
    one = headlines(told)[0]
    seeds = f"{len(told['seeds'])} seeds" if len(told["seeds"]) > 1 else "one seed"
    return (
        f"Tested on {one['bars']:,} bars ({told['label']}) from {one['first_bar'][:10]} to {one['last_bar'][:10]}, "
        f"in {told['folds']} {told['kind']} folds with {seeds}; no policy saw the bars that it is tested on, and "
        f"{told['purge'] + told['embargo']} bars between train and test were left out. All numbers after costs."
    )


def _earns(told: Told, one: Told) -> str:
    mean, sharpe = one["evidence"]["mean_return"], one["evidence"]["sharpe"]
    said = earned(one["evidence"]["verdict"], mean["estimate"], reserved(told, one))
    ratio = "undefined" if one["statistics"][POLICY]["sharpe"] is None else plain(sharpe["estimate"])
    return (
        f"{_of(told, one)}{who(told)}: {said[0].lower()}{said[1:]}. Log-return {percent(mean['estimate'])} per year, "
        f"{_interval(mean, percent)}; Sharpe ratio {ratio}, {_interval(sharpe, plain)}."
    )


def limit_acted(told: Told, one: Told) -> bool | None:
    """Whether the limit acted in any training behind a stitched path; None without a limit."""
    acted = [row["limit_acted"] for row in told["rows"] if row["seed"] == one["seed"]]
    return None if None in acted else any(acted)


def reserved(told: Told, one: Told) -> list[str]:
    """What keeps a stitched path from being praised; its least trained policy counts."""
    updates = min(int(row["updates"]) for row in told["rows"] if row["seed"] == one["seed"])
    return reservations(one["statistics"][POLICY]["mean_exposure"], updates)


def _interval(interval: Told, show: Any) -> str:
    if interval["low"] is None:
        return "no interval"
    return f"{100 * interval['level']:g}% interval {show(interval['low'])} to {show(interval['high'])}"


def _against(one: Told) -> str:
    by: dict[str, list[str]] = {"better": [], "worse": [], "no evidence": []}
    for name, comparison in one["against"].items():
        by[comparison["verdict"]].append(name)
    parts = [f"{word} than {listed(by[word])}" for word in ("better", "worse") if by[word]]
    if by["no evidence"]:
        parts.append(f"no evidence of a difference from {listed(by['no evidence'])}")
    return f"Against simple rules on the same bars: {'; '.join(parts)}."


def _deflated(told: Told, one: Told) -> list[str]:
    deflated = one["evidence"]["deflated"]
    if deflated is None:
        return ["The account never moved, so there is no Sharpe ratio to deflate."]
    count = deflated["trials"]
    return [
        f"{count} trial{'s' if count > 1 else ''} on these bars {'are' if count > 1 else 'is'} counted: without any "
        f"edge the best of them is expected to show a Sharpe ratio of {plain(deflated['expected_best'])}; the "
        f"probability that the true one is above that is {percent(deflated['deflated'], 0)} (above 0: "
        f"{percent(deflated['probabilistic'], 0)})."
    ]


def _odds(one: Told) -> str:
    odds = one["odds"]
    drawn = odds["repetitions"]
    parts = [f"{chance(p, drawn)} for a drawdown of {100 * size:g}%" for size, p in odds["drawdowns"][:3]]
    return (
        f"Odds over {odds['bars']:,} bars that are put together from blocks of these: {', '.join(parts)}, "
        f"{chance(odds['loss'], drawn)} for a loss at the end, {chance(odds['ruin'], drawn)} for ruin."
    )


def _seeds(told: Told) -> list[str]:
    found = told["across_seeds"]["sharpe"]
    if found is None or found["low"] is None:
        return []
    return [
        f"Over {found['seeds']} seeds and {found['tasks']} tests the interquartile mean of the Sharpe ratio is "
        f"{plain(found['iqm'])}, {100 * found['level']:g}% interval {plain(found['low'])} to {plain(found['high'])}."
    ]


def _overfitting(told: Told) -> list[str]:
    found = told["overfitting"]
    if found is None:
        return []
    return [
        f"Choosing the best of {found['trials']} trials by half of these bars puts it into the worse half on the other "
        f"bars with probability {percent(found['probability'], 0)} (PBO; 50% is chance)."
    ]

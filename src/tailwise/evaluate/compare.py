"""`tailwise compare`: several runs, pair by pair, on the same test bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tailwise.cli.evaluating import open_market_policy
from tailwise.cli.output import print_json, print_table, say_leak_check
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.judgement import DEFAULT_ALPHA, POLICY, judge
from tailwise.evaluate.report_compare import PAIR_HEADS, Compared, compare_accounts, pair_rows, write_comparison
from tailwise.evaluate.statistics import path_statistics
from tailwise.evaluate.words import columns
from tailwise.market.own_features import LeakVerdict
from tailwise.run.leak_verdict import read_leak_verdict
from tailwise.run.worlds import MarketWorld

PAGE = "compare.html"


def compare_runs(runs: list[Path], *, out: Path | None, trust: bool, as_json: bool) -> None:
    """Play the test window with every run, compare, print, write the page."""
    if len(runs) < 2:
        raise ConfigError("one run was given; a comparison needs at least two: tailwise compare RUN RUN ...")
    names = _names(runs)
    otherwise = "; runs are compared on the test bars of a market."
    opened = {
        name: open_market_policy(run, None, otherwise=otherwise, trust=trust)
        for name, run in zip(names, runs, strict=True)
    }
    worlds = {name: policy.market() for name, (policy, _) in opened.items()}
    _check_same_bars(worlds)
    first = names[0]
    config = opened[first][0].config
    alpha, gamma = config.tail_alpha or DEFAULT_ALPHA, config.learner.gamma
    judged = judge(opened[first][0], deterministic=opened[first][0].deterministic, market=worlds[first])
    played = {first: [one.paths[POLICY] for one in judged]}
    for name in names[1:]:
        policy = opened[name][0]
        played[name] = policy.trade("test", deterministic=policy.deterministic, market=worlds[name])
    accounts = []
    for number, one in enumerate(judged):
        paths = {name: played[name][number] for name in names} | {one.reference: one.paths[one.reference]}
        # One tail probability and one horizon for all, those of the first run, or the columns would not compare.
        numbers = {name: path_statistics(path, alpha=alpha, gamma=gamma) for name, path in paths.items()}
        accounts.append(compare_accounts(paths, one.reference, numbers))
    leaks = {name: read_leak_verdict(run, worlds[name].features) for name, run in zip(names, runs, strict=True)}
    file = Path(PAGE) if out is None else out
    time = judged[0].time
    facts = [
        f"Tested on {str(time[0])[:10]} to {str(time[-1])[:10]}, {len(time):,} bars that none of them was trained on, "
        "after all costs.",
        *(f"{name}: checkpoint {folder.name}, seed {policy.config.seed}." for name, (policy, folder) in opened.items()),
        *(f"{name}: leak-check: {verdict.sentence}." for name, verdict in leaks.items() if verdict is not None),
        f"The rule is played with the account and costs of {first}, tails with its alpha {alpha:g}, gamma {gamma:g}.",
    ]
    if len(names) > 2:
        facts.append("Choosing the best of several runs by this page makes it a trial like any other.")
    write_comparison(file, accounts, title=f"{', '.join(names[:-1])} and {names[-1]}", facts=facts)
    if as_json:
        print_json(
            {
                "runs": [str(run) for run in runs],
                "accounts": [one.to_json() for one in accounts],
                "leak_check": {name: None if v is None else v.model_dump(mode="json") for name, v in leaks.items()},
                "file": str(file),
            }
        )
        return
    for compared in accounts:
        _print(compared, leaks)
    for verdict in leaks.values():
        say_leak_check(verdict)
    print(f"page: {file}")


def _print(compared: Compared, leaks: Mapping[str, LeakVerdict | None]) -> None:
    heads = columns(next(iter(compared.statistics.values())))
    rows = [(name, *(show(numbers) for numbers in compared.statistics.values())) for name, show in heads]
    statuses = {name: verdict.status for name, verdict in leaks.items() if verdict is not None}
    if statuses:
        rows.append(("leak-check", *(statuses.get(name, "-") for name in compared.statistics)))
    print_table(compared.symbol, ("after all costs", *compared.statistics), rows)
    print_table("pair by pair", PAIR_HEADS, pair_rows(compared))
    for sentence in compared.sentences():
        print(sentence)


def _names(runs: list[Path]) -> list[str]:
    """Names of the folders; whole paths where two are alike."""
    short = [run.resolve().name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run) for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} was given twice; a run cannot be compared with itself.")
    return names


def _check_same_bars(worlds: dict[str, MarketWorld]) -> None:
    """Raise unless all runs are tested on exactly the same bars."""
    (first, world), *others = worlds.items()
    own, label = world.dataset.hashes().get("test"), _span(world)
    for name, other in others:
        found = other.dataset.hashes().get("test")
        if found == own:
            continue
        theirs = _span(other)
        why = (
            f"the test window of {first} is {label}, that of {name} is {theirs}"
            if theirs != label
            else f"both are tested on {label}, but the bars differ (their hashes do)"
        )
        raise DataError(f"{first} and {name} cannot be compared: {why}; compare runs on the same bars and window.")
    if any(other.portfolio != world.portfolio for _, other in others):
        raise DataError(f"{first} and others cannot be compared: some hold all symbols in one account, some do not.")


def _span(world: MarketWorld) -> str:
    told = []
    for bars, window in zip(world.dataset.bars, world.dataset.window("test"), strict=True):
        told.append(f"{bars.symbol} {str(bars.time[window.first])[:10]} to {str(bars.time[window.end - 1])[:10]}")
    return ", ".join(told)

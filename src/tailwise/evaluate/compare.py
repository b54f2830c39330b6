"""Several runs on the same test bars, each against every other, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.bootstrap import LEVEL
from tailwise.evaluate.evidence import Comparison, PathEvidence, compare_paths, path_evidence
from tailwise.evaluate.findings import repetitions_for
from tailwise.evaluate.judgement import DEFAULT_ALPHA, POLICY, judge_policy
from tailwise.evaluate.opened_run import open_run, require_market
from tailwise.evaluate.statistics import PathStatistics, path_statistics
from tailwise.evaluate.words import bounds, difference_cells, difference_heads, signed_percent
from tailwise.market.leaks.features import LeakVerdict
from tailwise.market.path import AccountPath
from tailwise.run.leak_check import read_leak_verdict
from tailwise.run.worlds import MarketWorld

PAIR_HEADS = ("", *difference_heads(LEVEL))


@dataclass(frozen=True)
class Compared:
    """Runs on one account. paths, statistics, evidence: by name of the run, then the rule that is always in."""

    symbol: str
    rule: str
    paths: Mapping[str, AccountPath]
    statistics: Mapping[str, PathStatistics]
    evidence: Mapping[str, PathEvidence]
    pairs: Mapping[tuple[str, str], Comparison]  # first minus second

    def to_json(self) -> dict[str, Any]:
        return {
            "symbol": self.symbol,
            "statistics": {name: asdict(numbers) for name, numbers in self.statistics.items()},
            "pairs": [
                {"first": first, "second": second, **one.to_json()} for (first, second), one in self.pairs.items()
            ],
        }

    def sentences(self) -> list[str]:
        """A sentence per pair, differences beyond noise first."""
        words = {"better": "is better than", "worse": "is worse than"}
        sentences = [
            f"{a} {words[one.verdict]} {b}: {signed_percent(one.mean_return.estimate)} of log-return per year "
            f"({bounds(one.mean_return, signed_percent)})."
            for (a, b), one in self.pairs.items()
            if one.verdict in words
        ]
        alike = [f"{a} against {b}" for (a, b), one in self.pairs.items() if one.verdict not in words]
        if alike:
            sentences.append(f"No evidence of a difference: {'; '.join(alike)}.")
        return sentences


def compare_accounts(
    paths: Mapping[str, AccountPath], rule: str, statistics: Mapping[str, PathStatistics], *, seed: int = 0
) -> Compared:
    """Compare all pairs of paths, the last of which is the rule; raise where they are not over the same bars."""
    first = next(iter(paths.values()))
    for name, path in paths.items():
        if path.assets != first.assets:
            raise DataError(
                f"{name} trades {path.symbol} and {next(iter(paths))} trades {first.symbol}; compare alike."
            )
    count = repetitions_for(first.planned)
    alpha = next(iter(statistics.values())).alpha
    return Compared(
        symbol=first.symbol,
        rule=rule,
        paths=paths,
        statistics=statistics,
        evidence={
            name: path_evidence(path, alpha=alpha, trials=1, repetitions=count, seed=seed)
            for name, path in paths.items()
        },
        pairs={
            (a, b): compare_paths(paths[a], paths[b], repetitions=count, seed=seed) for a, b in combinations(paths, 2)
        },
    )


def pair_rows(compared: Compared) -> list[tuple[str, ...]]:
    """Cells of the table of pairs."""
    return [
        (f"{first} minus {second}", *difference_cells(one.mean_return, one.sharpe, one.verdict))
        for (first, second), one in compared.pairs.items()
    ]


@dataclass(frozen=True)
class RunComparison:
    """Runs on the same test bars, each against every other and against the rule that is always in the market.

    runs         folders, the one that the others are held to first
    accounts     one for each symbol: paths, statistics and evidence by run, intervals by pair
    leak_check   of each run's own features, by name of the run; None: it has none
    facts        sentences: what was played on what
    notes        sentences about checkpoints that cannot be used
    file         the page; None: none was written
    """

    runs: tuple[Path, ...]
    accounts: tuple[Compared, ...]
    leak_check: Mapping[str, LeakVerdict | None]
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    file: Path | None = None

    @property
    def title(self) -> str:
        """The names of all runs."""
        *others, last = self.leak_check
        return f"{', '.join(others)} and {last}"

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": [str(run) for run in self.runs],
            "accounts": [one.to_json() for one in self.accounts],
            "leak_check": {
                name: None if verdict is None else verdict.model_dump(mode="json")
                for name, verdict in self.leak_check.items()
            },
            "file": None if self.file is None else str(self.file),
        }


def compare_runs(runs: Sequence[str | Path], *, trust: bool = False) -> RunComparison:
    """Play the test window with every run and compare them bar by bar; arguments as for `tailwise.compare`."""
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    if len(folders) < 2:
        given = "one run was" if folders else "no runs were"
        raise ConfigError(f"{given} given; a comparison needs at least two: tailwise compare RUN RUN ...")
    names = _names(folders)
    for run in folders:
        require_market(run, "; runs are compared on the test bars of a market.")
    opened = {name: open_run(run, trust=trust) for name, run in zip(names, folders, strict=True)}
    worlds = {name: one.policy.market() for name, one in opened.items()}
    _check_same_bars(worlds)
    first = names[0]
    policy = opened[first].policy
    alpha, gamma = policy.config.tail_alpha or DEFAULT_ALPHA, policy.config.learner.gamma
    judged = judge_policy(policy, deterministic=policy.deterministic, market=worlds[first])
    played = {first: [one.paths[POLICY] for one in judged]}
    for name in names[1:]:
        other = opened[name].policy
        played[name] = other.trade("test", deterministic=other.deterministic, market=worlds[name])
    accounts = []
    for number, one in enumerate(judged):
        paths = {name: played[name][number] for name in names} | {one.reference: one.paths[one.reference]}
        # One tail probability and one horizon for all, those of the first run, or the columns would not compare.
        numbers = {name: path_statistics(path, alpha=alpha, gamma=gamma) for name, path in paths.items()}
        accounts.append(compare_accounts(paths, one.reference, numbers))
    leaks = {name: read_leak_verdict(run, worlds[name].features) for name, run in zip(names, folders, strict=True)}
    time = judged[0].time
    facts = [
        f"Tested on {str(time[0])[:10]} to {str(time[-1])[:10]}, {len(time):,} bars that none of them was trained on, "
        "after all costs.",
        *(f"{name}: {run.sentence}." for name, run in opened.items()),
        *(f"{name}: leak-check: {verdict.sentence}." for name, verdict in leaks.items() if verdict is not None),
        f"The rule is played with the account and costs of {first}, tails with its alpha {alpha:g}, gamma {gamma:g}.",
    ]
    if len(names) > 2:
        facts.append("Choosing the best of several runs by this page makes it a trial like any other.")
    notes = tuple(sentence for run in opened.values() for sentence in run.notes)
    return RunComparison(tuple(folders), tuple(accounts), leaks, tuple(facts), notes)


def _names(runs: list[Path]) -> list[str]:
    """Name runs by their folders; by whole paths where two are alike."""
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
        if other.dataset.hashes().get("test") == own:
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
    return ", ".join(
        f"{bars.symbol} {str(bars.time[window.first])[:10]} to {str(bars.time[window.end - 1])[:10]}"
        for bars, window in zip(world.dataset.bars, world.dataset.window("test"), strict=True)
    )

"""Accounts of several runs over the same test bars: each against every other, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from tailwise.core.errors import DataError
from tailwise.evaluate.evidence import Comparison, PathEvidence, compare_paths, path_evidence
from tailwise.evaluate.findings import repetitions_for
from tailwise.evaluate.statistics import PathStatistics
from tailwise.evaluate.words import bounds, percent, plain
from tailwise.market.path import AccountPath


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
                {
                    "first": first,
                    "second": second,
                    "mean_return": asdict(one.mean_return),
                    "sharpe": asdict(one.sharpe),
                    "verdict": one.verdict,
                }
                for (first, second), one in self.pairs.items()
            ],
        }

    def sentences(self) -> list[str]:
        """A sentence per pair, differences beyond noise first."""
        words = {"better": "is better than", "worse": "is worse than"}
        told = [
            f"{a} {words[one.verdict]} {b}: {_points(one.mean_return.estimate)} of log-return per year "
            f"({bounds(one.mean_return, _points)})."
            for (a, b), one in self.pairs.items()
            if one.verdict in words
        ]
        alike = [f"{a} against {b}" for (a, b), one in self.pairs.items() if one.verdict not in words]
        if alike:
            told.append(f"No evidence of a difference: {'; '.join(alike)}.")
        return told


def compare_accounts(
    paths: Mapping[str, AccountPath], rule: str, statistics: Mapping[str, PathStatistics], *, seed: int = 0
) -> Compared:
    """All pairs of the given paths; the last one is the rule. Raises where they are not over the same bars."""
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
        (
            f"{a} minus {b}",
            _points(one.mean_return.estimate),
            bounds(one.mean_return, _points),
            plain(one.sharpe.estimate),
            bounds(one.sharpe, plain),
            one.verdict,
        )
        for (a, b), one in compared.pairs.items()
    ]


PAIR_HEADS = ("", "return per year", "95% interval", "Sharpe ratio", "95% interval", "verdict")


def _points(value: float | None) -> str:
    return percent(value, 2) if value is None else f"{100 * value + 0.0:+.1f}%"

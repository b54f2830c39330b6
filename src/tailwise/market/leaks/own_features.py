"""Leak-check of a user's own features before they are trained on, and the verdict that every result carries.

A feature that looks ahead earns any amount of money in a backtest. The built-in features are proven causal by tests;
the columns of `features.modules` are checked here, each time a training begins. The outcome is kept under a digest of
what was checked: the bars, and every value that the columns have on them. While those are the same, so is the answer,
whatever was edited elsewhere; when one of them changes, so does the digest.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from tailwise.bars.bars import Bars
from tailwise.core import VERSION
from tailwise.core.atomic import user_cache, write_text
from tailwise.core.config import Section
from tailwise.core.errors import DataError
from tailwise.features.spec import FeatureSpec
from tailwise.market.dataset import Dataset
from tailwise.market.leaks.check import BATCH_TOLERANCE, LeakReport, check_features
from tailwise.market.tables import FeaturesLike

CUTS, SEED = 24, 0  # those of `tailwise data leak-check`
CACHE = "leak-checks"
_SHOWN = 3  # leaks in an error
_LARGEST = 1_000_000  # bytes of a kept outcome


class LeakVerdict(Section):
    """What is known about look-ahead in the features of a run; stands in its manifest, its tables and its report."""

    status: Literal["not needed", "passed", "skipped", "unknown"] = Field(
        description="not needed: built-in features only; unknown: the run is older than the check"
    )
    features: tuple[str, ...] = Field(description="the user's own columns")
    sentence: str = Field(description="the same in words")

    @property
    def doubtful(self) -> bool:
        """Whether results may come from the future."""
        return self.status in ("skipped", "unknown")


class _Outcome(Section):
    """What one check found, as it is kept: the key it belongs to, a sentence per leak, and how much was compared."""

    key: str
    leaks: tuple[str, ...]
    values: int
    runs: int


def check_own_features(dataset: Dataset, *, skip: bool = False) -> LeakVerdict:
    """Raise DataError when an own feature looks ahead; otherwise say what was checked, or that it was skipped."""
    own = dataset.spec.own()
    if own is None:
        return LeakVerdict(status="not needed", features=(), sentence="built-in features only: nothing to check")
    listed = ", ".join(own.names)
    if skip:
        return LeakVerdict(
            status="skipped",
            features=own.names,
            sentence=f"SKIPPED for own features {listed} (features.leak_check: skip): they may look ahead, so that no "
            "result of this run is evidence",
        )
    key = _key(own, dataset.bars)
    outcome = _read(key)
    if outcome is None:
        outcome = _check(own, dataset.bars, key)
        _keep(outcome)
    if outcome.leaks:
        shown = "".join(f"\n  {leak}" for leak in outcome.leaks[:_SHOWN])
        raise DataError(
            f"own features fail the leak-check, so that nothing that a policy earns with them means anything:{shown}\n"
            "Compute each value from the bars up to its own (tailwise data leak-check CONFIG tells more). "
            "features.leak_check: skip trains all the same; every table and report will say so."
        )
    return LeakVerdict(
        status="passed",
        features=own.names,
        sentence=f"own features {listed}: no leak found ({outcome.values:,} past values compared in {outcome.runs:,} "
        "changed futures)",
    )


def unknown_verdict(features: Sequence[str]) -> LeakVerdict:
    """The verdict of a run that was made before own features were checked."""
    return LeakVerdict(
        status="unknown",
        features=tuple(features),
        sentence=f"NOT CHECKED: the run is older than the check of own features ({', '.join(features)}); look with "
        "tailwise data leak-check",
    )


def feature_report(
    spec: FeatureSpec, bars: Bars, compute: Callable[[Bars], FeaturesLike], *, cuts: int, seed: int
) -> LeakReport:
    """The leak-check of a table with the columns of `spec`, whose batch features may differ in the last digits."""
    tolerance = {column.name: BATCH_TOLERANCE for column in spec.columns if column.feature.kind == "batch"}
    return check_features(compute, bars, cuts=cuts, seed=seed, tolerance=tolerance, least_bars=spec.warm_up + 3)


def _check(own: FeatureSpec, bars: Sequence[Bars], key: str) -> _Outcome:
    reports = [feature_report(own, one, own.table, cuts=CUTS, seed=SEED) for one in bars]
    return _Outcome(
        key=key,
        leaks=tuple(fault for report in reports for fault in report.faults),
        values=sum(report.values for report in reports),
        runs=sum(report.comparisons for report in reports),
    )


def _key(own: FeatureSpec, bars: Sequence[Bars]) -> str:
    """sha256 of the bars and of all values of the columns on them, of their sources and of how they are checked."""
    digest = hashlib.sha256(f"tailwise {VERSION}, cuts {CUTS}, seed {SEED}\n".encode())
    for column in own.columns:
        digest.update(f"{column.name}: {column.identity}\n".encode())
    for one in bars:
        table = own.table(one)
        digest.update(f"{one.data_hash()} {table.first_valid} {table.values.shape}\n".encode())
        digest.update(table.values.tobytes())
    return digest.hexdigest()


def _file(key: str) -> Path | None:
    folder = user_cache(CACHE)
    return None if folder is None else folder / f"{key}.json"


def _read(key: str) -> _Outcome | None:
    """The outcome that was kept under `key`; None when there is none, or not one that can be read."""
    path = _file(key)
    try:
        if path is None or path.stat().st_size > _LARGEST:
            return None
        outcome = _Outcome.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None  # checked again and written again
    return outcome if outcome.key == key else None


def _keep(outcome: _Outcome) -> None:
    path = _file(outcome.key)
    if path is not None:
        with contextlib.suppress(OSError):  # a folder that cannot be written to: the next training checks again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, outcome.model_dump_json())

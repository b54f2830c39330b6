"""Leak-check of features and of what is fitted: change the future and see whether the past changes with it.

A causal feature of bar t is a function of the bars up to t. So its table over the bars [0, c) must be bit for bit the
first c rows of its table over all bars, whatever follows c. Every such difference is a leak, and no leak of the bars
escapes for want of a clever statistic: only cuts and futures have to be many enough (see `report.cut_points`).

What cannot be seen: numbers that do not come from the bars (a column computed elsewhere). They are reported as
unjudged. The check of environments is in `environment`.

The built-in features are proven causal by tests; a user's own columns (`features.modules`) are checked each time a
training begins, and every result carries the verdict. The outcome is cached under a digest of what was checked: the
bars, and every value that the columns have on them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from tailwise.bars.bars import Bars, Moment
from tailwise.core import VERSION
from tailwise.core.atomic import user_cache, write_text
from tailwise.core.config import Section
from tailwise.core.errors import ConfigError, DataError, ShapeError, TailwiseError
from tailwise.features.spec import FeatureSpec
from tailwise.market.dataset import Dataset
from tailwise.market.leaks.report import (
    PROBES,
    Changes,
    LeakReport,
    Probe,
    changed_future,
    check_probes,
    cut_points,
    deviation_of,
    everything_changed,
    same_bars,
)
from tailwise.market.tables import FeaturesLike

# For features that are computed over the whole array at once (pandas, convolutions): their sums may be rounded in
# another order when the array has another length.
BATCH_TOLERANCE = 1e-9


def check_features(
    compute: Callable[[Bars], FeaturesLike],
    bars: Bars,
    *,
    cuts: int = 24,
    seed: int = 0,
    tolerance: float | Mapping[str, float] = 0.0,
    probes: Sequence[Probe] = PROBES,
    least_bars: int = 2,
    longest: int = 200_000,
    work: int = 10_000_000,
) -> LeakReport:
    """Compare the table of all bars with the tables of changed futures, before each cut.

    compute     the feature table of bars, with one row per bar; called on shortened and changed bars. An error of
                Tailwise (no finite value, no row left) where all bars gave a table is a finding too.
    cuts        cuts spread over the series; about 25 more are added at places where leaks hide
    tolerance   0: the past must be bit-equal (NaN equals NaN). Above 0, for all features or per name: a change counts
                when it exceeds this fraction of max(|value|, standard deviation), and one unit in the last place of
                the table's dtype. BATCH_TOLERANCE is meant for features that are computed over a whole array.
    least_bars  the shortest bars that `compute` accepts
    longest     of a longer series only the first so many bars are used
    work        bound on the number of rows computed, met by using fewer cuts
    """
    probes = tuple(probes)
    check_probes(probes)
    _check_tolerance(tolerance)
    used = bars if len(bars) <= longest else bars.slice(0, longest)
    full = _table(compute, used, None)
    most = max(work // (len(used) * len(probes)), 4)
    points, left_out = cut_points(used, first=max(full.first_valid + 1, least_bars), count=cuts, seed=seed, most=most)
    names = [_named(name) for name in full.names]
    deviation = {name: deviation_of(full.values[full.first_valid :, k]) for k, name in enumerate(names)}
    allowed = _allowed(full, [deviation[name] for name in names], tolerance)
    if _changed_columns(full.values, _table(compute, used, full).values, allowed).any():
        raise DataError(
            f"leak-check of {bars.symbol}: the features differ when they are computed twice on the same bars, so that "
            "no change can be blamed on the future; draw random numbers from a fixed seed."
        )
    changes, comparisons, values = Changes(), 0, 0
    for cut in points:
        for probe in probes:
            other = changed_future(used, cut, probe, seed=seed)
            if probe != "truncate" and same_bars(used, other):
                continue
            comparisons += 1
            try:
                table = _table(compute, other, full)
            except TailwiseError as error:
                changes.add_refusal("the feature table", used, error, probe, cut)
                continue
            rows = slice(full.first_valid, cut)
            values += (cut - full.first_valid) * len(names)
            _compare(full, table, rows, None if allowed is None else allowed[rows], used, probe, cut, changes)
    if not comparisons:
        raise DataError(
            f"leak-check of {bars.symbol}: no value was compared, since every changed future equals the real one; use "
            "bars whose prices move."
        )
    notes: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    try:
        unjudged = _unmoved(full, _table(compute, everything_changed([used], seed=seed)[0], full), names)
    except TailwiseError as error:
        notes = (f"whether all features depend on the bars was not checked: on wholly changed bars, {error}",)
    return LeakReport(
        subject="features",
        findings=changes.findings(deviation),
        unjudged=unjudged,
        probes=probes,
        cuts=points,
        comparisons=comparisons,
        values=values,
        bars=len(used),
        bars_given=len(bars),
        cuts_left_out=left_out,
        notes=notes,
    )


def _table(compute: Callable[[Bars], FeaturesLike], bars: Bars, like: FeaturesLike | None) -> FeaturesLike:
    table = compute(bars)
    if table.values.shape != (len(bars), len(table.names)) or not table.names:
        raise ShapeError(
            f"leak-check of {bars.symbol}: the features of {len(bars)} bars have shape {table.values.shape} and "
            f"{len(table.names)} names; one row per bar and one column per name are needed."
        )
    if like is not None and tuple(table.names) != tuple(like.names):
        raise ShapeError(
            f"leak-check of {bars.symbol}: on other bars the features are named {list(table.names)} instead of "
            f"{list(like.names)}; names must not depend on the data."
        )
    return table


def _named(feature: str) -> str:
    """How findings name a feature."""
    return f"feature {feature!r}"


def _check_tolerance(tolerance: float | Mapping[str, float]) -> None:
    for value in tolerance.values() if isinstance(tolerance, Mapping) else (tolerance,):
        if not 0 <= value < 1:
            raise ConfigError(f"leak-check: tolerance is {value}; it must be at least 0 and below 1.")


def _allowed(
    full: FeaturesLike, deviations: list[float], tolerance: float | Mapping[str, float]
) -> npt.NDArray[np.float64] | None:
    """How far each value [T, F] may move, or None when all must be bit-equal."""
    if isinstance(tolerance, Mapping):
        unknown = sorted(set(tolerance) - set(full.names))
        if unknown:
            raise ConfigError(f"leak-check: tolerance is given for {unknown[0]!r}; there is no such feature.")
        fractions = np.array([tolerance.get(name, 0.0) for name in full.names])
    else:
        fractions = np.full(len(full.names), tolerance)
    if not fractions.any():
        return None
    sizes = np.maximum(np.abs(full.values.astype(np.float64)), np.nan_to_num(np.array(deviations)))
    # A value that lies at the border of two float32 jumps by one unit, however small the change was before rounding.
    unit = np.spacing(np.abs(full.values)).astype(np.float64)
    return np.where(fractions > 0, np.maximum(fractions * sizes, unit), 0.0)


def _changed(
    one: npt.NDArray[Any], other: npt.NDArray[Any], allowed: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.bool_]:
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    if allowed is not None:
        with np.errstate(invalid="ignore"):
            same |= np.abs(one.astype(np.float64) - other.astype(np.float64)) <= allowed
    return np.asarray(~same)


def _changed_columns(
    one: npt.NDArray[Any], other: npt.NDArray[Any], allowed: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.bool_]:
    return np.asarray(_changed(one, other, allowed).any(axis=0))


def _compare(
    full: FeaturesLike,
    table: FeaturesLike,
    rows: slice,
    allowed: npt.NDArray[np.float64] | None,
    bars: Bars,
    probe: Probe,
    cut: int,
    changes: Changes,
) -> None:
    """Add what differs by more than `allowed` in `rows` of the two tables, and their first valid bars, to `changes`."""
    before, after = full.values[rows], table.values[rows]
    if before.tobytes() != after.tobytes():
        different = _changed(before, after, allowed)
        for column in np.flatnonzero(different.any(axis=0)):
            at = np.flatnonzero(different[:, column])
            changes.add(
                _named(full.names[column]), bars, at + rows.start, before[at, column], after[at, column], probe, cut
            )
    if table.first_valid != full.first_valid:
        firsts = np.array([full.first_valid]), np.array([table.first_valid])
        changes.add("the first valid bar", bars, np.array([full.first_valid]), *firsts, probe, cut)


def _unmoved(full: FeaturesLike, elsewhere: FeaturesLike, names: list[str]) -> tuple[str, ...]:
    """Features that vary over the series and yet stay as they are when all bars change."""
    rows = slice(max(full.first_valid, elsewhere.first_valid), len(elsewhere.values))
    moved = _changed_columns(full.values[rows], elsewhere.values[rows], None)
    varies = _changed_columns(full.values[rows][1:], full.values[rows][:-1], None)
    return tuple(name for k, name in enumerate(names) if varies[k] and not moved[k])


def check_fit(
    fit: Callable[[Sequence[Bars]], Any],
    bars: Bars | Sequence[Bars],
    *,
    train_end: Moment,
    seed: int = 0,
    probes: Sequence[Probe] = PROBES,
) -> LeakReport:
    """Whether what is fitted depends on bars that open at `train_end` or later.

    `fit` gets all bars and has to choose the train rows itself, as the caller does in earnest. It returns a FeatureSpec
    (anything with `to_json`) or a JSON value; each number and text in it is compared exactly.
    """
    probes = tuple(probes)
    check_probes(probes)
    given = [bars] if isinstance(bars, Bars) else list(bars)
    cuts = [len(one.between(None, train_end)) for one in given]  # refuses bars without a train row
    for one, cut in zip(given, cuts, strict=True):
        if cut == len(one):
            raise DataError(
                f"leak-check of {one.symbol}: all {cut} bars open before {train_end}, so that there is no future to "
                "change; give later bars as well."
            )
    reference = dict(_leaves(_plain_json(fit(given)), "spec"))
    if not reference:
        raise DataError("leak-check: what was fitted contains no number and no text, so that nothing can be compared.")
    changes, comparisons = Changes(), 0
    for probe in probes:
        other = [changed_future(one, cut, probe, seed=seed) for one, cut in zip(given, cuts, strict=True)]
        if probe != "truncate" and all(map(same_bars, given, other)):
            continue
        comparisons += 1
        try:
            fitted = fit(other)
        except TailwiseError as error:
            changes.add_refusal("the fit", given[0], error, probe, cuts[0])
            continue
        _compare_leaves(reference, dict(_leaves(_plain_json(fitted), "spec")), given[0], probe, cuts[0], changes)
    if not comparisons:
        raise DataError("leak-check: every changed future equals the real one; use bars whose prices move.")
    notes: tuple[str, ...] = ("nothing in the spec depends on the bars: nothing is fitted",)
    try:
        if dict(_leaves(_plain_json(fit(everything_changed(given, seed=seed))), "spec")) != reference:
            notes = ()
    except TailwiseError:
        notes = ()  # a fit that refuses other bars has looked at them
    rows = sum(map(len, given))
    return LeakReport(
        subject="fit",
        findings=changes.findings({}),
        unjudged=(),
        probes=probes,
        cuts=tuple(cuts),
        comparisons=comparisons,
        values=comparisons * len(reference),
        bars=rows,
        bars_given=rows,
        notes=notes,
    )


def _plain_json(spec: Any) -> Any:
    value = spec.to_json() if hasattr(spec, "to_json") else spec
    return json.loads(value) if isinstance(value, str) else value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, float | str]]:
    """(path, number or text) of everything in a JSON value."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{path}.{key}")
    elif isinstance(value, (list, tuple, np.ndarray)):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{path}[{index}]")
    elif isinstance(value, (bool, int, float, np.generic)):
        yield path, float(value)
    else:
        yield path, str(value)


def _compare_leaves(
    before: dict[str, float | str], after: dict[str, float | str], bars: Bars, probe: Probe, cut: int, changes: Changes
) -> None:
    """The last train bar stands for where the numbers belong."""
    for path in {**before, **after}:
        old, new = before.get(path, "absent"), after.get(path, "absent")
        if old == new or (old != old and new != new):  # NaN equals NaN
            continue
        if isinstance(old, str) or isinstance(new, str):
            old, new = str(old), str(new)
        texts = isinstance(old, str)
        values = [np.array([value], dtype=object if texts else np.float64) for value in (old, new)]
        changes.add(path, bars, np.array([cut - 1]), values[0], values[1], probe, cut)


# ---------------------------------------------------------------------- a user's own features
CUTS, SEED = 24, 0  # those of `tailwise data leak-check`
CACHE = "leak-checks"
_MOST_LISTED = 3  # leaks in an error
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
        first = "".join(f"\n  {leak}" for leak in outcome.leaks[:_MOST_LISTED])
        raise DataError(
            f"own features fail the leak-check, so that nothing that a policy earns with them means anything:{first}\n"
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

"""Folds: which rows train, select and test, with gaps that nothing can leak across, and their test windows as one path.

Rows are those of one clock, the union of the times of all symbols, so that no symbol trains on the days that another is
tested on. Ranges are half-open. Two things reach across a cut: what a decision is judged by lies `label_horizon` bars
ahead, and what it sees lies `look_back` bars behind. A purge of at least the longer of the two keeps both apart; an
embargo adds bars against dependence that fades more slowly than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError, DataError
from tailwise.market.costs import COMPONENTS
from tailwise.market.path import AccountPath

Times = npt.NDArray[np.datetime64]
MOST_CHOICES = 1000  # of the groups that combinatorial folds test; each is trained
_SCALED = (*COMPONENTS, "equity_before", "equity", "shortfall", "units", "order_units", "exit_units")


@dataclass(frozen=True)
class Range:
    """Rows [first, end)."""

    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        return f"[{self.first}, {self.end})"


@dataclass(frozen=True)
class Fold:
    """One cut of the rows. Walk-forward has one train and one test range; combinatorial folds may have several.

    paths: for each test range, the path of all rows that it is a part of (combinatorial folds); else empty
    """

    number: int
    train: tuple[Range, ...]
    select: Range | None
    test: tuple[Range, ...]
    purge: int  # bars left out on each side of a test range
    embargo: int  # further bars left out: before a test range in walk-forward, after it in combinatorial folds
    paths: tuple[int, ...] = ()


def least_purge(*, label_horizon: int, look_back: int) -> int:
    """The smallest purge in bars that keeps labels and feature windows of two sides apart.

    label_horizon: bars ahead that a decision is judged by (1, plus the latency); look_back: bars behind that it sees.
    """
    if label_horizon < 0 or look_back < 0:
        raise ConfigError(f"label horizon {label_horizon} and look-back {look_back} are numbers of bars, at least 0.")
    return max(label_horizon, look_back)


def walk_forward(
    rows: int,
    *,
    folds: int,
    purge: int,
    embargo: int = 0,
    anchored: bool = True,
    tested: float = 0.5,
    select: int = 0,
) -> list[Fold]:
    """Cut test windows one after the other from the newest share `tested` of the rows, each with the rows before it.

    anchored: training begins at row 0 and grows; otherwise it rolls with the length that the first fold has
    select: rows of the window that selects, between train and test; 0: none
    Between train, select and test lie purge + embargo rows.
    """
    gap = _gap(purge, embargo)
    if folds < 1 or not 0 < tested < 1 or select < 0:
        raise ConfigError(f"folds {folds}, tested {tested}, select {select}: at least 1, between 0 and 1, at least 0.")
    size = int(rows * tested) // folds
    begin = rows - folds * size
    before = gap + (select + gap if select else 0)  # rows between the end of training and the test
    length = begin - before
    if size < 1 or length < 1:
        raise ConfigError(
            f"{rows} rows are too few for {folds} folds that test {tested:.0%} of them, with {select} rows to select "
            f"and gaps of {gap}: {max(length, 0)} are left to train on; use fewer folds, smaller gaps or more bars."
        )
    cuts = []
    for number in range(folds):
        first = begin + number * size
        end = first - before
        selected = Range(first - gap - select, first - gap) if select else None
        train = Range(0 if anchored else end - length, end)
        cuts.append(Fold(number, (train,), selected, (Range(first, first + size),), purge, embargo))
    return cuts


def combinatorial(
    rows: int, *, folds: int, test_folds: int, purge: int, embargo: int = 0, select: int = 0
) -> list[Fold]:
    """Combinatorial purged cross-validation (López de Prado 2018): test every choice of `test_folds` of `folds` groups.

    Groups follow one another and have rows // folds rows each, the last one also what is left over. Training uses all
    rows but the tested groups, `purge` rows on both sides of them and `embargo` further rows after them. A group is
    tested C(folds - 1, test_folds - 1) times: its n-th test belongs to path n, so that each path has all rows once.

    select: rows that select, the newest of the longest train range, with a purge before them; 0: none
    """
    _gap(purge, embargo)
    cut = f"combinatorial folds, {test_folds} of {folds} groups tested over {rows} rows"
    if not 1 <= test_folds < folds or select < 0:
        raise ConfigError(
            f"{cut} with {select} rows to select: at least 1 group must be tested, at least 1 left to train on, and at "
            "least 0 rows select; use for example 6 folds and 2 test folds."
        )
    if (choices := math.comb(folds, test_folds)) > MOST_CHOICES:
        raise ConfigError(
            f"{cut}: {choices:,} choices, each a training, and at most {MOST_CHOICES:,} are allowed; use fewer folds."
        )
    if rows < folds:
        raise ConfigError(f"{cut}: a group would have no row; use fewer folds or more bars.")
    size = rows // folds
    groups = [Range(one * size, (one + 1) * size if one < folds - 1 else rows) for one in range(folds)]
    times_tested = [0] * folds
    cuts = []
    for number, chosen in enumerate(combinations(range(folds), test_folds)):
        test = tuple(groups[one] for one in chosen)
        train, selected = _hold_out(_purged(rows, test, purge, embargo), select, purge)
        if any(one.end <= one.first for one in train) or not train:
            raise ConfigError(
                f"{cut}, with purge {purge}, embargo {embargo} and {select} rows to select: no row is left to train on "
                f"where the test is {' and '.join(map(str, test))}; use fewer folds, smaller gaps or more bars."
            )
        cuts.append(Fold(number, train, selected, test, purge, embargo, tuple(times_tested[one] for one in chosen)))
        for one in chosen:
            times_tested[one] += 1
    return cuts


def _purged(rows: int, test: Sequence[Range], purge: int, embargo: int) -> list[Range]:
    """Rows that neither test nor lie within `purge` of a test range or `embargo` rows later; maybe none."""
    left = np.ones(rows, dtype=bool)
    for one in test:
        left[max(one.first - purge, 0) : one.end + purge + embargo] = False
    return list(_ranges(np.flatnonzero(left)))


def _hold_out(train: Sequence[Range], select: int, purge: int) -> tuple[tuple[Range, ...], Range | None]:
    """Take the newest `select` rows and a purge before them off the longest range; it may have none left."""
    if not select or not train:
        return tuple(train), None
    longest = max(train, key=lambda one: (len(one), one.first))
    rest = Range(longest.first, longest.end - select - purge)
    return tuple(rest if one == longest else one for one in train), Range(longest.end - select, longest.end)


def check_fold(fold: Fold, rows: int, *, label_horizon: int, look_back: int) -> None:
    """Raise unless nothing can leak from the rows that test into those that train or select, nor between those two.

    Rows that come before must end, and rows that come after must begin, the purge away: an overlap of the ranges, a
    purge below label horizon or look-back, and a gap shorter than the fold itself claims are all errors.
    """
    name, needed = f"fold {fold.number}", least_purge(label_horizon=label_horizon, look_back=look_back)
    if fold.purge < needed:
        raise DataError(
            f"{name}: its purge of {fold.purge} bars is shorter than the label horizon {label_horizon} or the "
            f"look-back {look_back}; purge at least {needed}."
        )
    selects = () if fold.select is None else (fold.select,)
    if not fold.train or not fold.test:
        raise DataError(f"{name}: there are no rows to train or to test on.")
    for one in (*fold.train, *selects, *fold.test):
        if not 0 <= one.first < one.end <= rows:
            raise DataError(f"{name}: the rows {one} are empty or outside the {rows} rows of the data.")
    after = fold.purge + fold.embargo
    before = fold.purge if fold.paths else after  # combinatorial folds have their embargo after a test range only
    for train, select in ((t, s) for t in fold.train for s in selects):
        _check_gap(name, "train", train, "select", select, before, after)
    for test in fold.test:
        for what, ranges in (("train", fold.train), ("select", selects)):
            for one in ranges:
                _check_gap(name, what, one, "test", test, before, after)
    for one, other in pairwise(sorted(fold.test, key=lambda r: r.first)):
        if other.first < one.end:
            raise DataError(f"{name}: the test rows {one} and {other} overlap.")


def common_clock(times: Sequence[Times]) -> Times:
    """All open times of all symbols, each once, in order: the rows of the folds."""
    if not times:
        raise DataError("folds need the times of at least one symbol.")
    return np.unique(np.concatenate(list(times)))


def rows_of_symbol(time: Times, clock: Times, part: Range) -> Range:
    """The rows of one symbol whose bars open in the rows `part` of the clock; may be empty."""
    first = int(np.searchsorted(time, clock[part.first]))
    end = len(time) if part.end >= len(clock) else int(np.searchsorted(time, clock[part.end]))
    return Range(first, end)


def _gap(purge: int, embargo: int) -> int:
    if purge < 0 or embargo < 0:
        raise ConfigError(f"purge {purge} and embargo {embargo} are numbers of bars, at least 0.")
    return purge + embargo


def _ranges(rows: npt.NDArray[np.int64]) -> Iterator[Range]:
    """Rows in increasing order as contiguous ranges; nothing for no rows."""
    if not len(rows):
        return
    for part in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        yield Range(int(part[0]), int(part[-1]) + 1)


def _check_gap(name: str, what: str, one: Range, other_name: str, other: Range, before: int, after: int) -> None:
    """Raise unless `one` ends at least `before` rows before `other`, or begins at least `after` rows after it."""
    if one.end <= other.first:
        gap, needed, where = other.first - one.end, before, "before"
    elif one.first >= other.end:
        gap, needed, where = one.first - other.end, after, "after"
    else:
        raise DataError(f"{name}: the {what} rows {one} overlap the {other_name} rows {other}.")
    if gap < needed:
        raise DataError(
            f"{name}: only {gap} rows lie between the {what} rows {one} and the {other_name} rows {other}, which they "
            f"come {where}; purge and embargo need {needed}."
        )


def stitch(paths: Sequence[AccountPath]) -> AccountPath:
    """Join paths that follow one another in time.

    Each fold begins flat with what the fold before ended with: its last position counts at the last close, without the
    costs of a sale. Everything in money or units is scaled by that; prices, exposures and returns are as they were.
    A ruin ends the path.
    """
    if not paths:
        raise DataError("there are no paths to put together.")
    first = paths[0]
    lived: list[AccountPath] = []
    for before, after in zip([None, *paths[:-1]], paths, strict=True):
        if (after.symbol, after.assets, after.periods_per_year) != (first.symbol, first.assets, first.periods_per_year):
            raise DataError(f"paths of {first.symbol} and {after.symbol} do not belong to one account.")
        if before is not None and not before.time[-1] < after.time[0]:
            raise DataError(
                f"{after.symbol}: a path begins at {after.time[0]}, and the one before it ends at {before.time[-1]}; "
                "test windows must follow one another without overlap."
            )
        if not lived or not lived[-1].ruined:
            lived.append(after)
    factors = [1.0]
    for before, after in pairwise(lived):
        factors.append(factors[-1] * float(before.equity[-1] / after.equity[0]))
    ledger: dict[str, Any] = {}
    for name in first.ledger:
        parts = [path.ledger[name] * (k if name in _SCALED else 1) for path, k in zip(lived, factors, strict=True)]
        ledger[name] = np.concatenate(parts)
    return AccountPath(
        first.symbol,
        first.label,
        first.assets,
        first.periods_per_year,
        np.concatenate([path.time for path in lived]),
        ledger,
        np.concatenate([path.target for path in lived]),
        np.concatenate([path.close for path in lived]),
        sum(path.planned for path in paths),
    )

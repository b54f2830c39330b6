"""What the comparison with independent engines shares: scenarios in units, accounts as engines report them, the check.

Engines differ in how they turn a wish into a size. A scenario therefore names the position in whole units, so that the
comparison is about fills, costs and marks alone; docs/engines.md lists what remains different.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ONE_BASIS_POINT = 1e-4
PRICE = 1e-9  # relative agreement of the prices of fills
CASH = 1_000_000.0  # account currency at the start of every scenario


@dataclass(frozen=True)
class Scenario:
    """`units[t]` is the position decided at the close of bar t. Costs in bps of the notional.

    The decision at bar 0 is to stay flat, because one of the engines makes its first decision at bar 1.
    """

    name: str
    bars: Bars
    units: Integers
    fee_bps: float
    half_spread_bps: float = 0.0
    at_close: bool = False  # filled at the close that the decision saw, instead of at the next open

    def __post_init__(self) -> None:
        assert len(self.units) == len(self.bars.close)
        assert self.units[0] == 0


@dataclass(frozen=True)
class Fill:
    """All that was traded on the decision of bar `decided`: price as traded (spread inside), fee apart from it."""

    decided: int
    units: float
    price: float
    fee: float


@dataclass(frozen=True)
class Account:
    """Equity at the close of every bar [T], and the fills in order."""

    equity: Floats
    fills: tuple[Fill, ...]


@dataclass(frozen=True)
class Tolerance:
    """How far an engine's own number formats may carry it from ours.

    equity   relative, at every close; never above one basis point
    money    account currency, per fee: half of the engine's smallest amount
    fee      relative, per fee
    """

    equity: float
    money: float
    fee: float

    def __post_init__(self) -> None:
        assert self.equity <= ONE_BASIS_POINT


def first_difference(ours: Account, theirs: Account, tolerance: Tolerance) -> str | None:
    """The first fill, fee or equity in which two engines differ, as a sentence; None when they agree."""
    for mine, other in zip(ours.fills, theirs.fills, strict=False):
        if (mine.decided, mine.units) != (other.decided, other.units):
            return (
                f"fill: {mine.units:+g} units decided at bar {mine.decided}, other {other.units:+g} at {other.decided}"
            )
        if abs(mine.price - other.price) > PRICE * other.price:
            return f"price of the fill decided at bar {mine.decided}: {mine.price!r}, other {other.price!r}"
        if abs(mine.fee - other.fee) > tolerance.money + tolerance.fee * abs(other.fee):
            return f"fee of the fill decided at bar {mine.decided}: {mine.fee!r}, other {other.fee!r}"
    if len(ours.fills) != len(theirs.fills):
        return f"fills: {len(ours.fills)}, other {len(theirs.fills)}"
    if ours.equity.shape != theirs.equity.shape:
        return f"bars lived through: {ours.equity.shape}, other {theirs.equity.shape}"
    relative = equity_difference(ours, theirs)
    if not relative.max() <= tolerance.equity:  # NaN is a difference too
        bar = int(np.argmax(~(relative <= tolerance.equity)))
        return f"equity at bar {bar}: {ours.equity[bar]!r}, other {theirs.equity[bar]!r}"
    return None


def equity_difference(ours: Account, theirs: Account) -> Floats:
    """|E - E'| / E' at every close, [T]."""
    difference: Floats = np.abs(ours.equity / theirs.equity - 1.0)
    return difference


# ------------------------------------------------------------------------------------------------ positions in units


def trend(bars: Bars, units: int, *, short: bool, days: int = 20) -> Integers:
    """`units` while the close stands above its mean of the last `days` bars, otherwise flat or short."""
    mean = np.convolve(bars.close, np.full(days, 1.0 / days), mode="valid")
    above = bars.close[days - 1 :] > mean
    decided = np.where(above, units, -units if short else 0)
    return np.concatenate((np.zeros(days - 1, dtype=np.int64), decided)).astype(np.int64)


def restless(bars: Bars, largest: int, seed: int) -> Integers:
    """A new random position at every close: adds, reductions, turns and closes of all sizes."""
    units = np.random.default_rng(seed).integers(-largest, largest + 1, len(bars.close))
    units[0] = 0
    return units.astype(np.int64)


def ladder(bars: Bars, step: int, every: int = 60) -> Integers:
    """Buys `step` units every so many bars and never sells."""
    return (step * (np.arange(len(bars.close)) // every)).astype(np.int64)

"""Round trips: what was earned between opening a position and closing or turning it, read off the ledger of a path.

A trip is one asset held on one side. Adding to it and reducing it belong to the trip; passing through zero ends it and
begins another. What is open at the end is valued at the last close and marked as open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tailwise.market.costs import components_of
from tailwise.market.path import AccountPath

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
_OF_FILLS = components_of("fills", sign=-1)
_RECEIVED, _PAID = components_of("holding", sign=1), components_of("holding", sign=-1)


@dataclass
class RoundTrip:
    """One asset on one side. Amounts in account currency."""

    asset: str
    side: int  # 1 long, -1 short
    first: int  # bar of the path in which it was opened
    last: int  # bar in which it was closed, or the last bar
    closed: bool
    largest: float  # units, the largest position
    equity: float  # of the account before the bar in which it was opened
    costs: float  # of its fills
    carry: float  # borrow, funding and dividends, as received
    profit: float  # after costs and carry; interest on the account's cash belongs to no trip

    @property
    def bars(self) -> int:
        """Bars in which it was held, the first and the last one included."""
        return self.last - self.first + 1


def round_trips(path: AccountPath) -> list[RoundTrip]:
    """All trips of a path in the order in which they were opened.

    Costs of a bar are shared between its fills by their notional, carry between the assets held by theirs: exact for
    one asset. The profits of all trips add up to the change of equity without the interest on cash.
    """
    ledger = path.ledger
    before = np.concatenate([np.zeros((1, len(path.assets))), ledger["units"][:-1]])
    after = ledger["units"]
    ordered = np.where(ledger["exit_units"] != 0, after - ledger["exit_units"], after)  # between order and exit
    notional = np.abs(ledger["order_units"]) * ledger["order_price"] + (
        np.abs(ledger["exit_units"]) * ledger["exit_price"]
    )
    rate = _share(
        np.sum([ledger[name] for name in _OF_FILLS], axis=0), notional.sum(axis=1)
    )  # cost per unit of notional, [n]
    held = np.abs(np.where(ordered != 0, ordered, before)) * path.close
    received = np.add.reduce([ledger[name] for name in _RECEIVED])
    carry = np.subtract.reduce([received, *(ledger[name] for name in _PAID)])
    carried = _share(carry, held.sum(axis=1))[:, None] * held
    trips: list[RoundTrip] = []
    for a in range(len(path.assets)):
        trips += _trips_of_asset(path, a, before[:, a], ordered[:, a], after[:, a], rate, carried[:, a])
    return sorted(trips, key=lambda trip: trip.first)


def trips_frame(path: AccountPath, trips: Sequence[RoundTrip]) -> pd.DataFrame:
    """One row per trip, with the open times (UTC) of its first and last bar."""
    import pandas as pd

    frame = pd.DataFrame([asdict(trip) for trip in trips], columns=list(RoundTrip.__dataclass_fields__))
    for name in ("first", "last"):
        frame[f"{name}_time"] = pd.DatetimeIndex(path.time[frame[name].to_numpy(dtype=np.int64)], tz="UTC")
    return frame


def hit_rate(trips: Sequence[RoundTrip]) -> float | None:
    """Share of the trips that made money; None without trips."""
    return sum(trip.profit > 0 for trip in trips) / len(trips) if trips else None


def profit_factor(trips: Sequence[RoundTrip]) -> float | None:
    """What the winning trips made over what the losing ones lost; None without a losing one."""
    lost = -sum(min(trip.profit, 0.0) for trip in trips)
    return sum(max(trip.profit, 0.0) for trip in trips) / lost if lost > 0 else None


def _share(amount: Floats, total: Floats) -> Floats:
    return np.divide(amount, total, out=np.zeros(len(total)), where=total > 0)


def _trips_of_asset(
    path: AccountPath, a: int, before: Floats, ordered: Floats, after: Floats, rate: Floats, carried: Floats
) -> list[RoundTrip]:
    """Walk through the fills of asset a; before, ordered, after [n]: units before, between and after the two fills."""
    ledger = path.ledger
    carry = np.concatenate([[0.0], np.cumsum(carried)])  # of the bars before t
    trips: list[RoundTrip] = []
    trip: RoundTrip | None = None
    begun = 0  # first bar whose carry belongs to the present trip
    moves = np.flatnonzero((ledger["order_units"][:, a] != 0) | (ledger["exit_units"][:, a] != 0))
    for t in moves.tolist():
        fills = (
            (before[t], ordered[t], ledger["order_price"][t, a]),
            (ordered[t], after[t], ledger["exit_price"][t, a]),
        )
        for units, target, price in fills:
            if units == target:
                continue
            turned = units * target < 0
            if trip is not None:
                end = 0.0 if turned else target
                _fill(trip, end - units, price, rate[t])
                trip.largest = max(trip.largest, abs(end))
                if end == 0.0:
                    # A position that was turned around has left the bar's carry to the new one.
                    _close(trip, t, carry[t if turned else t + 1] - carry[begun], closed=True)
                    trips.append(trip)
                    trip = None
            if trip is None and target != 0.0:
                side, start = (1 if target > 0 else -1), float(ledger["equity_before"][t])
                trip = RoundTrip(path.assets[a], side, t, t, False, abs(float(target)), start, 0.0, 0.0, 0.0)
                begun = t
                _fill(trip, target if turned else target - units, price, rate[t])
    if trip is not None:
        trip.profit += float(after[-1] * path.close[-1, a])
        _close(trip, len(path) - 1, carry[-1] - carry[begun], closed=False)
        trips.append(trip)
    return trips


def _fill(trip: RoundTrip, units: float, price: float, rate: float) -> None:
    """Pay for `units` at `price`, and the costs of doing so."""
    cost = float(abs(units) * price * rate)
    trip.costs += cost
    trip.profit -= float(units * price) + cost


def _close(trip: RoundTrip, last: int, carry: float, *, closed: bool) -> None:
    trip.last, trip.closed, trip.carry = last, closed, float(carry)
    trip.profit += trip.carry

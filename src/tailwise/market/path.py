"""What became of one account: bar after bar, with every cost, and trip after trip, for reports and statistics.

A round trip is one asset held on one side, read off the ledger of a path. Adding to it and reducing it belong to the
trip; passing through zero ends it and begins another. What is open at the end is valued at the last close and marked as
open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import ShapeError
from tailwise.market.costs import components_of
from tailwise.market.records import BANKRUPT, EVENTS, total_cost
from tailwise.market.tables import MarketTable

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
_PER_ASSET = ("units", "order_units", "order_price", "exit_units", "exit_price", "event")
_LOWEST = 1e-6  # equity at or below zero counts as this share of the start, so that its logarithm exists
_OF_FILLS = components_of("fills", sign=-1)
_RECEIVED, _PAID = components_of("holding", sign=1), components_of("holding", sign=-1)


@dataclass(frozen=True, eq=False, repr=False)
class AccountPath:
    """n bars in which one account lived, with A assets (1 but for a portfolio).

    symbol      name of the asset, or of all of them
    assets      names of the A assets
    time        datetime64[ns] [n], UTC, open time of each bar
    ledger      arrays by the names of `records.LEDGER`: [n] for the account, [n, A] for what belongs to an asset
                (units, fills, exits)
    target      float64 [n, A], exposures that the decision at the close before the bar asked for, multiples of equity
    close       float64 [n, A], closing price of each bar
    planned     bars of the window; a ruined account ends before
    """

    symbol: str
    label: str
    assets: tuple[str, ...]
    periods_per_year: float
    time: npt.NDArray[np.datetime64]
    ledger: Mapping[str, npt.NDArray[Any]]
    target: Floats
    close: Floats
    planned: int

    @classmethod
    def of_asset(
        cls, bars: Bars, ledger: Mapping[str, npt.NDArray[Any]], target: Floats, *, planned: int, offset: int = 0
    ) -> AccountPath:
        """The path of an account with one asset; offset: number of the ledger's `row` at which `bars` begin."""
        rows = ledger["row"] - offset
        columns = {name: values[:, None] if name in _PER_ASSET else values for name, values in ledger.items()}
        return cls(
            bars.symbol,
            bars.label,
            (bars.symbol,),
            bars.frequency.periods_per_year,
            bars.time[rows],
            columns,
            target.reshape(len(rows), 1),
            bars.close[rows][:, None],
            planned,
        )

    @classmethod
    def of_portfolio(
        cls, table: MarketTable, ledger: Mapping[str, npt.NDArray[Any]], target: Floats, *, label: str, planned: int
    ) -> AccountPath:
        """The path of an account with all assets of a portfolio."""
        rows = ledger["row"]
        return cls(
            " + ".join(table.symbols),
            label,
            table.symbols,
            table.clock_per_year,
            table.time[rows],
            dict(ledger),
            target,
            np.asarray(table.bars["close"][rows]),
            planned,
        )

    def __post_init__(self) -> None:
        rows, assets = self.target.shape
        if not rows or any(len(values) != rows for values in (self.time, self.close, *self.ledger.values())):
            raise ShapeError(
                f"{self.symbol}: a path needs at least one step, and as many of everything; {rows} targets."
            )
        if assets != len(self.assets) or self.close.shape != (rows, assets):
            raise ShapeError(f"{self.symbol}: targets for {assets} assets and closes {self.close.shape} do not fit.")

    def __len__(self) -> int:
        return len(self.time)

    def __repr__(self) -> str:
        """One line; a path has thousands of numbers."""
        first, last = (str(moment)[:10] for moment in (self.time[0], self.time[-1]))
        end = ", ruined" if self.ruined else ""
        return (
            f"<{type(self).__name__} of {self.symbol}: {len(self):,} bars, {first} to {last}, equity "
            f"{self.equity[0]:,.0f} to {self.equity[-1]:,.0f}{end}>"
        )

    @property
    def ruined(self) -> bool:
        """Whether equity fell to the bankruptcy floor, which ended the account."""
        return bool(self.equity[-1] <= BANKRUPT * self.equity[0])

    @property
    def equity(self) -> Floats:
        """float64 [n + 1], account currency: at the start and at every close."""
        return np.concatenate([self.ledger["equity_before"][:1], self.ledger["equity"]])

    @property
    def wealth(self) -> Floats:
        """float64 [n + 1]: equity as a multiple of its start; never below 0, shortfalls are counted apart."""
        return np.asarray(np.maximum(self.equity, 0.0) / self.equity[0])

    @property
    def log_returns(self) -> Floats:
        """float64 [n], per bar; equity at or below zero counts as a millionth of its start."""
        return np.diff(np.log(np.maximum(self.wealth, _LOWEST)))

    @property
    def exposures(self) -> Floats:
        """float64 [n, A]: positions at the close as multiples of equity; 0 where there is no equity left."""
        value = self.ledger["units"] * self.close
        equity = np.broadcast_to(self.ledger["equity"][:, None], value.shape)
        return np.divide(value, equity, out=np.zeros(value.shape), where=equity > 0)

    @property
    def exposure(self) -> Floats:
        """float64 [n]: all positions together, long minus short."""
        return np.asarray(self.exposures.sum(axis=1))

    @property
    def traded(self) -> Floats:
        """float64 [n]: notional of orders and exits in the bar as a multiple of the equity before it."""
        orders = np.abs(self.ledger["order_units"]) * self.ledger["order_price"]
        exits = np.abs(self.ledger["exit_units"]) * self.ledger["exit_price"]
        return self._of_equity((orders + exits).sum(axis=1))

    @property
    def costs(self) -> Floats:
        """float64 [n]: everything that was paid in the bar, as a fraction of the equity before it."""
        return self._of_equity(total_cost(self.ledger))

    def _of_equity(self, amount: Any) -> Floats:
        before = self.ledger["equity_before"]
        return np.divide(amount, before, out=np.zeros(len(self)), where=before > 0)

    def to_frame(self) -> pd.DataFrame:
        """One row per bar, indexed by its open time (UTC): targets, positions, every component, equity."""
        import pandas as pd

        columns: dict[str, Any] = {"symbol": self.symbol}
        per_asset = {"close": self.close, "target": self.target}
        for name, values in self.ledger.items():
            if name in ("row", "symbol"):
                continue
            if values.ndim == 1:
                columns[name] = values
            else:
                per_asset[name] = np.array(EVENTS)[values] if name == "event" else values
        for name, values in per_asset.items():
            for a, asset in enumerate(self.assets):
                columns[name if len(self.assets) == 1 else f"{name} {asset}"] = values[:, a]
        return pd.DataFrame(columns, index=pd.DatetimeIndex(self.time, tz="UTC", name="time"))


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
    entered: float = 0.0  # units that opened it or added to it
    left: float = 0.0  # units that reduced or closed it
    entry_price: float = 0.0  # mean price of the former, without costs
    exit_price: float | None = None  # mean price of the latter; what is open at the end counts at the last close

    @property
    def gain(self) -> float:
        """Profit as a fraction of what was entered for."""
        return self.profit / (self.entered * self.entry_price)

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
    frame["return"] = [trip.gain for trip in trips]
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
        _average(trip, -float(after[-1]), float(path.close[-1, a]))
        _close(trip, len(path) - 1, carry[-1] - carry[begun], closed=False)
        trips.append(trip)
    return trips


def _fill(trip: RoundTrip, units: float, price: float, rate: float) -> None:
    """Pay for `units` at `price`, and the costs of doing so."""
    cost = float(abs(units) * price * rate)
    _average(trip, float(units), float(price))
    trip.costs += cost
    trip.profit -= float(units * price) + cost


def _average(trip: RoundTrip, units: float, price: float) -> None:
    """Take `units` at `price` into the mean price of the entry or of the exit."""
    if units * trip.side > 0:
        trip.entered += abs(units)
        trip.entry_price += (price - trip.entry_price) * abs(units) / trip.entered
    else:
        trip.left += abs(units)
        mean = 0.0 if trip.exit_price is None else trip.exit_price
        trip.exit_price = mean + (price - mean) * abs(units) / trip.left


def _close(trip: RoundTrip, last: int, carry: float, *, closed: bool) -> None:
    trip.last, trip.closed, trip.carry = last, closed, float(carry)
    trip.profit += trip.carry

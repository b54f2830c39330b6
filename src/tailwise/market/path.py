"""What became of one account: bar after bar, with every cost, in one place for reports and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import ShapeError
from tailwise.market.records import BANKRUPT, EVENTS, total_cost
from tailwise.market.tables import MarketTable

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
_PER_ASSET = ("units", "order_units", "order_price", "exit_units", "exit_price", "event")
_LOWEST = 1e-6  # equity at or below zero counts as this share of the start, so that its logarithm exists


@dataclass(frozen=True, eq=False)
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

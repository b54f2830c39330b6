"""Bars as a live account gets them, one time after the other, with their features, and where the account begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import DataError, ShapeError
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import FeatureTable
from tailwise.market.account import Account, FeedBar
from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.dataset import scaled_exposures
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.tables import MarketTable, SymbolTable

Floats = npt.NDArray[np.float64]
Since = str | np.datetime64 | None


@dataclass(frozen=True)
class Opening:
    """Bars as an account gets them, and where it begins."""

    tables: list[SymbolTable]
    clock: MarketTable
    first: int  # row of the clock at whose close the account begins
    portfolio: bool

    def account(self, costs: CostConfig | None, market: MarketEnvConfig, symbols: tuple[str, ...]) -> Account:
        table = self.tables[0]
        return Account(
            symbols,
            table.feature_names,
            market,
            costs,
            periods_per_year=table.periods_per_year,
            clock_per_year=self.clock.clock_per_year or None,
            bar=table.bar,
        )

    def feed(self) -> Iterator[tuple[np.datetime64, list[FeedBar | None], bool]]:
        """(time, bars, whether the account may begin at their close), one time of the clock after the other."""
        places = [np.searchsorted(table.time, self.clock.time) for table in self.tables]  # type: ignore[arg-type]
        for t, time in enumerate(self.clock.time):
            rows = [_feed_bar(table, int(at[t]), time) for table, at in zip(self.tables, places, strict=True)]
            yield time, rows, t >= self.first

    def last_close(self) -> Floats:
        return np.array([table.close[-1] for table in self.tables])


def _feed_bar(table: SymbolTable, row: int, time: np.datetime64) -> FeedBar | None:
    assert table.time is not None
    if row == len(table.close) or table.time[row] != time:
        return None
    return FeedBar(
        open=float(table.open[row]),
        high=float(table.high[row]),
        low=float(table.low[row]),
        close=float(table.close[row]),
        volume=float(table.volume[row]),
        features=table.features[row],
        dividend=0.0 if table.dividends is None else float(table.dividends[row]),
        available=row >= table.first_valid,
        base=None if table.base is None else float(table.base[row]),
    )


def opening_of(
    costs: CostConfig | None,
    market: MarketEnvConfig,
    spec: FeatureSpec,
    bars: list[Bars],
    since: Since,
    *,
    scales: Mapping[str, float],
) -> Opening:
    """Compute the features of all bars, and find where the account begins. scales: of the base rule of each symbol
    (`limits.scales_of`)."""
    portfolio = action_kind(market.action).portfolio
    if portfolio and [one.symbol for one in bars] != list(spec.windows):
        raise DataError(
            f"the account holds {', '.join(spec.windows)}, in this order, and bars of "
            f"{', '.join(one.symbol for one in bars) or 'nothing'} were given."
        )
    if not portfolio and len(bars) != 1:
        raise ShapeError(f"this policy trades one asset at a time and the bars of {len(bars)} were given; give one.")
    tables = [spec.table(one) for one in bars]
    begin = beginning_of(spec, bars, since)
    firsts = []
    for one, features in zip(bars, tables, strict=True):
        first = max(int(np.searchsorted(one.time, begin)) - 1, features.first_valid)
        if first > len(one) - 1 and not portfolio:
            raise DataError(
                f"{one.symbol}: {len(one)} bars, of which the features need {features.first_valid} to warm up; give "
                "more bars from before."
            )
        firsts.append(min(first, len(one) - 1))
    if portfolio:  # all assets begin together, at the latest of their closes, as in an evaluation
        start = max(one.time[max(int(np.searchsorted(one.time, begin)) - 1, 0)] for one in bars)
        firsts = [max(first, int(np.searchsorted(one.time, start))) for one, first in zip(bars, firsts, strict=True)]
    made = []
    for one, features, first in zip(bars, tables, firsts, strict=True):
        base = None if market.base is None else scaled_exposures(market.base, one, scales)
        valid = FeatureTable(features.values, features.names, first)
        made.append(SymbolTable.from_bars(one, valid, base=base))
    return _on_clock(made, costs or CostConfig(), portfolio)


def _on_clock(tables: list[SymbolTable], costs: CostConfig, portfolio: bool) -> Opening:
    """The opening of accounts that begin where their tables are valid."""
    checked = [replace(table, first_valid=min(table.first_valid, len(table.close) - 2)) for table in tables]
    clock = (MarketTable.on_one_clock if portfolio else MarketTable.build)(_finite_tables(checked), costs)
    ready = [np.searchsorted(clock.time, table.time[min(table.first_valid, len(table.close) - 1)]) for table in tables]  # type: ignore[index]
    return Opening(tables, clock, int(min(ready)), portfolio)


def _finite_tables(tables: list[SymbolTable]) -> list[SymbolTable]:
    """The same with zeros where features are not valid yet, so that a table may begin at its last row."""
    return [replace(table, features=np.nan_to_num(table.features)) for table in tables]


def beginning_of(spec: FeatureSpec, bars: list[Bars], since: Since) -> np.datetime64:
    """Open time from which on the account trades."""
    if since is not None:
        try:
            return np.datetime64(str(since).removesuffix("Z"), "ns")
        except ValueError as error:
            raise DataError(f"since is {since!r}; write a UTC date or time such as 2024-05-01T14:30.") from error
    trained = [spec.windows[one.symbol].last for one in bars if one.symbol in spec.windows]
    if not trained:
        return bars[0].time[0]
    last = max(np.datetime64(text.removesuffix("Z"), "ns") for text in trained)
    later = [one.time[one.time > last] for one in bars]
    starts = [times[0] for times in later if len(times)]
    return min(starts) if starts else bars[0].time[0]

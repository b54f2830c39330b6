"""Real bars that need no network: twenty years of two indices that come with the package `arch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tailwise.core.errors import DataError
from tailwise.market.bars import Bars, load_bars


def sp500() -> Bars:
    """S&P 500 index, daily, 1999-01-04 to 2018-12-31 (5031 bars), as shipped by the package `arch`."""
    from arch.data import sp500 as data  # slow to import, and needed here only

    return _index(data.load(), "SP500", "arch.data.sp500")


def nasdaq() -> Bars:
    """NASDAQ composite index, daily, 1999-01-04 to 2018-12-31 (5031 bars), as shipped by the package `arch`."""
    from arch.data import nasdaq as data  # slow to import, and needed here only

    return _index(data.load(), "NASDAQ", "arch.data.nasdaq")


def _index(frame: Any, symbol: str, source: str) -> Bars:
    # Adj Close equals Close in both sets (an index pays no dividends); "refuse" would say so if that ever changed.
    return replace(load_bars(frame, symbol=symbol, adjust="refuse"), source=source)


_SETS: tuple[tuple[str, Callable[[], Bars]], ...] = (("sp500", sp500), ("nasdaq", nasdaq))


def names() -> tuple[str, ...]:
    """The sets that `load` knows."""
    return tuple(name for name, _ in _SETS)


def load(name: str) -> Bars:
    """The built-in set called `name`."""
    for known, reader in _SETS:
        if name == known:
            return reader()
    raise DataError(f"there is no built-in data set {name!r}; there are {', '.join(names())}.")

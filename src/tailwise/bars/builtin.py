"""Real bars that need no network: twenty years of two indices that come with the package `arch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tailwise.bars.bars import Bars, load_bars
from tailwise.core.errors import DataError


def sp500() -> Bars:
    """S&P 500 index, daily, 1999-01-04 to 2018-12-31 (5031 bars), as shipped by the package `arch`."""
    return _index("sp500")


def nasdaq() -> Bars:
    """NASDAQ composite index, daily, 1999-01-04 to 2018-12-31 (5031 bars), as shipped by the package `arch`."""
    return _index("nasdaq")


def _index(name: str) -> Bars:
    # The file as it lies: importing the package for it takes two seconds, with its models and their plots.
    import pandas as pd

    package = find_spec("arch")
    folders = [] if package is None else [Path(folder) for folder in package.submodule_search_locations or ()]
    files = [file for folder in folders for file in (folder / "data" / name).glob(f"{name}.csv*")]
    if not files:
        raise DataError(
            f"the built-in data set {name!r} was not found: it is the file data/{name}/{name}.csv.gz of the package "
            "`arch`; install that package again (pip install --force-reinstall arch), or give bars of your own."
        )
    frame = pd.read_csv(files[0], index_col="Date", parse_dates=["Date"])
    # Adj Close equals Close in both sets (an index pays no dividends); "refuse" would say so if that ever changed.
    return replace(load_bars(frame, symbol=name.upper(), adjust="refuse"), source=f"arch.data.{name}")


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

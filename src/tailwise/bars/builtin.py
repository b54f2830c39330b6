"""Real bars that need no network: prices inside packages that are installed, and where they come from.

`load` reads the two indices that always come along (with the package `arch`); `find_set` knows further ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from tailwise.bars.bars import Bars, load_bars
from tailwise.core.errors import DataError


@dataclass(frozen=True)
class DataSet:
    """One set of real prices inside an installed package."""

    name: str
    package: str
    extra: str | None  # extra of Tailwise that installs the package; None: always installed
    meaning: str
    load: Callable[[], Bars] | None  # None: closing prices only, which are no bars

    @property
    def installed(self) -> bool:
        """Whether its package is installed; looks for it without importing it."""
        return find_spec(self.package) is not None

    @property
    def advice(self) -> str:
        """How to install its package."""
        return f"install extra: pip install 'tailwise[{self.extra}]'"


def sp500() -> Bars:
    """S&P 500 index, daily, 1999-01-04 to 2018-12-31 (5031 bars), as shipped by the package `arch`."""
    return _index("sp500")


def nasdaq() -> Bars:
    """NASDAQ composite index, daily, 1999-01-04 to 2018-12-31 (5031 bars), as shipped by the package `arch`."""
    return _index("nasdaq")


def _index(name: str) -> Bars:
    # The file alone: importing `arch` with its models and plots takes two seconds.
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


def _googl() -> Bars:
    return _from_anytrading("STOCKS_GOOGL.csv", "GOOGL")


def _eurusd() -> Bars:
    return _from_anytrading("FOREX_EURUSD_1H_ASK.csv", "EURUSD")


def _from_anytrading(file: str, symbol: str) -> Bars:
    """Bars from a file of gym-anytrading, located without importing the package."""
    spec = find_spec("gym_anytrading")
    if spec is None or spec.origin is None:
        raise DataError("the package gym-anytrading is not installed.")
    bars = load_bars(Path(spec.origin).parent / "datasets" / "data" / file, symbol=symbol)
    return replace(bars, source=f"gym_anytrading.datasets {file}")


DATA_SETS = (
    DataSet("sp500", "arch", None, "S&P 500 index, daily, 1999-2018", sp500),
    DataSet("nasdaq", "arch", None, "NASDAQ composite index, daily, 1999-2018", nasdaq),
    DataSet("googl", "gym_anytrading", "bench", "Alphabet share, daily, 2009-2018", _googl),
    DataSet("eurusd", "gym_anytrading", "bench", "euro in US dollars, ask, hourly, 2017", _eurusd),
    DataSet("skfolio-sp500", "skfolio", "portfolio", "20 US shares, daily, 1990-2022; closes only, no bars", None),
    DataSet("skfolio-factors", "skfolio", "portfolio", "5 funds, daily, 2014-2022; closes only, no bars", None),
)


def names() -> tuple[str, ...]:
    """Names of the sets that `load` reads: those that are always installed."""
    return tuple(one.name for one in DATA_SETS if one.extra is None)


def load(name: str) -> Bars:
    """Load the built-in set called `name`."""
    for one in DATA_SETS:
        if one.name == name and one.extra is None and one.load is not None:
            return one.load()
    raise DataError(f"there is no built-in data set {name!r}; there are {', '.join(names())}.")


def find_set(name: str) -> DataSet:
    """Look up a set that holds bars and whose package is installed; DataError otherwise."""
    from tailwise.bars import synthetic

    sets = {one.name: one for one in DATA_SETS}
    if name in synthetic.kinds():
        raise DataError(f"{name} is a synthetic market; make it with: tailwise data synth {name} --out FILE.")
    if name not in sets:
        raise DataError(f"there is no data set {name!r}; there are {', '.join(sets)}.")
    data_set = sets[name]
    if not data_set.installed:
        raise DataError(f"{name} comes with the package {data_set.package}, which is not installed; {data_set.advice}.")
    if data_set.load is None:
        raise DataError(
            f"{name} holds closing prices only, and bars need open, high, low and volume as well; nothing is made up. "
            f"Read it with {data_set.package}.datasets."
        )
    return data_set

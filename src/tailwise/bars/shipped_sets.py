"""Bars that need no network, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from tailwise.bars import builtin, synthetic
from tailwise.bars.bars import Bars, load_bars
from tailwise.core.errors import DataError


@dataclass(frozen=True)
class DataSet:
    """One set of real prices inside an installed package."""

    name: str
    package: str
    extra: str | None  # of Tailwise, which installs the package; None: always installed
    meaning: str
    load: Callable[[], Bars] | None  # None: closing prices only, which are no bars

    @property
    def installed(self) -> bool:
        """Whether its package is there; looks for it without importing it."""
        return find_spec(self.package) is not None

    @property
    def advice(self) -> str:
        """How its package is installed."""
        return f"install extra: pip install 'tailwise[{self.extra}]'"


def data_sets() -> tuple[DataSet, ...]:
    """All sets, installed or not."""
    return (
        DataSet("sp500", "arch", None, "S&P 500 index, daily, 1999-2018", builtin.sp500),
        DataSet("nasdaq", "arch", None, "NASDAQ composite index, daily, 1999-2018", builtin.nasdaq),
        DataSet("googl", "gym_anytrading", "bench", "Alphabet share, daily, 2009-2018", _googl),
        DataSet("eurusd", "gym_anytrading", "bench", "euro in US dollars, ask, hourly, 2017", _eurusd),
        DataSet("skfolio-sp500", "skfolio", "portfolio", "20 US shares, daily, 1990-2022; closes only, no bars", None),
        DataSet("skfolio-factors", "skfolio", "portfolio", "5 funds, daily, 2014-2022; closes only, no bars", None),
    )


def _googl() -> Bars:
    return _from_anytrading("STOCKS_GOOGL.csv", "GOOGL")


def _eurusd() -> Bars:
    return _from_anytrading("FOREX_EURUSD_1H_ASK.csv", "EURUSD")


def _from_anytrading(file: str, symbol: str) -> Bars:
    """A file of gym-anytrading, found without importing the package."""
    spec = find_spec("gym_anytrading")
    if spec is None or spec.origin is None:
        raise DataError("the package gym-anytrading is not installed.")
    bars = load_bars(Path(spec.origin).parent / "datasets" / "data" / file, symbol=symbol)
    return replace(bars, source=f"gym_anytrading.datasets {file}")


def find_set(name: str) -> DataSet:
    """The set called `name`, if it holds bars and its package is installed."""
    known = {each.name: each for each in data_sets()}
    if name in synthetic.kinds():
        raise DataError(f"{name} is a synthetic market; make it with: tailwise data synth {name} --out FILE.")
    if name not in known:
        raise DataError(f"there is no data set {name!r}; there are {', '.join(known)}.")
    chosen = known[name]
    if not chosen.installed:
        raise DataError(f"{name} comes with the package {chosen.package}, which is not installed; {chosen.advice}.")
    if chosen.load is None:
        raise DataError(
            f"{name} holds closing prices only, and bars need open, high, low and volume as well; nothing is made up. "
            f"Read it with {chosen.package}.datasets."
        )
    return chosen

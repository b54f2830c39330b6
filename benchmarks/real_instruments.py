"""Real prices that installed packages ship, as bars; and what is missing or too short, each with a sentence."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tailwise.bars.bars import Bars, load_bars, save_bars
from tailwise.core.errors import TailwiseError

# The columns of skfolio's sp500_dataset, in its order.
STOCKS = tuple("AAPL AMD BAC BBY CVX GE HD JNJ JPM KO LLY MRK MSFT PEP PFE PG RRC UNH WMT XOM".split())  # noqa: SIM905


@dataclass(frozen=True)
class Instrument:
    """One series of prices.

    name      of the instrument in tables; symbol: what its file is called, from which `init` guesses the market
    package   that ships it, as it is imported; install: how to get it
    daily     whether it can be a member of the pooled policy
    load      reads its bars; raises when the package is not there
    """

    name: str
    symbol: str
    package: str
    install: str
    daily: bool
    load: Callable[[], Bars]

    @property
    def missing(self) -> str | None:
        """How to install what ships it, a sentence; None when it is there."""
        if find_spec(self.package) is not None:
            return None
        return f"{self.name} comes with {self.package}, which is not installed: {self.install}"


def _file(package: str, *parts: str) -> Path:
    """A file inside a package, which is not imported for it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {package} is not installed")
    return Path(spec.origin).parent.joinpath(*parts)


def _index(name: str) -> Callable[[], Bars]:
    def load() -> Bars:
        from tailwise.bars import builtin

        return builtin.load(name)

    return load


def _csv(package: str, symbol: str, *parts: str) -> Callable[[], Bars]:
    return lambda: load_bars(_file(package, *parts), symbol=symbol)


def _closes(symbol: str) -> Callable[[], Bars]:
    return lambda: bars_of_closes("skfolio", "datasets", "data", "sp500_dataset.csv.gz", column=symbol)


def bars_of_closes(package: str, *parts: str, column: str) -> Bars:
    """Bars from closes alone: open, high, low and close of a bar are its one known price, and volume is 0.

    No price is made up: an order of the close of t is filled at the next known price, the close of t + 1.
    """
    import pandas as pd

    close = pd.read_csv(_file(package, *parts), index_col=0, parse_dates=True)[column]
    frame = pd.DataFrame(dict.fromkeys(("open", "high", "low", "close"), close)).assign(volume=0.0)
    return replace(load_bars(frame, symbol=column), source=f"{package} {parts[-1]} {column}")


_BACKTESTING = "pip install 'tailwise[engines]'"
_ANYTRADING = "pip install 'tailwise[bench]'"
INSTRUMENTS = (
    Instrument("SP500", "SP500", "arch", "pip install tailwise", True, _index("sp500")),
    Instrument("NASDAQ", "NASDAQ", "arch", "pip install tailwise", True, _index("nasdaq")),
    Instrument("GOOG", "GOOG", "backtesting", _BACKTESTING, True, _csv("backtesting", "GOOG", "test", "GOOG.csv")),
    Instrument(
        "GOOGL",
        "GOOGL",
        "gym_anytrading",
        _ANYTRADING,
        True,
        _csv("gym_anytrading", "GOOGL", "datasets", "data", "STOCKS_GOOGL.csv"),
    ),
    Instrument(
        "EURUSD", "EURUSD", "backtesting", _BACKTESTING, False, _csv("backtesting", "EURUSD", "test", "EURUSD.csv")
    ),
    Instrument(
        "EURUSD-ask",
        "EURUSD",
        "gym_anytrading",
        _ANYTRADING,
        False,
        _csv("gym_anytrading", "EURUSD", "datasets", "data", "FOREX_EURUSD_1H_ASK.csv"),
    ),
    Instrument(
        "BTCUSD", "BTCUSD", "backtesting", _BACKTESTING, False, _csv("backtesting", "BTCUSD", "test", "BTCUSD.csv")
    ),
    *(
        Instrument(stock, stock, "skfolio", "pip install 'tailwise[portfolio]'", True, _closes(stock))
        for stock in STOCKS
    ),
)
BY_NAME = {one.name: one for one in INSTRUMENTS}


def bars_of(name: str, *, quick: bool) -> Bars:
    """The bars of an instrument. quick: the oldest half alone, whose first split ends before any test window."""
    bars = BY_NAME[name].load()
    return bars.slice(0, len(bars) // 2) if quick else bars


def write_bars(name: str, bars: Bars, folder: Path) -> Path:
    """Write bars as the file that `init` is given."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{BY_NAME[name].symbol}.parquet"
    save_bars(bars, path)
    return path


@dataclass(frozen=True)
class Available:
    """What there is: bars by name of the instrument, and a sentence for each that cannot take part."""

    bars: dict[str, Bars]
    left_out: dict[str, str]


def available(*, quick: bool = False, names: tuple[str, ...] | None = None) -> Available:
    """Load every instrument and let `init` judge whether its bars suffice. names: these alone."""
    from tailwise.run.new_config import write_config

    bars: dict[str, Bars] = {}
    left_out: dict[str, str] = {}
    for one in INSTRUMENTS:
        if names is not None and one.name not in names:
            continue
        if one.missing is not None:
            left_out[one.name] = one.missing
            continue
        found = bars_of(one.name, quick=quick)
        with tempfile.TemporaryDirectory() as folder:
            file = write_bars(one.name, found, Path(folder))
            try:
                write_config([file], out=Path(folder, "config.yaml"))
            except TailwiseError as error:
                left_out[one.name] = str(error).replace(str(file), file.name)
                continue
        bars[one.name] = found
    return Available(bars, left_out)


def day_of(moment: np.datetime64) -> str:
    """2018-12-31."""
    return str(moment.astype("datetime64[D]"))

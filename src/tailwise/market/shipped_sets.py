"""`tailwise data sets`: bars that need no network, where they come from, and the synthetic markets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from tailwise.market.check_bars import facts, print_facts
from tailwise.market.bar_files import check_target, save_and_read_back
from tailwise.market.synthetic_truth import meaning
from tailwise.cli.output import print_json
from tailwise.core.errors import DataError
from tailwise.market import builtin, synthetic
from tailwise.market.bars import Bars, load_bars


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


def show_sets(name: str | None, *, out: Path | None, force: bool, as_json: bool) -> None:
    """The list, or one set: what is in it, and saved where `out` says."""
    if name is None:
        if out is not None:
            raise DataError(f"--out {out}: which set? Write: tailwise data sets NAME --out {out}.")
        _list(as_json)
        return
    chosen = find_set(name)
    if out is not None:
        check_target(out, force=force)
    assert chosen.load is not None
    bars = chosen.load()
    told = {"name": name, "package": chosen.package, **facts(bars)}
    if out is not None:
        told["saved"] = save_and_read_back(bars, out)
    if as_json:
        print_json(told)
        return
    print_facts(told)


def find_set(name: str) -> DataSet:
    """The set called `name`, if it holds bars and its package is installed."""
    known = {each.name: each for each in data_sets()}
    if name in synthetic.kinds():
        raise DataError(f"{name} is a synthetic market; make it with: tailwise data synth {name} --out FILE.")
    if name not in known:
        raise DataError(f"there is no data set {name!r}; there are {', '.join(known)}.")
    chosen = known[name]
    if not chosen.installed:
        raise DataError(f"{name} comes with the package {chosen.package}, which is not installed; {_advice(chosen)}.")
    if chosen.load is None:
        raise DataError(
            f"{name} holds closing prices only, and bars need open, high, low and volume as well; nothing is made up. "
            f"Read it with {chosen.package}.datasets."
        )
    return chosen


def _advice(dataset: DataSet) -> str:
    return f"install extra: pip install 'tailwise[{dataset.extra}]'"


def _list(as_json: bool) -> None:
    sets, markets = data_sets(), {kind: meaning(kind) for kind in synthetic.kinds()}
    if as_json:
        listed = [
            {
                "name": each.name,
                "package": each.package,
                "installed": each.installed,
                "extra": each.extra,
                "bars": each.load is not None,
                "meaning": each.meaning,
            }
            for each in sets
        ]
        print_json({"sets": listed, "synthetic": [{"name": k, "meaning": text} for k, text in markets.items()]})
        return
    width = max(map(len, (*markets, *(each.name for each in sets))))
    print("Real prices (tailwise data sets NAME --out FILE)")
    for each in sets:
        state = each.package if each.installed else f"not installed; {_advice(each)}"
        print(f"  {each.name:<{width}}  {each.meaning} [{state}]")
    print("Synthetic markets (tailwise data synth KIND --out FILE)")
    for kind, text in markets.items():
        print(f"  {kind:<{width}}  {text}")

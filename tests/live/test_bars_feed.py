"""A replay says every bar of every symbol in the order of their times, with the numbers of the files."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailwise.bars.bars import Bars, load_bars
from tailwise.live.feeds import BarsFeed, raw_bar
from tailwise.live.lines import RawBar


def bars_of(symbol: str, count: int, *, step: str, seed: int, dividends: bool) -> Bars:
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 1e-3, count)))
    frame = pd.DataFrame(
        {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": rng.uniform(1, 9, count)},
        index=pd.date_range("2024-01-01", periods=count, freq=step, tz="UTC", name="time"),
    )
    if dividends:
        frame["dividends"] = np.where(rng.random(count) < 0.01, 0.1, 0.0)
    return load_bars(frame, symbol=symbol)


def test_a_replay_is_its_bars_in_order() -> None:
    """Two symbols with times of their own, more bars than are turned into numbers at once. Rejects numbers of the other
    symbol, dividends that are lost, an order by symbol, and bars lost between two blocks."""
    several = [
        bars_of("A", 3000, step="2min", seed=1, dividends=True),
        bars_of("B", 4500, step="1min", seed=2, dividends=False),
    ]
    each = [raw_bar(one, i) for one in several for i in range(len(one))]
    expected = sorted(each, key=lambda bar: (bar.time, bar.symbol))
    said = list(BarsFeed(several).said())
    assert said == expected
    assert sum(isinstance(bar, RawBar) and bar.dividend > 0 for bar in said) > 0
    after = expected[4200].time
    assert list(BarsFeed(several, after=after).said()) == [bar for bar in expected if bar.time > after]

"""Paths of accounts made by hand, and the times of every kind of bar that statistics must get right."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.market.costs import COMPONENTS
from tailwise.market.path import AccountPath

Floats = npt.NDArray[np.float64]
MINUTE = np.timedelta64(1, "m")

# Name -> (minutes from one bar to the next, bars per session or None around the clock, bars per year, their root).
# Sessions open at 14:30 UTC on business days; 252 of them make a year, and 365 days of a market that never closes.
RHYTHMS: dict[str, tuple[int, int | None, float, float]] = {
    "daily, exchange": (1440, 1, 252.0, 15.87451),
    "daily, 24/7": (1440, None, 365.0, 19.10497),
    "4 hours, exchange": (240, 2, 504.0, 22.44994),
    "4 hours, 24/7": (240, None, 2190.0, 46.79744),
    "hourly, exchange": (60, 7, 1764.0, 42.0),
    "hourly, 24/7": (60, None, 8760.0, 93.59487),
    "minute, exchange": (1, 390, 98_280.0, 313.49641),
    "minute, 24/7": (1, None, 525_600.0, 724.98276),
}


def bar_times(rhythm: str, bars: int) -> npt.NDArray[np.datetime64]:
    """Open times datetime64[ns] [bars] from 2019-01-01 on."""
    minutes, per_session, _, _ = RHYTHMS[rhythm]
    if per_session is None:
        return np.datetime64("2019-01-01", "ns") + np.arange(bars) * minutes * MINUTE
    days = np.busday_offset("2019-01-01", np.arange(-(-bars // per_session)), roll="forward").astype("datetime64[m]")
    stamps = days[:, None] + 870 * MINUTE + np.arange(per_session) * minutes * MINUTE
    return stamps.reshape(-1)[:bars].astype("datetime64[ns]")


def path_of(
    returns: Floats, *, time: npt.NDArray[np.datetime64] | None = None, periods_per_year: float = 252.0, **ledger: Any
) -> AccountPath:
    """An account of 100 with these log-returns [n]; `ledger` replaces columns of a ledger in which nothing moves."""
    count = len(returns)
    equity = 100.0 * np.exp(np.concatenate([[0.0], np.cumsum(returns)]))
    zero, none = np.zeros(count), np.zeros((count, 1))
    columns = dict.fromkeys((*COMPONENTS, "shortfall"), zero) | {
        **dict.fromkeys(("units", "order_units", "order_price", "exit_units", "exit_price"), none),
        "equity_before": equity[:-1],
        "equity": equity[1:],
        "row": np.arange(count),
    }
    if time is None:
        time = bar_times("daily, exchange", count)
    close = ledger.pop("close", np.ones((count, 1)))
    return AccountPath(
        "X", "real", ("X",), periods_per_year, time, columns | ledger, np.zeros((count, 1)), close, count
    )

"""An exchange behind ccxt: requests with rate limit and retries, and the candles that it answers with."""

from __future__ import annotations

import difflib
import importlib
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlsplit

import numpy as np

from tailwise.core.errors import DataError

Milliseconds: TypeAlias = int  # since 1970 UTC

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Candle(NamedTuple):
    """One bar of the exchange, at its open time."""

    time: Milliseconds
    open: float
    high: float
    low: float
    close: float
    volume: float


@dataclass(frozen=True)
class Gap:
    """A hole in the history of the exchange: `missing` bars after the one that opened at `after`."""

    after: str
    missing: int


def candle_end(opened: Milliseconds, timeframe: str) -> Milliseconds:
    """Time at which a candle ends. Months and years have their length in the calendar."""
    count, unit = int(timeframe[:-1]), timeframe[-1]
    if unit in _UNITS:
        return opened + count * _UNITS[unit]
    moment = np.datetime64(opened, "ms")
    month = moment.astype("datetime64[M]")
    later = month + np.timedelta64(count * (12 if unit == "y" else 1), "M")
    return int((later.astype("datetime64[ms]") + (moment - month.astype("datetime64[ms]"))).astype(np.int64))


def show(moment: Milliseconds) -> str:
    """2020-01-31T09:30:00Z."""
    return f"{np.datetime_as_string(np.datetime64(moment, 'ms'), unit='s')}Z"


def candle_fault(row: list[Any]) -> str | None:
    """Say why a candle is not a valid bar; None if it is."""
    values = [math.nan if value is None else float(value) for value in row[1:6]]
    if len(values) < 5 or not all(math.isfinite(value) for value in values):
        return f"a value is missing or not finite: {row[1:6]}"
    opened, high, low, close, volume = values
    if min(opened, high, low, close) <= 0 or volume < 0:
        return f"a price is not positive or the volume is negative: {row[1:6]}"
    if not low <= min(opened, close) <= max(opened, close) <= high:
        return f"open or close lie outside low to high: {row[1:6]}"
    return None


def merge(stored: list[Candle], page: list[Candle], source: str, file: Path | None = None) -> list[Candle]:
    """Return the candles of `page` (in order of time) that come after `stored`; the overlap must be equal.

    From the first candle of the page on, every stored one must be in the page, with the same values.
    """
    served: list[Candle] = []
    for candle in page:
        if not served or candle.time > served[-1].time:
            served.append(candle)
        elif candle != served[-1]:
            _differ(served[-1], candle, source, None)
    if not stored or not served or served[0].time > stored[-1].time:
        return served
    again = bisect_right(served, stored[-1].time, key=_time)
    first, last = bisect_left(stored, served[0].time, key=_time), bisect_right(stored, served[-1].time, key=_time)
    for before, now in zip_longest(stored[first:last], served[:again]):
        if before != now:
            _differ(before, now, source, file)
    return served[again:]


def _time(candle: Candle) -> Milliseconds:
    return candle.time


def _differ(stored: Candle | None, served: Candle | None, source: str, file: Path | None) -> NoReturn:
    """Raise the error on the first bar that the exchange serves with other values than before."""
    moment = min(candle.time for candle in (stored, served) if candle is not None)

    def values(candle: Candle | None) -> str:
        return "no such bar" if candle is None or candle.time != moment else ", ".join(f"{x!r}" for x in candle[1:])

    raise DataError(
        f"{source}: the bar {show(moment)} differs: {f'{file} has' if file else 'it was'} {values(stored)}; the "
        f"exchange now serves {values(served)} (open, high, low, close, volume). "
        "Fetch into a new file and compare the two."
    )


def find_gaps(rows: list[Candle], timeframe: str) -> list[Gap]:
    """List the holes between the first and the last candle."""
    gaps = []
    for before, after in pairwise(rows):
        expected = candle_end(before.time, timeframe)
        if after.time > expected:
            length = expected - before.time
            gaps.append(Gap(show(before.time), max(1, round((after.time - expected) / length))))
    return gaps


T = TypeVar("T")

ATTEMPTS = 6  # per request
FIRST_WAIT = 1.0  # seconds before the second attempt; doubled for each further one
LONGEST_WAIT = 300.0  # seconds; an exchange that asks for more is not waited for


@dataclass(frozen=True)
class Market:
    """One symbol and timeframe of an exchange."""

    exchange: str
    symbol: str
    timeframe: str
    limit: int | None  # candles per request; None when the exchange does not say
    now: Milliseconds  # when the download began: what was not finished then is not saved

    def end(self, opened: Milliseconds) -> Milliseconds:
        """Time at which the candle that opened at `opened` ends."""
        return candle_end(opened, self.timeframe)


class NoAnswerError(DataError):
    """The network or the server failed too often; what was fetched so far is valid."""


class Client:
    """A ccxt exchange; keeps its rate limit and repeats requests that failed."""

    def __init__(self, exchange: str, url: str | None, pause: Callable[[float], None]) -> None:
        self.ccxt = _import_ccxt()
        if exchange not in self.ccxt.exchanges:
            raise DataError(f"there is no exchange {exchange!r} in ccxt{_near(exchange, self.ccxt.exchanges)}.")
        self.name = exchange
        self.api = getattr(self.ccxt, exchange)({"enableRateLimit": True, "enableLastResponseHeaders": True})
        if url is not None:
            self.api.urls["api"] = _moved(self.api.urls["api"], url.rstrip("/"))
        self.pause = pause
        self.report_wait: Callable[[str], None] = lambda _: None
        self.requests = self.retries = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.api.session.close()

    def open(self, symbol: str, timeframe: str) -> Market:
        """Open a market after checking that the exchange has its symbol and timeframe."""
        if self.api.has.get("fetchOHLCV") is not True:
            raise DataError(f"{self.name} serves no history of bars; choose another exchange.")
        frames = self.api.timeframes or {}
        if timeframe not in frames:
            raise DataError(f"{self.name} has no timeframe {timeframe!r}; it has {', '.join(frames)}.")
        markets = self.request(self.api.load_markets)
        if symbol not in markets:
            raise DataError(f"{self.name} has no market {symbol!r}{_near(symbol, markets)}.")
        now = self.request(self.api.fetch_time) if self.api.has.get("fetchTime") is True else None
        limit = self.api.feature_value(symbol, "fetchOHLCV", "limit", None)
        return Market(self.name, symbol, timeframe, limit, now or int(time.time() * 1000))

    def page(self, market: Market, since: Milliseconds) -> list[list[Any]]:
        """Request one page of candles from `since` on: [time in ms, open, high, low, close, volume] each."""
        return self.request(lambda: self.api.fetch_ohlcv(market.symbol, market.timeframe, since, market.limit)) or []

    def request(self, call: Callable[[], T]) -> T:
        """Call the exchange; repeat after failures of network or server, but not after a refusal."""
        for attempt in range(1, ATTEMPTS + 1):
            self.requests += 1
            try:
                return call()
            except self.ccxt.OperationFailed as error:
                reason = f"{type(error).__name__}: {_short(error)}"
                wait = max(FIRST_WAIT * 2 ** (attempt - 1), self._retry_after())
                if attempt == ATTEMPTS or wait > LONGEST_WAIT:
                    why = f"{attempt} attempt(s)" if wait <= LONGEST_WAIT else f"it asked to wait {wait:.0f} s"
                    raise NoAnswerError(f"{self.name} did not answer ({why}); the last reason was {reason}.") from error
                self.retries += 1
                self.report_wait(f"{reason}; attempt {attempt + 1} of {ATTEMPTS} in {wait:g} s")
                self.pause(wait)
            except self.ccxt.BaseError as error:
                raise DataError(f"{self.name} refused: {type(error).__name__}: {_short(error)}.") from error
        raise AssertionError("the last attempt returns or raises")

    def _retry_after(self) -> float:
        """Seconds in the header Retry-After of the last answer; 0 without one, or where it is a date."""
        text = str((self.api.last_response_headers or {}).get("Retry-After", ""))
        return float(text) if text.isdigit() else 0.0


def _import_ccxt() -> Any:
    try:
        return importlib.import_module("ccxt")
    except ImportError as error:
        raise DataError("fetching needs the package ccxt; install it with: pip install 'tailwise[live]'.") from error


def _near(word: str, names: Any) -> str:
    near = difflib.get_close_matches(word, list(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _moved(addresses: Any, url: str) -> Any:
    """Replace the host in all addresses of an exchange and keep their paths."""
    if isinstance(addresses, dict):
        return {name: _moved(each, url) for name, each in addresses.items()}
    return url + urlsplit(addresses).path if isinstance(addresses, str) else addresses


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."

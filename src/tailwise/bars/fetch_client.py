"""An exchange of ccxt that is asked patiently: its rate limit is kept, failures are tried again, refusals are told."""

from __future__ import annotations

import difflib
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tailwise.bars.fetch_candles import Milliseconds, candle_end
from tailwise.core.errors import DataError

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
        """When the candle that opened then is over."""
        return candle_end(opened, self.timeframe)


class NoAnswerError(DataError):
    """The network or the server failed too often: what was fetched so far is good."""


class Client:
    """A ccxt exchange that is asked patiently."""

    def __init__(self, exchange: str, url: str | None, pause: Callable[[float], None]) -> None:
        self.ccxt = _import_ccxt()
        if exchange not in self.ccxt.exchanges:
            raise DataError(f"there is no exchange {exchange!r} in ccxt{_near(exchange, self.ccxt.exchanges)}.")
        self.name = exchange
        self.api = getattr(self.ccxt, exchange)({"enableRateLimit": True, "enableLastResponseHeaders": True})
        if url is not None:
            self.api.urls["api"] = _moved(self.api.urls["api"], url.rstrip("/"))
        self.pause = pause
        self.tell: Callable[[str], None] = lambda _: None
        self.requests = self.retries = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.api.session.close()

    def open(self, symbol: str, timeframe: str) -> Market:
        """The market, after a look at what the exchange has."""
        if self.api.has.get("fetchOHLCV") is not True:
            raise DataError(f"{self.name} serves no history of bars; choose another exchange.")
        frames = self.api.timeframes or {}
        if timeframe not in frames:
            raise DataError(f"{self.name} has no timeframe {timeframe!r}; it has {', '.join(frames)}.")
        markets = self.ask(self.api.load_markets)
        if symbol not in markets:
            raise DataError(f"{self.name} has no market {symbol!r}{_near(symbol, markets)}.")
        now = self.ask(self.api.fetch_time) if self.api.has.get("fetchTime") is True else None
        limit = self.api.feature_value(symbol, "fetchOHLCV", "limit", None)
        return Market(self.name, symbol, timeframe, limit, now or int(time.time() * 1000))

    def page(self, market: Market, since: Milliseconds) -> list[list[Any]]:
        """Candles from `since` on: [time in ms, open, high, low, close, volume] each."""
        return self.ask(lambda: self.api.fetch_ohlcv(market.symbol, market.timeframe, since, market.limit)) or []

    def ask(self, call: Callable[[], T]) -> T:
        """The answer; failures of the network or of the server are tried again, refusals are not."""
        for attempt in range(1, ATTEMPTS + 1):
            self.requests += 1
            try:
                return call()
            except self.ccxt.OperationFailed as error:
                reason = f"{type(error).__name__}: {_short(error)}"
                wait = max(FIRST_WAIT * 2 ** (attempt - 1), self._asked_to_wait())
                if attempt == ATTEMPTS or wait > LONGEST_WAIT:
                    why = f"{attempt} attempt(s)" if wait <= LONGEST_WAIT else f"it asked to wait {wait:.0f} s"
                    raise NoAnswerError(f"{self.name} did not answer ({why}); the last reason was {reason}.") from error
                self.retries += 1
                self.tell(f"{reason}; attempt {attempt + 1} of {ATTEMPTS} in {wait:g} s")
                self.pause(wait)
            except self.ccxt.BaseError as error:
                raise DataError(f"{self.name} refused: {type(error).__name__}: {_short(error)}.") from error
        raise AssertionError("the last attempt returns or raises")

    def _asked_to_wait(self) -> float:
        """Seconds in the header Retry-After of the last answer; 0 without one, or where it is a date."""
        text = str((self.api.last_response_headers or {}).get("Retry-After", ""))
        return float(text) if text.isdigit() else 0.0


def _import_ccxt() -> Any:
    try:
        return importlib.import_module("ccxt")
    except ImportError as error:
        raise DataError("fetching needs the package ccxt; install it with: pip install 'tailwise[live]'.") from error


def _near(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _moved(addresses: Any, url: str) -> Any:
    """All addresses of an exchange at another host, with the paths they had."""
    if isinstance(addresses, dict):
        return {name: _moved(each, url) for name, each in addresses.items()}
    return url + urlsplit(addresses).path if isinstance(addresses, str) else addresses


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."

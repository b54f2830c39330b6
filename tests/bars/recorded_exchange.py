"""An exchange on the loopback address that answers as Binance and Bitstamp do, from candles that a test gives it.

The answers have the form of the public interfaces /api/v3/klines and /api/v2/ohlc/PAIR/, numbers as text, so that the
real client library reads them.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

HOUR = 3_600_000  # ms
START = 1_704_067_200_000  # 2024-01-01T00:00Z, ms

Values = tuple[str, str, str, str, str]  # open, high, low, close, volume, as an exchange writes them


def hourly(count: int, *, start: int = START, missing: tuple[int, ...] = (), seed: int = 0) -> dict[int, Values]:
    """`count` hours of a random walk around 42000 with two decimals, without the hours numbered in `missing`."""
    random = np.random.default_rng(seed)
    closes = 42_000 * np.exp(np.cumsum(0.003 * random.standard_normal(count)))
    opens = np.concatenate([[42_000.0], closes[:-1]])
    wicks, volumes = random.random((count, 2)) * 50, random.random(count) * 900
    candles = {}
    for i in range(count):
        if i in missing:
            continue
        high, low = max(opens[i], closes[i]) + wicks[i, 0], min(opens[i], closes[i]) - wicks[i, 1]
        prices = (f"{price:.2f}" for price in (opens[i], high, low, closes[i]))
        candles[start + i * HOUR] = (*prices, f"{volumes[i]:.5f}")  # type: ignore[assignment]
    return candles


class RecordedExchange:
    """Serves `candles` on `url`; what it shall do wrong is set by the test."""

    def __init__(self, candles: dict[int, Values], clock: int) -> None:
        self.candles = candles
        self.clock = clock  # ms, what the exchange says the time is
        self.failures: list[tuple[int, dict[str, str]]] = []  # status and headers for the next requests of candles
        self.fail_from: int | None = None  # the number of the request of candles from which on all fail
        self.repeat_first = False  # each page begins with the same candle twice
        self.newest_only: int | None = None  # serves no more than so many of the newest candles, whatever is asked
        self.asked: list[dict[str, str]] = []  # the requests of candles
        self.times: list[float] = []
        self.served: set[int] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RecordedExchange:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, address: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON for one request."""
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query))
        if parts.path == "/api/v3/exchangeInfo":
            return 200, {}, {"timezone": "UTC", "serverTime": self.clock, "symbols": [BINANCE_MARKET]}
        if parts.path in ("/fapi/v1/exchangeInfo", "/dapi/v1/exchangeInfo"):
            return 200, {}, {"timezone": "UTC", "serverTime": self.clock, "symbols": []}
        if parts.path == "/api/v3/time":
            return 200, {}, {"serverTime": self.clock}
        if parts.path == "/api/v2/markets/":
            return 200, {}, [BITSTAMP_MARKET]
        if parts.path not in ("/api/v3/klines", "/api/v2/ohlc/btcusd/"):
            return 404, {}, {"error": f"no recording of {address}"}
        self.asked.append(query)
        self.times.append(time.monotonic())
        if self.failures:
            return (*self.failures.pop(0), {"code": -1000, "msg": "recorded failure"})
        if self.fail_from is not None and len(self.asked) >= self.fail_from:
            return 500, {}, {"code": -1000, "msg": "recorded failure"}
        return 200, {}, self._binance(query) if "v3" in parts.path else self._bitstamp(query)

    def _binance(self, query: dict[str, str]) -> list[Any]:
        """The first candles from startTime on, however far away they are."""
        opens = [t for t in sorted(self.candles) if t >= int(query["startTime"])]
        opens = opens[: int(query["limit"])] if self.newest_only is None else sorted(self.candles)[-self.newest_only :]
        opens = opens[:1] * self.repeat_first + opens
        self.served.update(opens)
        return [[t, *self.candles[t], t + HOUR - 1, "0", 10, "0", "0", "0"] for t in opens]

    def _bitstamp(self, query: dict[str, str]) -> dict[str, Any]:
        """The candles in the window from start to end: none, if it lies in a gap."""
        low, high = int(query["start"]) * 1000, int(query["end"]) * 1000
        opens = [t for t in sorted(self.candles) if low <= t <= high][: int(query["limit"])]
        names = ("open", "high", "low", "close", "volume")
        rows = [{"timestamp": str(t // 1000), **dict(zip(names, self.candles[t], strict=True))} for t in opens]
        return {"data": {"pair": "BTC/USD", "ohlc": rows}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        exchange = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, value = exchange.answer(self.path)
                body = json.dumps(value).encode()
                self.send_response(status)
                for name, text in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing on standard error."""

        return Handler


BINANCE_MARKET = {
    "symbol": "BTCUSDT",
    "status": "TRADING",
    "baseAsset": "BTC",
    "baseAssetPrecision": 8,
    "quoteAsset": "USDT",
    "quotePrecision": 8,
    "quoteAssetPrecision": 8,
    "orderTypes": ["LIMIT", "MARKET"],
    "isSpotTradingAllowed": True,
    "isMarginTradingAllowed": False,
    "filters": [
        {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "1000000.00", "tickSize": "0.01"},
        {"filterType": "LOT_SIZE", "minQty": "0.00001", "maxQty": "9000.0", "stepSize": "0.00001"},
    ],
    "permissions": ["SPOT"],
}

BITSTAMP_MARKET = {
    "name": "BTC/USD",
    "market_symbol": "btcusd",
    "base_currency": "BTC",
    "base_decimals": 8,
    "counter_currency": "USD",
    "counter_decimals": 0,
    "minimum_order_value": "10",
    "trading": "Enabled",
    "instant_order_counter_decimals": 2,
    "instant_and_market_orders": "Enabled",
    "description": "Bitcoin / U.S. dollar",
    "market_type": "SPOT",
}

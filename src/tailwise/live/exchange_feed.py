"""Public candles of an exchange as a feed, by ccxt: those that are over, one after the other, and its history for gaps.

The exchange is asked when the next candle is over by its own clock. Nothing is sent but requests for public candles.
"""

from __future__ import annotations

import time as wall_time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailwise.bars.exchange import Client, Market, candle_fault
from tailwise.core.errors import DataError
from tailwise.live.lines import RawBar, Refused, Said, check_bar

_MS = 1_000_000  # ns
_PATIENCE = 1.0  # seconds between two questions for a candle that is due
_FIRST = 500  # candles from before, which warm the features up


@dataclass(frozen=True)
class Place:
    """One market of an exchange."""

    exchange: str
    symbol: str
    timeframe: str


def place_of(text: str) -> Place:
    """ccxt:EXCHANGE/SYMBOL/TIMEFRAME, such as ccxt:binance/BTC/USDT/1h."""
    exchange, _, rest = text.removeprefix("ccxt:").partition("/")
    symbol, _, timeframe = rest.rpartition("/")
    if not (exchange and symbol and timeframe):
        raise DataError(f"--feed {text}: write ccxt:EXCHANGE/SYMBOL/TIMEFRAME, such as ccxt:binance/BTC/USDT/1h.")
    return Place(exchange, symbol, timeframe)


class ExchangeFeed:
    """symbol: what the policy calls it. url: asked instead of the exchange's own address; after: open time in ns of the
    newest bar that is known, None: the last `first` candles come first; most: candles after which it ends."""

    live = True

    def __init__(
        self,
        place: Place,
        symbol: str,
        *,
        url: str | None = None,
        after: int | None = None,
        first: int = _FIRST,
        most: int | None = None,
        pause: Callable[[float], None] = wall_time.sleep,
    ) -> None:
        self._place, self._symbol, self._after, self._most = place, symbol, after, most
        self._first, self._pause = first, pause
        self._client = Client(place.exchange, url, pause)

    def said(self) -> Iterator[Said | None]:
        client, place = self._client, self._place
        market = client.open(place.symbol, place.timeframe)
        length = market.end(market.now) - market.now
        newest = market.now - (self._first + 1) * length if self._after is None else self._after // _MS
        said = 0
        while self._most is None or said < self._most:
            found = False
            for opened, bar in self._after_this(market, newest):
                newest, found = opened, True  # also past one that was refused: it would be served again and again
                said += 1
                yield bar
                if said == self._most:
                    return
            if not found:
                yield from self._wait_for(market, newest)

    def _wait_for(self, market: Market, newest: int) -> Iterator[None]:
        """Until the candle after `newest`, ms, should be over; the clock of the session is looked at in between."""
        now = self._client.open(market.symbol, market.timeframe).now
        wait = max(_PATIENCE, (market.end(market.end(newest)) - now) / 1000.0)
        while wait > 0:
            yield None
            self._pause(min(wait, _PATIENCE))
            wait -= _PATIENCE

    def go_on_after(self, time: int) -> None:
        self._after = time

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        market = self._client.open(self._place.symbol, self._place.timeframe)
        found = [bar for _, bar in self._after_this(market, after // _MS)]
        return [bar for bar in found if isinstance(bar, RawBar) and after < bar.time < before]

    def _after_this(self, market: Market, newest: int) -> list[tuple[int, RawBar | Refused]]:
        """The candles of one page that opened after `newest`, ms, and are over by the clock of the exchange, with
        their open times."""
        now = self._client.open(market.symbol, market.timeframe).now
        page = self._client.page(market, newest + 1)
        said: list[tuple[int, RawBar | Refused]] = []
        for row in sorted(page, key=lambda one: int(one[0])):
            opened = int(row[0])
            if opened <= newest or market.end(opened) > now:
                continue
            fault = candle_fault(row)
            if fault is not None:
                said.append((opened, Refused(f"{market.exchange} {market.symbol}: {fault}")))
                continue
            bar = RawBar(self._symbol, opened * _MS, *(float(value) for value in row[1:6]))
            try:
                check_bar(bar, where=f"{market.exchange} {market.symbol}")
            except DataError as error:
                said.append((opened, Refused(str(error))))
            else:
                said.append((opened, bar))
        return said

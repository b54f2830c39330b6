"""Candles of an exchange as a feed, served by a recorded one on the loopback address to the real client library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailwise.core.errors import DataError
from tailwise.live.exchange_feed import ExchangeFeed, place_of
from tailwise.live.journal import JOURNAL
from tailwise.live.lines import RawBar, Refused
from tailwise.live.paper import Paper, ticks_in
from tests.bars.recorded_exchange import HOUR, START, RecordedExchange, hourly
from tests.live.markets import trader_of
from tests.live.test_paper import session_of

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small
pytest.importorskip("ccxt")
PLACE = place_of("ccxt:binance/BTC/USDT/1h")


def expected(candles: dict[int, Any], until: int) -> list[tuple[int, float]]:
    """(open time in ns, close) of the candles that are over at `until`, ms."""
    return [(t * 1_000_000, float(candles[t][3])) for t in sorted(candles) if t + HOUR <= until]


def test_the_name_of_a_feed_is_read() -> None:
    assert (PLACE.exchange, PLACE.symbol, PLACE.timeframe) == ("binance", "BTC/USDT", "1h")
    for wrong in ("ccxt:binance", "ccxt:binance/BTC", "ccxt:/BTC/USDT/1h"):
        with pytest.raises(DataError, match="write ccxt:EXCHANGE/SYMBOL/TIMEFRAME"):
            place_of(wrong)


def test_candles_are_said_once_when_they_are_over() -> None:
    """The clock of the exchange moves with every pause. Rejects the newest candle, which still changes, and one that is
    said twice; one that is no bar is refused once and not asked for again."""
    candles = hourly(60)
    broken = START + 45 * HOUR
    candles[broken] = ("1", "0.5", "2", "1", "1")
    with RecordedExchange(candles, clock=START + 40 * HOUR + HOUR // 2) as server:

        def pause(seconds: float) -> None:
            assert seconds <= 1.0
            server.clock += HOUR // 3

        feed = ExchangeFeed(PLACE, "BTC", url=server.url, first=30, most=45, pause=pause)
        said, seen_at = [], []
        for one in feed.said():
            if one is not None:
                said.append(one)
                seen_at.append(server.clock)
        bars = [one for one in said if isinstance(one, RawBar)]
        whole = [pair for pair in expected(candles, server.clock) if pair[0] != broken * 1_000_000]
        assert [(bar.time, bar.close) for bar in bars] == [pair for pair in whole if pair[0] >= bars[0].time][
            : len(bars)
        ]
        assert len(bars) == 44 and sum(isinstance(one, Refused) for one in said) == 1
        assert all(bar.time // 1_000_000 + HOUR <= server.clock for bar in bars)
        between = feed.history("BTC", bars[3].time, bars[9].time)
        assert between == bars[4:9]


def test_paper_follows_an_exchange_and_fills_what_it_missed(tmp_path: Path) -> None:
    """A session is closed, candles go on, and it is opened again: its journal is that of one that saw them all."""
    trader = trader_of("lstm")
    bars = list(trader.market().dataset.bars)
    candles = hourly(200)
    symbol = bars[0].symbol

    def run(folder: Path, server: RecordedExchange, most: int) -> None:
        session = session_of(trader, bars, folder)
        session.open()

        def pause(_: float) -> None:
            server.clock += HOUR // 2

        feed = ExchangeFeed(PLACE, symbol, url=server.url, first=60, most=most, pause=pause)
        if session.time is not None:
            feed.go_on_after(session.time)
        Paper(session).run(feed)
        session.close()

    with RecordedExchange(candles, clock=START + 70 * HOUR) as server:
        run(tmp_path / "whole", server, 110)
    with RecordedExchange(candles, clock=START + 70 * HOUR) as server:
        run(tmp_path / "parts", server, 65)
        server.clock += 20 * HOUR
        run(tmp_path / "parts", server, 45)
    whole, parts = (list(ticks_in(tmp_path / name / JOURNAL)) for name in ("whole", "parts"))
    assert len(whole) == 90 and parts == whole
    assert all(tick["state"] == "RUNNING" for tick in whole)

"""The history of an exchange, fetched through the real client library from an exchange on the loopback address."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tailwise.bars import synthetic
from tailwise.bars.bars import load_bars, save_bars
from tailwise.bars.exchange import Candle, candle_end, candle_fault, find_gaps, merge, show
from tailwise.bars.fetch import OVERLAP, Fetched, FetchProgress, Series, fetch_bars
from tailwise.core.errors import DataError
from tests.bars.recorded_exchange import HOUR, START, RecordedExchange, Values, hourly

ROOT = Path(__file__).parents[2]
COUNT = 2500  # three pages of a thousand
GAP = tuple(range(700, 705))


def need_ccxt() -> None:
    pytest.importorskip("ccxt", reason="the package ccxt (extra `live`) is not installed: nothing can be fetched")


@pytest.fixture
def exchange() -> Iterator[RecordedExchange]:
    """Hourly candles with a gap of five, of which the last is half over."""
    need_ccxt()
    candles = hourly(COUNT, missing=GAP)
    with RecordedExchange(candles, clock=START + (COUNT - 1) * HOUR + HOUR // 2) as server:
        yield server


def fetch(
    server: RecordedExchange,
    out: Path,
    *,
    since: str = "2024-01-01",
    until: str | None = None,
    name: str = "binance",
    symbol: str = "BTC/USDT",
    progress: Callable[[FetchProgress], None] | None = None,
    waits: list[float] | None = None,
    save_every: float = 0.0,
) -> Fetched:
    kept: list[float] = [] if waits is None else waits
    series = Series(name, symbol, "1h", since, until)
    return fetch_bars(series, out, progress=progress, url=server.url, pause=kept.append, save_every=save_every)


def in_file(path: Path) -> dict[int, tuple[float, ...]]:
    bars = load_bars(path)
    times = (bars.time.astype(np.int64) // 1_000_000).tolist()
    rows = np.stack([bars.open, bars.high, bars.low, bars.close, bars.volume], axis=1).tolist()
    return dict(zip(times, map(tuple, rows), strict=True))


def numbers(candles: dict[int, Values]) -> dict[int, tuple[float, ...]]:
    return {t: tuple(float(text) for text in values) for t, values in candles.items()}


@pytest.mark.parametrize("name", ["btc.csv", "btc.parquet"])
def test_every_finished_candle_and_nothing_else(name: str, exchange: RecordedExchange, tmp_path: Path) -> None:
    """Rejects: giving up at HTTP 500 or 429, a bar twice at a page border, the unfinished candle, a filled gap."""
    exchange.failures = [(500, {}), (429, {"Retry-After": "7"})]
    exchange.repeat_first = True
    waits: list[float] = []
    fetched = fetch(exchange, tmp_path / name, waits=waits)
    last = max(exchange.candles)
    assert last in exchange.served, "the unfinished candle was offered, and must be refused by the clock"
    expected = numbers(exchange.candles)
    del expected[last]
    assert in_file(tmp_path / name) == expected
    assert (fetched.bars, fetched.new, fetched.unfinished) == (len(expected), len(expected), 1)
    assert [(gap.after, gap.missing) for gap in fetched.gaps] == [("2024-01-30T03:00:00Z", 5)]
    assert waits == [1.0, 7.0], "one second after the first failure, then as long as the exchange asks"
    assert fetched.retries == 2
    assert fetched.first == "2024-01-01T00:00:00Z"
    assert fetched.last == show(last - HOUR)
    bars = load_bars(tmp_path / name)
    assert bars.label == "real"
    assert bars.frequency.periods_per_year == 8760


def test_the_rate_limit_of_the_exchange_is_kept(tmp_path: Path) -> None:
    """Rejects enableRateLimit=False: on loopback the requests would then follow within a few milliseconds."""
    need_ccxt()
    with RecordedExchange(hourly(10), clock=0) as server:
        fetch(server, tmp_path / "b.csv", name="bitstamp", symbol="BTC/USD", until="2025-01-01")
    assert len(server.times) >= 9, "a page of a thousand hours each"
    assert np.median(np.diff(server.times)) > 0.06, "Bitstamp allows a request every 75 ms"


def test_until_is_exclusive_and_a_continued_file_equals_a_fresh_one(exchange: RecordedExchange, tmp_path: Path) -> None:
    part, whole = tmp_path / "part.csv", tmp_path / "whole.csv"
    first = fetch(exchange, part, until="2024-02-05T05:00")
    assert first.last == "2024-02-05T04:00:00Z"
    assert first.unfinished == 0
    before = len(exchange.asked)
    second = fetch(exchange, part)
    assert int(exchange.asked[before]["startTime"]) == START + (35 * 24 + 5 - OVERLAP) * HOUR
    assert second.new == second.bars - first.bars
    assert f"{part} existed with {first.bars} bars and was continued" in second.notes
    fetch(exchange, whole)
    assert part.read_bytes() == whole.read_bytes()
    assert fetch(exchange, part).new == 0, "a file that is complete stays as it is"
    assert part.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("change", ["value", "vanished", "appeared"])
def test_a_file_that_differs_from_the_exchange_is_not_continued(
    change: str, exchange: RecordedExchange, tmp_path: Path
) -> None:
    """Rejects appending by time alone: another market, or another revision of this one, would be glued on."""
    path = tmp_path / "btc.csv"
    # The gap lies in the overlap, so that a bar can appear in it.
    assert fetch(exchange, path, until="2024-01-30T15:00").gaps
    content = path.read_bytes()
    at = START + 708 * HOUR
    if change == "value":
        exchange.candles[at] = (*exchange.candles[at][:4], "0.00001")
        told = "the exchange now serves"
    elif change == "vanished":
        del exchange.candles[at]
        told = "serves no such bar"
    else:
        at = START + 702 * HOUR
        exchange.candles[at] = exchange.candles[at + 3 * HOUR]
        told = f"{path} has no such bar"
    with pytest.raises(DataError, match="differs") as caught:
        fetch(exchange, path)
    assert f"the bar {show(at)} differs" in str(caught.value)
    assert told in str(caught.value)
    assert path.read_bytes() == content


def test_no_common_bar_is_no_continuation(exchange: RecordedExchange, tmp_path: Path) -> None:
    """Some exchanges serve only their newest candles: whether they continue the file cannot be seen."""
    path = tmp_path / "btc.csv"
    fetch(exchange, path, until="2024-01-15")
    content = path.read_bytes()
    exchange.newest_only = 720
    with pytest.raises(DataError, match="no bar is in both, so nothing shows that they belong together"):
        fetch(exchange, path)
    assert path.read_bytes() == content
    assert fetch(exchange, tmp_path / "new.csv").bars == 719


def test_failures_without_end_keep_what_was_fetched(exchange: RecordedExchange, tmp_path: Path) -> None:
    path = tmp_path / "btc.csv"
    exchange.fail_from = 3
    waits: list[float] = []
    with pytest.raises(DataError, match="binance did not answer") as caught:
        fetch(exchange, path, waits=waits, save_every=3600.0)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0], "bounded, and longer each time"
    kept = load_bars(path)
    assert 1000 < len(kept) < COUNT
    assert "(6 attempt(s)); the last reason was OperationFailed: binance" in str(caught.value)
    assert f"{len(kept)} bars up to {show(int(kept.time[-1].astype(np.int64)) // 10**6)} are in {path}" in str(
        caught.value
    )
    exchange.fail_from = None
    fetch(exchange, path)
    assert list(in_file(path)) == sorted(exchange.candles)[:-1]


def test_an_exchange_that_wants_a_long_rest_is_not_waited_for(exchange: RecordedExchange, tmp_path: Path) -> None:
    exchange.failures = [(418, {"Retry-After": "7200"})]
    waits: list[float] = []
    with pytest.raises(DataError, match="it asked to wait 7200 s"):
        fetch(exchange, tmp_path / "btc.csv", waits=waits)
    assert waits == []
    assert not (tmp_path / "btc.csv").exists()


def test_what_is_done_is_on_disk_after_each_page(exchange: RecordedExchange, tmp_path: Path) -> None:
    """Rejects saving at the end only: a killed process would begin again."""
    path, seen, told = tmp_path / "btc.parquet", [], []

    def look(progress: FetchProgress) -> None:
        told.append(progress)
        seen.append(len(load_bars(path)) if path.exists() else 0)

    fetch(exchange, path, progress=look)
    assert seen[0] == 0
    assert seen[1] == 1000
    assert seen[2] > 1900
    assert [p.bars for p in told] == sorted(p.bars for p in told)
    assert told[0].fraction == pytest.approx(1004 / COUNT, abs=0.01)


def test_an_empty_window_is_not_the_end(tmp_path: Path) -> None:
    """Bitstamp answers with a window of time. Rejects 'an empty page means that there is nothing more'."""
    need_ccxt()
    silent = tuple(range(300, 2800))
    candles = hourly(3000, start=START + 1200 * HOUR, missing=silent)
    with RecordedExchange(candles, clock=0) as server:
        fetched = fetch(server, tmp_path / "b.csv", name="bitstamp", symbol="BTC/USD", until="2024-09-01")
        assert in_file(tmp_path / "b.csv") == numbers(candles)
        assert [gap.missing for gap in fetched.gaps] == [2500]
        assert len(server.asked) <= 10


def test_candles_that_are_no_bars_are_left_out_and_told(exchange: RecordedExchange, tmp_path: Path) -> None:
    at = START + 10 * HOUR
    exchange.candles[at] = ("42000.00", "41000.00", "42000.00", "42000.00", "1.0")
    fetched = fetch(exchange, tmp_path / "btc.csv", until="2024-01-03")
    assert at not in in_file(tmp_path / "btc.csv")
    assert len(fetched.left_out) == 1
    assert fetched.left_out[0].startswith("2024-01-01T10:00:00Z: open or close lie outside low to high")
    assert [(gap.after, gap.missing) for gap in fetched.gaps] == [("2024-01-01T09:00:00Z", 1)]


def test_candles_closer_than_the_timeframe_are_refused(exchange: RecordedExchange, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="are closer than 1d; the exchange does not serve this timeframe"):
        fetch_bars(Series("binance", "BTC/USDT", "1d", "2024-01-01"), tmp_path / "d.csv", url=exchange.url)
    assert not (tmp_path / "d.csv").exists()


def test_a_file_of_another_origin_is_never_replaced(exchange: RecordedExchange, tmp_path: Path) -> None:
    path = tmp_path / "btc.csv"
    save_bars(synthetic.make("ar1", seed=1, length=50)[0], path)
    content = path.read_bytes()
    with pytest.raises(DataError, match=r"was not written by a download \(synthetic: ar1"):
        fetch(exchange, path)
    assert path.read_bytes() == content
    fetch(exchange, tmp_path / "own.csv", until="2024-01-05")
    lines = (tmp_path / "own.csv").read_text().splitlines()
    path.write_text("\n".join([lines[0] + ",mood", *(line + ",7" for line in lines[1:])]))
    content = path.read_bytes()
    with pytest.raises(DataError, match=r"was not written by a download \(columns not used: 'mood'\)"):
        fetch(exchange, path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("binanse", "BTC/USDT", "1h", "2024-01-01", None), "there is no exchange 'binanse' in ccxt; did you mean"),
        (("binance", "BTC/USDTT", "1h", "2024-01-01", None), "no market 'BTC/USDTT'; did you mean BTC/USDT?"),
        (("binance", "BTC/USDT", "7h", "2024-01-01", None), "binance has no timeframe '7h'; it has 1s, 1m"),
        (("binance", "BTC/USDT", "1h", "soon", None), "since is 'soon'; write it as 2020-01-31"),
        (("binance", "BTC/USDT", "1h", "2024-01-02", "2024-01-02"), "until 2024-01-02 is not after since 2024-01-02"),
        (("binance", "BTC/USDT", "1h", "2034-01-02", None), "since 2034-01-02 lies in the future of binance"),
        (("binance", "BTC/USDT", "1h", "2024-04-14T03:00", None), "binance has 0 complete bar(s) of BTC/USDT 1h"),
    ],
)
def test_what_cannot_be_fetched_is_a_sentence(
    arguments: tuple[str, str, str, str, str | None], sentence: str, exchange: RecordedExchange, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        fetch_bars(Series(*arguments), tmp_path / "x.csv", url=exchange.url)
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_told_before_the_download(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        fetch_bars(Series("binance", "BTC/USDT", "1h", "2024-01-01"), tmp_path / "no" / "x.csv")


def test_without_ccxt_the_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ccxt'] = None; from tailwise.cli.main import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["data", "fetch", "binance", "BTC/USDT", "--since", "2024-01-01", "--out", "x.csv"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == "error: fetching needs the package ccxt; install it with: pip install 'tailwise[live]'.\n"


# --- The parts that need no exchange ---------------------------------------------------------------------------------


def candle(hour: int, close: float = 1.0) -> Candle:
    return Candle(START + hour * HOUR, 1.0, 2.0, 0.5, close, 3.0)


def test_the_end_of_a_candle() -> None:
    """Rejects months of 30 days: the January candle would be taken for finished on the 31st."""
    january, february = START, START + 31 * 24 * HOUR
    assert candle_end(january, "1M") == february
    assert candle_end(february, "1M") == february + 29 * 24 * HOUR  # 2024 is a leap year
    assert candle_end(january, "1y") == january + 366 * 24 * HOUR
    assert candle_end(january, "3M") == january + (31 + 29 + 31) * 24 * HOUR
    assert [(candle_end(0, t)) for t in ("1s", "5m", "4h", "1d", "1w")] == [
        1_000,
        300_000,
        14_400_000,
        86_400_000,
        604_800_000,
    ]


def test_merge() -> None:
    known = [candle(0), candle(1), candle(3)]
    assert merge([], [candle(0), candle(0), candle(1)], "x") == [candle(0), candle(1)]
    assert merge(known, [], "x") == []
    assert merge(known, [candle(3), candle(3), candle(4), candle(4)], "x") == [candle(4)]
    assert merge(known, [candle(1)], "x") == []
    assert merge(known, [candle(5)], "x") == [candle(5)]
    for page, hour in (
        ([candle(3, 1.5)], 3),  # another value
        ([candle(0), candle(1), candle(2), candle(3)], 2),  # a bar that was not there
        ([candle(0), candle(3)], 1),  # a bar that is gone
        ([candle(1), candle(4)], 3),  # the newest bar is gone
        ([candle(4), candle(4, 1.5)], 4),  # twice in one answer, and not the same
    ):
        with pytest.raises(DataError, match=f"the bar {show(START + hour * HOUR)} differs"):
            merge(known, page, "x")


def test_gaps_and_faults() -> None:
    assert [(g.after, g.missing) for g in find_gaps([candle(0), candle(1), candle(4), candle(5)], "1h")] == [
        ("2024-01-01T01:00:00Z", 2)
    ]
    months = [START, START + 31 * 24 * HOUR, START + (31 + 29 + 31) * 24 * HOUR]
    rows = [Candle(t, 1.0, 2.0, 0.5, 1.0, 3.0) for t in months]
    assert [gap.missing for gap in find_gaps(rows, "1M")] == [1]
    assert candle_fault([0, 1.0, 2.0, 0.5, 1.0, 0.0]) is None
    for row in (
        [0, 1.0, 2.0, 0.5, None, 1.0],
        [0, 1.0, float("inf"), 0.5, 1.0, 1.0],
        [0, 0.0, 2.0, 0.0, 1.0, 1.0],
        [0, 1.0, 2.0, 0.5, 1.0, -1.0],
        [0, 3.0, 2.0, 0.5, 1.0, 1.0],
        [0, 1.0, 2.0, 0.5, 1.0],
    ):
        assert candle_fault(row) is not None, row

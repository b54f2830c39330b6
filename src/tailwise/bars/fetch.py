"""Download the history of an exchange as bars: page by page, resumable, without unfinished bars.

Values are saved as the exchange serves them: gaps are reported and not filled, and a bar that is served twice must be
equal both times. A candle is finished when its interval has passed by the exchange's clock (by ours if it has none).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.bars.bars import Bars, load_bars, save_bars
from tailwise.bars.exchange import (
    Candle,
    Client,
    Gap,
    Market,
    Milliseconds,
    NoAnswerError,
    candle_fault,
    find_gaps,
    merge,
    show,
)
from tailwise.bars.frequency import DAY, with_calendar
from tailwise.core.errors import DataError

OVERLAP = 50  # bars at the end of a file that are fetched again and compared when it is continued
SAVE_EVERY = 15.0  # seconds; a process that is killed loses at most the pages since the last save


@dataclass(frozen=True)
class FetchProgress:
    """State of a download; `note` says why it waits, if it does."""

    bars: int
    reached: str
    fraction: float  # of the time span that was asked for
    note: str = ""


@dataclass(frozen=True)
class Fetched:
    """Result of a download: the file and what was left out of it."""

    file: str
    exchange: str
    symbol: str
    timeframe: str
    bars: int  # in the file
    new: int  # added by this download
    first: str
    last: str
    unfinished: int  # candles that were not over yet, left out
    left_out: tuple[str, ...]  # candles that are no bars, with the reason
    gaps: tuple[Gap, ...]
    requests: int
    retries: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """What to download: bars of one symbol that open in [since, until), UTC; until None: up to now."""

    exchange: str
    symbol: str
    timeframe: str
    since: str | datetime
    until: str | datetime | None = None

    def __str__(self) -> str:
        return f"{self.symbol} {self.timeframe} from {self.since} to {self.until or 'now'}"

    def span(self) -> tuple[Milliseconds, Milliseconds | None]:
        """since and until; DataError unless the first comes before the second."""
        start = _milliseconds(self.since, "since")
        stop = None if self.until is None else _milliseconds(self.until, "until")
        if stop is not None and stop <= start:
            raise DataError(
                f"until {self.until} is not after since {self.since}; bars are fetched from since until before until."
            )
        return start, stop


def fetch_bars(
    series: Series,
    out: str | Path,
    *,
    progress: Callable[[FetchProgress], None] | None = None,
    url: str | None = None,
    pause: Callable[[float], None] = time.sleep,
    save_every: float = SAVE_EVERY,
) -> Fetched:
    """Download the bars of `series` into `out` (.csv or .parquet).

    An existing file is continued from its end, after its last bars were fetched again and compared.
    url: address to ask instead of the exchange's own (a mirror, a recording). pause: waits that many seconds.
    """
    path = Path(out)
    if not path.parent.is_dir():  # said before the download, not after it
        raise DataError(f"{path}: there is no folder {path.parent}; make it first.")
    start, stop = series.span()
    with Client(series.exchange, url, pause) as client:
        market = client.open(series.symbol, series.timeframe)
        if start >= market.now:
            clock = f"{series.exchange}, whose clock says {show(market.now)}"
            raise DataError(f"since {series.since} lies in the future of {clock}.")
        store = _Store.open(path, market, start)
        try:
            _download(client, market, store, stop, progress or (lambda _: None), save_every)
        except NoAnswerError as error:
            store.save()
            if not store.saved:
                raise
            kept = f"{store.saved} bars up to {show(store.rows[-1].time)} are in {path}"
            raise DataError(f"{error} {kept}; the same command continues from there.") from error
        except KeyboardInterrupt:
            store.save()
            raise
        store.save()
        if len(store.rows) < 2:
            raise DataError(
                f"{series.exchange} has {len(store.rows)} complete bar(s) of {series}; bars need at least 2, nothing "
                "was written." + (f" Left out: {store.left_out[0]}." if store.left_out else "")
            )
        return store.report(client, market)


def _milliseconds(value: str | datetime, name: str) -> Milliseconds:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except ValueError as error:
        raise DataError(f"{name} is {value!r}; write it as 2020-01-31 or 2020-01-31T09:30 (UTC).") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


# --- Pages -----------------------------------------------------------------------------------------------------------


def _download(
    client: Client,
    market: Market,
    store: _Store,
    stop: Milliseconds | None,
    progress: Callable[[FetchProgress], None],
    save_every: float,
) -> None:
    """Request pages from the last known bar on, until the next one is unfinished or past the end."""
    end = market.now if stop is None else min(stop, market.now)
    cursor = begin = store.start

    def report(note: str = "") -> None:
        reached = min(cursor, end)
        share = 1.0 if end <= begin else (reached - begin) / (end - begin)
        progress(FetchProgress(len(store.rows), show(reached), share, note))

    client.report_wait = report
    following = cursor if not store.rows else market.end(store.rows[-1].time)
    while following < end and market.end(following) <= market.now:
        page = client.page(market, cursor)
        added, past_end = store.add(page, cursor, end)
        if added:
            cursor, following = store.rows[-1].time, market.end(store.rows[-1].time)
        elif market.limit is None:
            break  # an answer without bound that holds nothing new: there is nothing more
        else:
            # Some exchanges answer with a window of time, which may lie in a gap or before the first trade.
            cursor += market.limit * (market.end(cursor) - cursor)
            following = cursor
        report()
        if past_end:
            break
        store.save(at_most_every=save_every)


@dataclass
class _Store:
    """The bars in memory and the file that they go to."""

    path: Path
    market: Market
    start: Milliseconds  # of the first request
    rows: list[Candle]
    notes: list[str]
    old: int = 0  # bars that the file had before
    saved: int = 0
    checked: bool = True  # the file's last bars equal those of the exchange; True without a file
    unfinished: int = 0
    left_out: list[str] = field(default_factory=list)
    saved_at: float = field(default_factory=time.monotonic)

    @staticmethod
    def open(path: Path, market: Market, start: Milliseconds) -> _Store:
        if not path.exists():
            return _Store(path, market, start, [], [])
        rows = _read(path, market)
        notes = [f"{path} existed with {len(rows)} bars and was continued"]
        if start < rows[0].time:
            notes.append(f"bars before its first one, {show(rows[0].time)}, were not asked for")
        if start > market.end(rows[-1].time):
            notes.append(f"it ended at {show(rows[-1].time)}, before since; the bars between were fetched as well")
        begin = rows[max(0, len(rows) - OVERLAP)].time
        return _Store(path, market, begin, rows, notes, old=len(rows), saved=len(rows), checked=False)

    def add(self, page: list[list[Any]], cursor: Milliseconds, end: Milliseconds) -> tuple[int, bool]:
        """Append the finished bars of a page; return how many were new and whether the page reached the end."""
        good: list[Candle] = []
        past_end = False
        for row in sorted((each for each in page if int(each[0]) >= cursor), key=lambda each: each[0]):
            opened = int(row[0])
            if opened >= end or self.market.end(opened) > self.market.now:
                past_end = True
                self.unfinished += opened < end
            elif (fault := candle_fault(row)) is not None:
                self.left_out.append(f"{show(opened)}: {fault}")
            else:
                good.append(Candle(opened, *(float(value) for value in row[1:6])))
        source = f"{self.market.exchange} {self.market.symbol} {self.market.timeframe}"
        if not self.checked:
            _demand_overlap(self.rows, good, cursor, self.path, source)
            self.checked = True
        new = merge(self.rows, good, source, self.path if self.old else None)
        _refuse_short_steps([*self.rows[-1:], *new], self.market, source)
        self.rows += new
        return len(new), past_end

    def save(self, at_most_every: float = 0.0) -> None:
        if len(self.rows) < 2 or len(self.rows) == self.saved:
            return
        began = time.monotonic()
        if began - self.saved_at < at_most_every:
            return
        save_bars(_bars(self.rows, self.market), self.path)
        self.saved, self.saved_at = len(self.rows), time.monotonic()

    def report(self, client: Client, market: Market) -> Fetched:
        return Fetched(
            file=str(self.path),
            exchange=market.exchange,
            symbol=market.symbol,
            timeframe=market.timeframe,
            bars=len(self.rows),
            new=len(self.rows) - self.old,
            first=show(self.rows[0].time),
            last=show(self.rows[-1].time),
            unfinished=self.unfinished,
            left_out=tuple(self.left_out),
            gaps=tuple(find_gaps(self.rows, market.timeframe)),
            requests=client.requests,
            retries=client.retries,
            notes=tuple(self.notes),
        )


def _demand_overlap(stored: list[Candle], page: list[Candle], cursor: Milliseconds, file: Path, source: str) -> None:
    if not any(candle.time <= stored[-1].time for candle in page):
        begins = f"begins at {show(page[0].time)}" if page else "is empty"
        raise DataError(
            f"{source}: {file} ends at {show(stored[-1].time)} and the answer of the exchange from {show(cursor)} on "
            f"{begins}: no bar is in both, so nothing shows that they belong together; fetch into a new file."
        )


def _refuse_short_steps(rows: list[Candle], market: Market, source: str) -> None:
    for before, after in pairwise(rows):
        if after.time < market.end(before.time):
            raise DataError(
                f"{source}: the bars {show(before.time)} and {show(after.time)} are closer than {market.timeframe}; "
                "the exchange does not serve this timeframe as it says; choose another one."
            )


# --- The file --------------------------------------------------------------------------------------------------------


def _bars(rows: list[Candle], market: Market) -> Bars:
    table = np.array(rows, dtype=np.float64)
    stamps = np.array([row.time for row in rows], dtype="datetime64[ms]").astype("datetime64[ns]")
    month = market.timeframe == "1M"
    step = 31 * DAY if month else (market.end(rows[0].time) - rows[0].time) * 1_000_000
    return Bars(
        symbol=market.symbol,
        time=stamps,
        **{name: np.ascontiguousarray(table[:, i + 1]) for i, name in enumerate(Candle._fields[1:])},  # type: ignore[arg-type]
        label="real",
        source=f"{market.exchange} {market.symbol} {market.timeframe}",
        frequency=with_calendar(stamps, np.timedelta64(step, "ns"), "24/7", "timeframe of the exchange"),
    )


def _read(path: Path, market: Market) -> list[Candle]:
    """The candles of a file that an earlier download wrote; anything else is refused, because it would be lost."""
    bars = load_bars(path, periods_per_year=365.0)  # any number: gaps must not make the file unreadable
    foreign = [note for note in bars.notes if note != "times are UTC"]
    if bars.label != "real" or bars.dividends is not None or foreign:
        what = bars.label if bars.label != "real" else foreign[0] if foreign else "it has dividends"
        raise DataError(f"{path}: exists and was not written by a download ({what}); choose another file.")
    times = (bars.time.astype(np.int64) // 1_000_000).tolist()
    columns = (values.tolist() for values in (bars.open, bars.high, bars.low, bars.close, bars.volume))
    rows = [Candle(*row) for row in zip(times, *columns, strict=True)]
    _refuse_short_steps(rows, market, f"{path}, continued with {market.exchange} {market.symbol}")
    return rows

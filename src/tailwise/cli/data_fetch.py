"""`tailwise data fetch`: the history of an exchange as a file, with progress on standard error."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tailwise.bars.bars import check_target
from tailwise.bars.fetch import Fetched, FetchProgress, fetch_bars
from tailwise.cli.output import DONE, INTERRUPTED, note, print_json

PLAIN_LINE_EVERY = 5.0  # seconds
SHOWN = 5  # gaps and candles that were left out


def fetch(
    exchange: str,
    symbol: str,
    *,
    timeframe: str,
    since: str,
    until: str | None,
    out: Path,
    url: str | None,
    as_json: bool,
) -> int:
    """Download, then say what is in the file."""
    check_target(out, force=True)  # a file that exists is continued
    try:
        with Display(f"{exchange} {symbol} {timeframe}") as display:
            fetched = fetch_bars(exchange, symbol, timeframe, since, until, out, progress=display.show, url=url)
    except KeyboardInterrupt:
        kept = f"; what was fetched is in {out} and the same command continues it" if out.exists() else ""
        note(f"interrupted{kept}.")
        return INTERRUPTED
    if as_json:
        print_json(asdict(fetched))
    else:
        _print(fetched)
    return DONE


def _print(fetched: Fetched) -> None:
    print(f"{fetched.file}: {fetched.bars:,} bars of {fetched.timeframe}, {fetched.new:,} of them new")
    print(f"from {fetched.first} to {fetched.last}; {fetched.requests} requests, {fetched.retries} of them repeated")
    for sentence in fetched.notes:
        print(sentence)
    if fetched.unfinished:
        print("the last candle was not finished and is left out")
    if fetched.left_out:
        print(f"{len(fetched.left_out)} candle(s) are no bars and are left out:")
        for sentence in fetched.left_out[:SHOWN]:
            print(f"  {sentence}")
    if not fetched.gaps:
        print("no gaps")
        return
    missing = sum(gap.missing for gap in fetched.gaps)
    print(f"{len(fetched.gaps)} gap(s), {missing} bars that the exchange does not have; nothing was filled in:")
    for gap in sorted(fetched.gaps, key=lambda gap: -gap.missing)[:SHOWN]:
        print(f"  {gap.missing} after {gap.after}")


class Display:
    """A bar on a terminal, a line every few seconds elsewhere; always on standard error, apart from the result."""

    def __init__(self, title: str) -> None:
        console = Console(stderr=True)
        self._title = title
        self._next_line = time.monotonic() + PLAIN_LINE_EVERY
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}% {task.fields[bars]} bars to {task.fields[reached]}", markup=False),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task(title, total=1.0, bars=0, reached="-")

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: FetchProgress) -> None:
        """Called after each page and before each wait."""
        if progress.note:
            self._say(progress.note)
        if self._bar is not None:
            self._bar.update(
                self._task, completed=progress.fraction, bars=f"{progress.bars:,}", reached=progress.reached
            )
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_LINE_EVERY
            self._say(f"{progress.bars:,} bars to {progress.reached}, {progress.fraction:.0%}")

    def _say(self, sentence: str) -> None:
        text = f"{self._title}: {sentence}"
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            note(text)

"""Between files and listeners: one reader per run, whoever listens; a slow listener gets several changes as one.

Nothing is queued. The histories are shared, a listener only remembers its position in them, and takes everything since
whenever it is ready: what it costs does not grow with how slow it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tailwise.watch.history import History
from tailwise.watch.run_table import RunEntry, find_runs
from tailwise.watch.status import Summary, unread
from tailwise.watch.values import short_text, to_json

MOST_LISTENERS = 256
READ_EVERY = 1.0  # seconds between two looks at a run that somebody watches
LIST_EVERY = 2.0  # seconds between two looks at the list of runs
LIST_PATIENCE = 3.0  # seconds that the list waits for its runs; one that takes longer keeps its last line
LIST_THREADS = 4
Value = TypeVar("Value")


class Hub:
    """The runs, their readers and how many listen; lives in one event loop."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self.table: dict[str, RunEntry] = {}
        self.listeners = 0
        self.list_text = "[]"
        self._summaries: dict[str, Summary] = {}
        self._lines: dict[str, str] = {}  # of the list: JSON of each run
        self._looks: dict[str, asyncio.Task[None]] = {}  # at runs, under way
        self._failures: dict[str, str] = {}  # of runs that are followed: why they could not be read
        self._pool = ThreadPoolExecutor(LIST_THREADS, thread_name_prefix="runs")
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._histories: dict[str, History] = {}
        self._users: dict[str, int] = {}
        self._lister: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Read the list of runs once, then keep it fresh."""
        await self._look()
        self._lister = asyncio.create_task(self._keep_list())

    async def stop(self) -> None:
        """End all readers, and wake the listeners."""
        started = (self._lister, *self._readers.values(), *self._looks.values())
        tasks = [task for task in started if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._wake()

    async def follow(self, run: str) -> History:
        """The history of a run, read by its one reader; `leave` it afterwards."""
        self._users[run] = self._users.get(run, 0) + 1
        if run not in self._readers:
            self._histories[run] = History(self.table[run])
            self._readers[run] = asyncio.create_task(self._read(run, self._histories[run]))
        return self._histories[run]

    def leave(self, run: str) -> None:
        """One listener less; the last one ends the reader."""
        self._users[run] -= 1
        if self._users[run] == 0:
            del self._users[run], self._histories[run]
            self._readers.pop(run).cancel()
            self._failures.pop(run, None)

    async def wait(self, seconds: float) -> None:
        """Until something changed, at most `seconds`."""
        changed = self._changed  # a change replaces it, so that none is missed between two waits
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read(self, run: str, history: History) -> None:
        while True:
            async with history.lock:  # listeners wait for the lock; the event loop goes on
                changed, failure = await attempt(history.poll)
            if failure is not None:
                self._failures[run] = failure
            else:
                self._failures.pop(run, None)
            if changed:
                self._wake()
            await asyncio.sleep(0 if history.behind else READ_EVERY)

    async def _keep_list(self) -> None:
        while True:
            await asyncio.sleep(LIST_EVERY)
            with contextlib.suppress(OSError):  # a disk that fails for a moment: the next look tries again
                await self._look()

    async def _look(self) -> None:
        """Look at every run, each by itself: one that is broken or slow changes its own line of the list alone."""
        self.table = await asyncio.to_thread(find_runs, self.roots)
        for known in (self._summaries, self._lines):
            for run in [run for run in known if run not in self.table]:
                del known[run]
        for run, entry in self.table.items():
            if run not in self._looks:
                self._looks[run] = asyncio.create_task(self._look_at(run, entry))
        if self._looks:
            await asyncio.wait(list(self._looks.values()), timeout=LIST_PATIENCE)
        lines = [self._lines.get(run) or to_json(unread(entry, "still reading")) for run, entry in self.table.items()]
        text = f"[{','.join(lines)}]"
        if text != self.list_text:
            self.list_text = text
            self._wake()

    async def _look_at(self, run: str, entry: RunEntry) -> None:
        summary = self._summaries.setdefault(run, Summary(entry))
        try:
            line, failure = await attempt(lambda: to_json(summary.read()), self._pool)
            failure = failure or self._failures.get(run)
            if failure is not None:
                line = to_json(unread(entry, failure))
            if line is not None and run in self.table:
                self._lines[run] = line
        finally:
            del self._looks[run]


async def attempt(
    function: Callable[[], Value], pool: ThreadPoolExecutor | None = None
) -> tuple[Value | None, str | None]:
    """Call a blocking function in a thread: its value and None, or None and why it failed.

    The boundary around one run. Files of a run may be broken in ways that nobody thought of; whatever reading them
    raises is said of that run, and the others go on.
    """
    started = asyncio.get_running_loop().run_in_executor(pool, function)
    (value,) = await asyncio.gather(started, return_exceptions=True)
    if isinstance(value, BaseException):
        return None, short_text(f"{type(value).__name__}: {value}")
    return value, None

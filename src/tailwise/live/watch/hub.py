"""Between files and listeners: one reader per run, whoever listens; a slow listener gets several changes as one.

Nothing is queued. The histories are shared, a listener only remembers its position in them, and takes everything since
whenever it is ready: what it costs does not grow with how slow it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from tailwise.live.watch.history import History
from tailwise.live.watch.run_table import RunEntry, find_runs
from tailwise.live.watch.status import Summary, to_json

MOST_LISTENERS = 256
READ_EVERY = 1.0  # seconds between two looks at a run that somebody watches
LIST_EVERY = 2.0  # seconds between two looks at the list of runs


class Hub:
    """The runs, their readers and how many listen; lives in one event loop."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self.table: dict[str, RunEntry] = {}
        self.listeners = 0
        self.list_text = "[]"
        self._summaries: dict[str, Summary] = {}
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
        tasks = [task for task in (self._lister, *self._readers.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._wake()

    async def follow(self, run: str) -> History:
        """The history of a run, read by its one reader; `leave` it afterwards."""
        self._users[run] = self._users.get(run, 0) + 1
        if run not in self._readers:
            self._histories[run] = History(self.table[run])
            self._readers[run] = asyncio.create_task(self._read(self._histories[run]))
        return self._histories[run]

    def leave(self, run: str) -> None:
        """One listener less; the last one ends the reader."""
        self._users[run] -= 1
        if self._users[run] == 0:
            del self._users[run], self._histories[run]
            self._readers.pop(run).cancel()

    async def wait(self, seconds: float) -> None:
        """Until something changed, at most `seconds`."""
        changed = self._changed  # a change replaces it, so that none is missed between two waits
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return

    @property
    def readers(self) -> int:
        """How many runs are read right now."""
        return len(self._readers)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read(self, history: History) -> None:
        while True:
            changed = False
            # A disk that fails for a moment, or a folder that is being deleted: the next look tries again.
            with contextlib.suppress(OSError):
                async with history.lock:  # listeners wait for the lock; the event loop goes on
                    changed = await asyncio.to_thread(history.poll)
            if changed:
                self._wake()
            await asyncio.sleep(READ_EVERY)

    async def _keep_list(self) -> None:
        while True:
            await asyncio.sleep(LIST_EVERY)
            with contextlib.suppress(OSError):
                await self._look()

    async def _look(self) -> None:
        table, text = await asyncio.to_thread(self._read_list)
        self.table = table
        if text != self.list_text:
            self.list_text = text
            self._wake()

    def _read_list(self) -> tuple[dict[str, RunEntry], str]:
        table = find_runs(self.roots)
        self._summaries = {run: self._summaries.get(run) or Summary(entry) for run, entry in table.items()}
        return table, to_json([summary.read() for summary in self._summaries.values()])

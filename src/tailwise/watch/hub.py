"""Server-sent events: one reader per run for all listeners, and the stream of what a listener does not have yet.

Nothing is queued. Histories are shared, and a listener remembers only its position in them: when it is ready, it gets
everything since then as one message. A slow listener costs no more than a fast one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tailwise.core import VERSION
from tailwise.watch.files import short_text, to_json
from tailwise.watch.guard import query
from tailwise.watch.history import History, Position
from tailwise.watch.panels import CURVES, describe_metric, describe_panels
from tailwise.watch.runs import RunEntry, Summary, find_runs, summary_of, unread

MOST_LISTENERS = 256
READ_EVERY = 1.0  # seconds between two looks at a run that somebody watches
LIST_EVERY = 2.0  # seconds between two looks at the list of runs
LIST_PATIENCE = 3.0  # seconds that the list waits for its runs; one that takes longer keeps its last line
LIST_THREADS = 4
MOST_RUNS = 8  # overlaid by one listener
HEARTBEAT = 10.0  # seconds without news after which a comment shows that the connection lives
PATIENCE = 20.0  # seconds that a listener may take for one message before it is dropped
GAP = 0.25  # seconds between two messages to a listener: changes in between become one
Value = TypeVar("Value")


class Hub:
    """The runs, their readers and the number of listeners; lives in one event loop."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self.table: dict[str, RunEntry] = {}
        self.listeners = 0
        self.list_text = "[]"
        self._summaries: dict[str, Summary] = {}
        self._lines: dict[str, str] = {}  # of the list: JSON of each run
        self._refreshes: dict[str, asyncio.Task[None]] = {}  # of single runs, under way
        self._failures: dict[str, str] = {}  # of runs that are followed: why they could not be read
        self._pool = ThreadPoolExecutor(LIST_THREADS, thread_name_prefix="runs")
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._histories: dict[str, History] = {}
        self._users: dict[str, int] = {}
        self._lister: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Read the list of runs, then refresh it regularly."""
        await self._refresh_list()
        self._lister = asyncio.create_task(self._keep_list())

    async def stop(self) -> None:
        """End all readers, and wake the listeners."""
        started = (self._lister, *self._readers.values(), *self._refreshes.values())
        tasks = [task for task in started if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._wake()

    async def follow(self, run: str) -> History:
        """Return the history of a run, which one reader fills; call `leave` afterwards."""
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
        """Wait until something has changed, at most `seconds`."""
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
                await self._refresh_list()

    async def _refresh_list(self) -> None:
        """Refresh the list, run by run: one that is broken or slow changes its own line alone."""
        self.table = await asyncio.to_thread(find_runs, self.roots)
        for known in (self._summaries, self._lines):
            for run in [run for run in known if run not in self.table]:
                del known[run]
        for run, entry in self.table.items():
            if run not in self._refreshes:
                self._refreshes[run] = asyncio.create_task(self._refresh_run(run, entry))
        if self._refreshes:
            await asyncio.wait(list(self._refreshes.values()), timeout=LIST_PATIENCE)
        lines = [self._lines.get(run) or to_json(unread(entry, "still reading")) for run, entry in self.table.items()]
        text = f"[{','.join(lines)}]"
        if text != self.list_text:
            self.list_text = text
            self._wake()

    async def _refresh_run(self, run: str, entry: RunEntry) -> None:
        summary = self._summaries.get(run)
        if summary is None or summary.entry != entry:  # a seed has begun since
            summary = self._summaries[run] = summary_of(entry)
        try:
            line, failure = await attempt(lambda: to_json(summary.read()), self._pool)
            failure = failure or self._failures.get(run)
            if failure is not None:
                line = to_json(unread(entry, failure))
            if line is not None and run in self.table:
                self._lines[run] = line
        finally:
            del self._refreshes[run]


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


class Events:
    """ASGI endpoint /events?runs=id,id."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = query(scope).get("runs", [""])[0]
        runs = list(dict.fromkeys(run for run in asked.split(",") if run))
        unknown = [run for run in runs if run not in self.hub.table]
        if unknown or len(runs) > MOST_RUNS:
            why = "There is no such run." if unknown else f"At most {MOST_RUNS} runs at once."
            await PlainTextResponse(why + "\n", status_code=404 if unknown else 400)(scope, receive, send)
            return
        if self.hub.listeners >= MOST_LISTENERS:
            busy = PlainTextResponse("Too many listeners.\n", status_code=503, headers={"Retry-After": "10"})
            await busy(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        self.hub.listeners += 1
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with contextlib.aclosing(self._messages(runs)) as messages:
                async for text in messages:
                    if gone.done():
                        return
                    async with asyncio.timeout(PATIENCE):
                        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except TimeoutError:
            return  # the listener does not read: its place is for others
        finally:
            self.hub.listeners -= 1
            gone.cancel()

    async def _messages(self, runs: list[str]) -> AsyncGenerator[str, None]:
        hub = self.hub
        histories: dict[str, History] = {}
        positions = {run: Position() for run in runs}
        list_sent = None
        try:
            for run in runs:
                if run in hub.table:  # it may have been deleted since the request
                    histories[run] = await hub.follow(run)
            yield message("hello", hello())
            silent_since = time.monotonic()
            while True:
                spoke = False
                if hub.list_text != list_sent:
                    list_sent, spoke = hub.list_text, True
                    yield message("runs", hub.list_text)
                for run, history in histories.items():
                    async with history.lock:
                        text, positions[run] = history.since(positions[run]), history.position
                    if text is not None:
                        spoke = True
                        yield message("news", text)
                now = time.monotonic()
                if spoke:
                    silent_since = now
                elif now - silent_since >= HEARTBEAT:
                    silent_since = now
                    yield ": alive\n\n"
                await hub.wait(1.0)
                await asyncio.sleep(GAP)
        finally:
            for run in histories:
                hub.leave(run)


def hello() -> str:
    """First message: the version, the panels, the metrics behind the curves, and the server's clock."""
    metrics = {name: spec for name in CURVES if (spec := describe_metric(name)) is not None}
    return to_json({"version": VERSION, "now": time.time(), "panels": describe_panels(), "metrics": metrics})


def message(kind: str, text: str) -> str:
    """One event; JSON has no line ends, so that one data line holds it."""
    return f"event: {kind}\ndata: {text}\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue

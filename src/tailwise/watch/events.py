"""The stream of server-sent events: the list of runs, then everything that a listener does not have yet."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tailwise.core.version import VERSION
from tailwise.watch.guard import query
from tailwise.watch.history import History, Position
from tailwise.watch.hub import MOST_LISTENERS, Hub
from tailwise.watch.panels import CURVES, describe_metric, describe_panels
from tailwise.watch.values import to_json

MOST_RUNS = 8  # overlaid by one listener
HEARTBEAT = 10.0  # seconds without news after which a comment shows that the connection lives
PATIENCE = 20.0  # seconds that a listener may take for one message before it is dropped
GAP = 0.25  # seconds between two messages to a listener: changes in between become one


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
    """What never changes: the version, the panels, the metrics behind the curves, and the server's clock."""
    metrics = {name: told for name in CURVES if (told := describe_metric(name)) is not None}
    return to_json({"version": VERSION, "now": time.time(), "panels": describe_panels(), "metrics": metrics})


def message(kind: str, text: str) -> str:
    """One event; JSON has no line ends, so that one data line holds it."""
    return f"event: {kind}\ndata: {text}\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue

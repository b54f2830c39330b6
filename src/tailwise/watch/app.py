"""The application: a page, its style and scripts, the list of runs and the stream of events. Nothing else."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tailwise.watch.events import Events
from tailwise.watch.guard import Access, Guard
from tailwise.watch.hub import Hub

PAGES = {
    "/": ("watch.html", "text/html"),
    "/watch.css": ("watch.css", "text/css"),
    "/theme.js": ("theme.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/watch.js": ("watch.js", "text/javascript"),
}


class StaticFile:
    """One file that is read once and compressed once."""

    def __init__(self, data: bytes, media: str) -> None:
        self.data, self.media = data, media
        self.tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'

    @cached_property
    def packed(self) -> bytes:
        """Compressed, on first use: a third of a second for Plotly's script."""
        return gzip.compress(self.data, 6)

    def answer(self, request: Request) -> Response:
        """Whole, compressed, or 304 when the browser has it."""
        headers = {"ETag": self.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        if len(self.data) > 1000 and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self.packed, media_type=self.media, headers={**headers, "Content-Encoding": "gzip"})
        return Response(self.data, media_type=self.media, headers=headers)


def plotly_script() -> bytes:
    """Plotly's own script, from its package: the page needs no network."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode()


def make_app(roots: Sequence[Path], access: Access) -> ASGIApp:
    """The guarded application over the runs in (resolved) `roots`."""
    hub = Hub(roots)
    static = files("tailwise.watch").joinpath("static")
    pages = {path: StaticFile(static.joinpath(name).read_bytes(), media) for path, (name, media) in PAGES.items()}
    pages["/plotly.js"] = StaticFile(plotly_script(), "text/javascript")

    async def page(request: Request, *, file: StaticFile) -> Response:
        return await asyncio.to_thread(file.answer, request)

    async def runs(request: Request) -> Response:
        return Response(hub.list_text, media_type="application/json")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await hub.start()
        try:
            yield
        finally:
            await hub.stop()

    routes = [Route(path, partial(page, file=file), methods=["GET"]) for path, file in pages.items()]
    routes += [Route("/runs.json", runs, methods=["GET"]), Route("/events", Events(hub))]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    return Guard(app, access)

"""The web server: a page with its style and scripts, the list of runs and the stream of events, until Ctrl-C."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import resource
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tailwise.core.errors import DataError
from tailwise.watch.guard import Access, Connection, Door, Guard
from tailwise.watch.hub import Events, Hub
from tailwise.watch.runs import check_roots

MOST_CONNECTIONS = 4096  # open at once, idle ones included; more are refused for a while
SPARE_FILES = 128  # file handles reserved for reading runs and for connections that are being refused
ACCEPTED_AT_ONCE = 64  # connections; each has a file handle until it is refused
PAGES = {
    "/": ("watch.html", "text/html"),
    "/watch.css": ("watch.css", "text/css"),
    "/theme.js": ("theme.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/watch.js": ("watch.js", "text/javascript"),
}


def most_connections() -> int:
    """Largest number of connections: what the system allows this process, at most MOST_CONNECTIONS."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(64, min(MOST_CONNECTIONS, soft - SPARE_FILES))


class Server(uvicorn.Server):
    """uvicorn with a callback once it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(ACCEPTED_AT_ONCE)
    except OSError as error:
        listening.close()
        raise DataError(f"cannot listen on {host} port {port} ({error}); choose another --port.") from error
    return listening


def serve(paths: Sequence[Path], *, host: str, port: int, token: str | None, ready: Callable[[str], None]) -> None:
    """Serve the runs in `paths`; `ready` gets the address (with the token) once it can be opened."""
    Access(host, port, token)  # a refusal comes before anything is bound
    roots = check_roots(paths)
    listening = bind(host, port)
    access = Access(host, listening.getsockname()[1], token)
    door = Door(most_connections())
    config = uvicorn.Config(
        door.watch(make_app(roots, access)),
        http=partial(Connection, door),  # type: ignore[arg-type]  # called like a class, and nothing else
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=32 * 1024,
    )
    try:
        Server(config, lambda: ready(address(access))).run(sockets=[listening])
    finally:
        listening.close()


def address(access: Access) -> str:
    """URL to open in a browser."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(access.host, access.host)
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{name}:{access.port}/" + ("" if access.token is None else f"?token={quote(access.token, safe='')}")


class StaticFile:
    """A file that is read once and compressed once."""

    def __init__(self, data: bytes, media: str) -> None:
        self.data, self.media = data, media
        self.tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'

    @cached_property
    def packed(self) -> bytes:
        """Compressed, on first use: a third of a second for Plotly's script."""
        return gzip.compress(self.data, 6)

    def answer(self, request: Request) -> Response:
        """Answer with the file, compressed if possible, or 304 if the browser has it."""
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
    """Build the guarded application over the runs in (resolved) `roots`."""
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

"""Runs the application until Ctrl-C."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import uvicorn

from tailwise.core.errors import DataError
from tailwise.watch.app import make_app
from tailwise.watch.door import Connection, Door
from tailwise.watch.guard import Access
from tailwise.watch.run_table import check_roots

MOST_CONNECTIONS = 4096  # open at once, idle ones included; more are told to come back later
SPARE_FILES = 128  # file handles that are kept for reading runs, and for connections that are about to be refused
ACCEPTED_AT_ONCE = 64  # connections; each has a file handle until it is refused


def most_connections() -> int:
    """As many as the system lets this process have open, and at most MOST_CONNECTIONS."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(64, min(MOST_CONNECTIONS, soft - SPARE_FILES))


class Server(uvicorn.Server):
    """uvicorn that says when it is ready."""

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
    """What to open in a browser."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(access.host, access.host)
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{name}:{access.port}/" + ("" if access.token is None else f"?token={quote(access.token, safe='')}")

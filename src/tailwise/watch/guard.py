"""Protection of the live page: limits on connections, then checks of every request.

A connection costs a file handle whether or not it ever sends a request, so a client that opens many and sends half a
request on each would use up all of them. `Door` gives each client a share, and a connection on which no request is
being answered a few seconds to complete one. `Guard` accepts only GET and HEAD, known hosts and, where one is set, a
token; it adds strict headers to every answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tailwise.core.errors import ConfigError

COOKIE = "tailwise_watch"
SHORTEST_TOKEN = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
PER_CLIENT = 64  # connections: a browser opens six for each page
PATIENCE = 10.0  # seconds to complete a request, or to begin the next one
SLOWEST = 2**14  # bytes of an answer that a client has to take in that time
_BODY = b"Too many connections; close some, or try again in a few seconds.\n"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 10\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY

HEADERS: Mapping[str, str] = {
    # Scripts come from files of this server alone. Plotly writes style attributes, hence inline styles, not scripts.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class Access:
    """Where the server listens and who may read."""

    host: str
    port: int
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not self.token.isascii()):
            raise ConfigError(
                f"the token has {len(self.token)} characters; use at least {SHORTEST_TOKEN} ASCII characters, "
                "for instance: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
            )
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached by other machines; add --token SECRET (or set "
                "TAILWISE_WATCH_TOKEN), or leave --host out to listen on this machine alone."
            )

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server: a foreign name that resolves to it is refused (DNS rebinding)."""
        name, port = split_host(header)
        if port not in (None, self.port):
            return False
        if name in LOOPBACK_NAMES or name == self.host.lower():
            return True
        if self.token is None:
            return False
        # Reached from elsewhere: by an address, or by this machine's own name. The token is asked for in any case.
        return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())

    def proof(self) -> str:
        """What the cookie holds: shows that its bearer knew the token, without being the token."""
        assert self.token is not None
        return hmac.new(self.token.encode(), b"tailwise watch", hashlib.sha256).hexdigest()

    def admits(self, *, cookie: str | None, bearer: str | None) -> bool:
        """Whether a request may read; both comparisons take the same time wherever they differ."""
        if self.token is None:
            return True
        by_cookie = cookie is not None and same(cookie, self.proof())
        by_bearer = bearer is not None and same(bearer, self.token)
        return by_cookie or by_bearer


def same(given: str, expected: str) -> bool:
    """Comparison in constant time, of any text."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_host(header: str) -> tuple[str, int | None]:
    """Name in lower case without brackets, and port, of a Host header; ("", None) when it is no such thing."""
    name, colon, port = header.rpartition(":") if not header.endswith("]") else (header, "", "")
    if not colon:
        name = header
    if colon and not (port.isascii() and port.isdigit() and len(port) <= 5):
        return "", None
    return name.strip().strip("[]").rstrip(".").lower(), int(port) if colon else None


def query(scope: Scope) -> dict[str, list[str]]:
    """The fields after the question mark; none when there are absurdly many."""
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
    except ValueError:
        return {}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here; the server closes the connection
        refusal = self._refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                message = {**message, "headers": headers.raw}
            await send(message)

        await (self.app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        values = dict(headers)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "This page only reads: use GET or HEAD.\n", status_code=405, headers={"Allow": "GET, HEAD"}
            )
        hosts = [value for name, value in headers if name == "host"]
        if len(hosts) != 1 or not self.access.knows_host(hosts[0]):
            return PlainTextResponse("This server does not answer to that host name.\n", status_code=421)
        if values.get("sec-fetch-site") == "cross-site" and values.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("Other sites may not read this page.\n", status_code=403)
        return self._without_token(scope, values)

    def _without_token(self, scope: Scope, values: Mapping[str, str]) -> Response | None:
        bearer = values.get("authorization", "")
        cookie = cookie_parser(values.get("cookie", "")).get(COOKIE)
        admitted = self.access.admits(cookie=cookie, bearer=bearer[7:] if bearer.startswith("Bearer ") else None)
        given = query(scope).get("token", [])
        if scope["path"] == "/" and self.access.token is not None and len(given) == 1:
            if not same(given[0], self.access.token):
                return _unauthorised()
            # Once in the address, then in a cookie: the address bar and the history do not keep it.
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(COOKIE, self.access.proof(), httponly=True, samesite="strict", max_age=30 * 86400)
            return answer
        return None if admitted else _unauthorised()


def _unauthorised() -> Response:
    return PlainTextResponse(
        "A token is needed: open the address that `tailwise watch` printed, or add ?token=... once.\n",
        status_code=401,
        headers={"WWW-Authenticate": "Bearer"},
    )


class Door:
    """Open connections by address, and their number per client. Lives in one event loop."""

    def __init__(self, most: int, *, per_client: int = PER_CLIENT, patience: float = PATIENCE) -> None:
        # A quarter at most: where file handles are few, two clients must not fill them.
        self.most, self.per_client, self.patience = most, min(per_client, most // 4), patience
        self.connections: dict[tuple[str, int], Connection] = {}
        self._clients: Counter[str] = Counter()

    def admits(self, address: tuple[str, int]) -> bool:
        """Whether one more connection of this client is allowed."""
        return len(self.connections) < self.most and self._clients[client_of(address[0])] < self.per_client

    def enter(self, address: tuple[str, int], connection: Connection) -> None:
        self.connections[address] = connection
        self._clients[client_of(address[0])] += 1

    def leave(self, address: tuple[str, int]) -> None:
        if self.connections.pop(address, None) is not None:
            client = client_of(address[0])
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def watch(self, app: ASGIApp) -> ASGIApp:
        """Wrap `app`: while a request is answered, its connection has no deadline."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self.connections.get(scope["client"]) if scope["type"] == "http" else None
            if connection is None:
                await app(scope, receive, send)
                return
            connection.stop_deadline()
            try:
                await app(scope, receive, send)
            finally:
                connection.start_deadline()

        return watched


def client_of(host: str) -> str:
    """Address under which connections are counted: of a machine (IPv4), or of its /64 network (IPv6)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class Connection(H11Protocol):
    """uvicorn's connection with the limits of `Door`. One that is refused gets a 503 and is closed unread."""

    def __init__(self, door: Door, **given: Any) -> None:
        super().__init__(**given)
        self._door = door
        self._address: tuple[str, int] | None = None  # None: not admitted
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes of the answer when the deadline was last set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        host, port = transport.get_extra_info("peername")[:2]
        if not self._door.admits((host, port)):
            transport.write(_REFUSAL)
            transport.close()
            return
        self._address = (host, port)
        self._door.enter(self._address, self)
        super().connection_made(transport)
        self.start_deadline()

    def data_received(self, data: bytes) -> None:
        if self._address is not None:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_deadline()
        if self._address is not None:
            self._door.leave(self._address)
            super().connection_lost(exc)

    def start_deadline(self) -> None:
        """No request is being answered: the next one must be complete in time."""
        self.stop_deadline()
        if self._address in self._door.connections:
            self._unsent = self.transport.get_write_buffer_size()
            self._deadline = self.loop.call_later(self._door.patience, self._overdue)

    def stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _overdue(self) -> None:
        self._deadline = None
        before, now = self._unsent, self.transport.get_write_buffer_size()
        if now and before - now >= SLOWEST:
            self.start_deadline()  # the answer is still being fetched, slowly
        else:
            self.transport.abort()  # `close` would wait for a client that never reads

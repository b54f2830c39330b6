"""What stands before every answer: only GET and HEAD, only known hosts, a token where one is set, strict headers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailwise.core.errors import ConfigError

COOKIE = "tailwise_watch"
SHORTEST_TOKEN = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

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

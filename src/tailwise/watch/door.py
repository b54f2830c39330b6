"""Who may hold a connection, before anything of a request is read: limits in all and per client, and a deadline.

A connection costs a file handle whether or not it ever asks for something, so a client that opens many and sends half
a request on each would use up all of them. Here each client has a share, and a connection on which no request is being
answered has a few seconds to complete one.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

PER_CLIENT = 64  # connections: a browser opens six for each page
PATIENCE = 10.0  # seconds to complete a request, or to begin the next one
SLOWEST = 2**14  # bytes of an answer that a client has to take in that time
_BODY = b"Too many connections; close some, or try again in a few seconds.\n"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 10\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY


class Door:
    """The open connections by address, and how many each client has. Lives in one event loop."""

    def __init__(self, most: int, *, per_client: int = PER_CLIENT, patience: float = PATIENCE) -> None:
        # A quarter at most: where file handles are few, two clients must not fill them.
        self.most, self.per_client, self.patience = most, min(per_client, most // 4), patience
        self.connections: dict[tuple[str, int], Connection] = {}
        self._clients: Counter[str] = Counter()

    def admits(self, address: tuple[str, int]) -> bool:
        """Whether there is a place for one more connection of this client."""
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
        """`app`, whose requests stop the clock of their connection while they are answered."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self.connections.get(scope["client"]) if scope["type"] == "http" else None
            if connection is None:
                await app(scope, receive, send)
                return
            connection.stop_clock()
            try:
                await app(scope, receive, send)
            finally:
                connection.start_clock()

        return watched


def client_of(host: str) -> str:
    """The address that is counted: that of a machine, or of a network of 2**64 in which one machine has them all."""
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
    """uvicorn's connection behind the door. One that is not admitted is told so and closed, its data unread."""

    def __init__(self, door: Door, **given: Any) -> None:
        super().__init__(**given)
        self._door = door
        self._address: tuple[str, int] | None = None  # None: not admitted
        self._clock: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes of the answer when the clock was last looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        host, port = transport.get_extra_info("peername")[:2]
        if not self._door.admits((host, port)):
            transport.write(_REFUSAL)
            transport.close()
            return
        self._address = (host, port)
        self._door.enter(self._address, self)
        super().connection_made(transport)
        self.start_clock()

    def data_received(self, data: bytes) -> None:
        if self._address is not None:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_clock()
        if self._address is not None:
            self._door.leave(self._address)
            super().connection_lost(exc)

    def start_clock(self) -> None:
        """No request is being answered: one has to be complete in time."""
        self.stop_clock()
        if self._address in self._door.connections:
            self._unsent = self.transport.get_write_buffer_size()
            self._clock = self.loop.call_later(self._door.patience, self._overdue)

    def stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _overdue(self) -> None:
        self._clock = None
        before, now = self._unsent, self.transport.get_write_buffer_size()
        if now and before - now >= SLOWEST:
            self.start_clock()  # the answer is still being fetched, slowly
        else:
            self.transport.abort()  # `close` would wait for a client that never reads

"""Connections that ask for nothing: shares, deadlines, and a server with few file handles that stays open."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailwise.watch.guard import PATIENCE, PER_CLIENT, client_of
from tailwise.watch.server import SPARE_FILES
from tests.watch.watched_runs import ask, serving, write_run

TOKEN = "correct horse battery staple"
FEW = 256  # file handles


@contextlib.contextmanager
def opened(port: int, count: int, data: bytes, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """`count` connections, each with the same beginning of a request."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))
            connections.append(stack.enter_context(connection))
            with contextlib.suppress(ConnectionError):  # a refused one may be closed already
                connection.sendall(data)
        yield connections


def is_open(connection: socket.socket) -> bool:
    """Whether the server has neither answered nor closed it."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


def ask_from(source: str, port: int, token: str | None) -> int:
    """The status of a whole request from another client."""
    with socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0)) as connection:
        head = f"GET /runs.json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        bearer = "" if token is None else f"Authorization: Bearer {token}\r\n"
        connection.sendall(f"{head}{bearer}\r\n".encode())
        return int(connection.recv(100).split(b" ")[1])


@pytest.mark.parametrize(
    ("token", "data"),
    [(TOKEN, b""), (None, b"GET / HT"), (TOKEN, b"GET / HTTP/1.1\r\nHost: x\r\nA: ")],
    ids=["nothing", "half a line", "half a header"],
)
def test_half_sent_requests_of_one_client_leave_room_for_others(tmp_path: Path, data: bytes, token: str | None) -> None:
    """300 at 256 file handles. The wrong server, without shares and deadlines, answers nobody until they hang up."""
    write_run(tmp_path / "runs" / "a")
    given = [] if token is None else ["--token", token]
    with (
        serving(str(tmp_path / "runs"), *given, descriptors=FEW) as (_, port, process),
        opened(port, 300, data) as connections,
    ):
        assert ask_from("127.0.0.2", port, token) == 200
        time.sleep(1.0)
        held = [connection for connection in connections if is_open(connection)]
        assert 0 < len(held) <= (FEW - SPARE_FILES) // 4
        assert ask_from("127.0.0.2", port, token) == 200
        assert process.poll() is None


def test_a_request_has_to_be_complete_in_time_however_slowly_it_comes(tmp_path: Path) -> None:
    """Rejects a timeout that each byte starts anew."""
    write_run(tmp_path / "runs" / "a")
    with (
        serving(str(tmp_path / "runs")) as (_, port, _),
        opened(port, 3, b"GET / HTTP/1.1\r\nX: ") as (silent, dripping, answered),
    ):
        answered.sendall(
            b"y\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
        )  # answered, and its body never ends
        began = time.monotonic()
        while any(map(is_open, (silent, dripping))) and time.monotonic() - began < PATIENCE + 5:
            time.sleep(0.25)
            for connection in (dripping, answered):
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"z")
        assert PATIENCE - 1 < time.monotonic() - began < PATIENCE + 3
        time.sleep(1.0)
        answered.settimeout(5)
        with contextlib.suppress(ConnectionError):
            while answered.recv(65536):
                continue
        assert not is_open(answered)
        assert ask(port, "GET /runs.json")[0] == 200


@pytest.mark.slow
def test_a_client_that_never_reads_its_answer_is_dropped_and_a_slow_one_is_not(tmp_path: Path) -> None:
    """Plotly's script has 4 MB: more than the system buffers for a connection."""
    write_run(tmp_path / "runs" / "a")
    request = "GET /plotly.js HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: keep-alive\r\n\r\n"
    with serving(str(tmp_path / "runs")) as (_, port, _), contextlib.ExitStack() as stack:
        connections = []
        for _ in range(2):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", port))
            connection.sendall(request.format(port).encode())
            connections.append(connection)
        slow, deaf = connections
        slow.settimeout(30)
        size, began = 0, time.monotonic()
        while time.monotonic() - began < 2.5 * PATIENCE:  # some 120 kB a second
            size += len(slow.recv(4096))
            time.sleep(0.03)
        deaf.settimeout(5)
        kept = 0
        with contextlib.suppress(ConnectionError):
            while part := deaf.recv(2**20):
                kept += len(part)
        assert kept < 4_000_000  # cut off
        with contextlib.suppress(TimeoutError):
            slow.settimeout(2)
            while part := slow.recv(2**20):
                size += len(part)
        assert size > 4_000_000  # whole


def test_one_machine_is_one_client() -> None:
    """Rejects a count by address alone: a machine with IPv6 has 2**64 of them."""
    assert client_of("10.0.0.1") == "10.0.0.1" != client_of("10.0.0.2")
    assert client_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1:2:3") != client_of("2001:db8:0:1::1")
    assert client_of("fe80::1%eth0") == client_of("fe80::2")
    assert client_of("testclient") == "testclient"


def test_a_connection_that_is_refused_is_told_why(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    with serving(str(tmp_path / "runs")) as (_, port, _), opened(port, PER_CLIENT, b"GET") as connections:
        time.sleep(0.5)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as late:
            answer = late.recv(1000).decode()
        assert answer.startswith("HTTP/1.1 503 ") and "Retry-After: 10" in answer and "Too many connections" in answer
        assert len(answer.split("\r\n\r\n")[1]) == int(answer.split("Content-Length: ")[1].split("\r\n")[0])
        connections[0].close()
        deadline = time.monotonic() + 5
        while ask_or_none(port) != 200:  # its place is free again
            assert time.monotonic() < deadline
            time.sleep(0.1)


def ask_or_none(port: int) -> int | None:
    try:
        return ask(port, "GET /runs.json")[0]
    except ConnectionError:
        return None

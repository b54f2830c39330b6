"""Run folders written by hand, and the real server on them in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def line(update: int, **metrics: float) -> str:
    """One line of metrics.jsonl; double underscores in names stand for slashes."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return json.dumps({"update": update, "steps": 64 * update, "policy/kl": 0.01, **named}) + "\n"


def write_run(folder: Path, updates: int = 3, *, total_steps: int = 100_000) -> Path:
    """A run with a few updates, as the trainer writes it."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"seed: 7\nenv: {{id: CartPole-v1}}\nrun: {{total_steps: {total_steps}}}\n")
    rows = [line(k, episode__return=10.0 * k, time__steps_per_second=500.0) for k in range(1, updates + 1)]
    (folder / "metrics.jsonl").write_text("".join(rows))
    return folder


def alert(update: int, rule: str = "planted_alert", **more: Any) -> str:
    """One line of alerts.jsonl."""
    told = {"update": update, "rule": rule, "severity": "error", "evidence": "planted evidence", "advice": "do this"}
    return json.dumps({**told, **more}) + "\n"


@contextmanager
def serving(*arguments: str, descriptors: int | None = None) -> Iterator[tuple[str, int, subprocess.Popen[str]]]:
    """`tailwise watch` with these arguments on a free port: (address with token, port, process).

    descriptors: how many files the process may have open.
    """
    command = [sys.executable, "-m", "tailwise", "watch", *arguments, "--port", "0", "--no-open"]
    if descriptors is not None:
        command = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("TAILWISE_WATCH_TOKEN", None)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        told = [process.stdout.readline(), process.stdout.readline()]
        if not told[1].startswith("open "):
            process.wait(10)
            raise AssertionError(f"the server did not start: {process.stderr.read() if process.stderr else ''}")
        address = told[1].split()[1]
        yield address, int(address.split(":")[2].split("/")[0]), process
    finally:
        process.terminate()
        process.wait(10)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def ask(port: int, request: str, *, host: str | None = None, headers: str = "", size: int = 65536) -> tuple[int, str]:
    """Send a raw request line and give back (status, the rest): no client tidies up the path on the way."""
    told = f"{request} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{port}'}\r\nConnection: close\r\n{headers}\r\n"
    return ask_raw(port, told.encode("latin-1"), size=size)


def ask_raw(port: int, data: bytes, *, size: int = 65536) -> tuple[int, str]:
    """Send bytes and give back (status, the rest of what came, at most `size` bytes)."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        received = b""
        while len(received) < size and (part := connection.recv(65536)):
            received += part
    text = received.decode("utf-8", "replace")
    return int(text.split(" ", 2)[1]), text


def read_events(port: int, runs: str, *, until: str, size: int = 2**20) -> str:
    """What the stream says until it contains `until`."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"GET /events?runs={runs} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        received = b""
        while until.encode() not in received and len(received) < size and (part := connection.recv(65536)):
            received += part
    return received.decode()

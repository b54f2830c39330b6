"""One broken run never hides the others: the list of runs with hostile folders in it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailwise.core.parsing import parse_json
from tailwise.watch import hub as hub_module
from tailwise.watch.hub import Hub, attempt
from tests.watch.watched_runs import alert, line, write_run


def listed(root: Path) -> dict[str, dict[str, Any]]:
    """The list of runs as the page gets it, by name."""

    async def look() -> str:
        hub = Hub([root.resolve()])
        await hub.start()
        text = hub.list_text
        await hub.stop()
        return text

    runs = parse_json(asyncio.run(look()), what="the list", max_bytes=2**20)  # as strict as a browser
    return {run["name"]: run for run in runs}


def merge_bomb() -> str:
    """Some 3 kB that stand for 10**40 pairs."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 10)}]}}" for k in range(1, 41)]
    return "\n".join([*lines, "run: {total_steps: 10}", ""])


HOSTILE = {
    "NaN steps": ("metrics.jsonl", line(1).replace("64", "NaN")),
    "infinite update": ("metrics.jsonl", '{"update": Infinity}\n'),
    "huge update": ("metrics.jsonl", f'{{"update": 1{"0" * 400}, "steps": 1}}\n'),
    "huge steps": ("metrics.jsonl", f'{{"update": 1, "steps": 1{"0" * 400}}}\n'),
    "wrong kinds": ("metrics.jsonl", '{"update": 1, "steps": {"a": []}, "episode/return": "x"}\n'),
    "deep line": ("metrics.jsonl", '{"update": 1, "steps": ' + "[" * 50_000 + "]" * 50_000 + "}\n"),
    "merge bomb": ("config.yaml", merge_bomb()),
    "deep configuration": ("config.yaml", "[" * 100_000),
    "huge total": ("config.yaml", f"run: {{total_steps: 1{'0' * 400}}}"),
    "infinite total": ("config.yaml", "run: {total_steps: .inf}\nseed: .nan\nrisk: {alpha: .nan, limit: 1e999}"),
    "wrong sections": ("config.yaml", "run: [1]\nenv: 3\ndata: {names: {a: 1}}\nmodel: {core: [2]}\nseed: [3]"),
    "severities": ("alerts.jsonl", "".join(alert(1, severity=f"s{k}") for k in range(500))),
    "wrong alerts": ("alerts.jsonl", '{"update": 1, "severity": {"a": 1}, "event": "raised"}\nnull\n[]\n'),
}


def test_hostile_files_change_their_own_line_alone(tmp_path: Path) -> None:
    """All at once, with an honest run before and after them in the list. The old list ended with the first."""
    root = tmp_path / "runs"
    for name in ("0 honest", "z honest"):
        write_run(root / name)
    for name, (file, text) in HOSTILE.items():
        (write_run(root / name) / file).write_text(text)
    began = time.process_time()
    runs = listed(root)
    assert time.process_time() - began < 5.0
    assert set(runs) == {"0 honest", "z honest", *HOSTILE}
    for name in ("0 honest", "z honest"):
        assert (runs[name]["status"], runs[name]["update"], runs[name]["steps"]) == ("running", 3, 192)
    assert runs["huge steps"]["steps"] == 0 and runs["merge bomb"]["total_steps"] is None
    assert runs["severities"]["alerts"] == {"warn": 500}


def plant(monkeypatch: pytest.MonkeyPatch, run: Path, what: Callable[[], None]) -> None:
    """A disk on which looking at an open file of one run does `what` first: fail, or take for ever."""
    real = os.fstat

    def fstat(handle: int) -> os.stat_result:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(f"{run}/"):
            what()
        return real(handle)

    monkeypatch.setattr(os, "fstat", fstat)


def test_a_run_whose_reading_fails_says_so_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejects one list that is read as a whole: a bad sector in one run froze it."""
    write_run(tmp_path / "a")
    broken = write_run(tmp_path / "b")

    def fail() -> None:
        raise OSError(errno.EIO, "planted")

    plant(monkeypatch, broken, fail)
    runs = listed(tmp_path)
    assert (runs["a"]["status"], runs["a"]["update"]) == ("running", 3)
    assert (runs["b"]["status"], runs["b"]["reason"]) == ("unreadable", "OSError: [Errno 5] planted")


def test_a_run_that_takes_for_ever_does_not_hold_up_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that does not answer. Rejects a list that waits for all of its runs."""
    monkeypatch.setattr(hub_module, "LIST_PATIENCE", 0.5)
    slow = write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    ending = threading.Event()

    def wait() -> None:
        ending.wait(20)

    plant(monkeypatch, slow, wait)

    async def look() -> str:
        hub = Hub([tmp_path.resolve()])
        await hub.start()
        text = hub.list_text
        ending.set()
        await hub.stop()
        return text

    began = time.monotonic()
    runs = {one["name"]: one for one in json.loads(asyncio.run(look()))}
    assert time.monotonic() - began < 5.0
    assert (runs["b"]["status"], runs["b"]["update"]) == ("running", 3)
    assert (runs["a"]["status"], runs["a"]["reason"]) == ("unreadable", "still reading")


def test_a_boundary_reports_what_it_stopped() -> None:
    async def both() -> tuple[Any, Any]:
        return await attempt(lambda: 3), await attempt(lambda: int("x"))

    expected = "ValueError: invalid literal for int() with base 10: 'x'"
    assert asyncio.run(both()) == ((3, None), (None, expected))

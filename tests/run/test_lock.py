"""One writer per run: who has it is named, and whoever is dead does not have it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tailwise.core.errors import DataError, LockedError
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.lock import FILE, Owner, RunLock
from tailwise.run.run_list import remove_spare
from tests.support import small_run

HOLD = """
import os, sys, time
from pathlib import Path
from tailwise.run.lock import RunLock
lock = RunLock(Path(sys.argv[1]), beat=0.05)
lock.take()
if sys.argv[2] == "fork" and os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
if sys.argv[2] == "hold":
    print(os.getpid(), flush=True)
time.sleep(60)
"""
TRAIN = """
import sys
from pathlib import Path
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
agent, _ = PPO.resume(Path(sys.argv[1]))
agent.learn(10_000_000)
"""


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def holder(folder: Path, how: str = "hold") -> Any:
    return process(HOLD, str(folder), how)


def line_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def owner_in(folder: Path) -> Owner:
    return Owner(**json.loads((folder / FILE).read_text()))


def write(folder: Path, owner: Owner) -> None:
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps(asdict(owner)))


def take(folder: Path, **options: float) -> None:
    with RunLock(folder, **options).held():
        assert owner_in(folder).pid == os.getpid()


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no locks, as some that lie on a network."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_the_owner_is_named_and_a_killed_one_is_followed_at_once(tmp_path: Path) -> None:
    """Rejects a lock that somebody has to remove by hand after kill -9."""
    with holder(tmp_path) as other:
        pid = line_of(other)
        with pytest.raises(LockedError, match=rf"written by process {pid} on '.+', which has had it for \d+ s;"):
            take(tmp_path)
        other.kill()
        take(tmp_path)  # without waiting for the system to remove the process
        assert owner_in(tmp_path).released
        take(tmp_path)


def test_a_process_that_was_forked_does_not_keep_the_lock_of_a_killed_one(tmp_path: Path) -> None:
    """Rejects a descriptor that workers inherit: flock holds as long as any copy of it is open."""
    with holder(tmp_path, "fork") as other:
        child = int(line_of(other))
        with pytest.raises(LockedError, match=f"process {other.pid} "):
            take(tmp_path)
        other.kill()
        try:
            take(tmp_path)
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, 9)


def test_one_process_cannot_write_twice(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with lock.held():
        with pytest.raises(LockedError, match="this very process"):
            take(tmp_path)
        with pytest.raises(LockedError, match="this very agent"):
            lock.take()
    take(tmp_path)


def test_whether_a_process_is_alive() -> None:
    own = Owner.here("x")
    assert own.alive() is True
    assert replace(own, started="12").alive() is False  # a later process that got the same number
    assert replace(own, pid=2**22 + 5, started="").alive() is False
    assert replace(own, computer="another").alive() is None
    assert replace(own, numbering="pid:[1]").alive() is None  # a container: its 17 is not our 17
    dead = subprocess.Popen(["true"])
    while Path(f"/proc/{dead.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    stat = Path(f"/proc/{dead.pid}/stat").read_text().rpartition(")")[2].split()
    assert replace(own, pid=dead.pid, started=stat[19]).alive() is False  # a zombie writes nothing
    dead.wait()


def test_without_locks_of_the_system_the_process_itself_is_looked_for(tmp_path: Path, no_flock: None) -> None:
    write(tmp_path, replace(Owner.here("x"), pid=os.getppid(), started="12"))
    take(tmp_path)  # that number belongs to another process now
    write(tmp_path, replace(Owner.here("x"), pid=2**22 + 5))
    take(tmp_path)
    started = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    write(tmp_path, replace(Owner.here("x"), pid=os.getppid(), started=started))
    with pytest.raises(LockedError, match=f"process {os.getppid()} "):
        take(tmp_path)


def test_without_locks_of_the_system_one_of_two_that_come_at_once_gets_it(tmp_path: Path, no_flock: None) -> None:
    write(tmp_path, replace(Owner.here("x"), released=True))
    results: list[str] = []

    def come() -> None:
        lock = RunLock(tmp_path)
        try:
            lock.take()
        except LockedError:
            results.append("refused")
        else:
            results.append("owner")

    threads = [threading.Thread(target=come) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["owner", "refused"]


@pytest.mark.parametrize("alive", [True, False])
def test_an_owner_on_another_computer_is_alive_if_it_touches_the_file(
    tmp_path: Path, alive: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed on one computer, resumed on another that shares the folder: no step by hand. Its lock cannot be seen."""
    write(tmp_path, replace(Owner.here("x"), computer="another", host="node-7", pid=17))
    stop = threading.Event()

    def beat() -> None:
        while alive and not stop.wait(0.05):
            os.utime(tmp_path / FILE)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        if alive:
            with pytest.raises(LockedError, match="process 17 on 'node-7'"):
                take(tmp_path, silence=1.0)
        else:
            take(tmp_path, silence=1.0)
    finally:
        stop.set()
        thread.join()
    assert "watching for 1 s" in caplog.text


def test_the_owner_touches_the_file(tmp_path: Path) -> None:
    with RunLock(tmp_path, beat=0.05).held():
        first = (tmp_path / FILE).stat().st_mtime_ns
        deadline = time.monotonic() + 10
        while (tmp_path / FILE).stat().st_mtime_ns == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 4000,
        b"[1]",
        b'{"pid": 1}',
        json.dumps({**asdict(Owner.here("x")), "pid": -1}).encode(),
        json.dumps({**asdict(Owner.here("x")), "pid": 2**70}).encode(),
        json.dumps({**asdict(Owner.here("x")), "pid": "1"}).encode(),
        json.dumps({**asdict(Owner.here("x")), "since": float("nan")}).encode(),
        json.dumps({**asdict(Owner.here("x")), "released": 1}).encode(),
    ],
)
def test_a_record_that_names_nobody_stops_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    take(tmp_path)
    assert owner_in(tmp_path).released and owner_in(tmp_path).pid == os.getpid()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(path.parent / "elsewhere"),
        lambda path: os.mkfifo(path),
    ],
)
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    """Rejects following a link: a crafted run could have a file anywhere emptied."""
    make(tmp_path / FILE)
    with pytest.raises(LockedError, match="remove it"):
        take(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


# ---------------------------------------------------------------- runs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = small_run(env={"id": "CartPole-v1"}, run={"checkpoint_every": 1, "keep": 3})
    PPO(config=config, run_dir=tmp_path / "run").learn()
    return tmp_path / "run"


def content_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != FILE
    }


def test_a_run_that_is_being_trained_is_neither_resumed_nor_pruned(run: Path) -> None:
    before = content_of(run)
    with process(TRAIN, str(run)) as other:
        metrics = run / "metrics.jsonl"
        while metrics.stat().st_size == len(before["metrics.jsonl"]) and other.poll() is None:
            time.sleep(0.01)
        for attempt in (PPO.resume, remove_spare):
            with pytest.raises(LockedError, match=f"being written by process {other.pid} "):
                attempt(run)
        assert other.poll() is None
        written = metrics.read_bytes()
        assert written.startswith(before["metrics.jsonl"])  # nobody cut it back
        other.kill()
        agent, _ = PPO.resume(run)
    assert agent.trainer.update >= 3
    agent.learn(64)
    updates = [json.loads(line)["update"] for line in metrics.read_text().splitlines()]
    assert updates == list(range(1, len(updates) + 1))


def test_checkpoints_that_vanish_while_they_are_listed(run: Path) -> None:
    """Rejects a list that fails because the run which is listed went on and deleted an old checkpoint: a thread makes
    and deletes folders of that name without pause."""
    busy, flickering = threading.Event(), run / "checkpoints" / "update-000099"

    def flicker() -> None:
        while not busy.is_set():
            flickering.mkdir()
            flickering.rmdir()

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        for _ in range(2000):
            names = [path.name for path in ckpt.checkpoints_in(run) if path != flickering]
            assert names[0] == "update-000003"
    finally:
        busy.set()
        thread.join()


def test_a_refused_resume_changes_nothing(run: Path) -> None:
    """Rejects a lock that is taken after the leftovers were removed or the metrics were cut back."""
    (run / "checkpoints" / ".best.tmp-0123456789ab").mkdir()
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'{"update": 4, "steps')
    before = content_of(run)
    with holder(run) as other:
        line_of(other)
        with pytest.raises(LockedError):
            PPO.resume(run)
    assert content_of(run) == before and (run / "checkpoints" / ".best.tmp-0123456789ab").is_dir()


def test_two_agents_of_one_process_do_not_write_alternately(run: Path) -> None:
    """Rejects a lock between processes alone: in a notebook, an old agent would append to what a newer one wrote."""
    first, _ = PPO.resume(run)
    first.learn(32)
    second, _ = PPO.resume(run)
    second.learn(32)
    before = content_of(run)
    with pytest.raises(LockedError, match="since this agent did"):
        first.learn(32)
    assert content_of(run) == before
    second.learn(32)


class TakeOver(Callback):
    """Takes the run over after update 4, as another computer does after a long silence."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.metrics = b""

    def on_update(self, progress: Progress) -> None:
        if progress.update == 4:
            write(self.run, replace(Owner.here("other"), pid=17, host="node-7"))
            self.metrics = (self.run / "metrics.jsonl").read_bytes()


def test_pruning_does_not_take_a_run_from_its_agent(run: Path) -> None:
    agent, _ = PPO.resume(run)
    agent.learn(32)
    assert len(remove_spare(run)) == 2
    agent.learn(32)
    with pytest.raises(DataError, match="holds a run already"):
        PPO(config=agent.config, run_dir=run)
    agent.learn(32)
    assert agent.trainer.update == 6


def test_who_lost_the_run_writes_nothing_more(run: Path) -> None:
    """Rejects an owner that never looks again: after a long pause both would write."""
    taker = TakeOver(run)
    agent, _ = PPO.resume(run, callbacks=[taker])
    with pytest.raises(LockedError, match="taken over by process 17 on 'node-7'"):
        agent.learn(32 * 5)
    assert (run / "metrics.jsonl").read_bytes() == taker.metrics != b""
    assert ckpt.checkpoints_in(run)[0].name == "update-000004"
    assert owner_in(run).token == "other" and not owner_in(run).released


def test_two_runs_cannot_begin_in_one_folder(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as other:
        line_of(other)
        with pytest.raises(LockedError, match=f"process {other.pid} "):
            PPO(config=small_run(env={"id": "CartPole-v1"}), run_dir=tmp_path / "run")
        assert not (tmp_path / "run" / "config.yaml").exists()

"""Memory that ranks share: messages of every size arrive whole and in turn; a rank that is gone is noticed."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import platform
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tailwise.run import rank_memory
from tailwise.run.rank_memory import NoMemoryError, PeerGoneError, SharedMemory, unsuited
from tailwise.run.rank_messages import ALIGNED, decode, encode, size_of

SPAWN = multiprocessing.get_context("spawn")
WHY_NOT = unsuited()
needs_memory = pytest.mark.skipif(WHY_NOT is not None, reason=f"ranks share no memory here: {WHY_NOT}")


def whole(value: Any) -> np.ndarray:
    """A message as another rank reads it."""
    return np.frombuffer(bytearray(b"".join(encode(value))), dtype=np.uint8)


def message_of(rank: int, turn: int) -> dict[str, Any]:
    """Another one for each rank and turn; in turn 3 that of rank 1 is longer than its place."""
    count = (5_000_000 if rank == 1 else 10) if turn == 3 else 10 * (rank + turn)
    return {"rank": rank, "turn": turn, "values": np.arange(count, dtype=np.float64) + rank}


def talk(path: Path, rank: int, ranks: int, turns: int, all_there: Any, answer: Connection) -> None:
    """Exchange so many messages; say how many arrived wrong."""
    memory, wrong = SharedMemory(path, rank, ranks, patience=60.0), 0
    all_there.wait(60)
    for turn in range(turns):
        for other, data in enumerate(memory.exchange(encode(message_of(rank, turn)))):
            wanted = message_of(other, turn)
            if other != rank:
                got = decode(data)
                wrong += got["turn"] != turn or not np.array_equal(got["values"], wanted["values"])
    answer.send(wrong)


def wait_for_ever(path: Path, rank: int, ranks: int, answer: Connection) -> None:
    """Take one's place and exchange nothing."""
    memory = SharedMemory(path, rank, ranks, patience=60.0)
    answer.send(memory.rank)
    time.sleep(600)


@needs_memory
@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_every_size_arrive_whole_and_in_turn(ranks: int) -> None:
    """Rejects one place for each rank, which the next message overwrites before the slowest rank has read it, and a
    message that is cut where its place ends: 40 MB go through places of 5 and 8."""
    path = SharedMemory.create(ranks)
    pipes, all_there = [SPAWN.Pipe(duplex=False) for _ in range(ranks)], SPAWN.Barrier(ranks)
    processes = [
        SPAWN.Process(target=talk, args=(path, rank, ranks, 400, all_there, sender))
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    assert all(receiver.poll(120) for receiver, _ in pipes)
    assert [receiver.recv() for receiver, _ in pipes] == [0] * ranks
    for process in processes:
        process.join()
    rank_memory.discard(path)
    assert not path.exists()


@needs_memory
@pytest.mark.parametrize(
    ("killed", "patience", "sentence"),
    [(True, 60.0, "rank 1 has ended"), (False, 0.5, r"rank 1 did not answer for 0\.5 seconds")],
)
def test_a_rank_that_says_nothing_is_noticed(killed: bool, patience: float, sentence: str) -> None:
    """Rejects waiting for ever: nothing that a killed rank could have written says that it is gone."""
    path = SharedMemory.create(2)
    memory = SharedMemory(path, 0, 2, patience=patience)
    receiver, sender = SPAWN.Pipe(duplex=False)
    other = SPAWN.Process(target=wait_for_ever, args=(path, 1, 2, sender))
    other.start()
    assert receiver.poll(60) and receiver.recv() == 1
    rank_memory.discard(path)
    if killed:
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(PeerGoneError, match=sentence):
        memory.exchange(encode("is anybody there?"))
    assert time.monotonic() - started < 30
    other.kill()
    other.join()


def test_a_machine_without_memory_for_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The ranks then talk through gloo; a file that cannot be reserved is not left behind. A limit on the size of files
    refuses the reservation, whatever the file system."""
    monkeypatch.setattr(rank_memory, "IN_ORDER", (platform.machine(),))
    monkeypatch.setattr(rank_memory, "MEMORY", tmp_path / "nowhere")
    with pytest.raises(NoMemoryError, match=f"there is no {tmp_path / 'nowhere'}"):
        SharedMemory.create(2)
    monkeypatch.setattr(rank_memory, "MEMORY", tmp_path)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(NoMemoryError, match=f"{tmp_path} has no 32 MB for them"):
            SharedMemory.create(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(rank_memory, "IN_ORDER", ())
    with pytest.raises(NoMemoryError, match="may show two writes in another order"):
        SharedMemory.create(2)


def hold(path: Path, answer: Connection) -> None:
    """Lock a byte of the file for as long as this process lives."""
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)
        answer.send(True)
        time.sleep(600)


def test_old_files_that_nobody_holds_are_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A killed start leaves its file. Rejects one that removes what ranks are about to open, or files of others."""
    monkeypatch.setattr(rank_memory, "MEMORY", tmp_path)
    names = {what: tmp_path / f"tailwise-{number:032x}" for number, what in enumerate(("left", "held", "new"))}
    names["other"] = tmp_path / "tailwise-of-somebody"
    for what, path in names.items():
        path.write_bytes(b"12")
        if what != "new":
            os.utime(path, (0, time.time() - rank_memory.OLD_SECONDS - 1))
    receiver, sender = SPAWN.Pipe(duplex=False)
    holder = SPAWN.Process(target=hold, args=(names["held"], sender))
    holder.start()
    assert receiver.poll(60) and receiver.recv()
    rank_memory.sweep()
    assert {what for what, path in names.items() if path.exists()} == {"held", "new", "other"}
    holder.kill()
    holder.join()
    rank_memory.sweep()
    assert {what for what, path in names.items() if path.exists()} == {"new", "other"}


@needs_memory
def test_a_new_file_sweeps_the_old_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rank_memory, "MEMORY", tmp_path)
    left = SharedMemory.create(2)
    os.utime(left, (0, 0))
    assert list(tmp_path.iterdir()) == [left]
    made = SharedMemory.create(2)
    assert list(tmp_path.iterdir()) == [made]


def test_values_come_back_as_they_were_and_arrays_may_be_written_to() -> None:
    value = {
        "weights": torch.arange(6.0).reshape(2, 3).T,
        "everywhere": torch.zeros(()).expand(3, 4),
        "flags": np.array([True, False]),
        "nothing": torch.zeros(0),
        "words": ("learn", 3, None),
    }
    message = encode(value)
    assert size_of(message) % ALIGNED == 0
    back = decode(whole(value))
    assert torch.equal(back["weights"], value["weights"]) and torch.equal(back["everywhere"], value["everywhere"])
    assert back["everywhere"].stride() == (0, 0), "one number stays one number"
    assert back["flags"].tolist() == [True, False] and back["nothing"].shape == (0,) and back["words"] == value["words"]
    back["weights"][0, 0] = 7.0
    assert float(back["weights"][0, 0]) == 7.0

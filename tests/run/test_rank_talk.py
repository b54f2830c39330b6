"""What two ranks say to each other: what is sent, what is told where they differ, and what a lost one leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tailwise.run import rank_memory
from tailwise.run.rank_memory import unsuited
from tailwise.run.ranks import Place, RankLostError, Ranks, joined, next_order
from tests.support import knobs, play, random_world, small_backend

SPAWN = multiprocessing.get_context("spawn")
WHY_NOT = unsuited()
WAYS = [
    pytest.param(True, id="memory", marks=pytest.mark.skipif(WHY_NOT is not None, reason=f"no memory: {WHY_NOT}")),
    pytest.param(False, id="gloo"),
]
Work = Callable[[Place], Any]


def run_rank(rank: int, port: int, folder: Path, work: Work, answer: Connection) -> None:
    """One of two ranks, whose shared file lies in `folder`."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    rank_memory.MEMORY = folder
    answer.send(work(Place(rank, 2)))


def on_two_ranks(work: Work, folder: Path) -> list[Any]:
    """What each of them answers; None where it ended without an answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [SPAWN.Pipe(duplex=False) for _ in range(2)]
    processes = [
        SPAWN.Process(target=run_rank, args=(rank, port, folder, work, sender))
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()  # else the end of a process would not be seen
    answers = []
    for receiver, _ in pipes:
        assert receiver.poll(120)
        try:
            answers.append(receiver.recv())
        except EOFError:
            answers.append(None)
    for process in processes:
        process.join()
    return answers


def differ(place: Place) -> str:
    """One update whose last step makes the weights of the second rank infinite."""
    try:
        with joined(place):
            group = Ranks(2, place)
            backend = small_backend(learner={"epochs": 1, "minibatches": 1, "max_kl": 100.0})
            backend.shards = group
            rollout = play(backend, random_world())
            backend.update(rollout, knobs(float("inf") if place.rank == 1 else 3e-4))
            group.check_learner(backend)
    except RankLostError as error:
        return str(error)
    return "nothing was said"


@pytest.mark.parametrize("with_memory", WAYS)
def test_ranks_that_go_different_ways_are_told_why(with_memory: bool, tmp_path: Path) -> None:
    """One rank's weights are not finite, so it does not look at the KL, and compares weights while the other one waits
    for its share. Rejects a sum of a KL and a digest."""
    for said in on_two_ranks(differ, tmp_path if with_memory else tmp_path / "nowhere"):
        assert "rank 1 sent 'digest' where rank 0 sent 'float'" in said
        assert "are all ranks on machines with the same processor" in said


def talk(place: Place) -> dict[str, Any]:
    """Share a learner three times, the last time after a change; then send what cannot be sent."""
    said: dict[str, Any] = {}
    with joined(place):
        group, backend = Ranks(2, place), small_backend()
        said["way"] = group.words
        parameter = next(backend.model.parameters())
        said["shared"] = []
        for value in (1.0, 1.0, 2.0):
            with torch.no_grad():
                parameter.fill_(value if place.first else -1.0)
            group.share_learner(backend)
            said["shared"].append(float(parameter.detach().flatten()[0]))
        try:
            group.exchange([torch.eye(2).to_sparse()])
        except RuntimeError:  # it has no strides
            said["unsent"] = True
        said["after"] = group.exchange([place.rank])
        if not place.first:
            assert next_order() == ("end", ())
    return said


@pytest.mark.parametrize("with_memory", WAYS)
def test_a_learner_is_sent_where_it_changed(with_memory: bool, tmp_path: Path) -> None:
    """Rejects weights that are sent a second time, a failure of one's own that is taken for a lost rank, and a slower
    way that nobody is told of."""
    nowhere = tmp_path / "nowhere"
    way = "memory that they share" if with_memory else f"gloo, over TCP: {unsuited() or f'there is no {nowhere}'}"
    for rank, said in enumerate(on_two_ranks(talk, tmp_path if with_memory else nowhere)):
        assert said["way"] == f"2, which talk through {way}"
        assert said["shared"] == ([1.0, 1.0, 2.0] if rank == 0 else [1.0, -1.0, 2.0])
        assert said["unsent"] and said["after"] == [0, 1]
    assert not list(tmp_path.iterdir())


def die(place: Place) -> str | None:
    """The second rank ends as soon as both are connected."""
    if not place.first:
        dist.init_process_group("gloo")
        os._exit(1)
    try:
        with joined(place):
            return None
    except RankLostError as error:
        return str(error)


@pytest.mark.skipif(WHY_NOT is not None, reason=f"no memory: {WHY_NOT}")
def test_a_rank_that_dies_at_the_start_leaves_no_memory_behind(tmp_path: Path) -> None:
    """Rejects a file of 32 MB that stays in memory until the machine is started again."""
    first, second = on_two_ranks(die, tmp_path)
    assert second is None and "another rank was lost" in first
    assert not list(tmp_path.iterdir())

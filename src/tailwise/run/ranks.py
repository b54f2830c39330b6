"""The processes that torchrun starts for one run: who they are, and how they talk.

Ranks of one machine talk through memory that they share (`rank_memory.py`), others through gloo, over TCP.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import hashlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tailwise.core.errors import ConfigError, TailwiseError
from tailwise.learner.backend import Backend
from tailwise.learner.shards import Item
from tailwise.run.rank_memory import NoMemoryError, SharedMemory, discard
from tailwise.run.rank_messages import decode, encode, size_of
from tailwise.run.sharded import Alone, Group, learner_tensors, load_learner, shares_of

PATIENCE = datetime.timedelta(hours=2)  # of a rank for the others: one of them may be evaluating
STARTED_BY = "TORCHELASTIC_RUN_ID"  # torchrun sets it
LOG = logging.getLogger("tailwise.ranks")
#: What the ranks of this process group share, as torch keeps the group itself; None where they talk through gloo.
_MEMORY: ContextVar[SharedMemory | None] = ContextVar("memory", default=None)
#: How they talk and why, in words.
_WAY: ContextVar[str] = ContextVar("way", default="gloo")


class RankLostError(TailwiseError):
    """A process that shares the run is gone."""


@dataclass(frozen=True)
class Place:
    """One process among those that torchrun started."""

    rank: int
    ranks: int

    @property
    def first(self) -> bool:
        """Whether it steers the run and writes its files."""
        return self.rank == 0


def place_of(environment: Mapping[str, str]) -> Place | None:
    """This process's place, from what torchrun put into the environment; None where it works alone."""
    if STARTED_BY not in environment:
        return None
    values = {name: environment.get(name, "") for name in ("RANK", "WORLD_SIZE")}
    if not all(text.isdecimal() for text in values.values()):
        given = ", ".join(f"{name} is '{text}'" for name, text in values.items())
        raise ConfigError(f"{STARTED_BY} is set, but {given}; start all ranks with torchrun, or unset {STARTED_BY}.")
    place = Place(int(values["RANK"]), int(values["WORLD_SIZE"]))
    if not place.rank < place.ranks:
        raise ConfigError(f"RANK is {place.rank} and WORLD_SIZE {place.ranks}; start all ranks with torchrun.")
    return place if place.ranks > 1 else None


@contextlib.contextmanager
def joined(place: Place) -> Iterator[None]:
    """Within this context the ranks are connected. The first one ends the others when it ends without an error."""
    before = _leave_signals_to_the_first(place)
    try:
        try:
            dist.init_process_group("gloo", timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise RankLostError(f"rank {place.rank} cannot reach the others: {_short(error)}") from error
        with _shared_memory(place):
            yield
            if place.first:
                _broadcast(("end", ()), "order")
            # gloo's threads may still hold the tensors of the last message, and crash where Python ends meanwhile.
            with _told():
                dist.barrier()
        for number, handler in before.items():
            signal.signal(number, handler)
    except BaseException:
        # The others end as soon as the connection does, and torchrun then ends this one: first it says why.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
            gc.collect()  # what still refers to the group would end gloo's threads with Python, which can crash it


@contextlib.contextmanager
def _shared_memory(place: Place) -> Iterator[None]:
    """Within this context the ranks talk through memory, if all of them see the same; else through gloo, and the first
    one says why."""
    memory, why = _common_memory(place)
    way = "memory that they share" if why is None else f"gloo, over TCP: {why}"
    if place.first:
        LOG.log(logging.INFO if why is None else logging.WARNING, "%d ranks talk through %s", place.ranks, way)
    tokens = _MEMORY.set(memory), _WAY.set(way)
    try:
        yield
    finally:
        _MEMORY.reset(tokens[0])
        _WAY.reset(tokens[1])
        if memory is not None:
            memory.close()


def _common_memory(place: Place) -> tuple[SharedMemory | None, str | None]:
    """(what all ranks see, None), or (None, why there is nothing)."""
    path: Path | None = None
    why: str | None = None
    if place.first:
        try:
            path = SharedMemory.create(place.ranks)
        except NoMemoryError as error:
            why = str(error)
    try:
        shared, why = _broadcast((path, why), "memory")
        if shared is None:
            return None, why
        memory: SharedMemory | None = None
        try:
            memory = SharedMemory(shared, place.rank, place.ranks, patience=PATIENCE.total_seconds())
        except OSError as error:  # another machine's, or a container's own
            why = f"rank {place.rank} cannot open {shared} ({error.strerror})"
        reasons = [one for one in _gather(why, place, "memory") if one is not None]
    finally:
        if path is not None:
            discard(path)
    if reasons and memory is not None:
        memory.close()
        memory = None
    return memory, reasons[0] if reasons else None


def _leave_signals_to_the_first(place: Place) -> dict[int, Any]:
    """Let Ctrl-C and torchrun's SIGTERM reach the first rank alone; returns the handlers that were there.

    It ends the others with a checkpoint behind it, and where it is gone, their connection is.
    """
    if place.first:

        def stop(number: int, frame: Any) -> NoReturn:
            signal.signal(number, signal.SIG_IGN)  # once is enough
            raise RankLostError("torchrun ended this run: another rank was lost, or somebody asked it to stop")

        return {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    return {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}


def group_for(count: int) -> Group:
    """Who shares the `count` shards of a run: the ranks where they are `joined`, else this process alone."""
    if not (dist.is_available() and dist.is_initialized()):
        if place_of(os.environ) is not None:
            raise ConfigError(
                "torchrun started this process, and the run would be trained once by each rank: train with "
                "`torchrun ... -m tailwise train CONFIG`, or start this script without torchrun."
            )
        return Alone(count)
    place = Place(dist.get_rank(), dist.get_world_size())
    if count % place.ranks:
        raise ConfigError(
            f"run.shards is {count} and torchrun started {place.ranks} ranks; each needs as many shards: set "
            f"run.shards to a multiple of {place.ranks}, or start as many ranks as divide {count} (--nproc-per-node)."
        )
    return Ranks(count, place)


class Ranks:
    """The ranks of torchrun as a `Group`; `mine` are the shards of this one."""

    def __init__(self, count: int, place: Place) -> None:
        self.count, self.place = count, place
        self.mine = shares_of(count, place.ranks)[place.rank]
        self._agreed: np.ndarray | None = None  # the learner that all ranks have, see `_bits`

    @property
    def words(self) -> str | None:
        """See `Group.words`."""
        return f"{self.place.ranks}, which talk through {_WAY.get()}"

    def exchange(self, items: Sequence[Item]) -> list[Item]:
        """See `Shards.exchange`; raises where the ranks have different types of items, so are at different points."""
        every: list[list[Item]] = _gather(list(items), self.place, type(items[0]).__name__)
        return [item for own in every for item in own]

    def order(self, name: str, *arguments: Any) -> None:
        """See `Group.order`."""
        if self.place.first:
            _broadcast((name, arguments), "order")

    def share_learner(self, backend: Backend) -> None:
        """See `Group.share_learner`. Nothing is sent where the first rank has what all had after the update."""
        tensors: dict[str, Tensor] | None = None
        bits: np.ndarray | None = None
        if self.place.first:
            tensors = learner_tensors(backend)
            bits = _bits(tensors)
            if self._agreed is not None and np.array_equal(bits, self._agreed):
                tensors = None
        given = _broadcast(tensors, "learner")
        if self.place.first:
            self._agreed = bits
        elif given is not None:
            load_learner(backend, given)

    def check_learner(self, backend: Backend) -> None:
        """See `Group.check_learner`."""
        self._agreed = _bits(learner_tensors(backend))
        digests = _gather(hashlib.sha256(self._agreed.data).digest(), self.place, "digest")
        other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if other:
            raise _diverged(f"rank {other[0]} has other weights than rank 0 after the same update")


def _diverged(what: str) -> RankLostError:
    return RankLostError(
        f"{what}, so the run was stopped; are all ranks on machines with the same processor, and the same versions of "
        "Python, torch and Tailwise?"
    )


def next_order() -> tuple[str, tuple[Any, ...]]:
    """What the first rank orders next, on another one."""
    try:
        name, arguments = _broadcast(None, "order")
    except RankLostError as error:
        raise RankLostError("the first rank has ended, and this one with it; what that one printed says why") from error
    return name, arguments


def _bits(tensors: Mapping[str, Tensor]) -> np.ndarray:
    """All tensors [n bytes], in the order of their names, which are the same on all ranks."""
    arrays = [np.ascontiguousarray(tensors[name].detach().numpy()) for name in sorted(tensors)]
    return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])


# ---------------------------------------------------------------- transport


def _gather(value: Any, place: Place, what: str) -> list[Any]:
    """The value of every rank, in their order; the own one is the same object. what: it is, the same on all ranks."""
    memory, message = _MEMORY.get(), encode((what, value))
    with _told():
        others = _gather_by_gloo(message, place.ranks) if memory is None else memory.exchange(message)
    found = [(what, value) if rank == place.rank else decode(data) for rank, data in enumerate(others)]
    return [_checked(one, rank, found[0][0]) for rank, one in enumerate(found)]


def _checked(message: tuple[str, Any], rank: int, wanted: str) -> Any:
    """The value in a message; ranks whose weights differ may go different ways, and then send different things."""
    what, value = message
    if what != wanted:
        raise _diverged(f"rank {rank} sent '{what}' where rank 0 sent '{wanted}', as their weights differ")
    return value


def _gather_by_gloo(message: list[memoryview], ranks: int) -> list[np.ndarray]:
    """The messages uint8 [n] of all ranks."""
    own = _joined(message)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(own)]))
    counts = [int(size) for size in sizes]
    padded = torch.zeros(max(counts), dtype=torch.uint8)
    padded[: len(own)] = own
    every = [torch.empty(max(counts), dtype=torch.uint8) for _ in range(ranks)]
    dist.all_gather(every, padded)
    return [data[:count].numpy() for data, count in zip(every, counts, strict=True)]


def _joined(message: list[memoryview]) -> Tensor:
    whole = bytearray(size_of(message))
    at = 0
    for part in message:
        whole[at : at + part.nbytes] = part
        at += part.nbytes
    return torch.frombuffer(whole, dtype=torch.uint8)


def _broadcast(value: Any, what: str) -> Any:
    """The value of the first rank, on every rank. what: see `_gather`."""
    first, memory = dist.get_rank() == 0, _MEMORY.get()
    message = encode((what, value)) if first else []
    with _told():
        if memory is not None:
            data = memory.exchange(message)[0]
        else:
            own = _joined(message) if first else torch.zeros(0, dtype=torch.uint8)
            size = torch.tensor([len(own)])
            dist.broadcast(size, 0)
            own = own if first else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(own, 0)
            data = own.numpy()
    if first:
        return value
    sent, given = decode(data)
    if sent != what:
        raise _diverged(f"rank 0 sent '{sent}' where rank {dist.get_rank()} waited for '{what}'")
    return given


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say so when another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        if dist.get_rank() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's answer to the same loss
        raise RankLostError(
            f"another rank was lost ({_short(error)}); what it printed itself, if anything, says why"
        ) from error


def _short(error: Exception) -> str:
    """The first sentence of what gloo says, without the place in its sources."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return text.rpartition(".cc:")[2].partition("] ")[2].partition(". ")[0] or text

"""The shards of a run: groups of its environments that are played, and whose gradients are made, apart from each other.

Gradients of a minibatch are added up in the order of the shards, whoever made them. One process that makes those of all
shards therefore has the same bits as several processes that each make some of them (docs/scaling.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from torch import Tensor

from tailwise.learner.tally import Number

Item = TypeVar("Item")


class Shards(Protocol):
    """Which shards there are, and which of them this process works on.

    count  of all shards
    mine   numbers of those of this process, ascending and without gaps
    """

    @property
    def count(self) -> int: ...

    @property
    def mine(self) -> range: ...

    def exchange(self, items: Sequence[Item]) -> list[Item]:
        """What all shards have, in their order, from what those of this process have; every process has to call it."""
        ...


class OneProcess:
    """All shards in this process."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.mine = range(count)

    def exchange(self, items: Sequence[Item]) -> list[Item]:
        """See `Shards.exchange`: nobody else has anything."""
        return list(items)


@dataclass
class Contribution:
    """What one shard adds to a minibatch.

    measured  of each microbatch: rows, and the means, maxima and minima of its numbers
    kl        its share of the minibatch's KL(old||new), nats
    largest   |log ratio|
    gradient  of each parameter, None for those that have none
    broken    a sentence if a loss is not finite
    """

    measured: list[tuple[int, dict[str, Number], dict[str, Number], dict[str, Number]]] = field(default_factory=list)
    kl: float = 0.0
    largest: float = 0.0
    gradient: list[Tensor | None] = field(default_factory=list)
    broken: str | None = None


def add_gradients(parameters: Sequence[Tensor], gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """Let the gradient of each parameter be the sum over the shards, from the first to the last."""
    for parameter, *terms in zip(parameters, *gradients, strict=True):
        present = [term for term in terms if term is not None]
        parameter.grad = present[0] if present else None
        for term in present[1:]:
            assert parameter.grad is not None
            parameter.grad = parameter.grad + term

"""Contenders that do nothing, for tests of the rounds; each runs in a process of its own."""

from __future__ import annotations

from benchmarks.speed_contenders import Done
from benchmarks.speed_work import Work


class Idle:
    def __init__(self, work: Work, *, epochs: int, iterations: int = 1_000_000) -> None:
        self.work, self.epochs, self.left, self.times = work, epochs, iterations, 0

    def iterate(self, times: int) -> None:
        if times > self.left:
            raise ValueError("this contender breaks")
        self.left -= times
        self.times += times
        sum(range(100_000 * times))

    def done(self) -> Done:
        return Done(self.times * self.work.samples, self.times * self.epochs * self.work.minibatches)

    def facts(self) -> dict[str, float]:
        print("a library that prints")
        return {"times": float(self.times)}


def honest(work: Work) -> Idle:
    return Idle(work, epochs=work.epochs)


def lazy(work: Work) -> Idle:
    return Idle(work, epochs=work.epochs - 1)


def breaking(work: Work) -> Idle:
    return Idle(work, epochs=work.epochs, iterations=1)

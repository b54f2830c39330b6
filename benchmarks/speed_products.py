"""The most that matrix products alone can reach on one core: what the share of the GEMM limit is measured against.

The limit is that of the shape which suits the library best, a square one, so no learner reaches it with its own small
matrices; a share of 50% is high. Measured as a contender among the others, round by round, because the clock of a core
changes with its neighbours.
"""

from __future__ import annotations

import torch

from benchmarks.speed_contenders import Done
from benchmarks.speed_work import Work

SIDES = (384, 512, 768)
MINIMUM = 100_000_000  # floating-point operations between two looks at the other shapes


class Products:
    """An iteration multiplies once in every shape; `facts` has operations per CPU-second by the side of the square."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        made = torch.Generator().manual_seed(0)
        self._left = [torch.randn(side, side, generator=made) for side in SIDES]
        self._right = [torch.randn(side, side, generator=made) for side in SIDES]
        self._out = [torch.empty(side, side) for side in SIDES]
        self._speeds: dict[str, float] = {}
        self._times = 0

    def iterate(self, times: int) -> None:
        import time

        for left, right, out in zip(self._left, self._right, self._out, strict=True):
            operations = 2 * left.shape[0] ** 3
            repeated = times * max(1, -(-MINIMUM // operations))
            clock = time.process_time()
            for _ in range(repeated):
                torch.mm(left, right, out=out)
            self._speeds[str(left.shape[0])] = repeated * operations / (time.process_time() - clock)
        self._times += times

    def done(self) -> Done:
        return Done(0, 0)

    def facts(self) -> dict[str, float]:
        """Speeds of the newest call."""
        return self._speeds


def peak(work: Work) -> Products:
    """Does not depend on the work."""
    return Products()

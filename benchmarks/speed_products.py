"""The most that matrix products alone can reach on one core: what the share of the GEMM limit is measured against.

The limit is that of the shape and the code which suit the core best, a square one, so no learner reaches it with its
own small matrices; a share of 50% is high. Both torch's product and our own (`fused/products.py`) are asked: on some
processors torch's library uses half the width of the vectors. Measured as a contender among the others, round by round,
because the clock of a core changes with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.speed_contenders import Done
from benchmarks.speed_work import Work

SIDES = (384, 512, 768)
OWN_SIDES = (192, 288, 384)  # whole panels: multiples of 48 columns
MINIMUM = 100_000_000  # floating-point operations between two looks at the other shapes


class Products:
    """An iteration multiplies once in every shape; `facts` has operations per CPU-second by whose product it is and the
    side of the square."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        made = torch.Generator().manual_seed(0)
        self._products: dict[str, tuple[int, Callable[[], object]]] = {}
        for side in SIDES:
            self._products[f"torch {side}"] = (2 * side**3, _of_torch(side, made))
        for side in OWN_SIDES:
            self._products[f"own {side}"] = (2 * side**3, _of_our_own(side, made))
        self._speeds: dict[str, float] = {}
        self._times = 0

    def iterate(self, times: int) -> None:
        import time

        for name, (operations, product) in self._products.items():
            repeated = times * max(1, -(-MINIMUM // operations))
            clock = time.process_time()
            for _ in range(repeated):
                product()
            self._speeds[name] = repeated * operations / (time.process_time() - clock)
        self._times += times

    def done(self) -> Done:
        return Done(0, 0)

    def facts(self) -> dict[str, float]:
        """Speeds of the newest call."""
        return self._speeds


def _of_torch(side: int, made: torch.Generator) -> Callable[[], object]:
    left, right = torch.randn(side, side, generator=made), torch.randn(side, side, generator=made)
    out = torch.empty(side, side)
    return lambda: torch.mm(left, right, out=out)


def _of_our_own(side: int, made: torch.Generator) -> Callable[[], object]:
    from tailwise.fused.products import NOTHING, Matrix, lay_panels, multiply, panel_floats

    left, right = (torch.randn(side * side, generator=made).numpy() for _ in range(2))
    panels, out = np.zeros(panel_floats(side, side), np.float32), np.zeros(side * side, np.float32)
    lay_panels(right, side, side, side, 1, panels, side, 0)
    shape, result = (side, side, side), Matrix(out, side)
    product, wanted = left.reshape(side, side) @ right.reshape(side, side), out.reshape(side, side)

    def multiplied() -> None:
        multiply(shape, Matrix(left, side), panels, Matrix(out, NOTHING), result)

    multiplied()
    if not np.allclose(wanted, product, rtol=1e-3, atol=1e-3):
        raise RuntimeError(f"our own product of squares of {side} is wrong, so its speed says nothing")
    return multiplied


def peak(work: Work) -> Products:
    """Does not depend on the work."""
    return Products()

"""A quick look for NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


def surely_finite(*arrays: npt.NDArray[Any]) -> bool:
    """Whether the sum of squares of each array is finite, which neither NaN nor infinity leaves: the usual case.

    False where an array is broken, and also where squares of finite numbers overflow: then one has to look closer. A
    product of vectors, because that is the fastest way to read them.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return all(math.isfinite(np.dot(flat, flat)) for flat in (array.reshape(-1) for array in arrays))

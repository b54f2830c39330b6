"""Copies and zeros inside kernels.

`target[a:b] = source` would do, but numba then compiles an error message for the case of different lengths, with all of
its machinery for strings: several seconds for each kernel that does it.
"""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel


@kernel
def copy(source: np.ndarray, target: np.ndarray) -> None:
    """target[:n] = source for n numbers of a flat source."""
    for i in range(source.shape[0]):
        target[i] = source[i]


@kernel
def clear(target: np.ndarray) -> None:
    """target[:] = 0, float32."""
    for i in range(target.shape[0]):
        target[i] = np.float32(0.0)

"""Numbers in another unit, in compiled code: one pass over a million particles instead of four."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel


@kernel
def rescale(values: np.ndarray, centre: float, unit: float, result: np.ndarray) -> None:
    """result = (values - centre) / unit in float64, rounded at the end; values and result float32 [n].

    Divided once: a division takes as long as everything else, and its last bit of float64 is far from the result.
    """
    share = 1.0 / unit
    for i in range(values.shape[0]):
        result[i] = (np.float64(values[i]) - centre) * share

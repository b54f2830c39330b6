"""The quick look for NaN and infinity."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.core.finite import surely_finite


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_broken_number_is_found(broken: float, dtype: type) -> None:
    """At any place, also beside one that would cancel it in a sum. Rejects a sum of first entries, or of one array."""
    for place in (0, 500, 999):
        array = np.ones((10, 100), dtype=dtype)
        assert surely_finite(array, array[:0], np.array(2.0))
        array.reshape(-1)[place] = broken
        assert not surely_finite(np.ones(3), array)
        array.reshape(-1)[(place + 1) % 1000] = -broken
        assert not surely_finite(array)


def test_numbers_whose_squares_overflow_are_not_sure() -> None:
    """And nothing warns of it."""
    assert surely_finite(np.full(3, 1e15, dtype=np.float32))
    assert not surely_finite(np.full(3, 1e30, dtype=np.float32))

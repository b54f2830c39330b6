"""Moments of rows against numpy in float64 and what a faster formula would lose; the check for NaN."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.core.numerics import column_moments, sample_moments, surely_finite


def one_pass(rows: np.ndarray) -> np.ndarray:
    """The wrong variance: E[x^2] - E[x]^2."""
    wide = rows.astype(np.float64)
    variance: np.ndarray = (wide**2).mean(0) - wide.mean(0) ** 2
    return variance


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_have_the_moments_of_numpy(count: int, dtype: type) -> None:
    """Blocks of any length. Rejects a merge of blocks that forgets how far apart their means are."""
    rows = np.random.default_rng(count).normal([0.0, 5.0, -3.0], [1.0, 0.1, 20.0], (count, 3)).astype(dtype)
    rows[:, 1] += np.linspace(0.0, 9.0, count, dtype=dtype)  # a trend: the means of blocks differ
    wide = rows.astype(np.float64)
    found = column_moments(rows)
    assert found.count == count
    np.testing.assert_allclose(found.mean, wide.mean(0), rtol=1e-13)
    np.testing.assert_allclose(found.variance, wide.var(0), rtol=1e-12, atol=1e-15)
    assert (found.low <= wide.min(0)).all() and (found.high >= wide.max(0)).all()
    if count > 128:
        blocks = np.array_split(wide, range(128, count, 128))
        forgetful = sum(block.var(0) * len(block) for block in blocks) / count
        assert not np.allclose(forgetful[1], wide.var(0)[1], rtol=1e-2)


def test_prices_keep_the_digits_of_their_spread() -> None:
    """1e8 with a spread of 0.01, in float64. Rejects sums of squares, whose digits are all gone."""
    rows = 1e8 + 0.01 * np.random.default_rng(0).normal(size=(5000, 2))
    exact = (rows - 1e8).var(0)
    np.testing.assert_allclose(column_moments(rows).variance, exact, rtol=1e-6)
    assert not np.allclose(one_pass(rows), exact, rtol=0.5)


def test_a_constant_has_no_variance_at_all() -> None:
    constant = np.full((300, 2), [0.1, 12345.678], dtype=np.float32)
    found = column_moments(constant)
    assert found.variance.tolist() == [0.0, 0.0]
    assert found.mean.tolist() == constant[0].astype(np.float64).tolist()


@pytest.mark.parametrize("count", [1, 3, 64, 65, 10_000])
def test_a_flat_sample_has_the_moments_of_numpy(count: int) -> None:
    """Also where the sample does not fill the last row. Rejects the average of the columns' variances alone."""
    values = (7.0 + np.arange(count) % 64 + np.random.default_rng(0).normal(size=count)).astype(np.float32)
    wide = values.astype(np.float64)
    mean, variance = sample_moments(values)
    assert mean == pytest.approx(wide.mean(), rel=1e-13)
    assert variance == pytest.approx(wide.var(), rel=1e-12, abs=1e-15)
    if count == 10_000:
        within = column_moments(values[:9984].reshape(-1, 64)).variance.mean()
        assert within < 0.1 * variance


def test_a_broken_entry_shows() -> None:
    """Rejects moments that leave out what is not finite: the caller has to see it."""
    rows = np.ones((200, 3), dtype=np.float32)
    rows[5, 1], rows[150, 2] = np.nan, np.inf
    assert np.isfinite(column_moments(rows).variance).tolist() == [True, False, False]


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

"""Matrix products inside kernels against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from tailwise.fused.products import (
    NOTHING,
    REPEATED,
    Matrix,
    add_products,
    lay_out,
    lay_panels,
    make_copy,
    make_tile,
    make_turn,
    multiply,
    panel_floats,
)
from tailwise.fused.vectors import LANES, address

SIZES = [(1, 1, 1), (5, 3, 4), (4, 24, 7), (3, 16, 5), (9, 17, 2), (16, 65, 33), (64, 136, 64), (2, 50, 1), (7, 9, 130)]
SIZES += [(9, 4 * LANES, 5), (3, 10 * LANES, 6), (6, 4 * LANES + 1, 3)]  # two pairs at the end, and none


def matrix(g: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return g.standard_normal((rows, columns)).astype(np.float32)


def panels_of(b: np.ndarray, *, transposed: bool) -> np.ndarray:
    """Panels of b [inner, columns], read from memory that holds it as it is or transposed."""
    inner, columns = b.shape
    panels = np.full(panel_floats(inner, columns), np.nan, np.float32)
    if transposed:
        lay_panels(np.ascontiguousarray(b.T).reshape(-1), inner, columns, 1, inner, panels, inner, 0)
    else:
        lay_panels(b.reshape(-1), inner, columns, columns, 1, panels, inner, 0)
    return panels


@pytest.mark.parametrize(("rows", "columns", "inner"), SIZES)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("added", ["nothing", "itself", "bias"])
def test_products_of_parts_of_matrices(rows: int, columns: int, inner: int, right: bool, added: str) -> None:
    """Either transposition, with rows further apart than they are long; what lies beside the result stays as it is.

    Rejects swapped sizes or distances, a remainder of rows or columns that is left out, and a write beyond the width.
    """
    g = np.random.default_rng(rows + columns)
    a, b = matrix(g, rows, inner + 2), matrix(g, inner, columns)
    c, bias = matrix(g, rows, columns + 3), matrix(g, 1, columns)[0]
    expected = c.astype(np.float64)
    start = {"nothing": np.zeros(columns), "itself": expected[:, :columns], "bias": bias.astype(np.float64)}[added]
    expected[:, :columns] = a[:, :inner].astype(np.float64) @ b.astype(np.float64) + start
    flat = c.reshape(-1)
    result = Matrix(flat, columns + 3)
    begin = {"nothing": Matrix(flat, NOTHING), "itself": result, "bias": Matrix(bias, REPEATED)}[added]
    left = Matrix(a.reshape(-1), inner + 2)
    multiply((rows, columns, inner), left, panels_of(b, transposed=right), begin, result)
    assert c == pytest.approx(expected, rel=1e-5, abs=1e-5 * np.sqrt(inner))


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 300])
@pytest.mark.parametrize(("height", "columns"), [(1, 1), (136, 64), (17, 50), (33, 3)])
def test_products_over_many_rows_add_up(rows: int, height: int, columns: int) -> None:
    """Rejects a chunk that overwrites the one before, and the last rows left out."""
    g = np.random.default_rng(rows)
    a, b, c = matrix(g, rows, height + 1), matrix(g, rows, columns + 2), matrix(g, height, columns)
    expected = c + a[:, :height].T.astype(np.float64) @ b[:, :columns].astype(np.float64)
    left, right = Matrix(a.reshape(-1), height + 1), Matrix(b.reshape(-1), columns + 2)
    add_products((rows, height, columns), left, right, c.reshape(-1))
    assert c == pytest.approx(expected, rel=1e-5, abs=1e-5 * np.sqrt(rows))


def multiply_into(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """c = a @ b, of which c is not read."""
    flat, (rows, inner), columns = c.reshape(-1), a.shape, b.shape[1]
    left, nothing = Matrix(a.reshape(-1), inner), Matrix(flat, NOTHING)
    multiply((rows, columns, inner), left, panels_of(b, transposed=False), nothing, Matrix(flat, columns))


def test_what_is_not_read_may_be_anything() -> None:
    """A result that is overwritten may hold NaN before: rejects 0 * NaN."""
    g = np.random.default_rng(0)
    a, b, c = matrix(g, 5, 4), matrix(g, 4, 9), np.full((5, 9), np.nan, np.float32)
    multiply_into(c, a, b)
    assert c == pytest.approx(a @ b, rel=1e-5, abs=1e-6)


def test_a_broken_number_reaches_its_row_alone() -> None:
    """Rejects padding that multiplies a NaN along, and one that swallows it."""
    g = np.random.default_rng(0)
    a, b, c = matrix(g, 5, 4), matrix(g, 4, 9), np.zeros((5, 9), np.float32)
    a[2, 1] = np.nan
    multiply_into(c, a, b)
    assert np.isnan(c[2]).all() and np.isfinite(np.delete(c, 2, axis=0)).all()


def test_several_matrices_are_laid_out_where_the_table_says() -> None:
    g = np.random.default_rng(0)
    flat = matrix(g, 1, 100)[0]
    first, second = flat[:12].reshape(3, 4), flat[20:40].reshape(4, 5).T
    size = panel_floats(3, 4)
    panels = np.zeros(size + panel_floats(5, 4), np.float32)
    lay_out(np.array([[0, 3, 4, 4, 1, 0, 3, 0], [20, 5, 4, 1, 5, size, 5, 0]]), flat, panels)
    assert np.array_equal(panels[:size].reshape(3, LANES)[:, :4], first)
    assert np.array_equal(panels[size:].reshape(5, LANES)[:, :4], second)


@pytest.mark.parametrize("lanes", [4, 16])
def test_tiles_of_other_processors_multiply_as_well(lanes: int) -> None:
    """Wider and narrower vectors than this processor has are split or joined, with the same result."""
    g, rows, inner = np.random.default_rng(0), 8, 11
    tile, last, copy = (
        make_tile(rows, 2, lanes=lanes),
        make_tile(1, 1, lanes=lanes, partial=True),
        make_copy(2, lanes=lanes),
    )
    width = 2 * lanes
    a, b, c = matrix(g, rows, inner), matrix(g, inner, width), np.zeros((rows, width), np.float32)
    one, copied = np.zeros(lanes, np.float32), np.zeros((inner, width), np.float32)

    one_apart, nowhere, beside, present = np.int64([1, 0, 3, rows - 2])

    @njit
    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray, one: np.ndarray, copied: np.ndarray) -> None:
        inner, width = b.shape
        left, right, start = (address(a), inner, one_apart), (address(b), width), (nowhere, nowhere)
        tile(left, right, start, (address(c), width), (inner, nowhere, present))
        last(left, right, start, (address(one), width), (inner, beside, one_apart))
        copy(address(b), width, address(copied), width, inner, 0)

    run(a, b, c, one, copied)
    assert c[:-2] == pytest.approx((a @ b)[:-2], rel=1e-5, abs=1e-5) and not c[-2:].any()
    assert np.array_equal(copied, b)
    assert one[:3] == pytest.approx((a @ b)[0, :3], rel=1e-5, abs=1e-5) and not one[3:].any()


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_squares_are_transposed(lanes: int) -> None:
    """Rows further apart than they are long; what lies beside stays as it is. Rejects a pair of rows left out."""
    turn = make_turn(lanes=lanes)
    a = np.arange(lanes * (lanes + 3), dtype=np.float32).reshape(lanes, lanes + 3)
    b = np.full((lanes, lanes + 5), -1.0, np.float32)

    @njit
    def run(a: np.ndarray, b: np.ndarray) -> None:
        turn(a.ctypes.data, a.shape[1], b.ctypes.data, b.shape[1])

    run(a, b)
    assert np.array_equal(b[:, :lanes], a[:, :lanes].T) and (b[:, lanes:] == -1.0).all()

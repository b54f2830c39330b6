"""Matrix products inside kernels, without Python, without the GIL and without a library.

A right side that is used often is laid out as panels first: three vectors of columns beside each other, row after row,
so that the inner loop reads one stretch of memory. Weights are laid out once per optimiser step and multiplied with
many blocks of rows; that, and no call per product, is why this is faster than the vendor's routine for the sizes of a
policy (docs/decisions/0010-products-of-our-own.md).

Arrays are flat float32 whose element 0 is the first of the matrix. Nothing is checked: a wrong size reads foreign
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from tailwise.core.compiled import kernel
from tailwise.fused.vectors import AVX512, BYTES, LANES, Vectors, generated, number

TILE_ROWS = 8 if AVX512 else 4  # with three vectors: 24 of 32 registers hold sums, or 12 of 16


def make_tile(rows: int, vectors: int, *, lanes: int = LANES, partial: bool = False) -> Callable[..., None]:
    """A function for kernels: c [rows, vectors * lanes] = start + a @ b, with addresses in place of arrays.

    (a, a_row, a_inner, b, b_row, inner, start, start_row, c, c_row, width, exist): a_row and a_inner are the distances
    in floats between neighbours in a row direction and in the inner direction, so that a may lie transposed; b_row and
    c_row between rows. start: address of what is added, rows start_row apart (0 repeats one row, as for a bias); 0 for
    nothing. width: with `partial`, how many of the columns exist; the others are neither read nor written. exist: how
    many of the rows do, one at least; what is left of the tile repeats the last one, and writes the same to it.
    """

    @generated
    def tile(
        context: Any, a: Any, a_row: Any, a_inner: Any, b: Any, b_row: Any, inner: Any, start: Any, start_row: Any,
        c: Any, c_row: Any, width: Any, exist: Any,
    ) -> Any:  # fmt: skip
        return types.void(*[types.intp] * 12), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, a_row, a_inner, b, b_row, inner, start, start_row, c, c_row, width, exist = values
        v = Vectors(builder, lanes)
        mask = v.exist(width) if partial else None
        last = builder.sub(exist, number(1))
        places = [
            builder.select(builder.icmp_signed("<", number(i), exist), number(i), last) if i else number(0)
            for i in range(rows)
        ]

        def row_addresses(first: Any, distance: Any) -> list[Any]:
            bytes_apart = builder.mul(distance, number(BYTES))
            return [builder.add(first, builder.mul(bytes_apart, place)) for place in places]

        def load(address: Any) -> list[Any]:
            return [v.load(v.at(address, j * lanes), mask) for j in range(vectors)]

        sums = [[cgutils.alloca_once(builder, v.kind) for _ in range(vectors)] for _ in range(rows)]
        with builder.if_else(builder.icmp_unsigned("==", start, number(0))) as (nothing, something):
            with nothing:
                for row in sums:
                    for place in row:
                        builder.store(v.constant(0.0), place)
            with something:
                for row, address in zip(sums, row_addresses(start, start_row)):
                    for place, value in zip(row, load(address)):
                        builder.store(value, place)
        left = row_addresses(a, a_row)
        left_step, right_step = (builder.mul(n, number(BYTES)) for n in (a_inner, b_row))
        at_left, at_right = v.variable(number(0)), v.variable(b)
        with v.count(inner):
            offset, right = builder.load(at_left), builder.load(at_right)
            columns = load(right)
            for row, address in zip(sums, left):
                factor = v.load_all(builder.add(address, offset))
                for place, column in zip(row, columns):
                    builder.store(v.multiply_add(factor, column, builder.load(place)), place)
            builder.store(builder.add(offset, left_step), at_left)
            builder.store(builder.add(right, right_step), at_right)
        for row, address in zip(sums, row_addresses(c, c_row)):
            for j, place in enumerate(row):
                v.store(builder.load(place), v.at(address, j * lanes), mask)
        return context.get_dummy_value()

    return tile  # type: ignore[no-any-return]


def make_copy(vectors: int, *, lanes: int = LANES, partial: bool = False) -> Callable[..., None]:
    """A function for kernels: copies [rows, vectors * lanes] from an address to another, which must not overlap.

    (source, source_row, target, target_row, rows, width): distances between rows in floats; width: with `partial`, how
    many columns the source has; the others become 0.
    """

    @generated
    def copy(context: Any, source: Any, source_row: Any, target: Any, target_row: Any, rows: Any, width: Any) -> Any:
        return types.void(*[types.intp] * 6), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, source_row, target, target_row, rows, width = values
        v = Vectors(builder, lanes)
        mask = v.exist(width) if partial else None
        from_here, to_here = v.variable(source), v.variable(target)
        with v.count(rows):
            here, there = builder.load(from_here), builder.load(to_here)
            copied = [v.load(v.at(here, j * lanes), mask) for j in range(vectors)]
            for j, value in enumerate(copied):
                v.store(value, v.at(there, j * lanes))
            builder.store(v.at(here, source_row), from_here)
            builder.store(v.at(there, target_row), to_here)
        return context.get_dummy_value()

    return copy  # type: ignore[no-any-return]


def make_turn(*, lanes: int = LANES) -> Callable[..., None]:
    """A function for kernels: (source, source_row, target, target_row) writes the transposed of a square of `lanes`
    rows and columns; addresses, and distances between rows in floats."""

    @generated
    def turn(context: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> Any:
        return types.void(*[types.intp] * 4), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, source_row, target, target_row = values
        v = Vectors(builder, lanes)
        rows = [v.load(v.at(source, builder.mul(source_row, number(i)))) for i in range(lanes)]
        apart = 1
        while apart < lanes:  # squares of twice `apart` change their corners, until the whole square has
            for i in range(lanes):
                if not i & apart:
                    rows[i], rows[i + apart] = v.change_corners(rows[i], rows[i + apart], apart)
            apart *= 2
        for i, row in enumerate(rows):
            v.store(row, v.at(target, builder.mul(target_row, number(i))))
        return context.get_dummy_value()

    return turn  # type: ignore[no-any-return]


_LANES, _ROWS = LANES, TILE_ROWS
_WIDE, _PAIR = 3 * LANES, 2 * LANES
_FOUR = 4 * LANES  # two pairs: one vector by itself has too few sums under way to keep the processor busy
CHUNK = 64  # rows that a product over many rows takes together: they stay in the nearest cache
_BAND = 16  # rows of the result that take turns over all columns of a chunk: what they read of the left stays near
_FLOAT = 4  # bytes
NOTHING = -1  # in place of a distance between rows of what a product is added to
# Not numbers of Python: numba would compile a kernel again for those very numbers.
_ONE = np.int64(1)
_LAID_OUT = np.int64(0)  # in place of a distance between rows of the right side

_wide, _pair, _last = make_tile(_ROWS, 3), make_tile(_ROWS, 2), make_tile(_ROWS, 1, partial=True)
_copy_wide, _copy_pair, _copy_last = make_copy(3), make_copy(2), make_copy(1, partial=True)
_turn = make_turn()


def panel_floats(inner: int, columns: int) -> int:
    """Floats that the panels of a matrix [inner, columns] take."""
    return inner * (-(-columns // LANES) * LANES)


@kernel
def _panel_width(left: int) -> int:
    """Columns of the next panel when `left` are left; the last ones are filled up with zeros."""
    if left >= _WIDE and left != _FOUR:
        return _WIDE
    return _PAIR if left >= _PAIR else _LANES


@kernel
def _copy_columns(source: int, source_row: int, target: int, width: int, rows: int, exist: int) -> None:
    """One panel of `width` columns, from an address to an address."""
    if width == _WIDE:
        _copy_wide(source, source_row, target, width, rows, exist)
    elif width == _PAIR:
        _copy_pair(source, source_row, target, width, rows, exist)
    else:
        _copy_last(source, source_row, target, width, rows, exist)


@kernel
def lay_panels(
    matrix: np.ndarray, inner: int, columns: int, row: int, column: int, panels: np.ndarray, whole: int, above: int
) -> None:
    """panels of the matrix [inner, columns] whose neighbours are `row` and `column` floats apart.

    It may be a part of a matrix [whole, columns], with `above` rows of others above it.
    """
    first, begin = 0, 0
    while first < columns:
        width = _panel_width(columns - first)
        exist, at = min(width, columns - first), begin + above * width
        if column == 1:
            _copy_columns(
                *(matrix.ctypes.data + _FLOAT * first, row),
                *(panels.ctypes.data + _FLOAT * at, width, inner, exist),
            )
        else:
            squares = inner // _LANES * _LANES if row == 1 else 0  # rows of whole squares
            for j in range(0, exist // _LANES * _LANES, _LANES):
                for k in range(0, squares, _LANES):
                    from_here, to_here = _FLOAT * ((first + j) * column + k), _FLOAT * (at + k * width + j)
                    _turn(matrix.ctypes.data + from_here, column, panels.ctypes.data + to_here, width)
            for j in range(exist):
                source, target = matrix[(first + j) * column :], panels[at + j :]
                for k in range(squares if j < exist // _LANES * _LANES else 0, inner):
                    target[k * width] = source[k * row]
            for j in range(exist, width):
                for k in range(inner):
                    panels[at + k * width + j] = np.float32(0.0)
        first += width
        begin += whole * width


@kernel
def _product(
    rows: int, columns: int, inner: int, a: int, a_row: int, a_inner: int, b: int, b_row: int, start: int,
    start_row: int, c: int, c_row: int,
) -> None:  # fmt: skip
    """`multiply` on addresses; b_row: floats between rows of b where they lie, or _LAID_OUT where b is laid out."""
    first, at = 0, b
    while first < columns:
        left = columns - first
        width = _panel_width(left)
        apart = width if b_row == _LAID_OUT else b_row
        s, out = start + _FLOAT * first if start else 0, c + _FLOAT * first
        for r in range(0, rows, _ROWS):
            exist = min(_ROWS, rows - r)
            x, y, z = a + _FLOAT * r * a_row, out + _FLOAT * r * c_row, s + _FLOAT * r * start_row if s else 0
            if width == _WIDE:
                _wide(x, a_row, a_inner, at, apart, inner, z, start_row, y, c_row, left, exist)
            elif width == _PAIR:
                _pair(x, a_row, a_inner, at, apart, inner, z, start_row, y, c_row, left, exist)
            else:
                _last(x, a_row, a_inner, at, apart, inner, z, start_row, y, c_row, left, exist)
        first += width
        at += _FLOAT * (inner * width if b_row == _LAID_OUT else width)


@kernel
def multiply(
    rows: int, columns: int, inner: int, a: np.ndarray, a_row: int, a_inner: int, panels: np.ndarray,
    start: np.ndarray, start_row: int, c: np.ndarray, c_row: int,
) -> None:  # fmt: skip
    """c [rows, columns] = start + a @ b for the matrix b [inner, columns] that was laid out as `panels`.

    a [rows, inner]: neighbours are a_row and a_inner floats apart. start [rows, columns]: rows are start_row apart, 0
    for a bias; c itself adds to what is there; with start_row NOTHING it is not read and counts as 0.
    """
    begin = 0 if start_row == NOTHING else start.ctypes.data
    _product(
        *(rows, columns, inner, a.ctypes.data, a_row, a_inner, panels.ctypes.data, _LAID_OUT),
        *(begin, start_row, c.ctypes.data, c_row),
    )


@kernel
def add_products(
    rows: int, height: int, columns: int, a: np.ndarray, a_row: int, b: np.ndarray, b_row: int, c: np.ndarray
) -> None:
    """c [height, columns] += a' @ b for a [rows, height] and b [rows, columns] with rows a_row and b_row apart.

    b is read once for each band of the result, and not laid out before: that would take longer than it saves.
    """
    for first in range(0, rows, CHUNK):
        n = min(CHUNK, rows - first)
        for top in range(0, height, _BAND):
            target = c.ctypes.data + _FLOAT * top * columns
            _product(
                *(min(_BAND, height - top), columns, n, a.ctypes.data + _FLOAT * (first * a_row + top), _ONE, a_row),
                *(b.ctypes.data + _FLOAT * first * b_row, b_row, target, columns, target, columns),
            )


@kernel
def lay_out(matrices: np.ndarray, flat: np.ndarray, panels: np.ndarray) -> None:
    """Lay out all `matrices`, int64 [n, 8]: first float in `flat`, inner, columns, distances of rows and of columns,
    first float in `panels`, rows of the whole matrix and those above."""
    for k in range(matrices.shape[0]):
        m = matrices[k]
        lay_panels(flat[m[0] :], m[1], m[2], m[3], m[4], panels[m[5] :], m[6], m[7])

"""Matrix products inside kernels, without Python, without the GIL and without a library.

A right side that is used often is laid out as panels first: three vectors of columns beside each other, row after row,
so that the inner loop reads one stretch of memory. Weights are laid out once per optimiser step and multiplied with
many blocks of rows; that, and no call per product, is why this is faster than the vendor's routine for the sizes of a
policy (docs/decisions/0010-products-of-our-own.md).

The inner part is a tile of the result, some rows times one to three vectors of columns, which stays in registers. Each
step of the inner loop reads the vectors of one row of the right side and multiplies them with one number of each row of
the left side. Every entry is one chain of fused multiply-adds in the order of the inner dimension, so that results
depend on neither threads nor alignment.

Arrays are flat float32 whose element 0 is the first of the matrix. Nothing is checked: a wrong size reads foreign
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tailwise.core.compiled import kernel
from tailwise.fused.vectors import AVX512, BYTES, LANES, Vectors, address, number

TILE_ROWS = 8 if AVX512 else 4  # with three vectors: 24 of 32 registers hold sums, or 12 of 16
_WIDE, _PAIR = 3 * LANES, 2 * LANES
_FOUR = 4 * LANES  # two pairs: one vector by itself has too few sums under way to keep the processor busy
CHUNK = 64  # rows that a product over many rows takes together: they stay in the nearest cache
_BAND = 16  # rows of the result that take turns over all columns of a chunk: what they read of the left stays near
# Not numbers of Python: numba would compile a kernel again for those very numbers.
NOTHING, REPEATED = np.int64(-1), np.int64(0)  # in place of the lead of what a product is added to
_ONE = np.int64(1)
_LAID_OUT = np.int64(0)  # in place of the lead of the right side
_NOWHERE = np.int64(0)  # in place of an address


class Matrix(NamedTuple):
    """A matrix inside a flat float32 array that begins with it: its rows are `lead` floats apart."""

    floats: np.ndarray
    lead: int | np.int64


def make_tile(rows: int, vectors: int, *, lanes: int = LANES, partial: bool = False) -> Callable[..., None]:
    """A function for kernels: result [rows, vectors * lanes] = start + left @ right, with addresses in place of arrays.

    (left, right, start, result, sizes): left (address, lead, floats between columns), so that it may lie transposed;
    right, start, result (address, lead); start is added, address 0 is nothing, lead 0 repeats one row, as for a bias;
    sizes (inner, width, exist): with `partial`, width columns of the tile exist; the others are neither read nor
    written. exist rows do, one at least; what is left of the tile repeats the last one, and writes the same to it.
    """

    @intrinsic
    def tile(context: Any, left: Any, right: Any, start: Any, result: Any, sizes: Any) -> Any:
        two, three = types.UniTuple(types.intp, 2), types.UniTuple(types.intp, 3)
        return types.void(three, two, two, two, three), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        (a, a_row, a_inner), (b, b_row), (start, start_row), (c, c_row), (inner, width, exist) = (
            cgutils.unpack_tuple(builder, value) for value in values
        )
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

    @intrinsic
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

    @intrinsic
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


_wide, _pair, _last = make_tile(TILE_ROWS, 3), make_tile(TILE_ROWS, 2), make_tile(TILE_ROWS, 1, partial=True)
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
    return _PAIR if left >= _PAIR else LANES


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
            source, target = address(matrix) + BYTES * first, address(panels) + BYTES * at
            _copy_columns(source, row, target, width, inner, exist)
        else:
            squares = inner // LANES * LANES if row == 1 else 0  # rows of whole squares
            for j in range(0, exist // LANES * LANES, LANES):
                for k in range(0, squares, LANES):
                    from_here, to_here = BYTES * ((first + j) * column + k), BYTES * (at + k * width + j)
                    _turn(address(matrix) + from_here, column, address(panels) + to_here, width)
            for j in range(exist):
                here, there = matrix[(first + j) * column :], panels[at + j :]
                for k in range(squares if j < exist // LANES * LANES else 0, inner):
                    there[k * width] = here[k * row]
            for j in range(exist, width):
                for k in range(inner):
                    panels[at + k * width + j] = np.float32(0.0)
        first += width
        begin += whole * width


@kernel
def _product(
    shape: tuple[int, int, int],
    left: tuple[int, int, int],
    right: tuple[int, int],
    start: tuple[int, int],
    result: tuple[int, int],
) -> None:
    """`multiply` on addresses.

    shape (rows, columns, inner); left (address, lead, floats between columns); right (address, lead), which is
    _LAID_OUT for panels; start, result (address, lead), where address 0 of start is nothing.
    """
    rows, columns, inner = shape
    a, a_row, a_inner = left
    first, at = 0, right[0]
    while first < columns:
        rest = columns - first
        width = _panel_width(rest)
        b_row = width if right[1] == _LAID_OUT else right[1]
        s, out = start[0] + BYTES * first if start[0] else start[0], result[0] + BYTES * first
        for r in range(0, rows, TILE_ROWS):
            exist = min(TILE_ROWS, rows - r)
            x, y, z = a + BYTES * r * a_row, out + BYTES * r * result[1], s + BYTES * r * start[1] if s else s
            if width == _WIDE:
                _wide((x, a_row, a_inner), (at, b_row), (z, start[1]), (y, result[1]), (inner, rest, exist))
            elif width == _PAIR:
                _pair((x, a_row, a_inner), (at, b_row), (z, start[1]), (y, result[1]), (inner, rest, exist))
            else:
                _last((x, a_row, a_inner), (at, b_row), (z, start[1]), (y, result[1]), (inner, rest, exist))
        first += width
        at += BYTES * (inner * width if right[1] == _LAID_OUT else width)


@kernel
def multiply(shape: tuple[int, int, int], left: Matrix, panels: np.ndarray, start: Matrix, result: Matrix) -> None:
    """result [rows, columns] = start + left @ right for the matrix right [inner, columns] laid out as `panels`.

    shape (rows, columns, inner); left [rows, inner]; start [rows, columns]: with the lead REPEATED one row for all, as
    a bias; the result itself adds to what is there; with the lead NOTHING it is not read and counts as 0.
    """
    nothing = start.lead == NOTHING
    _product(
        shape,
        (address(left.floats), left.lead, _ONE),
        (address(panels), _LAID_OUT),
        (_NOWHERE if nothing else address(start.floats), start.lead),
        (address(result.floats), result.lead),
    )


@kernel
def add_products(shape: tuple[int, int, int], left: Matrix, right: Matrix, total: np.ndarray) -> None:
    """total [height, columns] += left' @ right for left [rows, height] and right [rows, columns].

    shape (rows, height, columns). The right side is read once for each band of the result, and not laid out before:
    that would take longer than it saves.
    """
    rows, height, columns = shape
    for first in range(0, rows, CHUNK):
        n = min(CHUNK, rows - first)
        for top in range(0, height, _BAND):
            band = (address(total) + BYTES * top * columns, columns)
            _product(
                (min(_BAND, height - top), columns, n),
                (address(left.floats) + BYTES * (first * left.lead + top), _ONE, left.lead),
                (address(right.floats) + BYTES * first * right.lead, right.lead),
                band,
                band,
            )


@kernel
def lay_out(matrices: np.ndarray, flat: np.ndarray, panels: np.ndarray) -> None:
    """Lay out all `matrices`, int64 [n, 8]: first float in `flat`, inner, columns, distances of rows and of columns,
    first float in `panels`, rows of the whole matrix and those above."""
    for k in range(matrices.shape[0]):
        m = matrices[k]
        lay_panels(flat[m[0] :], m[1], m[2], m[3], m[4], panels[m[5] :], m[6], m[7])

"""The inner part of a matrix product: a tile of the result stays in registers.

A tile is some rows times one to three vectors of columns. Each step of the inner loop reads the vectors of one row of
the right side, and multiplies them with one number of each row of the left side. Every entry is one chain of fused
multiply-adds in the order of the inner dimension, so that results depend on neither threads nor alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils

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

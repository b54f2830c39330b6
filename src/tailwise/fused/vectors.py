"""SIMD instructions for kernels: vectors of float32 as values of generated code.

numba has no vector types, and LLVM's vectoriser does not find the forms that are fast here: a tile of sums that stays
in registers, or one loop over eight arrays that it cannot prove apart. So these few loops are generated. The
instructions are LLVM's portable ones: on a processor without such wide registers they are split, slower and with the
same meaning. Two have a faster form where numba compiles for AVX-512, `ratios` and `within`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, config

from tailwise.core.compiled import kernel


def _has_avx512() -> bool:
    """Whether kernels may use it: the processor has it, and numba compiles for this very processor."""
    settings: Any = config  # its attributes are set at run time, from the environment
    if settings.CPU_NAME is not None or settings.CPU_FEATURES is not None or not settings.ENABLE_AVX:
        return False
    features = llvm.get_host_cpu_features()
    return bool(features.get("avx512f", False) and features.get("avx512dq", False))


def _floats(*values: float) -> tuple[np.float32, ...]:
    return tuple(map(np.float32, values))


AVX512 = _has_avx512()
LANES = 16 if AVX512 else 8  # floats of a vector
BYTES = 4  # of a float
INT, FLOAT = ir.IntType(64), ir.FloatType()
_INDEX = ir.IntType(32)
_TANH_LIMIT = 7.9  # beyond it tanh is 1 to float32
# A rational function x * p(x^2) / q(x^2), fitted to tanh on [-7.9, 7.9]; its largest error is 3e-7.
_TANH_ABOVE = _floats(
    4.8935246e-3, 6.3726195e-4, 1.48572235e-5, 5.1222973e-8, -8.604672e-11, 2.000188e-13, -2.7607684e-16
)
_TANH_BELOW = _floats(4.893525e-3, 2.2684347e-3, 1.1853471e-4, 1.1982584e-6)
_LN_2_HIGH, _LN_2_LOW = 0.693359375, float(np.float32(-2.12194440e-4))
_EXP = _floats(5.000000e-1, 1.6666666e-1, 4.1665796e-2, 8.333452e-3, 1.3981999e-3, 1.9875691e-4)
_LOG = _floats(
    3.333333e-1,
    -2.4999994e-1,
    2.0000714e-1,
    -1.6668057e-1,
    1.4249323e-1,
    -1.2420141e-1,
    1.16769984e-1,
    -1.151461e-1,
    7.0376836e-2,
)
_ROOT_HALF = 0x3F3504F3  # bits of sqrt(1/2)


def number(value: int) -> Any:
    """A constant, int64."""
    return ir.Constant(INT, value)


class Vectors:
    """Generates instructions on vectors of `lanes` floats; addresses are int64."""

    def __init__(self, builder: Any, lanes: int = LANES) -> None:
        self.builder, self.lanes = builder, lanes
        self.kind = ir.VectorType(FLOAT, lanes)

    # ---------------------------------------------------------------- values

    def constant(self, value: float) -> Any:
        """The same number in all lanes."""
        return ir.Constant(self.kind, [value] * self.lanes)

    def spread(self, value: Any) -> Any:
        """One number, in all lanes."""
        kind = ir.VectorType(value.type, self.lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_INDEX, 0))
        first = ir.Constant(ir.VectorType(_INDEX, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), first)

    def exist(self, width: Any) -> Any:
        """A mask of the first `width` lanes."""
        places = ir.Constant(ir.VectorType(INT, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_unsigned("<", places, self.spread(width))

    def shift_in(self, before: Any, a: Any) -> Any:
        """`a` moved up by one lane; what was last in `before` comes first."""
        order = ir.Constant(ir.VectorType(_INDEX, self.lanes), list(range(self.lanes - 1, 2 * self.lanes - 1)))
        return self.builder.shuffle_vector(before, a, order)

    def change_corners(self, upper: Any, lower: Any, apart: int) -> tuple[Any, Any]:
        """Two rows of a matrix, `apart` rows from each other, of which the upper one gives away its lanes with the bit
        `apart` for those of the lower one without it."""
        kind = ir.VectorType(_INDEX, self.lanes)
        first = [i if not i & apart else self.lanes + i - apart for i in range(self.lanes)]
        second = [i + apart if not i & apart else self.lanes + i for i in range(self.lanes)]
        changed = [self.builder.shuffle_vector(upper, lower, ir.Constant(kind, order)) for order in (first, second)]
        return changed[0], changed[1]

    # ---------------------------------------------------------------- memory

    def at(self, address: Any, floats: Any) -> Any:
        """The address `floats` (int64 or a number) further on."""
        if isinstance(floats, int):
            return self.builder.add(address, number(BYTES * floats)) if floats else address
        return self.builder.add(address, self.builder.mul(floats, number(BYTES)))

    def load(self, address: Any, mask: Any = None) -> Any:
        """A vector; lanes outside the mask are not read and are 0."""
        place = self.builder.inttoptr(address, self.kind.as_pointer())
        if mask is None:
            return self.builder.load(place, align=BYTES)
        return self._masked("load", self.kind, [place, ir.Constant(_INDEX, BYTES), mask, self.constant(0.0)])

    def load_all(self, address: Any) -> Any:
        """One float, in all lanes."""
        return self.spread(self.builder.load(self.builder.inttoptr(address, FLOAT.as_pointer())))

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Write a vector, or its lanes inside the mask."""
        place = self.builder.inttoptr(address, self.kind.as_pointer())
        if mask is None:
            self.builder.store(value, place, align=BYTES)
        else:
            self._masked("store", ir.VoidType(), [value, place, ir.Constant(_INDEX, BYTES), mask])

    def _masked(self, what: str, result: Any, values: list[Any]) -> Any:
        return self._call(f"llvm.masked.{what}.v{self.lanes}f32.p0", result, values)

    # ---------------------------------------------------------------- arithmetic

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once where the processor can."""
        return self._call(f"llvm.fmuladd.v{self.lanes}f32", self.kind, [a, b, c])

    def absolute(self, a: Any) -> Any:
        """|a|."""
        return self._call(f"llvm.fabs.v{self.lanes}f32", self.kind, [a])

    def clamp(self, a: Any, low: Any, high: Any) -> Any:
        """a between low and high; NaN stays NaN, which the comparisons are written for."""
        a = self.builder.select(self.builder.fcmp_ordered("<", a, low), low, a)
        return self.builder.select(self.builder.fcmp_ordered(">", a, high), high, a)

    def within(self, a: Any, bound: Any) -> Any:
        """a between -bound and bound > 0. NaN may become the bound: it is one instruction with AVX-512."""
        if not AVX512 or self.lanes != LANES:
            return self.clamp(a, self.builder.fneg(bound), bound)
        every, smaller_size = ir.Constant(ir.IntType(16), 0xFFFF), ir.Constant(_INDEX, 2)  # and the sign of a
        rounding = ir.Constant(_INDEX, 4)  # as it is set
        return self._call("llvm.x86.avx512.mask.range.ps.512", self.kind, [a, bound, smaller_size, a, every, rounding])

    def tanh(self, *values: Any) -> list[Any]:
        """tanh to 3e-7 of one or several vectors, step by step in turn, so that none waits for its own last step; NaN
        stays NaN."""
        low, high = self.constant(-_TANH_LIMIT), self.constant(_TANH_LIMIT)
        values = tuple(self.clamp(x, low, high) for x in values)
        squares = [self.builder.fmul(x, x) for x in values]
        above, below = (self._polynomials(squares, numbers) for numbers in (_TANH_ABOVE, _TANH_BELOW))
        return self.ratios([self.builder.fmul(a, x) for a, x in zip(above, values)], below)

    def ratios(self, above: list[Any], below: list[Any]) -> list[Any]:
        """above / below for numbers below that are far from 0 and infinity.

        With AVX-512 a division takes longer than the polynomials of a tanh. There, a reciprocal of 14 bits and what it
        leaves of the number above give the quotient to a unit in the last place.
        """
        if not AVX512 or self.lanes != LANES:
            return [self.builder.fdiv(a, b) for a, b in zip(above, below)]
        nothing, every = self.constant(0.0), ir.Constant(ir.IntType(16), 0xFFFF)
        near = [self._call("llvm.x86.avx512.rcp14.ps.512", self.kind, [b, nothing, every]) for b in below]
        first = [self.builder.fmul(a, r) for a, r in zip(above, near)]
        left = [self.multiply_add(self.builder.fneg(b), q, a) for a, b, q in zip(above, below, first)]
        return [self.multiply_add(rest, r, q) for rest, r, q in zip(left, near, first)]

    def sigmoid(self, *values: Any) -> list[Any]:
        """1 / (1 + exp(-x)) of one or several vectors, from tanh(x / 2)."""
        return self.from_halves(*self.tanh(*self.halves(*values)))

    def halves(self, *values: Any) -> list[Any]:
        """x / 2."""
        return [self.builder.fmul(self.constant(0.5), x) for x in values]

    def from_halves(self, *values: Any) -> list[Any]:
        """The sigmoid of x from tanh(x / 2)."""
        half = self.constant(0.5)
        return [self.multiply_add(half, value, half) for value in values]

    def _polynomials(self, values: list[Any], coefficients: tuple[np.float32, ...]) -> list[Any]:
        """Of each vector; coefficients from the constant one on."""
        totals = [self.constant(float(coefficients[-1]))] * len(values)
        for coefficient in coefficients[-2::-1]:
            added = self.constant(float(coefficient))
            totals = [self.multiply_add(total, x, added) for total, x in zip(totals, values)]
        return totals

    def exp(self, x: Any) -> Any:
        """exp(x) for x up to 80, to 2 units in the last place; 0 below -87, NaN stays NaN.

        2^n times a polynomial in what n * ln(2) leaves of x (coefficients of Cephes' expf). Adding 1.5 * 2^23 rounds to
        n and leaves it in the last bits, from where it is shifted into the exponent.
        """
        builder, bits = self.builder, ir.VectorType(_INDEX, self.lanes)
        rounding = self.constant(float(1.5 * 2**23))
        rounded = self.multiply_add(x, self.constant(float(np.float32(np.log2(np.e)))), rounding)
        n = builder.fneg(builder.fsub(rounded, rounding))
        rest = self.multiply_add(n, self.constant(_LN_2_LOW), self.multiply_add(n, self.constant(_LN_2_HIGH), x))
        curve = self.multiply_add(self._polynomials([rest], _EXP)[0], builder.fmul(rest, rest), rest)
        power = builder.shl(builder.bitcast(rounded, bits), self._bits(23))
        power = builder.add(power, self._bits(0x3F800000))
        value = builder.fmul(builder.fadd(curve, self.constant(1.0)), builder.bitcast(power, self.kind))
        return builder.select(builder.fcmp_ordered("<", x, self.constant(-87.0)), self.constant(0.0), value)

    def log(self, x: Any) -> Any:
        """ln(x) for normal numbers x > 0, to 2 units in the last place; NaN stays NaN.

        x = 2^n * (1 + rest) with 1 + rest between sqrt(1/2) and sqrt(2), then a polynomial (coefficients of Cephes'
        logf).
        """
        builder, bits = self.builder, ir.VectorType(_INDEX, self.lanes)
        power = builder.ashr(builder.sub(builder.bitcast(x, bits), self._bits(_ROOT_HALF)), self._bits(23))
        shifted = builder.sub(builder.bitcast(x, bits), builder.shl(power, self._bits(23)))
        rest, n = (
            builder.fsub(builder.bitcast(shifted, self.kind), self.constant(1.0)),
            builder.sitofp(power, self.kind),
        )
        square = builder.fmul(rest, rest)
        curve = self.product(self._polynomials([rest], _LOG)[0], rest, square)
        curve = self.multiply_add(n, self.constant(_LN_2_LOW), curve)
        curve = self.multiply_add(square, self.constant(-0.5), curve)
        value = self.multiply_add(n, self.constant(_LN_2_HIGH), builder.fadd(rest, curve))
        return builder.select(builder.fcmp_unordered("uno", x, x), x, value)

    def _bits(self, value: int) -> Any:
        return ir.Constant(ir.VectorType(_INDEX, self.lanes), [value] * self.lanes)

    def sum(self, *values: Any) -> Any:
        """One after the other."""
        total = values[0]
        for value in values[1:]:
            total = self.builder.fadd(total, value)
        return total

    def product(self, *values: Any) -> Any:
        """One after the other."""
        total = values[0]
        for value in values[1:]:
            total = self.builder.fmul(total, value)
        return total

    def minus(self, a: Any, b: Any) -> Any:
        """a - b."""
        return self.builder.fsub(a, b)

    def one_minus_square(self, a: Any) -> Any:
        """1 - a * a."""
        return self.multiply_add(self.builder.fneg(a), a, self.constant(1.0))

    def _call(self, name: str, result: Any, values: list[Any]) -> Any:
        kind = ir.FunctionType(result, [value.type for value in values])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), values)

    # ---------------------------------------------------------------- loops

    def variable(self, value: Any) -> Any:
        """A place for a value that changes in a loop; the compiler makes it a register."""
        return cgutils.alloca_once_value(self.builder, value)

    @contextmanager
    def count(self, times: Any) -> Iterator[Any]:
        """A loop; yields its index."""
        with cgutils.for_range(self.builder, times) as loop:
            yield loop.index

    def over(self, width: Any, body: Callable[[list[Any], Any], None], together: int = 1) -> None:
        """body(places, mask) for all vectors of `width` neighbouring floats: the first floats of `together` vectors
        and None, then one by one, and last a mask of what is left."""

        def run(first: Any, vectors: int, mask: Any) -> None:
            body([self.builder.add(first, number(j * self.lanes)) for j in range(vectors)], mask)

        done = number(0)
        for vectors in dict.fromkeys((together, 1)):
            several = number(vectors * self.lanes)
            times = self.builder.udiv(self.builder.sub(width, done), several)
            with self.count(times) as i:
                run(self.builder.add(done, self.builder.mul(i, several)), vectors, None)
            done = self.builder.add(done, self.builder.mul(times, several))
        left = self.builder.sub(width, done)
        with self.builder.if_then(self.builder.icmp_unsigned(">", left, number(0))):
            run(done, 1, self.exist(left))


# `target[a:b] = source` would do for both, but numba then compiles an error message for different lengths, with all of
# its machinery for strings: several seconds for each kernel that does it.


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


@kernel(inline=True)
def address(array: np.ndarray) -> np.int64:
    """Where an array begins, int64: added to signed numbers, numba's own unsigned one becomes a float."""
    return np.int64(array.ctypes.data)

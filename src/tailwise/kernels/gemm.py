"""Matrix products inside kernels: the vendor's `sgemm` that torch ships, called without Python and without the GIL.

numba's own `np.dot` reaches scipy's OpenBLAS, which has half to four fifths of the speed for matrices this small, and
copies operands that are not contiguous. torch's shared library exports a Fortran `sgemm_`; its address is given to LLVM
under a name of our own, so that compiled code can be kept on disk (a name survives a restart, an address does not).
Where torch exports none, or where it fails the probe, scipy's `sgemm` takes its place under the same name: slower, the
same result to rounding, and `sgemm_source` says so.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from tailwise.core.compiled import kernel

_SYMBOL = "tailwise_sgemm"
_NO, _TRANSPOSED = ord("N"), ord("T")


def _torch_address() -> int | None:
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            function = getattr(ctypes.CDLL(str(path)), "sgemm_", None)
            return None if function is None else ctypes.cast(function, ctypes.c_void_p).value
    return None


def _multiplies(address: int) -> bool:
    """Whether the function at `address` is a Fortran sgemm with 32-bit integers: one product that is known."""
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)(address)
    a, b = np.arange(6, dtype=np.float32), np.arange(12, dtype=np.float32)  # column-major [2, 3] and [3, 4]
    c = np.full(8, np.nan, dtype=np.float32)
    sizes = np.array([2, 4, 3], dtype=np.int32)
    one_zero, letter = np.array([1, 0], dtype=np.float32), np.frombuffer(b"N", dtype=np.uint8)
    n, m = sizes.ctypes.data, one_zero.ctypes.data
    text, size = letter.ctypes.data, sizes.itemsize
    function(
        text, text, n, n + size, n + 2 * size, m, a.ctypes.data, n, b.ctypes.data, n + 2 * size, m + 4, c.ctypes.data, n
    )
    expected = a.reshape(3, 2).T @ b.reshape(4, 3).T
    return bool(np.array_equal(c.reshape(4, 2).T, expected))


@cache
def sgemm_source() -> str:
    """Whose product kernels use, "torch" or "scipy"; the first call makes it known to the compiler."""
    address, source = _torch_address(), "torch"
    if address is None or not _multiplies(address):
        warnings.warn(
            "torch's library exports no usable sgemm, so compiled kernels multiply with scipy's, which is slower; "
            "results are the same to rounding.",
            RuntimeWarning,
            stacklevel=2,
        )
        address, source = get_cython_function_address("scipy.linalg.cython_blas", "sgemm"), "scipy"
    llvm.add_symbol(_SYMBOL, address)
    return source


sgemm_source()  # before any kernel is compiled or loaded


@intrinsic  # type: ignore[untyped-decorator]
def _sgemm(
    context: Any,
    left: Any,
    right: Any,
    rows: Any,
    columns: Any,
    inner: Any,
    a: Any,
    lead_a: Any,
    b: Any,
    lead_b: Any,
    beta: Any,
    c: Any,
    lead_c: Any,
) -> Any:
    """Call the Fortran routine: its arguments are addresses, so the numbers are put on the stack first."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        left, right, rows, columns, inner, a, lead_a, b, lead_b, beta, c, lead_c = values
        i8, i32, f32 = ir.IntType(8), ir.IntType(32), ir.FloatType()

        def on_stack(value: Any, kind: Any) -> Any:
            if isinstance(kind, ir.IntType):
                value = builder.trunc(value, kind)
            return builder.bitcast(cgutils.alloca_once_value(builder, value), i8.as_pointer())

        def address(value: Any) -> Any:
            return builder.inttoptr(value, i8.as_pointer())

        function_type = ir.FunctionType(ir.VoidType(), [i8.as_pointer()] * 13)
        function = cgutils.get_or_insert_function(builder.module, function_type, _SYMBOL)
        letters, numbers = (on_stack(left, i8), on_stack(right, i8)), [on_stack(n, i32) for n in (rows, columns, inner)]
        one = on_stack(ir.Constant(f32, 1.0), f32)
        builder.call(
            function,
            [
                *(*letters, *numbers, one, address(a), on_stack(lead_a, i32), address(b), on_stack(lead_b, i32)),
                *(on_stack(beta, f32), address(c), on_stack(lead_c, i32)),
            ],
        )
        return context.get_dummy_value()

    n = types.intp
    return types.void(n, n, n, n, n, n, n, n, n, types.float32, n, n), generate


@kernel
def gemm(
    rows: int,
    columns: int,
    inner: int,
    a: np.ndarray,
    lead_a: int,
    a_transposed: bool,
    b: np.ndarray,
    lead_b: int,
    b_transposed: bool,
    beta: float,
    c: np.ndarray,
    lead_c: int,
) -> None:
    """c = op(a) @ op(b) + beta * c, row-major: c [rows, columns], op(a) [rows, inner], op(b) [inner, columns].

    a, b, c: flat float32 arrays whose element 0 is the first of the matrix; `lead` is the distance between rows as they
    lie in memory. Nothing is checked: a wrong size reads foreign memory.
    """
    # Fortran sees every row-major matrix transposed: c' = op(b)' @ op(a)'.
    _sgemm(
        _TRANSPOSED if b_transposed else _NO,
        _TRANSPOSED if a_transposed else _NO,
        columns,
        rows,
        inner,
        b.ctypes.data,
        lead_b,
        a.ctypes.data,
        lead_a,
        np.float32(beta),
        c.ctypes.data,
        lead_c,
    )

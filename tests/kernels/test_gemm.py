"""Matrix products inside kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.kernels import gemm as module
from tailwise.kernels.gemm import gemm, sgemm_source


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_products_of_parts_of_matrices(left: bool, right: bool, beta: float) -> None:
    """Every transposition, with rows further apart than they are long. Rejects swapped sizes or distances."""
    g = np.random.default_rng(0)
    rows, columns, inner = 5, 3, 4
    a = g.standard_normal((inner, rows + 2) if left else (rows, inner + 2)).astype(np.float32)
    b = g.standard_normal((columns, inner + 1) if right else (inner, columns + 1)).astype(np.float32)
    c = g.standard_normal((rows, columns + 3)).astype(np.float32)
    op_a = a[:, :rows].T if left else a[:, :inner]
    op_b = b[:, :inner].T if right else b[:, :columns]
    expected = c.copy()
    expected[:, :columns] = op_a @ op_b + beta * c[:, :columns]
    gemm(
        *(rows, columns, inner, a.reshape(-1), a.shape[1], left),
        *(b.reshape(-1), b.shape[1], right, beta, c.reshape(-1), c.shape[1]),
    )
    assert c == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_probe_tells_a_product_from_something_else() -> None:
    """scipy's routine passes it too, so it can stand in; a routine that does something else does not."""
    from numba.extending import get_cython_function_address

    assert sgemm_source() in ("torch", "scipy")
    assert module._multiplies(get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))
    assert not module._multiplies(get_cython_function_address("scipy.linalg.cython_blas", "ssymm"))

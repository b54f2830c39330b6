"""Generated vector code where numba is told not to use all that the processor has."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from tailwise.fused.policy_loss import _log

SCRIPT = """
import numpy as np
from tailwise.fused.dense import activate
from tailwise.fused.layout import TANH
from tailwise.fused.critic_loss import TOTALS, particle_loss
from tailwise.fused.vectors import AVX512
assert not AVX512
z = np.linspace(-9.0, 9.0, 37, dtype=np.float32)
exact = np.tanh(z.astype(np.float64))
activate(z, 37, 1, 37, TANH)
assert np.abs(z - exact).max() < 1e-6, np.abs(z - exact).max()
theta, tau_weight, grad = np.zeros(10, np.float32), np.zeros(10, np.float32), np.zeros(10, np.float32)
particle_loss(theta, np.ones(4, np.float32), tau_weight, 0.02, 1.0, grad, np.zeros(TOTALS, np.float32))
assert np.allclose(grad, -0.5), grad
"""


@pytest.mark.parametrize("told", [{"NUMBA_ENABLE_AVX": "0"}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}])
def test_kernels_compile_for_what_numba_is_told(told: dict[str, str]) -> None:
    """Rejects instructions of the processor at hand: LLVM ends the whole process where it must not use them."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, **told}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_logarithms_to_float32() -> None:
    """Over the whole range, with a remainder of a vector; NaN stays NaN, which its bits alone would not say."""
    x = np.exp(np.linspace(-80.0, 80.0, 1003)).astype(np.float32)
    x[500] = np.nan
    found = x.copy()

    @njit
    def run(numbers: np.ndarray) -> None:
        _log(numbers.ctypes.data, numbers.shape[0])

    run(found)
    exact = np.log(x.astype(np.float64))
    assert np.isnan(found[500])
    assert np.delete(found, 500) == pytest.approx(np.delete(exact, 500), rel=3e-7, abs=1e-7)

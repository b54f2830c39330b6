"""Kernels that kernels call: same numbers, nothing compiled for itself. The tests also fail where a version of numba no
longer does what `tailwise.core.loops.inner_calls` relies on."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.core.errors import TypingError

import tailwise
from tailwise.core import compiled
from tailwise.core.compiled import kernel


def _square(x: float) -> float:
    if x < 0.0:
        raise ValueError("below 0")
    return x * x


def _fill(values: np.ndarray, target: np.ndarray) -> None:
    for i in range(values.shape[0]):
        target[i] = square(values[i])


def _both(values: np.ndarray, target: np.ndarray) -> float:
    fill(values, target)
    return square(target[0]) + target[1:].sum()


square, fill, both = kernel(_square), kernel(_fill), kernel(_both)


def test_only_what_python_calls_becomes_machine_code() -> None:
    """Rejects numba's own rule, with which `square` and `fill` have an overload each that Python could call."""
    values, target = np.array([3.0, 2.0, 1.0]), np.zeros(3)
    made = compiled._dispatcher(_both, compiled.OPTIONS)  # not kept, so that it is compiled here
    assert made(values, target) == both(values, target) == 81.0 + 5.0
    assert list(target) == [9.0, 4.0, 1.0]
    assert len(made.overloads) == 1 and not fill.overloads
    for inner in (fill.inner, square.inner):
        (one,) = inner.overloads.values()
        assert not callable(one.entry_point)
    assert square(4.0) == 16.0 and len(square.overloads) == 1
    folder = Path(both.stats.cache_path)
    assert list(folder.glob("test_inner_calls._both-*.nbi")) and not list(folder.glob("test_inner_calls._fill-*"))


def test_what_both_call_is_typed_once() -> None:
    """Rejects a second way through numba for what Python calls after a kernel did; errors pass through both."""
    twice, once = (compiled._dispatcher(_square, compiled.OPTIONS) for _ in range(2))

    def uses(x: float) -> float:
        return twice(x)  # type: ignore[no-any-return]

    assert compiled._dispatcher(uses, compiled.OPTIONS)(3.0) == 9.0
    assert twice._implementation((types.float64,), {}) is not _square
    assert once._implementation((types.float64,), {}) is twice._implementation((types.int64,), {}) is _square
    assert twice(5.0) == once(5.0) == 25.0 and twice(2) == 4.0
    with pytest.raises(ValueError, match="below 0"):
        twice(-1.0)


def test_errors_come_through() -> None:
    with pytest.raises(ValueError, match="below 0"):
        both(np.array([1.0, -1.0]), np.zeros(2))


RELOADED = """
import numpy as np
from tests.core.test_inner_calls import both, fill
target = np.zeros(2)
print(both(np.array([3.0, 2.0]), target), sum(both.stats.cache_misses.values()), len(fill.inner.overloads))
try:
    both(np.array([-1.0, 2.0]), target)
except ValueError as error:
    print(error)
"""


def test_what_was_kept_holds_what_it_calls() -> None:
    """Rejects machine code that looks for the inner kernels in a process that has not made them."""
    both(np.ones(2), np.zeros(2))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", RELOADED], cwd=root, env=_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["85.0 0 0", "below 0"]


def _environment() -> dict[str, str]:
    source = str(Path(tailwise.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, *sys.path])}


def test_a_kernel_as_an_argument_is_machine_code() -> None:
    """Rejects the inner face there: it has no address."""

    @njit
    def apply(function: Any, x: float) -> float:
        return function(x) + 1.0

    apply.compile(types.float64(types.FunctionType(types.float64(types.float64)), types.float64))
    apply.disable_compile()
    square.compile(types.float64(types.float64))
    assert apply(square, 3.0) == 10.0


def test_functions_of_others_may_call_kernels_and_make_arrays() -> None:
    @njit
    def mine(n: int) -> np.ndarray:
        result = np.zeros(n)
        fill(np.arange(n) * 1.0, result)
        return result

    assert list(mine(4)) == [0.0, 1.0, 4.0, 9.0]


def test_a_kernel_that_makes_an_array_does_not_compile() -> None:
    @kernel
    def makes(n: int) -> float:
        return np.zeros(n).sum()

    with pytest.raises(TypingError, match="array"):
        makes(3)


def test_a_kernel_that_returns_an_array_to_a_kernel_is_refused() -> None:
    """Rejects a silent loss: a caller that counts references would give back one that was never taken."""

    @kernel
    def same(values: np.ndarray) -> np.ndarray:
        return values

    @njit
    def mine(values: np.ndarray) -> float:
        return same(values)[0]

    with pytest.raises(TypeError, match=r"'.*same' returns an array to a kernel"):
        mine(np.ones(2))


@pytest.fixture(params=[True, False])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Python looks for cycles, as the program may have chosen."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_the_search_for_cycles_is_left_as_it_was(collecting: bool) -> None:
    made = kernel(lambda x: x + 1.0)
    assert made(1.0) == 2.0 and gc.isenabled() is collecting
    broken = kernel(lambda x: x.nothing)
    with pytest.raises(TypingError):
        broken(1.0)
    assert gc.isenabled() is collecting

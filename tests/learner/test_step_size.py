"""Step size = base x schedule x kl_factor x health_factor, and how KL moves its factor."""

from __future__ import annotations

import pytest

from tailwise.learner.config import KlFactor, NoKlFactor
from tailwise.learner.optimisers import StepSize, next_kl_factor

ON = KlFactor(ratio=1.5, low=0.05, high=4.0)


def test_value_is_the_product_of_all_factors() -> None:
    assert StepSize(1e-3, 0.5, 2.0, 0.25).value == pytest.approx(2.5e-4)


def test_factor_shrinks_when_stopped_and_grows_back() -> None:
    """000-6: what shrinks can grow back. Rejects a factor that only shrinks."""
    factor = 1.0
    for _ in range(3):
        factor = next_kl_factor(ON, factor, stopped=True, kl=0.05, target_kl=0.02)
    assert factor == pytest.approx(1.5**-3)
    held = next_kl_factor(ON, factor, stopped=False, kl=0.015, target_kl=0.02)
    assert held == factor  # between half the target and the target: leave it
    for _ in range(3):
        factor = next_kl_factor(ON, factor, stopped=False, kl=0.009, target_kl=0.02)
    assert factor == pytest.approx(1.0)


@pytest.mark.parametrize(("stopped", "bound"), [(True, 0.05), (False, 4.0)])
def test_factor_is_bounded(stopped: bool, bound: float) -> None:
    factor = 1.0
    for _ in range(100):
        factor = next_kl_factor(ON, factor, stopped=stopped, kl=0.0, target_kl=0.02)
    assert factor == bound
    back = next_kl_factor(ON, factor, stopped=not stopped, kl=0.0, target_kl=0.02)
    assert back != bound


def test_off_and_without_target_nothing_moves() -> None:
    assert next_kl_factor(NoKlFactor(), 1.0, stopped=True, kl=9.0, target_kl=0.02) == 1.0
    assert next_kl_factor(ON, 0.7, stopped=True, kl=9.0, target_kl=None) == 0.7

"""Advantage-weighted regression."""

from __future__ import annotations

import math

import pytest
import torch

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.learner.losses import awr_loss_terms, awr_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_bounded_before_the_exponential(dtype: torch.dtype) -> None:
    """Ledger 000-F4, A = 1e6 gives w_max. Rejects exp without a bound (inf), and exp(ln 30) = 30 + one bit."""
    adv = torch.tensor([1e6, math.inf, 2.0, 0.0, -2.0, -1e6], dtype=dtype)
    weights = awr_weights(adv, beta=2.0, max_weight=30.0)
    assert weights.dtype == dtype
    assert weights.tolist() == pytest.approx([30.0, 30.0, math.e, 1.0, 1 / math.e, 0.0])
    assert bool((weights <= 30.0).all())
    assert not bool(torch.isfinite((adv / 2.0).exp()).all())


def test_the_loss_is_weighted_imitation() -> None:
    """-w logp, with the gradient -w on logp and none on the advantage. Rejects a weight with gradient."""
    logp = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    adv = torch.tensor([0.0, 1.0, 1e6], requires_grad=True)
    terms = awr_loss_terms(logp, adv, beta=1.0, max_weight=10.0)
    assert terms.loss.tolist() == pytest.approx([1.0, 2 * math.e, 30.0])
    assert terms.clamp_active.tolist() == [False, False, True]
    terms.loss.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.0, -math.e, -10.0])
    assert adv.grad is None


def test_a_nan_advantage_is_not_hidden() -> None:
    assert math.isnan(float(awr_weights(torch.tensor([math.nan]), beta=1.0, max_weight=10.0)))


def test_impossible_options_are_refused() -> None:
    zero = torch.zeros(2)
    with pytest.raises(ConfigError, match=r"beta is 0\.0"):
        awr_weights(zero, beta=0.0, max_weight=10.0)
    with pytest.raises(ConfigError, match="largest AWR weight is inf"):
        awr_weights(zero, beta=1.0, max_weight=math.inf)
    with pytest.raises(ShapeError, match="adv has shape"):
        awr_loss_terms(zero, torch.zeros(2, 1), beta=1.0, max_weight=10.0)

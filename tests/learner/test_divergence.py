"""KL(old || new): against closed forms, torch.distributions and float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal, kl_divergence

from tailwise.core.errors import ShapeError
from tailwise.learner.losses import k3, k3_mean, kl_categorical, kl_gaussian

MASKED = torch.finfo(torch.float32).min


def test_gaussian_is_the_analytic_kl_from_old_to_new() -> None:
    """Ledger 000-F5. Rejects the reverse direction, which differs."""
    generator = torch.Generator().manual_seed(0)
    mean0, mean1 = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)
    log_std0, log_std1 = 0.5 * torch.randn(2, 3, generator=generator, dtype=torch.float64)
    expected = kl_divergence(Normal(mean0, log_std0.exp()), Normal(mean1, log_std1.exp())).sum(-1)
    result = kl_gaussian(mean0, log_std0, mean1, log_std1)
    torch.testing.assert_close(result, expected)
    assert not torch.allclose(kl_gaussian(mean1, log_std1, mean0, log_std0), expected, rtol=1e-2)
    # By hand: N(0, 1) to N(1, 2): ln 2 + (1 + 1)/8 - 1/2.
    zero, one = torch.zeros(1), torch.ones(1)
    assert float(kl_gaussian(zero, zero, one, one * math.log(2))) == pytest.approx(math.log(2) - 0.25)


def test_a_tiny_gaussian_kl_survives_float32() -> None:
    """Rejects ln(s'/s) + ... - 1/2 in float32: cancellation gives 0 or a negative number at a change of 1e-4."""
    zero, small = torch.zeros(1), torch.full((1,), 1e-4)
    assert float(kl_gaussian(zero, small, zero, zero)) == pytest.approx(1e-8, rel=1e-3)
    textbook = -small + (2 * small).exp() / 2 - 0.5
    assert abs(float(textbook) / 1e-8 - 1) > 0.1


def test_categorical_is_the_analytic_kl_from_old_to_new() -> None:
    """Rejects the reverse direction."""
    logits0, logits1 = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = kl_divergence(Categorical(logits=logits0), Categorical(logits=logits1))
    torch.testing.assert_close(kl_categorical(logits0, logits1), expected)
    assert not torch.allclose(kl_categorical(logits1, logits0), expected, rtol=1e-2)


def test_masked_actions_contribute_nothing() -> None:
    """Equal to the KL over the allowed actions, with finite gradients. Rejects filling with -inf: (-inf) - (-inf)."""
    logits0 = torch.tensor([[0.3, MASKED, -0.5, MASKED]])
    logits1 = torch.tensor([[-0.2, MASKED, 0.9, MASKED]], requires_grad=True)
    result = kl_categorical(logits0, logits1)
    expected = kl_categorical(torch.tensor([[0.3, -0.5]]), torch.tensor([[-0.2, 0.9]]))
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert logits1.grad is not None
    assert bool(torch.isfinite(logits1.grad).all())
    assert logits1.grad[0, [1, 3]].tolist() == [0.0, 0.0]
    bare = torch.log_softmax(torch.tensor([0.3, -math.inf]), -1)
    assert bool(torch.isnan((bare.exp() * (bare - bare)).sum()))


@pytest.mark.parametrize("d", [-200.0, -20.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 20.0, 88.0, 200.0])
def test_k3_against_float64(d: float) -> None:
    """Ledger 004-3. Rejects exp(d) - 1 - d in float32: inf at 200, and noise at 1e-3."""
    stored = torch.tensor([d])  # float32, as the log-probs are
    exact = float(stored)
    result = k3(stored)
    assert result.dtype == torch.float64
    assert float(result) == pytest.approx(math.expm1(exact) - exact, rel=1e-9, abs=1e-18)
    single = stored.exp() - 1 - stored
    if d == 200.0:
        assert math.isinf(float(single))
    if d == 1e-3:
        assert abs(float(single) / float(result) - 1) > 1e-2


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_k3_is_finite_and_never_negative(d: float) -> None:
    """Rejects k1 = -d, negative for every action that became more likely."""
    value = float(k3(torch.tensor([d], dtype=torch.float64)))
    assert math.isfinite(value)
    assert value >= 0.0


def test_k3_mean_estimates_the_kl_from_old_to_new() -> None:
    """Actions of the old policy. Rejects k3 of the reversed log-ratio, which estimates something else."""
    old, new = Normal(0.0, 1.0), Normal(0.3, 1.2)
    actions = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_ratio = new.log_prob(actions) - old.log_prob(actions)
    exact = float(kl_divergence(old, new))
    estimate = k3_mean(log_ratio)
    assert estimate.mean == pytest.approx(exact, rel=0.02)
    reverse = k3_mean(-log_ratio).mean
    assert reverse is not None
    assert abs(reverse / exact - 1) > 0.2


def test_non_finite_log_ratios_are_counted_and_excluded() -> None:
    """A finite runaway is not excluded: it must stop the epochs. Invalid rows count nowhere."""
    log_ratio = torch.tensor([0.5, math.inf, -math.inf, math.nan, -0.5, math.nan])
    valid = torch.tensor([True, True, True, True, True, False])
    result = k3_mean(log_ratio, valid)
    assert result.mean == pytest.approx((math.expm1(0.5) - 0.5 + math.expm1(-0.5) + 0.5) / 2)
    assert (result.count, result.excluded) == (2, 3)
    runaway = k3_mean(torch.tensor([0.0, 1e6], dtype=torch.float64)).mean
    assert runaway is not None
    assert math.isfinite(runaway)
    assert runaway > 1e100
    nothing = k3_mean(torch.tensor([math.nan]))
    assert (nothing.mean, nothing.count, nothing.excluded) == (None, 0, 1)
    with pytest.raises(ShapeError, match="valid has shape"):
        k3_mean(log_ratio, valid[:2])

"""The policy surrogate: hand numbers, bounds under stale and broken log-probs, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.learner.losses import LOG_RATIO_LIMIT, policy_loss_terms


def naive_loss(logp_new: Tensor, logp_old: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """WRONG: no clamp, no dual clip, nothing about broken log-probs."""
    ratio = (logp_new - logp_old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hand_computed_losses(dtype: torch.dtype) -> None:
    """Rejects max for min, a clip on the wrong side, and a dual clip for positive advantages."""
    ratio = [1.0, 1.5, 0.5, 1.5, 0.5, 5.0, 5.0]
    advantage = [2.0, 2.0, 2.0, -2.0, -2.0, -2.0, 2.0]
    new = torch.tensor(ratio, dtype=dtype).log()
    terms = policy_loss_terms(new, torch.zeros_like(new), torch.tensor(advantage, dtype=dtype), clip=0.2, dual_clip=3.0)
    assert terms.loss.dtype == dtype
    assert terms.loss.tolist() == pytest.approx([-2.0, -2.4, -1.0, 3.0, 1.6, 6.0, -2.4])
    assert terms.clip_active.tolist() == [False, True, False, False, True, False, True]
    assert terms.dual_active.tolist() == [False, False, False, False, False, True, False]
    assert terms.ratio.tolist() == pytest.approx(ratio)
    assert not bool(terms.clamp_active.any())
    assert int(terms.excluded.sum()) == 0


def test_the_gradient_is_the_policy_gradient_or_nothing() -> None:
    """-ratio * A where free, exactly 0 where a clip decides; old log-probs and advantages get none."""
    new = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5, 5.0]).log().requires_grad_()
    old = torch.zeros(6, requires_grad=True)
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0], requires_grad=True)
    policy_loss_terms(new, old, advantage, clip=0.2, dual_clip=3.0).loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-2.0, 0.0, -1.0, 3.0, 0.0, 0.0])
    assert old.grad is None
    assert advantage.grad is None


STORED = [0.0, -20.0, -120.0, -1e4, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_stored_log_prob_gives_a_finite_and_bounded_loss(sign: float, dtype: torch.dtype) -> None:
    """Ledger 004-2. Rejects the naive loss (inf and NaN) and the clamp alone (1e8 for a negative advantage)."""
    old = torch.tensor(STORED, dtype=dtype)
    new = torch.full_like(old, -1.0).requires_grad_()
    advantage = torch.full_like(old, 2.0 * sign)
    terms = policy_loss_terms(new, old, advantage, clip=0.2, dual_clip=3.0)
    assert bool(torch.isfinite(terms.loss).all())
    assert bool((terms.loss.abs() <= 6.0 + 1e-5).all())
    assert terms.excluded.tolist() == [False] * 4 + [True] * 3
    assert int(terms.excluded.sum()) == 3
    assert terms.loss[4:].tolist() == [0.0, 0.0, 0.0]
    assert terms.clamp_active.tolist() == [False, False, True, True, False, False, False]
    terms.loss.sum().backward()
    assert new.grad is not None
    assert bool(torch.isfinite(new.grad).all())
    assert new.grad[4:].tolist() == [0.0, 0.0, 0.0]

    assert not bool(torch.isfinite(naive_loss(new, old, advantage, 0.2)).all())
    clamp_alone = policy_loss_terms(new, old, advantage, clip=0.2, dual_clip=None).loss
    assert bool(torch.isfinite(clamp_alone).all())
    assert bool((clamp_alone.abs() > 1e8).any()) == (sign < 0)


def test_a_new_log_prob_that_is_not_finite_is_excluded_too() -> None:
    new = torch.tensor([-math.inf, math.nan, -1.0], requires_grad=True)
    terms = policy_loss_terms(new, torch.full((3,), -1.0), torch.ones(3), clip=0.2, dual_clip=3.0)
    assert terms.excluded.tolist() == [True, True, False]
    terms.loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 0.0, -1.0]


def test_the_log_ratio_is_reported_as_it_is() -> None:
    """The clamp is for exp only: KL and the start-of-update check need the true number. Rejects the clamped one."""
    terms = policy_loss_terms(
        torch.tensor([0.0, 0.0]), torch.tensor([-120.0, math.inf]), torch.ones(2), clip=0.2, dual_clip=3.0
    )
    assert terms.log_ratio.tolist() == [120.0, -math.inf]
    assert float(terms.ratio[0]) == pytest.approx(math.exp(LOG_RATIO_LIMIT), rel=1e-5)
    assert not terms.log_ratio.requires_grad


def test_a_broken_advantage_is_not_hidden() -> None:
    """A NaN advantage must reach the loss, where the update refuses itself; it is not silently dropped."""
    terms = policy_loss_terms(torch.zeros(2), torch.zeros(2), torch.tensor([math.nan, 1.0]), clip=0.2, dual_clip=3.0)
    assert bool(torch.isnan(terms.loss[0]))
    assert float(terms.loss[1]) == -1.0


@settings(max_examples=100, deadline=None)
@given(
    log_ratio=st.floats(-1e6, 1e6, allow_nan=False),
    advantage=st.floats(-1e3, 1e3, allow_nan=False),
    clip=st.sampled_from([0.05, 0.2, 0.5]),
)
def test_the_loss_is_a_pessimistic_bound(log_ratio: float, advantage: float, clip: float) -> None:
    """loss >= -clip(r) A always unless dual-clipped, and |loss| <= max(1+clip, c) |A|."""
    new = torch.tensor([log_ratio], dtype=torch.float64)
    a = torch.tensor([advantage], dtype=torch.float64)
    terms = policy_loss_terms(new, torch.zeros_like(new), a, clip=clip, dual_clip=3.0)
    loss = float(terms.loss)
    assert abs(loss) <= 3.0 * abs(advantage) + 1e-9
    clipped_ratio = min(max(math.exp(max(-20.0, min(20.0, log_ratio))), 1 - clip), 1 + clip)
    assert loss >= -clipped_ratio * advantage - 1e-9


def test_impossible_options_are_refused() -> None:
    zero = torch.zeros(1)
    for clip in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="policy clip is"):
            policy_loss_terms(zero, zero, zero, clip=clip, dual_clip=None)
    with pytest.raises(ConfigError, match=r"dual clip is 1\.2"):
        policy_loss_terms(zero, zero, zero, clip=0.2, dual_clip=1.2)
    with pytest.raises(ShapeError, match="advantage has shape"):
        policy_loss_terms(zero, zero, torch.zeros(1, 1), clip=0.2, dual_clip=None)

"""Value clipping: the bound of each mode, twin critics, gradients, and what must stay untouched."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.learner.critic_losses import (
    STD_FLOOR,
    ClipMode,
    categorical_clip_active,
    clip_categorical,
    clip_mean,
    clip_quantiles,
    clipped_loss,
    clipped_quantile_loss,
    cross_entropy,
    quantile_clip_active,
    quantile_loss,
)

QUANTILE_MODES: tuple[ClipMode, ...] = ("mean_only", "mean_and_variance", "per_quantile")
ATOM_MODES: tuple[ClipMode, ...] = ("mean_only", "mean_and_variance")


def std(law: Tensor) -> Tensor:
    return law.std(-1, correction=0)


def random_laws(seed: int, spread: float, quantiles: int = 8) -> tuple[Tensor, Tensor]:
    """new and old [6, 2, N], unsorted, in float64; the new one moved and widened."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(6, 2, quantiles, generator=generator, dtype=torch.float64)
    offset = torch.randn(6, 2, 1, generator=generator, dtype=torch.float64)
    new = spread * torch.randn(6, 2, quantiles, generator=generator, dtype=torch.float64) + offset
    return new, old


laws = given(
    seed=st.integers(0, 10_000), spread=st.sampled_from([0.0, 0.3, 1.0, 10.0]), bound=st.sampled_from([0.05, 0.2, 1.0])
)


@settings(max_examples=40, deadline=None)
@laws
def test_mean_only_bounds_the_mean_and_keeps_the_shape(seed: int, spread: float, bound: float) -> None:
    """Ledger 000-5. Rejects clipping each quantile, which changes the spread."""
    new, old = random_laws(seed, spread)
    clipped = clip_quantiles(new, old, mode="mean_only", range=bound)
    assert bool(((clipped.mean(-1) - old.mean(-1)).abs() <= bound + 1e-12).all())
    torch.testing.assert_close(std(clipped), std(new), rtol=0, atol=1e-12)
    if spread == 10.0:
        assert not torch.allclose(std(clip_quantiles(new, old, mode="per_quantile", range=bound)), std(new), atol=0.1)


@settings(max_examples=40, deadline=None)
@laws
def test_mean_and_variance_bounds_both(seed: int, spread: float, bound: float) -> None:
    """std <= factor * max(std_old, floor). Rejects mean_only in its place, whose spread is free."""
    new, old = random_laws(seed, spread)
    clipped = clip_quantiles(new, old, mode="mean_and_variance", range=bound, factor=2.0)
    limit = 2.0 * std(old).clamp(min=STD_FLOOR)
    assert bool(((clipped.mean(-1) - old.mean(-1)).abs() <= bound + 1e-12).all())
    assert bool((std(clipped) <= limit + 1e-12).all())
    assert bool((std(clipped) <= std(new) + 1e-12).all())
    if spread == 10.0:
        assert not bool((std(clip_quantiles(new, old, mode="mean_only", range=bound)) <= limit + 1e-12).all())


@settings(max_examples=40, deadline=None)
@laws
def test_per_quantile_bounds_each_sorted_quantile(seed: int, spread: float, bound: float) -> None:
    """|dq| <= range after sorting. Rejects clipping by index, which compares quantiles of different rank."""
    new, old = random_laws(seed, spread)
    clipped = clip_quantiles(new, old, mode="per_quantile", range=bound)
    old_sorted = old.sort(-1).values
    assert bool(((clipped.sort(-1).values - old_sorted).abs() <= bound + 1e-12).all())
    by_rank = clipped.gather(-1, new.argsort(-1))
    assert bool((by_rank.diff(dim=-1) >= -1e-12).all())
    if spread == 10.0:
        by_index = old + (new - old).clamp(-bound, bound)
        assert not torch.allclose(by_index, clipped, atol=1e-3)


def test_hand_computed_modes() -> None:
    """old (0, 2): mean 1, std 1. new (11, 3): mean 7, std 4. range 2, factor 2: mean 3, spread halved."""
    new, old = torch.tensor([11.0, 3.0]), torch.tensor([0.0, 2.0])
    assert clip_quantiles(new, old, mode="disable", range=2.0).tolist() == [11.0, 3.0]
    assert clip_quantiles(new, old, mode="mean_only", range=2.0).tolist() == [7.0, -1.0]
    assert clip_quantiles(new, old, mode="mean_and_variance", range=2.0, factor=2.0).tolist() == [5.0, 1.0]
    assert clip_quantiles(new, old, mode="per_quantile", range=2.0).tolist() == [4.0, 2.0]


@pytest.mark.parametrize("mode", QUANTILE_MODES)
def test_inside_the_range_nothing_changes(mode: ClipMode) -> None:
    """With a range that never binds: the prediction bit for bit, inactive, and the plain loss and gradient."""
    new, old = random_laws(0, 1.0)
    theta = new.clone().requires_grad_()
    target = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    assert torch.equal(clip_quantiles(new, old, mode=mode, range=1e6, factor=1e6), new)
    result = clipped_quantile_loss(theta, old, target, mode=mode, range=1e6, factor=1e6, kappa=0.02)
    assert not result.active.any()
    (gradient,) = torch.autograd.grad(result.loss.sum(), theta)
    plain = quantile_loss(theta, target, kappa=0.02)
    (plain_gradient,) = torch.autograd.grad(plain.sum(), theta)
    torch.testing.assert_close(result.loss, plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, plain_gradient, rtol=0, atol=1e-12)


def twin_case() -> tuple[Tensor, Tensor, Tensor]:
    """theta, old [2, 2, 2] (a real row and a padded row of NaN; two critics; two quantiles) and targets [2, 2, 1]."""
    nan = torch.full((2, 2), math.nan)
    theta = torch.stack([torch.tensor([[3.0, 5.0], [10.5, 12.5]]), nan])
    old = torch.stack([torch.tensor([[0.0, 2.0], [10.0, 12.0]]), nan])
    target = torch.stack([torch.tensor([[4.0], [11.0]]), nan[:, :1]])
    return theta, old, target


def test_each_twin_critic_is_clipped_around_its_own_old_output() -> None:
    """Ledger 001-1, by hand, in a padded batch. Rejects one old output shared by both critics (included).

    Range 1. Critic 0: mean 4 against old 1, clipped to 2: (1, 3). Critic 1: mean 11.5 against old 11: not moved.
    Losses at kappa 1, tau (.25, .75): critic 0, y = 4: new u = (1, -1): (.125 + .125)/2 = .125; clipped u = (3, 1):
    (.25*2.5 + .75*.5)/2 = .5, the larger. Critic 1, y = 11: u = (.5, -1.5): (.25*.125 + .25*1)/2 = .140625.
    """
    theta, old, target = twin_case()
    assert clip_quantiles(theta, old, mode="mean_only", range=1.0)[0].tolist() == [[1.0, 3.0], [10.5, 12.5]]
    result = clipped_quantile_loss(theta, old, target, mode="mean_only", range=1.0, kappa=1.0)
    assert result.loss[0].tolist() == pytest.approx([0.5, 0.140625])
    assert result.loss_new[0].tolist() == pytest.approx([0.125, 0.140625])
    assert result.loss_clipped[0].tolist() == pytest.approx([0.5, 0.140625])
    assert result.active[0].tolist() == [True, False]

    shared = old[:, :1].expand(-1, 2, -1)  # WRONG: critic 0's old output for both
    wrong = clipped_quantile_loss(theta, shared, target, mode="mean_only", range=1.0, kappa=1.0)
    assert wrong.loss[0].tolist() != pytest.approx([0.5, 0.140625])
    assert float(wrong.loss[0, 1]) == pytest.approx(4.0)  # u = (10, 8): (.25*9.5 + .75*7.5)/2
    with pytest.raises(ShapeError, match="old quantiles"):
        clip_quantiles(theta, old[:, :1], mode="mean_only", range=1.0)


def test_the_maximum_is_per_sample_and_for_per_quantile_per_quantile() -> None:
    """Rejects max of the batch means: sample 0 prefers the clipped branch, sample 1 the new one."""
    theta, old = torch.tensor([[3.0, 5.0], [3.0, 5.0]]), torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    target = torch.tensor([[4.0], [2.0]])
    result = clipped_quantile_loss(theta, old, target, mode="mean_only", range=1.0, kappa=1.0)
    # y = 4: .125 new, .5 clipped (see above). y = 2: new u = (-1, -3): (.75*.5 + .25*2.5)/2 = .5, clipped .125.
    assert result.loss.tolist() == pytest.approx([0.5, 0.5])
    batch_wise = torch.maximum(result.loss_new.mean(), result.loss_clipped.mean())
    assert float(batch_wise) == pytest.approx(0.3125)
    # per_quantile, range 1, clipped (1, 3), y = 3: new 0 and .25*1.5, clipped .25*1.5 and 0: each quantile takes its
    # own maximum, both .375, where the maximum per sample would be .1875.
    per_quantile = clipped_quantile_loss(theta, old, torch.full((2, 1), 3.0), mode="per_quantile", range=1.0, kappa=1.0)
    assert per_quantile.loss.tolist() == pytest.approx([0.375, 0.375])
    assert per_quantile.loss_new.tolist() == per_quantile.loss_clipped.tolist() == pytest.approx([0.1875, 0.1875])


def test_gradients_of_the_clipped_branch() -> None:
    """A mean at its bound has no gradient along the mean, and the shape keeps its own. Rejects a detached shift."""
    theta = torch.tensor([3.0, 5.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    clipped = clip_quantiles(theta, old, mode="mean_only", range=1.0)
    (gradient,) = torch.autograd.grad(clipped.mean(), theta, retain_graph=True)
    assert gradient.tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(clipped[1], theta, retain_graph=True)
    assert gradient.tolist() == [-0.5, 0.5]
    clipped.sum().backward()
    assert old.grad is None
    for mode in QUANTILE_MODES:
        new, fixed = random_laws(1, 3.0)
        new.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, f=fixed, m=mode: clip_quantiles(x, f, mode=m, range=0.2, factor=1.5), (new,)
        )


@pytest.mark.parametrize("mode", QUANTILE_MODES)
def test_a_law_collapsed_to_a_point_has_finite_gradients_and_may_widen(mode: ClipMode) -> None:
    """Rejects std = sqrt(var) without care (gradient infinite at 0), and factor * 0 as the bound of the spread."""
    theta = torch.zeros(2, 4, requires_grad=True)
    result = clip_quantiles(theta, torch.zeros(2, 4), mode=mode, range=0.2)
    result.square().sum().backward()
    assert theta.grad is not None
    assert bool(torch.isfinite(theta.grad).all())
    wide = torch.tensor([[-1.0, 1.0]])
    if mode == "mean_and_variance":
        clipped = clip_quantiles(wide, torch.zeros(1, 2), mode=mode, range=0.2, factor=2.0)
        assert std(clipped).tolist() == pytest.approx([2.0 * STD_FLOOR])


@pytest.mark.parametrize("mode", ["disable", *QUANTILE_MODES])
@pytest.mark.parametrize("bound", [1e-3, 1.0])
def test_targets_and_old_outputs_are_never_changed(mode: ClipMode, bound: float) -> None:
    """Ledger 000-F2: predictions are clipped, targets are the same bits for any range."""
    new, old = random_laws(2, 2.0)
    target = torch.randn(6, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    before = target.detach().clone(), old.clone(), new.clone()
    theta = new.requires_grad_()
    clipped_quantile_loss(theta, old, target, mode=mode, range=bound, kappa=0.02).loss.sum().backward()
    assert torch.equal(target, before[0])
    assert torch.equal(old, before[1])
    assert torch.equal(theta, before[2])
    assert target.grad is None


@pytest.mark.parametrize("mode", QUANTILE_MODES)
def test_every_mode_that_is_on_changes_the_loss(mode: ClipMode) -> None:
    """Ledger H3: an option that is on but never runs is rejected."""
    new, old = random_laws(3, 3.0)
    new = new.sort(-1).values
    target = new[..., [1, 4, 6]]  # the new prediction is right, so that being held back costs
    on = clipped_quantile_loss(new, old, target, mode=mode, range=0.1, kappa=0.02)
    off = clipped_quantile_loss(new, old, target, mode="disable", range=0.1, kappa=0.02)
    assert float(on.loss.mean()) > float(off.loss.mean()) + 1e-3
    assert on.active.all()
    assert not off.active.any()


def test_a_crossed_prediction_does_not_hide_the_clip() -> None:
    """Rejects a sorted clipped branch beside an unsorted one: the cost of crossing alone would win the maximum.

    old (0, 2), range 1, y = 6, kappa 1, new (8, 0): u = (-2, 6), (.75*1.5 + .75*5.5)/2 = 2.625. Mean 4 is held at 2, so
    clipped (6, -2): u = (0, 8), .75*7.5/2 = 2.8125 decides. Sorted, the clipped branch would cost only .9375.
    """
    old, target, theta = torch.tensor([[0.0, 2.0]]), torch.tensor([[6.0]]), torch.tensor([[8.0, 0.0]])
    result = clipped_quantile_loss(theta, old, target, mode="mean_only", range=1.0, kappa=1.0)
    assert result.loss_new.tolist() == pytest.approx([2.625])
    assert result.loss.tolist() == pytest.approx([2.8125])
    in_order = clip_quantiles(theta, old, mode="mean_only", range=1.0).sort(-1).values
    assert quantile_loss(in_order, target, kappa=1.0).tolist() == pytest.approx([0.9375])


def test_clip_mean_is_the_ordinary_clip() -> None:
    new = torch.tensor([1.0, 1.1, -3.0], requires_grad=True)
    clipped = clip_mean(new, torch.tensor([0.5, 1.0, -1.0]), 0.2)
    assert clipped.tolist() == pytest.approx([0.7, 1.1, -1.2])
    clipped.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 1.0, 0.0]
    assert clipped_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])).tolist() == [3.0, 2.0]


def random_categoricals(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Peaked laws [6, 2, 41] well inside a support of +-10, so that no mass reaches its edge, and the atoms."""
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.linspace(-10, 10, 41, dtype=torch.float64)

    def logits(low: float, high: float) -> Tensor:
        mean = 2 * torch.rand(6, 2, 1, generator=generator, dtype=torch.float64) - 1
        width = low + (high - low) * torch.rand(6, 2, 1, generator=generator, dtype=torch.float64)
        return -0.5 * ((atoms - mean) / width).square()

    return logits(0.6, 1.5), torch.softmax(logits(0.2, 0.6), -1), atoms


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), mode=st.sampled_from(ATOM_MODES), bound=st.sampled_from([0.05, 0.3]))
def test_categorical_bounds(seed: int, mode: ClipMode, bound: float) -> None:
    """Mean within the range, variance within its bound plus dz^2/4 of the projection. Rejects no clipping at all."""
    logits, old, atoms = random_categoricals(seed)
    clipped = clip_categorical(logits, old, atoms, mode=mode, range=bound, factor=1.2).exp()

    def moments(probs: Tensor) -> tuple[Tensor, Tensor]:
        mean = (probs * atoms).sum(-1)
        return mean, (probs * (atoms - mean[..., None]).square()).sum(-1)

    torch.testing.assert_close(clipped.sum(-1), torch.ones(6, 2, dtype=torch.float64), rtol=0, atol=1e-9)
    mean, variance = moments(clipped)
    mean_old, variance_old = moments(old)
    mean_new, variance_new = moments(torch.softmax(logits, -1))
    uniform_mix = 1e-6 * 100  # 1e-6 of the uniform law on +-10 moves the moments by at most this
    assert bool(((mean - mean_old).abs() <= bound + uniform_mix).all())
    projection = float(atoms[1] - atoms[0]) ** 2 / 4
    limit = (1.2 * variance_old.sqrt().clamp(min=STD_FLOOR)).square() if mode == "mean_and_variance" else variance_new
    assert bool((variance <= limit + projection + uniform_mix).all())
    assert not bool(((mean_new - mean_old).abs() <= bound + uniform_mix).all())


def test_categorical_inactive_samples_keep_their_log_probs_exactly() -> None:
    logits, old, atoms = random_categoricals(0)
    for mode in ("disable", *ATOM_MODES):
        result = clip_categorical(logits, old, atoms, mode=mode, range=1e6, factor=1e6)
        assert torch.equal(result, torch.log_softmax(logits, -1))
        active = categorical_clip_active(logits, old, atoms, mode=mode, range=1e6, factor=1e6)
        assert not active.any()
    assert categorical_clip_active(logits, old, atoms, mode="mean_only", range=1e-9).all()


def test_categorical_loss_and_gradient_stay_finite_at_exact_zeros() -> None:
    """The projection of a shifted point law has exact zeros. Rejects their bare logarithm: cross-entropy inf."""
    atoms = torch.linspace(-2, 2, 5)
    logits = torch.tensor([[-200.0, -200.0, -200.0, -200.0, 200.0]], requires_grad=True)
    old = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0]])
    clipped = clip_categorical(logits, old, atoms, mode="mean_only", range=0.5)
    # The point at 2 moves to .5: half at 0, half at 1; nothing at all at -2.
    assert clipped.exp().tolist()[0] == pytest.approx([0, 0, 0.5, 0.5, 0], abs=1e-5)
    loss = cross_entropy(clipped, torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1e-6 / 5) / math.log(5), rel=1e-3)
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())


@pytest.mark.parametrize("mode", ATOM_MODES)
def test_categorical_gradients_flow_through_the_shift(mode: ClipMode) -> None:
    """Rejects a detached shift: numbers against finite differences."""
    logits, old, atoms = random_categoricals(4)
    small = logits[:1, :1].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: clip_categorical(x, old[:1, :1], atoms, mode=mode, range=0.03, factor=1.1), (small,), atol=1e-4
    )


def test_impossible_options_are_refused() -> None:
    new, old, atoms = torch.zeros(1, 3), torch.zeros(1, 3), torch.linspace(-1, 1, 3)
    with pytest.raises(ConfigError, match="per_quantile needs a quantile critic"):
        clip_categorical(new, old, atoms, mode="per_quantile", range=0.2)
    with pytest.raises(ConfigError, match="per_quantile needs a quantile critic"):
        categorical_clip_active(new, old, atoms, mode="per_quantile", range=0.2)
    with pytest.raises(ConfigError, match="mode is 'mean'"):
        clip_quantiles(new, old, mode="mean", range=0.2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"range is 0\.0"):
        quantile_clip_active(new, old, mode="mean_only", range=0.0)
    with pytest.raises(ConfigError, match=r"factor is 0\.5"):
        clip_quantiles(new, old, mode="mean_and_variance", range=0.2, factor=0.5)

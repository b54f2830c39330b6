"""The quantile Huber loss: golden numbers, order of the quantiles, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.learner.critic_losses import midpoints, quantile_huber_loss, quantile_loss
from tailwise.learner.risk import cvar_from_quantiles


def inverted_quantile_loss(theta: Tensor, target: Tensor, kappa: float) -> Tensor:
    """WRONG: the indicator of u > 0, so that tau becomes 1 - tau and "CVaR" averages the best tail."""
    tau = midpoints(theta.shape[-1], dtype=theta.dtype).unsqueeze(-1)
    error = target.unsqueeze(-2) - theta.unsqueeze(-1)
    huber = torch.where(error.abs() <= kappa, 0.5 * error.square(), kappa * (error.abs() - 0.5 * kappa))
    return ((tau - (error.detach() > 0).to(theta.dtype)).abs() * huber / kappa).mean((-2, -1))


def broadcast_quantile_huber_loss(theta: Tensor, target: Tensor, kappa: float) -> Tensor:
    """The plain twin: all pairs [..., N, M] at once, the gradient left to autograd."""
    tau = midpoints(theta.shape[-1], dtype=theta.dtype).unsqueeze(-1)
    error = target.unsqueeze(-2) - theta.unsqueeze(-1)
    huber = torch.where(error.abs() <= kappa, 0.5 * error.square(), kappa * (error.abs() - 0.5 * kappa))
    return ((tau - (error.detach() < 0).to(theta.dtype)).abs() * huber / kappa).mean(-1)


def normal_points(count: int) -> Tensor:
    return torch.tensor(stats.norm.ppf(midpoints(count, dtype=torch.float64).numpy()))


def fit(loss_name: str, kappa: float, quantiles: int, target: Tensor, steps: int = 400) -> Tensor:
    """Quantiles that minimise the loss against fixed points, with a decaying step so that they settle."""
    theta = torch.zeros(quantiles, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([theta], lr=0.05)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / steps) + 1e-4
        if loss_name == "inverted":
            loss = inverted_quantile_loss(theta, target, kappa)
        else:
            loss = quantile_loss(theta, target, kappa=kappa)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return theta.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("theta", "target", "kappa", "expected"),
    [
        ([0.0] * 10, 1.0, 1.0, 0.25),
        ([0.0] * 10, 1.0, 0.02, 0.495),
        ([1, 2, 3, 4, 5], 3.0, 1.0, 0.12),
        ([1, 2, 3, 4, 5], 3.0, 0.02, 0.1984),
        ([1, 2, 3, 4, 5], 6.0, 1.0, 0.85),
        ([1, 2, 3, 4, 5], 6.0, 0.02, 1.095),
    ],
)
def test_golden_numbers(theta: list[float], target: float, kappa: float, expected: float, dtype: torch.dtype) -> None:
    """FORMULAS 2. Rejects a sum instead of a mean, a loss not divided by kappa, and the inverted weight (y = 6)."""
    prediction = torch.tensor(theta, dtype=dtype)
    for particles in (1, 3):
        points = torch.full((particles,), target, dtype=dtype)
        loss = quantile_loss(prediction, points, kappa=kappa)
        assert loss.dtype == dtype
        assert float(loss) == pytest.approx(expected, abs=1e-6)
    if target == 6.0:
        wrong = inverted_quantile_loss(prediction, torch.tensor([target], dtype=dtype), kappa)
        assert abs(float(wrong) - expected) > 0.1


def test_midpoints() -> None:
    """Rejects i/N and (i+1)/N."""
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]
    with pytest.raises(ConfigError, match="is 0"):
        midpoints(0)


def test_the_loss_is_per_quantile_and_the_mean_over_particles() -> None:
    """Hand: theta (0, 1), y (0, 2), kappa 1. Rejects the mean over the wrong axis."""
    loss = quantile_huber_loss(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]), kappa=1.0)
    # i=0, tau .25: u = 0, 2 -> 0, .25*1.5 -> mean .1875. i=1, tau .75: u = -1, 1 -> .25*.5, .75*.5 -> mean .25.
    assert loss.tolist() == pytest.approx([0.1875, 0.25])


def test_quantiles_of_a_normal_law_increase_with_tau() -> None:
    """Rejects the inverted loss (included): its quantiles decrease with tau."""
    target = normal_points(1000)
    right = fit("right", 0.02, 9, target)
    assert bool((right.diff() > 0).all())
    torch.testing.assert_close(right, normal_points(9), rtol=0, atol=0.03)
    assert not bool((fit("inverted", 0.02, 9, target).diff() > 0).all())


def test_a_small_kappa_keeps_the_tail_and_kappa_one_trims_it() -> None:
    """5% CVaR of N(0, 1) from 32 fitted quantiles: within 5% of -2.063 at kappa .02; kappa 1 must fail that."""
    target = normal_points(1000)
    truth = -2.0627128
    assert abs(float(cvar_from_quantiles(fit("right", 0.02, 32, target), 0.05)) / truth - 1) < 0.05
    assert abs(float(cvar_from_quantiles(fit("right", 1.0, 32, target), 0.05)) / truth - 1) > 0.10


def test_the_mean_of_quantiles_is_blind_to_a_rare_crash() -> None:
    """A crash of -30 with probability 1%, else N(.302, .4): the mean is -.001, mean(theta) .29 at N = 32.

    Rejects mean(theta) as the critic's mean: 32 centres begin at level .0156 and never see the crash.
    """
    level = (midpoints(32, dtype=torch.float64).numpy() - 0.01) / 0.99
    theta = torch.tensor(stats.norm.ppf(level, loc=0.299 / 0.99, scale=0.4))
    truth = 0.01 * -30 + 0.99 * (0.299 / 0.99)
    assert truth == pytest.approx(-0.001)
    assert float(theta.mean()) == pytest.approx(0.29, abs=0.005)


def test_gradients_have_the_slope_of_quantile_regression_and_stop_at_the_target() -> None:
    """Outside kappa the gradient of theta_i is -tau_i or 1-tau_i, whatever the size of the error (even 1e30)."""
    theta = torch.tensor([0.0, 0.0], requires_grad=True)
    target = torch.tensor([1e30], requires_grad=True)
    quantile_huber_loss(theta, target, kappa=0.02).sum().backward()
    assert theta.grad is not None
    assert theta.grad.tolist() == pytest.approx([-0.25, -0.75])
    assert target.grad is None
    (gradient,) = torch.autograd.grad(quantile_huber_loss(theta, torch.tensor([-5.0]), kappa=0.02).sum(), theta)
    assert gradient.tolist() == pytest.approx([0.75, 0.25])
    # Inside kappa it shrinks in proportion: u = .01 of kappa .02 gives half the slope.
    (gradient,) = torch.autograd.grad(quantile_huber_loss(theta, torch.tensor([0.01]), kappa=0.02).sum(), theta)
    assert gradient.tolist() == pytest.approx([-0.125, -0.375])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kappa", [0.02, 1.0])
@pytest.mark.parametrize("shape", [(3, 2, 16, 5), (1, 1, 1, 1), (2, 1, 64, 3000), (1100, 2, 64, 3)])
def test_loss_and_gradient_equal_the_plain_broadcast_form(
    shape: tuple[int, int, int, int], kappa: float, dtype: torch.dtype
) -> None:
    """Few and many particles, small and large batches. Rejects a lost block of particles or a wrong slope."""
    rows, critics, quantiles, particles = shape
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(rows, critics, quantiles, generator=generator).to(dtype).requires_grad_()
    target = torch.randn(rows, critics, particles, generator=generator).to(dtype)
    upstream = torch.randn(rows, critics, quantiles, generator=generator).to(dtype)
    loss, plain = quantile_huber_loss(theta, target, kappa=kappa), broadcast_quantile_huber_loss(theta, target, kappa)
    (gradient,) = torch.autograd.grad((loss * upstream).sum(), theta)
    (plain_gradient,) = torch.autograd.grad((plain * upstream).sum(), theta)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(loss, plain, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient, plain_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kappa", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_kappa_is_refused(kappa: float) -> None:
    with pytest.raises(ConfigError, match="kappa is"):
        quantile_loss(torch.zeros(3), torch.zeros(1), kappa=kappa)


def test_targets_are_not_broadcast_over_samples() -> None:
    """Rejects theta [C, N] against target [M]: each sample and critic has its own particles."""
    with pytest.raises(ShapeError, match="target has shape"):
        quantile_loss(torch.zeros(2, 3), torch.zeros(4), kappa=1.0)

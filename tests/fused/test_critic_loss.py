"""The particle loss kernel against the plain loss and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailwise.fused.critic_loss import LAW, LAW_CROSSINGS, LOSS, TOTALS, particle_loss
from tailwise.fused.vectors import LANES
from tailwise.learner.critic_losses import midpoints, quantile_huber_loss


def run(
    theta: torch.Tensor, particles: torch.Tensor, kappa: float, weight: float = 1.0, *, turned: bool = False
) -> tuple[np.ndarray, ...]:
    """(sums of loss, quantiles, crossings [3], gradient [N]) of one row by the kernel; `turned`: levels from 1 to 0."""
    tau_weight = (2.0 * midpoints(len(theta), dtype=torch.float64) - 1.0).float().numpy()
    totals, grad = np.zeros(TOTALS, np.float32), np.full(len(theta), np.nan, np.float32)
    particle_loss(theta.numpy(), particles.numpy(), -tau_weight if turned else tau_weight, kappa, weight, grad, totals)
    sums = np.array([totals[first : first + LANES].sum(dtype=np.float64) for first in (LOSS, LAW, LAW_CROSSINGS)])
    sums[0] /= 2.0 * kappa * len(particles)
    return sums, grad


def plain(theta: torch.Tensor, particles: torch.Tensor, kappa: float) -> tuple[np.ndarray, ...]:
    """The same in float64 by autograd through the broadcast definition, [N, m] table and all."""
    free = theta.double().requires_grad_()
    tau = midpoints(len(theta), dtype=torch.float64)[:, None]
    u = particles.double()[None] - free[:, None]
    huber = torch.where(u.abs() <= kappa, 0.5 * u**2, kappa * (u.abs() - 0.5 * kappa))
    loss = ((tau - (u < 0).double()).abs() * huber / kappa).mean(-1)
    torch.autograd.backward(loss.sum())
    assert free.grad is not None
    return loss.detach().numpy(), free.grad.numpy()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 200])
@pytest.mark.parametrize("particles", [1, 3, 8, 26])
def test_loss_and_gradient_equal_the_definition(count: int, particles: int) -> None:
    """Rejects a remainder of quantiles that is left out or read twice, and a weight on the wrong side."""
    g = torch.Generator().manual_seed(count * 100 + particles)
    for kappa in (0.02, 0.3, 5.0):
        theta, y = torch.randn(count, generator=g), torch.randn(particles, generator=g)
        sums, grad = run(theta, y, kappa)
        exact_loss, exact_grad = plain(theta, y, kappa)
        assert sums[0] == pytest.approx(exact_loss.sum(), rel=1e-5)
        assert np.linalg.norm(grad - exact_grad) <= 1e-5 * np.linalg.norm(exact_grad)
        assert sums[0] == pytest.approx(float(quantile_huber_loss(theta, y, kappa=kappa).sum()), rel=1e-5)
        assert sums[1] == pytest.approx(float(theta.double().sum()), rel=1e-5, abs=1e-5)
        assert sums[2] == int((theta[1:] < theta[:-1]).sum())


def test_the_inverted_weight_is_seen() -> None:
    """Rejects |tau - 1{u > 0}|: turning the levels round changes loss and gradient."""
    theta, y = torch.tensor([-1.0, 0.2, 0.9]), torch.tensor([0.1, 0.4, 0.5, 1.0])
    sums, grad = run(theta, y, 0.02)
    wrong_sums, wrong_grad = run(theta, y, 0.02, turned=True)
    assert abs(sums[0] - wrong_sums[0]) > 0.1 and np.abs(grad - wrong_grad)[0] > 0.1


def test_weight_scales_the_gradient_alone() -> None:
    theta, y = torch.tensor([-1.0, 0.2, 0.9]), torch.tensor([0.1, 0.4])
    sums, grad = run(theta, y, 0.02)
    other_sums, other_grad = run(theta, y, 0.02, weight=0.25)
    assert np.array_equal(sums, other_sums) and other_grad == pytest.approx(0.25 * grad, rel=1e-6)


def test_totals_grow_from_row_to_row() -> None:
    """Rejects totals that begin anew: the sum over a block would be that of its last row."""
    theta, y, kappa = torch.tensor([0.3, -0.1, 0.9]), torch.tensor([0.1, 0.4]), 0.3
    tau_weight = (2.0 * midpoints(3, dtype=torch.float64) - 1.0).float().numpy()
    once, twice, grad = np.zeros(TOTALS, np.float32), np.zeros(TOTALS, np.float32), np.zeros(3, np.float32)
    particle_loss(theta.numpy(), y.numpy(), tau_weight, kappa, 1.0, grad, once)
    for _ in range(2):
        particle_loss(theta.numpy(), y.numpy(), tau_weight, kappa, 1.0, grad, twice)
    assert once[LAW_CROSSINGS:].sum() == 1.0 and once[:LANES].sum() > 0.0
    assert np.array_equal(twice, 2.0 * once)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [3, 8, 24])
def test_broken_numbers_show_in_the_loss(bad: float, count: int) -> None:
    """Rejects a clamp that swallows NaN: the update would go on without a word."""
    theta, y = torch.zeros(count), torch.linspace(-1, 1, 8)
    broken = y.clone()
    broken[3] = bad
    assert not np.isfinite(run(theta, broken, 0.02)[0][0])
    theta[count - 1] = bad
    assert not np.isfinite(run(theta, y, 0.02)[0][0])

"""The particle loss kernel against the plain loss and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailwise.kernels.particle_loss import TOGETHER, particle_loss
from tailwise.learner.quantile import midpoints, quantile_huber_loss


def run(theta: torch.Tensor, particles: torch.Tensor, kappa: float, weight: float = 1.0) -> tuple[np.ndarray, ...]:
    """(loss [N], gradient [N]) of one row by the kernel."""
    lean = (2.0 * midpoints(len(theta), dtype=torch.float64) - 1.0).float().numpy()
    loss, grad = np.full(len(theta), np.nan, np.float32), np.full(len(theta), np.nan, np.float32)
    particle_loss(theta.numpy(), particles.numpy(), lean, np.float32(kappa), np.float32(weight), loss, grad)
    return loss, grad


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


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 16, 33, 64])
@pytest.mark.parametrize("particles", [1, 3, TOGETHER - 1, TOGETHER, TOGETHER + 1, 3 * TOGETHER + 2])
def test_loss_and_gradient_equal_the_definition(count: int, particles: int) -> None:
    """Rejects a remainder of particles or of a SIMD block that is left out, and a weight on the wrong side."""
    g = torch.Generator().manual_seed(count * 100 + particles)
    for kappa in (0.02, 0.3, 5.0):
        theta, y = torch.randn(count, generator=g), torch.randn(particles, generator=g)
        loss, grad = run(theta, y, kappa)
        exact_loss, exact_grad = plain(theta, y, kappa)
        assert loss == pytest.approx(exact_loss, rel=1e-5, abs=1e-7)
        assert np.linalg.norm(grad - exact_grad) <= 1e-5 * np.linalg.norm(exact_grad)
        assert loss == pytest.approx(quantile_huber_loss(theta, y, kappa=kappa).numpy(), rel=1e-5, abs=1e-7)


def test_the_inverted_weight_is_seen() -> None:
    """Rejects |tau - 1{u > 0}|: turning the levels round changes loss and gradient."""
    theta, y = torch.tensor([-1.0, 0.2, 0.9]), torch.tensor([0.1, 0.4, 0.5, 1.0])
    loss, grad = run(theta, y, 0.02)
    lean = (1.0 - 2.0 * midpoints(3, dtype=torch.float64)).float().numpy()
    wrong_loss, wrong_grad = np.zeros(3, np.float32), np.zeros(3, np.float32)
    particle_loss(theta.numpy(), y.numpy(), lean, np.float32(0.02), np.float32(1.0), wrong_loss, wrong_grad)
    assert np.abs(loss - wrong_loss)[0] > 0.1 and np.abs(grad - wrong_grad)[0] > 0.1


def test_weight_scales_the_gradient_alone() -> None:
    theta, y = torch.tensor([-1.0, 0.2, 0.9]), torch.tensor([0.1, 0.4])
    loss, grad = run(theta, y, 0.02)
    other_loss, other_grad = run(theta, y, 0.02, weight=0.25)
    assert np.array_equal(loss, other_loss) and other_grad == pytest.approx(0.25 * grad, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_numbers_show_in_the_loss(bad: float) -> None:
    """Rejects a clamp that swallows NaN: the update would go on without a word."""
    theta, y = torch.zeros(8), torch.linspace(-1, 1, TOGETHER)
    broken = y.clone()
    broken[3] = bad
    assert not np.isfinite(run(theta, broken, 0.02)[0]).any()
    theta[5] = bad
    assert not np.isfinite(run(theta, y, 0.02)[0][5])

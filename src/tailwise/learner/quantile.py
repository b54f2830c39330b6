"""Quantile regression with the Huber loss (Dabney et al. 2018, arXiv 1710.10044)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tailwise.core.errors import ConfigError
from tailwise.learner.returns import require_shape
from tailwise.model.supports import quantile_midpoints

_CACHE_BLOCK = 2**17  # numbers per block: half a megabyte of float32


def midpoints(n: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """The levels tau_i = (i + 0.5) / N that the N quantiles stand for. Returns [N]."""
    if n < 1:
        raise ConfigError(f"The number of quantiles is {n}, expected at least 1.")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return quantile_midpoints(n).to(dtype=dtype, device=device)


def quantile_huber_loss(theta: Tensor, target: Tensor, *, kappa: float) -> Tensor:
    """Loss of each predicted quantile against M target particles; the mean over the particles only.

        u_ij = y_j - theta_i,   rho_ij = |tau_i - 1{u_ij < 0}| * L_kappa(u_ij) / kappa

    with the Huber function L_k(u) = u^2/2 for |u| <= k, else k(|u| - k/2). Divided by kappa, the slope outside kappa is
    that of plain quantile regression, 1. A quantile with a high tau pays more for being too low (u > 0); the inverted
    weight would turn the order of the quantiles round and report the best tail as the worst.

    theta: [..., N], theta_i belongs to tau_i. target: [..., M], the same leading dimensions, without gradient.
    kappa: > 0, in the units of theta (normalised return); inside it the minimiser blends quantile and expectile.
    Returns [..., N], not yet averaged over i, because the `per_quantile` value clip compares each i on its own.
    Memory: a few times N numbers per sample, whatever M is; loss and gradient come from one pass over the particles.
    """
    if not (math.isfinite(kappa) and kappa > 0.0):
        raise ConfigError(f"kappa is {kappa}, expected a finite number above 0, typically 0.02.")
    require_shape("target", target, (*theta.shape[:-1], target.shape[-1]))
    loss: Tensor = _QuantileHuber.apply(theta, target.detach(), kappa)  # type: ignore[no-untyped-call]
    return loss


class _QuantileHuber(torch.autograd.Function):
    """`quantile_huber_loss` with its gradient written out; the broadcast form that autograd derives is its test twin.

    Autograd would keep several [..., N, M] tensors alive. Here particles are taken a few at a time, so that the blocks
    [..., few, N] stay in the cache, which is about four times as fast.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor, target: Tensor, kappa: float) -> Tensor:
        tau = midpoints(theta.shape[-1], dtype=theta.dtype, device=theta.device)
        below, above = 1.0 - tau, tau
        loss, slope = torch.zeros_like(theta), torch.zeros_like(theta)
        together = max(1, _CACHE_BLOCK // max(1, theta.numel()))
        for first in range(0, target.shape[-1], together):
            error = target[..., first : first + together, None] - theta.unsqueeze(-2)
            inner = error.clamp(-kappa, kappa)
            pull = inner * torch.where(error < 0, below, above)
            slope.sub_(_over_particles(pull))
            # inner * (error - inner/2) is both branches of the Huber function without squaring a large error.
            loss.add_(_over_particles(pull.mul_(error.sub_(inner, alpha=0.5))))
        scale = 1.0 / (kappa * target.shape[-1])
        ctx.save_for_backward(slope.mul_(scale))
        return loss.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None


def _over_particles(block: Tensor) -> Tensor:
    """Sum of [..., few, N] over its particles; a single one needs no pass over the memory."""
    return block.squeeze(-2) if block.shape[-2] == 1 else block.sum(-2)


def quantile_loss(theta: Tensor, target: Tensor, *, kappa: float) -> Tensor:
    """Loss per sample: the mean of `quantile_huber_loss` over the quantiles too. Returns [...]."""
    return quantile_huber_loss(theta, target, kappa=kappa).mean(-1)

"""Quantile regression with the Huber loss (Dabney et al. 2018, arXiv 1710.10044)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.returns import require_shape


def midpoints(n: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """The levels tau_i = (i + 0.5) / N that the N quantiles stand for. Returns [N]."""
    if n < 1:
        raise ConfigError(f"The number of quantiles is {n}, expected at least 1.")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    # In float64 first: the float32 sum rounds before the division.
    return ((torch.arange(n, dtype=torch.float64, device=device) + 0.5) / n).to(dtype)


def quantile_huber_loss(theta: Tensor, target: Tensor, *, kappa: float) -> Tensor:
    """Loss of each predicted quantile against M target particles; the mean over the particles only.

        u_ij = y_j - theta_i,   rho_ij = |tau_i - 1{u_ij < 0}| * L_kappa(u_ij) / kappa

    with the Huber function L_k(u) = u^2/2 for |u| <= k, else k(|u| - k/2). Divided by kappa, the slope outside kappa is
    that of plain quantile regression, 1. A quantile with a high tau pays more for being too low (u > 0); the inverted
    weight would turn the order of the quantiles round and report the best tail as the worst.

    theta: [..., N], theta_i belongs to tau_i. target: [..., M], the same leading dimensions, without gradient.
    kappa: > 0, in the units of theta (normalised return); inside it the minimiser blends quantile and expectile.
    Returns [..., N], not yet averaged over i, because the `per_quantile` value clip compares each i on its own.
    Memory: N x M numbers per sample.
    """
    if not (math.isfinite(kappa) and kappa > 0.0):
        raise ConfigError(f"kappa is {kappa}, expected a finite number above 0, typically 0.02.")
    require_shape("target", target, (*theta.shape[:-1], target.shape[-1]))
    tau = midpoints(theta.shape[-1], dtype=theta.dtype, device=theta.device)
    error = target.detach().unsqueeze(-2) - theta.unsqueeze(-1)
    weight = (tau.unsqueeze(-1) - (error.detach() < 0).to(theta.dtype)).abs()
    size = error.abs()
    inner = size.clamp(max=kappa)
    # inner * (size - inner/2) is both branches of the Huber function without squaring a large error.
    huber_over_kappa = inner * (size - 0.5 * inner) / kappa
    return (weight * huber_over_kappa).mean(-1)


def quantile_loss(theta: Tensor, target: Tensor, *, kappa: float) -> Tensor:
    """Loss per sample: the mean of `quantile_huber_loss` over the quantiles too. Returns [...]."""
    return quantile_huber_loss(theta, target, kappa=kappa).mean(-1)

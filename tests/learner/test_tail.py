"""CVaR, VaR, Wang and the risk utility: exact laws, tables, and the tail on the right side."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from tailwise.core.errors import ConfigError, DataError
from tailwise.learner.critic_losses import midpoints
from tailwise.learner.returns import inverse_cdf_quantiles
from tailwise.learner.risk import (
    check_resolution,
    cvar_from_atoms,
    cvar_from_quantiles,
    mean_utility,
    pooled_tail,
    wang_from_quantiles,
)


def mean_of_lowest_quantiles(theta: Tensor, alpha: float) -> Tensor:
    """WRONG: the mean of the quantiles whose centre lies below alpha; a staircase in alpha."""
    return theta.sort(-1).values[..., : max(1, int(alpha * theta.shape[-1]))].mean(-1)


def straight_lines(theta: Tensor, alpha: float) -> float:
    """WRONG: the mean over levels [0, alpha] of straight lines in the level; it cuts off every tail that is curved."""
    ordered, count = theta.sort().values.double().numpy(), len(theta)
    levels = (np.arange(100_000) + 0.5) / 100_000 * alpha
    place = levels * count - 0.5
    left = np.clip(np.floor(place).astype(int), 0, count - 2)
    return float((ordered[left] + (place - left) * (ordered[left + 1] - ordered[left])).mean())


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 101),
    share=st.floats(0.0, 0.999),
    mean=st.floats(-10, 10),
    spread=st.floats(0.0, 10),
    seed=st.integers(0, 1000),
)
def test_a_normal_law_is_exact(count: int, share: float, mean: float, spread: float, seed: int) -> None:
    """N(m, s) has CVaR m - s pdf(z)/alpha, z the alpha-quantile, for every alpha. Rejects unsorted input."""
    alpha = 1 / count + share * (1 - 1 / count)
    theta = mean + spread * torch.special.ndtri(midpoints(count, dtype=torch.float64))
    shuffled = theta[torch.randperm(count, generator=torch.Generator().manual_seed(seed))]
    expected = mean - spread * stats.norm.pdf(stats.norm.ppf(alpha)) / alpha
    assert float(cvar_from_quantiles(shuffled, alpha)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("count", [32, 64, 101])
def test_a_normal_law_rejects_straight_lines(count: int) -> None:
    """They are optimistic: by 2.5, 1.1 and .6%."""
    theta = torch.special.ndtri(midpoints(count, dtype=torch.float64))
    truth = float(cvar_from_quantiles(theta, 0.05))
    assert truth == pytest.approx(-2.0627128, abs=1e-6)
    assert 1 - straight_lines(theta, 0.05) / truth > 0.005


def test_a_normal_law_rejects_the_staircase() -> None:
    """Of 32 quantiles it takes the same one for alpha .035 and .06, while the truth moves by a tenth."""
    theta = torch.special.ndtri(midpoints(32, dtype=torch.float64))
    assert float(mean_of_lowest_quantiles(theta, 0.035)) == float(mean_of_lowest_quantiles(theta, 0.06))
    assert float(cvar_from_quantiles(theta, 0.035) / cvar_from_quantiles(theta, 0.06)) > 1.1


@settings(max_examples=40, deadline=None)
@given(count=st.integers(2, 101), share=st.floats(0.0, 0.999))
def test_a_linear_law_is_within_the_resolution(count: int, share: float) -> None:
    """Q(p) = p has CVaR alpha / 2; a bounded law gets a normal tail at its end, a quarter of 1/N at most, downwards."""
    alpha = 1 / count + share * (1 - 1 / count)
    result = float(cvar_from_quantiles(midpoints(count, dtype=torch.float64), alpha))
    assert -0.25 / count <= result - alpha / 2 <= 0.03 / count


@pytest.mark.parametrize(("count", "alpha"), [(2, 0.5), (3, 2 / 3), (20, 0.05), (64, 0.05), (64, 0.3), (7, 0.999)])
def test_it_is_the_mean_of_what_bootstraps_read(count: int, alpha: float) -> None:
    """The integral over [0, alpha] of `inverse_cdf_quantiles`, for any law. Rejects two readings of one prediction."""
    theta = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64).sort().values
    levels = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * alpha
    read = float(inverse_cdf_quantiles(theta, levels).mean())
    assert float(cvar_from_quantiles(theta, alpha)) == pytest.approx(read, abs=3e-4)


def test_alpha_one_is_the_mean_of_theta() -> None:
    """By definition, also for a law with a curved end. Rejects the integral there, which reweights the ends."""
    theta = torch.tensor([[5.0, -100.0, 1.0, 2.0]], dtype=torch.float64)
    assert cvar_from_quantiles(theta, 1.0).tolist() == [-23.0]
    almost = float(cvar_from_quantiles(theta, 1 - 1e-9))
    assert abs(almost + 23.0) > 1.0


@pytest.mark.parametrize(
    ("name", "count", "percent"),
    [
        ("normal", 32, 0.0),
        ("normal", 101, 0.0),
        ("t5", 32, 3.27),
        ("t5", 101, 1.21),
        ("t3", 32, 7.93),
        ("t3", 101, 3.5),
        ("gamma", 32, 2.39),
        ("gamma", 64, 0.95),
        ("gamma", 101, 0.54),
    ],
)
def test_the_error_table_of_exact_quantiles(name: str, count: int, percent: float) -> None:
    """alpha .05: error in percent, on the calm side where tails are heavier than normal; gamma: of shape .3, to the
    left. Rejects the best tail as the worst, and straight lines, whose error is above each of these."""
    laws = {"normal": stats.norm, "t5": stats.t(5), "t3": stats.t(3)}
    quantile = laws[name].ppf if name in laws else lambda p: -stats.gamma(0.3).isf(p)
    truth = integrate.quad(quantile, 0.0, 0.05, limit=500)[0] / 0.05
    theta = torch.tensor(quantile(midpoints(count, dtype=torch.float64).numpy()))
    result = float(cvar_from_quantiles(theta, 0.05))
    assert 100 * (1 - result / truth) == pytest.approx(percent, abs=0.01)
    assert 100 * (1 - straight_lines(theta, 0.05) / truth) > percent + 0.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept_and_gradients_flow(dtype: torch.dtype) -> None:
    theta = torch.randn(4, 40, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    result = cvar_from_quantiles(theta, 0.1)
    assert result.dtype == dtype
    result.sum().backward()
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad.sum(-1), torch.ones(4, dtype=dtype))
    untouched = theta.detach().argsort(-1)[:, 6:]
    assert bool((theta.grad.gather(-1, untouched) == 0).all())


def test_resolution() -> None:
    """alpha < 1/N is an error, < 2/N a warning; both name the N needed. 1/N and 2/N themselves are allowed."""
    with pytest.raises(ConfigError, match=r"alpha = 0\.05 .* 16 quantiles; use at least 20 quantiles \(better 40\)"):
        check_resolution(0.05, 16)
    with pytest.raises(ConfigError, match="at least 20"):
        cvar_from_quantiles(torch.zeros(16), 0.05)
    warning = check_resolution(0.05, 32)
    assert warning is not None
    assert "at least 40 quantiles" in warning
    assert check_resolution(0.05, 20) is not None
    assert check_resolution(0.05, 40) is None
    assert check_resolution(0.05, 64) is None
    for count in range(1, 200):
        check_resolution(1 / count, count)
        assert check_resolution(min(1.0, 2 / count), max(count, 2)) is None
    for alpha in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="tail share alpha"):
            check_resolution(alpha, 64)


def test_atoms_split_the_crossing_one() -> None:
    """Hand: -10 (.03), -2 (.07), 1 (.9), alpha .05: (.03*-10 + .02*-2)/.05 = -6.8. Rejects whole atoms only."""
    values, weights = torch.tensor([1.0, -10.0, -2.0]), torch.tensor([0.9, 0.03, 0.07])
    assert float(cvar_from_atoms(values, weights, 0.05)) == pytest.approx(-6.8)
    assert float(cvar_from_atoms(values, weights, 1.0)) == pytest.approx(0.9 - 0.3 - 0.14)
    # Weights need not be normalised, and fixed atoms serve many rows.
    rows = torch.stack([100 * weights, weights.flip(0)])
    # The second row: flip(0) gives 1: .07, -10: .03, -2: .9.
    assert cvar_from_atoms(values, rows, 0.05).tolist() == pytest.approx([-6.8, (0.03 * -10 + 0.02 * -2) / 0.05])


def test_equal_weights_and_an_infinite_best_value() -> None:
    """20 values, alpha .05: exactly the lowest. Rejects 0 * inf in the sum, and rounding of .05 * 20."""
    values = torch.arange(20.0).flip(0)
    assert float(cvar_from_atoms(values, None, 0.05)) == pytest.approx(0.0, abs=1e-9)
    assert float(cvar_from_atoms(values, None, 0.10)) == pytest.approx(0.5)
    values[0] = math.inf
    assert float(cvar_from_atoms(values, None, 0.10)) == pytest.approx(0.5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 60), alpha=st.floats(0.001, 1.0))
def test_the_mean_utility_is_the_cvar(seed: int, count: int, alpha: float) -> None:
    """E[u] = CVaR with zeta = VaR, and no other zeta gives more (Rockafellar & Uryasev). Rejects the upper tail."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cvar, (zeta, _) = float(cvar_from_atoms(values, None, alpha)), pooled_tail(values, alpha)
    assert mean_utility(values, zeta, alpha) == pytest.approx(cvar, abs=1e-9)
    assert mean_utility(values, zeta + 0.3, alpha) <= cvar + 1e-9
    assert mean_utility(values, zeta - 0.3, alpha) <= cvar + 1e-9
    assert cvar <= float(values.mean()) + 1e-9


def test_the_mean_utility_by_hand() -> None:
    """zeta -1, alpha 1/2: u = -1 - max(-1 - y, 0) / .5 is -5, -1, -1."""
    assert mean_utility(torch.tensor([-3.0, -1.0, 5.0]), -1.0, 0.5) == pytest.approx(-7 / 3)


def test_pooled_particles_reach_the_tail_that_quantiles_miss() -> None:
    """100,000 particles of Student t(3): within 3% where 32 exact quantiles are off by 11.9%."""
    law = stats.t(3)
    truth = integrate.quad(lambda x: x * law.pdf(x), -math.inf, law.ppf(0.05))[0] / 0.05
    particles = torch.tensor(law.ppf(midpoints(100_000, dtype=torch.float64).numpy())).float()
    assert float(cvar_from_atoms(particles, None, 0.05)) == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 0.25, 0.75])
def test_wang_of_a_normal_law_is_minus_eta(eta: float) -> None:
    """Golden: N(0, 1) -> -eta. Rejects the opposite sign (eta > 0 must be averse)."""
    theta = torch.tensor(stats.norm.ppf(midpoints(4000, dtype=torch.float64).numpy()))
    shuffled = theta[torch.randperm(4000, generator=torch.Generator().manual_seed(0))]
    assert float(wang_from_quantiles(shuffled, eta)) == pytest.approx(-eta, abs=2e-3)


def test_wang_weights_sum_to_one() -> None:
    assert wang_from_quantiles(torch.full((2, 7), 3.5), 0.6).tolist() == pytest.approx([3.5, 3.5])
    with pytest.raises(ConfigError, match="eta is nan"):
        wang_from_quantiles(torch.zeros(3), math.nan)


def test_bad_atoms_are_a_sentence() -> None:
    with pytest.raises(DataError, match="no values"):
        cvar_from_atoms(torch.zeros(0), None, 0.05)
    with pytest.raises(DataError, match="smallest is -1"):
        cvar_from_atoms(torch.zeros(2), torch.tensor([-1.0, 2.0]), 0.05)
    with pytest.raises(DataError, match="positive sum"):
        cvar_from_atoms(torch.zeros(2), torch.zeros(2), 0.05)
    with pytest.raises(ConfigError, match="tail share alpha"):
        mean_utility(torch.zeros(1), 0.0, 0.0)


@pytest.mark.parametrize(
    "kind", ["rows of strata", "ties", "sorted", "low at an odd end", "tail where no sample looks"]
)
def test_the_tail_of_many_particles_is_exact_whatever_a_sample_of_them_shows(kind: str) -> None:
    """Against a full sort. Rejects the tail of the sample itself, trusting its bound where it is too low, and losing
    numbers that do not fill a block."""
    g = np.random.default_rng(0)
    values = g.normal(size=(2000, 64)).astype(np.float32)
    if kind == "rows of strata":
        values = np.sort(values, axis=1)
    flat = values.reshape(-1)
    if kind == "ties":
        flat = np.round(flat)
    elif kind == "sorted":
        flat = np.sort(flat)
    elif kind == "low at an odd end":
        flat = flat[:-3]
        flat[-5:] = -9.0
    elif kind == "tail where no sample looks":
        flat = np.full(len(flat), 5.0, dtype=np.float32)
        flat[:: len(flat) // 8192 | 1] = -1.0  # all that a sample sees, and fewer than the tail has
    alpha = 0.09
    worst = math.ceil(alpha * len(flat))
    lowest = np.sort(flat)[:worst].astype(np.float64)
    var, cvar = pooled_tail(torch.from_numpy(flat), alpha)
    assert var == lowest[-1]
    expected = (lowest.sum() - (worst - alpha * len(flat)) * lowest[-1]) / (alpha * len(flat))
    assert cvar == pytest.approx(expected, rel=1e-6)
    if kind == "tail where no sample looks":
        assert np.sort(flat[:: len(flat) // 8192 | 1])[-1] < var  # the bound of a sample would miss it

"""SR(lambda) particles and the inverse CDFs that they are drawn with."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tailwise.core.errors import ShapeError
from tailwise.learner.critic_losses import midpoints
from tailwise.learner.returns import (
    ascending,
    average_law,
    gae,
    inverse_cdf_atoms,
    inverse_cdf_quantiles,
    lambda_return,
    next_values,
    sr_lambda,
    stratified_levels,
)
from tailwise.learner.risk import cvar_from_quantiles


def flags(steps: int, environments: int, *where: tuple[int, int]) -> Tensor:
    result = torch.zeros(steps, environments, dtype=torch.bool)
    for step, environment in where:
        result[step, environment] = True
    return result


def sr_lambda_that_mixes_at_truncation(
    reward: Tensor,
    z: Tensor,
    z_final: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    u: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """WRONG: b is obeyed at a truncation, so a particle walks on into the next episode."""
    result = torch.empty_like(z_final)
    carry = z[-1]
    for t in range(reward.shape[0] - 1, -1, -1):
        following = torch.where(truncated[t, :, None], z_final[t], z[t + 1])
        following = torch.where(u[t] < lam, carry, following)
        following = torch.where(terminated[t, :, None], torch.zeros_like(following), following)
        carry = reward[t, :, None] + gamma * following
        result[t] = carry
    return result


def test_terminated_wins_over_truncated() -> None:
    """Both flags in one step: the MDP ended and nothing follows. Rejects a bootstrap from the final observation."""
    reward, z, z_final = torch.tensor([[1.5]]), torch.full((2, 1, 3), 7.0), torch.full((1, 1, 3), 9.0)
    both = flags(1, 1, (0, 0))
    particles = sr_lambda(reward, z, z_final, both, both, torch.full((1, 1, 3), 0.5), gamma=0.9, lam=0.95)
    assert particles.tolist() == [[[1.5, 1.5, 1.5]]]


def test_hand_computed_particles() -> None:
    """Rejects an inverted coin (u > lam follows the bootstrap) and an off-by-one in z."""
    reward = torch.tensor([[1.0], [2.0]])
    z = torch.tensor([[[99.0, 99.0]], [[10.0, 20.0]], [[100.0, 200.0]]])
    uniform = torch.tensor([[[0.1, 0.9]], [[0.9, 0.1]]])
    no = flags(2, 1)
    result = sr_lambda(reward, z, z[1:] * math.nan, no, no, uniform, gamma=0.5, lam=0.5)
    # Y[1] = 2 + .5*(100, 200) = (52, 102) whatever b. Y[0] = 1 + .5*(Y[1] = 52, bootstrap 20) = (27, 11).
    assert result[:, 0].tolist() == [[27.0, 11.0], [52.0, 102.0]]
    # Terminated at 0: the reward alone; truncated at 0: 1 + .5*z_final.
    assert sr_lambda(reward, z, z[1:], flags(2, 1, (0, 0)), no, uniform, gamma=0.5, lam=0.5)[0, 0].tolist() == [1, 1]
    final = torch.full((2, 1, 2), 7.0)
    assert sr_lambda(reward, z, final, no, flags(2, 1, (0, 0)), uniform, gamma=0.5, lam=0.5)[0, 0].tolist() == [
        4.5,
        4.5,
    ]


def enumerate_coins(steps: int, lam: float) -> tuple[Tensor, Tensor]:
    """All 2^T coin sequences as uniforms [T, 1, 2^T], and the probability of each [2^T]."""
    patterns = torch.tensor(list(itertools.product([True, False], repeat=steps)))
    uniforms = torch.where(patterns, lam / 2, (1 + lam) / 2).T.unsqueeze(1)
    heads = patterns.sum(1).double()
    return uniforms, (lam**heads) * (1 - lam) ** (steps - heads)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), lam=st.sampled_from([0.3, 0.8, 0.95]), end=st.integers(-1, 6), kind=st.booleans())
def test_the_expected_particle_is_the_scalar_lambda_return(seed: int, lam: float, end: int, kind: bool) -> None:
    """E[Y] - V equals GAE with gl = cl, exactly, by enumerating every coin. Rejects the inverted coin."""
    steps, gamma = 7, 0.97
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(steps, 1, generator=generator, dtype=torch.float64)
    value = torch.randn(steps + 1, 1, generator=generator, dtype=torch.float64)
    final = torch.randn(steps, 1, generator=generator, dtype=torch.float64)
    boundary = flags(steps, 1, *([(end, 0)] if end >= 0 else []))
    terminated, truncated = (boundary, flags(steps, 1)) if kind else (flags(steps, 1), boundary)
    uniforms, weight = enumerate_coins(steps, lam)
    count = weight.shape[0]
    z, z_final = value[..., None].expand(-1, -1, count), final[..., None].expand(-1, -1, count)

    def expected_advantage(coins: Tensor) -> Tensor:
        particles = sr_lambda(reward, z, z_final, terminated, truncated, coins, gamma=gamma, lam=lam)
        return (particles * weight).sum(-1) - value[:-1]

    following = next_values(value, final, terminated, truncated)
    advantage = gae(reward, value[:-1], following, terminated, truncated, gamma=gamma, lam=lam)
    torch.testing.assert_close(expected_advantage(uniforms), advantage, rtol=0, atol=1e-9)
    if end == -1:
        assert not torch.allclose(expected_advantage(1 - uniforms), advantage, rtol=0, atol=1e-3)


def test_the_mean_of_sampled_particles_approaches_the_gae() -> None:
    """The same with 20,000 sampled coins and particles that differ: within four standard errors."""
    steps, draws, gamma, lam = 12, 20_000, 0.99, 0.9
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(steps, 1, generator=generator, dtype=torch.float64)
    z = torch.randn(steps + 1, 1, draws, generator=generator, dtype=torch.float64)
    no = flags(steps, 1)
    uniforms = torch.rand(steps, 1, draws, generator=generator)
    particles = sr_lambda(reward, z, z[1:], no, no, uniforms, gamma=gamma, lam=lam)
    value = z.mean(-1)
    advantage = gae(reward, value[:-1], value[1:], no, no, gamma=gamma, lam=lam)
    error = (particles.mean(-1) - value[:-1] - advantage).abs()
    assert bool((error <= 4 * particles.std(-1) / math.sqrt(draws)).all())


def test_the_next_episode_leaves_this_one_bit_identical() -> None:
    """Rejects a coin that is obeyed at a truncation (included, and seen to fail)."""
    steps, environments, count = 10, 2, 8
    generator = torch.Generator().manual_seed(1)
    reward = torch.randn(steps, environments, generator=generator)
    z = torch.randn(steps + 1, environments, count, generator=generator)
    z_final = torch.randn(steps, environments, count, generator=generator)
    uniform = torch.rand(steps, environments, count, generator=generator)
    terminated, truncated = flags(steps, environments, (4, 0)), flags(steps, environments, (4, 1))
    other_reward, other_z = reward.clone(), z.clone()
    other_reward[5:] += 100.0
    other_z[5:] = math.nan
    before = sr_lambda(reward, z, z_final, terminated, truncated, uniform, gamma=0.99, lam=0.9)[:5]
    after = sr_lambda(other_reward, other_z, z_final, terminated, truncated, uniform, gamma=0.99, lam=0.9)[:5]
    assert torch.equal(before, after)
    arguments = (z_final, terminated, truncated, uniform, 0.99, 0.9)
    wrong_before = sr_lambda_that_mixes_at_truncation(reward, z, *arguments)[:5]
    wrong_after = sr_lambda_that_mixes_at_truncation(other_reward, other_z, *arguments)[:5]
    assert not torch.equal(wrong_before, wrong_after)


def test_an_invalid_row_is_finite_and_reaches_nobody() -> None:
    """Rejects multiplication by a mask: NaN in the reset row would reach the sum over rows."""
    generator = torch.Generator().manual_seed(2)
    reward = torch.randn(6, 1, generator=generator)
    z = torch.randn(7, 1, 4, generator=generator)
    uniform = torch.rand(6, 1, 4, generator=generator)
    valid = ~flags(6, 1, (3, 0))
    arguments = (flags(6, 1), flags(6, 1, (2, 0)), uniform)
    clean = sr_lambda(reward, z, z[1:], *arguments, gamma=0.9, lam=0.9, valid=valid)
    assert torch.equal(clean[3], z[3])
    dirty_reward, dirty_z = reward.clone(), z.clone()
    dirty_reward[3] = math.nan
    dirty_z[3, 0, 0] = math.nan
    dirty = sr_lambda(dirty_reward, dirty_z, z[1:], *arguments, gamma=0.9, lam=0.9, valid=valid)
    assert torch.equal(clean[valid], dirty[valid])
    assert bool(torch.isfinite(dirty).all())
    assert dirty[3, 0].tolist() == [0.0, *z[3, 0, 1:].tolist()]


def test_stratified_levels_put_one_level_in_each_stratum() -> None:
    """Rejects plain uniforms, which leave strata empty."""
    uniform = torch.rand(50, 3, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    levels = stratified_levels(uniform)
    assert torch.equal((levels * 16).floor().long(), torch.arange(16).expand(50, 3, 16))
    assert not torch.equal((uniform * 16).floor().long(), torch.arange(16).expand(50, 3, 16))
    assert stratified_levels(torch.full((2,), 0.5)).tolist() == [0.25, 0.75]


def test_the_quantile_function_is_exact_for_normal_laws() -> None:
    """From 8 quantiles, at every level, far into both tails. Rejects straight lines in the level, with extended ends or
    constant ones (numpy.interp): both trim the tails, which every bootstrap repeats."""
    centres = torch.special.ndtri(midpoints(8, dtype=torch.float64))
    levels = torch.tensor([1e-6, 1e-3, 0.01, 0.0625, 0.2, 0.5, 0.77, 0.999, 1 - 1e-6], dtype=torch.float64)
    exact = 3.0 + 2.0 * torch.special.ndtri(levels)
    torch.testing.assert_close(inverse_cdf_quantiles(3.0 + 2.0 * centres, levels), exact, rtol=0, atol=1e-12)
    position = levels * 8 - 0.5
    left = position.floor().clamp(0, 6).long()
    straight = centres[left] + (position - left) * (centres[left + 1] - centres[left])
    assert float((3.0 + 2.0 * straight - exact)[0]) > 2.0
    constant = torch.from_numpy(np.interp(levels.numpy(), midpoints(8, dtype=torch.float64).numpy(), centres.numpy()))
    assert float((3.0 + 2.0 * constant - exact)[0]) > 2.0


def test_the_quantile_function_by_hand() -> None:
    """theta = 0, 1, 3 at 1/6, 1/2, 5/6: through the centres, increasing, finite at both ends, a point for N = 1.

    Rejects a pair of centres chosen by the share of the level, which extends the upper pair down to 0.4.
    """
    theta = torch.tensor([0.0, 1.0, 3.0])
    found = inverse_cdf_quantiles(theta, torch.tensor([0.0, 1 / 6, 0.25, 1 / 2, 0.75, 5 / 6, 1.0]))
    torch.testing.assert_close(found[[1, 3, 5]], theta)
    # 1/4 lies at the normal score -.6745 between -.9674 and 0: 1 - .6745 / .9674 of the way from 0 to 1.
    torch.testing.assert_close(found[2], torch.tensor(1 - 0.67449 / 0.96742), rtol=1e-4, atol=0)
    # 0.4 is in the second third, but between the first two centres: at the normal score -.2533.
    between = inverse_cdf_quantiles(theta, torch.tensor([0.4]))
    torch.testing.assert_close(between, torch.tensor([1 - 0.25335 / 0.96742]), rtol=1e-4, atol=0)
    assert bool((found.diff() > 0).all()) and bool(torch.isfinite(found).all())
    assert inverse_cdf_quantiles(torch.tensor([[5.0]]), torch.tensor([[0.1, 0.9]])).tolist() == [[5.0, 5.0]]
    flat = torch.full((4,), 2.5)
    assert inverse_cdf_quantiles(flat, torch.tensor([0.0, 0.3, 1.0])).tolist() == [2.5, 2.5, 2.5]


def test_levels_of_one_row_serve_all_steps() -> None:
    theta = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)).sort(-1).values
    levels = stratified_levels(torch.rand(1, 2, 5, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(inverse_cdf_quantiles(theta, levels), inverse_cdf_quantiles(theta, levels.expand(3, 2, 5)))
    with pytest.raises(ShapeError, match="levels has shape"):
        inverse_cdf_quantiles(theta, torch.rand(4, 2, 5))


def test_the_atoms_inverse_cdf_steps_and_never_reaches_an_atom_without_mass() -> None:
    """Rejects an index that follows rounding of the cumulative sum to the (empty) last atom."""
    atoms = torch.tensor([-1.0, 0.0, 1.0, 9.0])
    probs = torch.tensor([[0.25, 0.5, 0.25, 0.0]])
    levels = torch.tensor([[0.01, 0.25, 0.26, 0.75, 0.76, 1.0]])
    assert inverse_cdf_atoms(atoms, probs, levels).tolist() == [[-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]]
    short = torch.tensor([[0.1, 0.2, 0.699999, 0.0]])  # sums to .999999
    top = torch.tensor([[0.9999999]])
    assert inverse_cdf_atoms(atoms, short, top).tolist() == [[1.0]]
    assert atoms[torch.searchsorted(short.cumsum(-1), top).clamp(max=3)].tolist() == [[9.0]]  # the wrong one


def test_the_atoms_inverse_cdf_keeps_the_law() -> None:
    """Stratified particles reproduce the probabilities: rejects sorting or weighting by the index."""
    generator = torch.Generator().manual_seed(4)
    atoms = torch.linspace(-2, 2, 9, dtype=torch.float64)
    probs = torch.softmax(torch.randn(3, 9, generator=generator, dtype=torch.float64), -1)
    levels = stratified_levels(torch.rand(3, 5000, generator=generator, dtype=torch.float64))
    drawn = inverse_cdf_atoms(atoms, probs, levels)
    share = (drawn[..., None] == atoms).double().mean(1)
    torch.testing.assert_close(share, probs, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("scalar_target", "accepted"), [(False, True), (True, False)])
def test_the_fixed_point_has_the_tail_of_the_return(scalar_target: bool, accepted: bool) -> None:
    """One state, i.i.d. normal rewards, gamma .99, lambda .99, N = 64, the return has std 1: 5% CVaR -2.063 within 5%.

    Theta is set to the empirical quantiles of the targets until it stands still (kappa -> 0). Rejects the scalar
    lambda-return as target of all quantiles.
    """
    gamma, lam, quantiles, steps, kept, environments = 0.99, 0.99, 64, 600, 300, 512
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(quantiles, dtype=torch.float64)
    tau = midpoints(quantiles, dtype=torch.float64)
    no = flags(steps, environments)
    late: list[Tensor] = []
    for iteration in range(16):
        reward = torch.randn(steps, environments, generator=generator, dtype=torch.float64) * math.sqrt(1 - gamma**2)
        if scalar_target:
            value = theta.mean().expand(steps, environments)
            target = lambda_return(gae(reward, value, value, no, no, gamma=gamma, lam=lam), value)
        else:
            levels = torch.rand(steps + 1, environments, 1, generator=generator, dtype=torch.float64)
            z = inverse_cdf_quantiles(theta.expand(steps + 1, environments, quantiles), levels)
            coins = torch.rand(steps, environments, 1, generator=generator)
            target = sr_lambda(reward, z, z[1:], no, no, coins, gamma=gamma, lam=lam)
        theta = torch.quantile(target[:kept].flatten(), tau)
        if iteration >= 8:
            late.append(theta)
    cvar = float(cvar_from_quantiles(torch.stack(late).mean(0), 0.05))
    assert (abs(cvar / -2.0627 - 1) <= 0.05) == accepted, cvar


@pytest.mark.parametrize("at", [(0, 0, 0), (1, 1, 1), (2, 0, 2)])
@pytest.mark.parametrize("value", [-9.0, 9.0, math.nan, math.inf])
def test_laws_are_put_in_order_wherever_they_are_not(at: tuple[int, int, int], value: float) -> None:
    """Each law begins below the end of the one before. Rejects order across laws, and none at their ends."""
    laws = np.arange(18, dtype=np.float32).reshape(3, 2, 3)[::-1].copy()
    assert ascending(laws) is laws
    laws[at] = value
    np.testing.assert_array_equal(ascending(laws), np.sort(laws, axis=-1))
    np.testing.assert_array_equal(average_law(torch.from_numpy(laws)).numpy(), np.sort(laws, axis=-1).mean(1))

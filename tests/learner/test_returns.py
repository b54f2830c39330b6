"""GAE, lambda-returns and the values that follow a step."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.learner.returns import gae, lambda_return, next_values


def random_rollout(seed: int, steps: int, environments: int) -> dict[str, Tensor]:
    """reward, value, next_value in float64 with about one boundary in four steps."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(steps, environments, generator=generator, dtype=torch.float64)

    def flags() -> Tensor:
        return torch.rand(steps, environments, generator=generator) < 0.15

    value = torch.randn(steps + 1, environments, generator=generator, dtype=torch.float64)
    terminated, truncated = flags(), flags()
    return {
        "reward": normal(),
        "value": value[:-1],
        "next_value": next_values(value, normal(), terminated, truncated),
        "terminated": terminated,
        "truncated": truncated,
    }


def gae_as_mixture_of_n_step_returns(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, lam: float
) -> Tensor:
    """The definition: (1-lam) sum lam^(n-1) A^(n), the rest of the weight on the longest. O(T^2), no recursion."""
    steps, environments = reward.shape
    result = torch.zeros_like(reward)
    for t in range(steps):
        for b in range(environments):
            last = next((k for k in range(t, steps) if terminated[k, b] or truncated[k, b]), steps - 1)
            length = last - t + 1
            total = 0.0
            for n in range(1, length + 1):
                end = t + n - 1
                bootstrap = 0.0 if terminated[end, b] else float(next_value[end, b])
                n_step = sum(gamma**k * float(reward[t + k, b]) for k in range(n)) + gamma**n * bootstrap
                weight = (1 - lam) * lam ** (n - 1) if n < length else lam ** (n - 1)
                total += weight * (n_step - float(value[t, b]))
            result[t, b] = total
    return result


def gae_that_carries_across_truncation(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, lam: float
) -> Tensor:
    """WRONG: the classic bug, the carry is cut only where terminated."""
    advantage = torch.zeros_like(reward)
    carry = torch.zeros_like(reward[0])
    alive = (~terminated).to(reward.dtype)
    for t in range(reward.shape[0] - 1, -1, -1):
        carry = reward[t] + gamma * alive[t] * next_value[t] - value[t] + gamma * lam * alive[t] * carry
        advantage[t] = carry
    return advantage


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 12),
    environments=st.integers(1, 3),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    lam=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_gae_equals_the_mixture_of_n_step_returns(
    seed: int, steps: int, environments: int, gamma: float, lam: float
) -> None:
    """Rejects a carry across boundaries, a bootstrap at termination, and an off-by-one in the discount."""
    rollout = random_rollout(seed, steps, environments)
    expected = gae_as_mixture_of_n_step_returns(**rollout, gamma=gamma, lam=lam)
    torch.testing.assert_close(gae(**rollout, gamma=gamma, lam=lam), expected, rtol=0, atol=1e-12)


def test_the_mixture_rejects_the_carry_across_truncation() -> None:
    """The wrong implementation fails the check above as soon as an episode is truncated inside the rollout."""
    rollout = random_rollout(3, 12, 3)
    assert bool(rollout["truncated"][:-1].any())
    expected = gae_as_mixture_of_n_step_returns(**rollout, gamma=0.99, lam=0.95)
    wrong = gae_that_carries_across_truncation(**rollout, gamma=0.99, lam=0.95)
    assert not torch.allclose(wrong, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_the_next_episode_leaves_this_one_bit_identical(end: str) -> None:
    """Rejects the carry across truncation: any reward or value of the next episode would change this one."""
    rollout = random_rollout(0, 10, 2)
    none = torch.zeros(10, 2, dtype=torch.bool)
    rollout["terminated"], rollout["truncated"] = none.clone(), none.clone()
    rollout["terminated"][4] = end != "truncated"
    rollout["truncated"][4] = end != "terminated"
    other = dict(rollout, reward=rollout["reward"].clone(), value=rollout["value"].clone())
    other["reward"][5:] += 1000.0
    other["value"][5:] = math.nan

    before = gae(**rollout, gamma=0.99, lam=0.95)[:5]
    after = gae(**other, gamma=0.99, lam=0.95)[:5]
    assert torch.equal(before, after)
    if end == "truncated":
        wrong_before = gae_that_carries_across_truncation(**rollout, gamma=0.99, lam=0.95)[:5]
        wrong_after = gae_that_carries_across_truncation(**other, gamma=0.99, lam=0.95)[:5]
        assert not torch.equal(wrong_before, wrong_after)


def test_hand_computed_truncation_and_termination() -> None:
    """Rejects merging the flags: with gamma .5, lambda .5 and values 1, 2, 4 the two ends differ by the bootstrap."""
    reward = torch.tensor([[1.0], [1.0], [1.0]])
    value = torch.tensor([[1.0], [2.0], [4.0]])
    no = torch.zeros(3, 1, dtype=torch.bool)
    end = torch.tensor([[False], [True], [False]])
    following = torch.tensor([[2.0], [10.0], [6.0]])
    # Truncated at 1: delta = 1 + .5*2 - 1 = 1, 1 + .5*10 - 2 = 4, 1 + .5*6 - 4 = 0; A = 1 + .25*4 = 2, 4, 0.
    assert gae(reward, value, following, no, end, gamma=0.5, lam=0.5).flatten().tolist() == [2.0, 4.0, 0.0]
    # Terminated at 1: delta[1] = 1 - 2 = -1; A = 1 - .25 = .75, -1, 0. Both flags: the same, terminated wins.
    assert gae(reward, value, following, end, no, gamma=0.5, lam=0.5).flatten().tolist() == [0.75, -1.0, 0.0]
    assert gae(reward, value, following, end, end, gamma=0.5, lam=0.5).flatten().tolist() == [0.75, -1.0, 0.0]


def test_nan_in_rows_that_must_not_matter_does_not_leak() -> None:
    """Rejects `next_value * (1 - terminated)` and `advantage * valid`: 0 * NaN is NaN."""
    rollout = random_rollout(1, 8, 2)
    none = torch.zeros(8, 2, dtype=torch.bool)
    rollout["terminated"], rollout["truncated"] = none.clone(), none.clone()
    rollout["terminated"][3, 0] = True
    rollout["truncated"][3, 1] = True
    valid = ~none
    valid[4] = False
    clean = gae(**rollout, gamma=0.9, lam=0.8, valid=valid)
    for key in ("reward", "value", "next_value"):
        rollout[key] = rollout[key].clone()
        rollout[key][4] = math.nan
    rollout["next_value"][3, 0] = math.nan
    dirty = gae(**rollout, gamma=0.9, lam=0.8, valid=valid)
    assert torch.equal(clean, dirty)
    assert dirty[4].tolist() == [0.0, 0.0]
    multiplied = rollout["next_value"] * (~rollout["terminated"])
    assert bool(torch.isnan(multiplied[3, 0]))


def test_next_values_reads_the_final_observation_only_where_truncated() -> None:
    """Rejects value[t+1] at a boundary: with SAME_STEP autoreset it belongs to the next episode."""
    value = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    final = torch.tensor([[math.nan], [20.0], [30.0]])
    terminated = torch.tensor([[False], [False], [True]])
    truncated = torch.tensor([[False], [True], [True]])
    assert next_values(value, final, terminated, truncated).flatten().tolist() == [2.0, 20.0, 0.0]
    # The same for particles, with a trailing dimension.
    stacked = torch.stack([value, -value], dim=-1)
    result = next_values(stacked, torch.stack([final, -final], dim=-1), terminated, truncated)
    assert result[:, 0].tolist() == [[2.0, -2.0], [20.0, -20.0], [0.0, 0.0]]


def test_constant_reward_with_truncation_only_is_worth_one_over_one_minus_gamma() -> None:
    """Rejects truncation treated as termination, whose fixed point lies far below."""
    gamma, steps = 0.9, 10
    reward = torch.ones(steps, 1, dtype=torch.float64)
    no = torch.zeros(steps, 1, dtype=torch.bool)
    end = no.clone()
    end[4] = end[9] = True

    def fixed_point(terminated: Tensor, truncated: Tensor) -> float:
        estimate = torch.zeros((), dtype=torch.float64)
        for _ in range(200):
            value = estimate.expand(steps, 1)
            advantage = gae(reward, value, value, terminated, truncated, gamma=gamma, lam=0.95)
            estimate = lambda_return(advantage, value).mean()
        return float(estimate)

    assert fixed_point(no, end) == pytest.approx(1 / (1 - gamma), abs=1e-6)
    assert fixed_point(end, no) < 4.0


def test_the_scalar_lambda_return_is_too_calm_by_the_published_factor() -> None:
    """Golden: std ratio .415 at gamma .99, lambda .95, and a 5% CVaR of -6.07 where the truth is -14.62.

    An impulse of reward at each time gives the weights of the linear map from i.i.d. rewards to the return at step 0,
    so the standard deviations are exact. Rejects quantiles regressed on the scalar lambda-return as "the" law.
    """
    steps, gamma, lam = 1500, 0.99, 0.95
    impulses = torch.eye(steps, dtype=torch.float64)
    zero = torch.zeros_like(impulses)
    no = zero.bool()

    def std_of_return_at_start(critic_lambda: float) -> float:
        weights = lambda_return(gae(impulses, zero, zero, no, no, gamma=gamma, lam=critic_lambda), zero)[0]
        return float(weights.square().sum().sqrt())

    mixed, true = std_of_return_at_start(lam), std_of_return_at_start(1.0)
    assert mixed / true == pytest.approx(math.sqrt((1 - gamma**2) / (1 - gamma**2 * lam**2)), abs=1e-6)
    assert mixed / true == pytest.approx(0.415, abs=5e-4)
    cvar_of_normal = -2.0627128
    assert cvar_of_normal * true == pytest.approx(-14.62, abs=5e-3)
    assert cvar_of_normal * mixed == pytest.approx(-6.07, abs=5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_the_inputs_is_kept(dtype: torch.dtype) -> None:
    rollout = random_rollout(5, 6, 2)
    exact = gae(**rollout, gamma=0.99, lam=0.95)
    typed = {key: tensor if tensor.dtype == torch.bool else tensor.to(dtype) for key, tensor in rollout.items()}
    result = gae(**typed, gamma=0.99, lam=0.95)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=1e-5)


def test_bad_input_is_a_sentence() -> None:
    rollout = random_rollout(5, 6, 2)
    with pytest.raises(ShapeError, match=r"value has shape \(6, 2, 1\), expected \(6, 2\)"):
        gae(**dict(rollout, value=rollout["value"].unsqueeze(-1)), gamma=0.9, lam=0.9)
    with pytest.raises(ShapeError, match=r"truncated has dtype torch\.float64"):
        gae(**dict(rollout, truncated=rollout["reward"]), gamma=0.9, lam=0.9)
    with pytest.raises(ConfigError, match=r"gamma is 1\.01"):
        gae(**rollout, gamma=1.01, lam=0.9)
    with pytest.raises(ConfigError, match="lambda is nan"):
        gae(**rollout, gamma=0.9, lam=math.nan)

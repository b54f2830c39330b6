"""Credit of an action in the pooled tail: lags, weights, and its sign where the answer is known in closed form.

The reward is w (mu + sigma e), so every return is w times what it is at w = 1, and the derivative of a measure that
scales with the returns is the measure itself divided by w: the truth of every case here, whatever ends the episodes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from tailwise.fused.credit import risk_credit as compiled_credit
from tailwise.learner.credit import (
    LARGEST_FACTOR,
    ages,
    credit_inputs,
    history_length,
    lag_grid,
    lag_weights,
    past_after,
    risk_credit,
)
from tailwise.learner.risk import utility_at
from tailwise.learner.risk_config import CvarMeasure, MeanMeasure, Measure, WangMeasure
from tailwise.learner.rollout import Past, Rollout
from tests.learner.calibration_reference import rollout_of as blank_rollout
from tests.support import random_world

# mu, sigma, gamma, alpha: in the first two CVaR rises with the exposure, in the others it falls.
RISING = [(0.05, 0.25, 0.96, 0.25), (0.03, 0.1, 0.96, 0.25)]
FALLING = [(0.02, 0.2, 0.95, 0.05), (0.01, 0.1, 0.97, 0.1)]


def rollout_of(reward: Tensor, *, past: Past | None = None, **flags: Tensor) -> Rollout:
    """A rollout with these rewards [T, B], ends and past; what credit does not read is blank."""
    return dataclasses.replace(blank_rollout(reward, torch.zeros(1, 1), **flags), past=past)


# ------------------------------------------------------------------ lags, ages, weights


@pytest.mark.parametrize("gamma", [0.3, 0.9, 0.96, 0.99])
def test_the_grid_stands_for_every_lag_once(gamma: float) -> None:
    """Rejects strata that overlap or leave a gap: all masses add up to 1 / (1 - gamma)."""
    grid = lag_grid(gamma)
    assert grid.mass.sum() == pytest.approx((1 - gamma**grid.end) / (1 - gamma), rel=1e-12)
    assert grid.lag[0] == 0 and (np.diff(grid.lag) > 0).all()
    assert history_length(gamma) == grid.lag[-1] <= 3 / (1 - gamma) + 1
    if gamma == 0.99:
        assert len(grid.lag) == 43


def test_ages_by_hand() -> None:
    """Column 0 goes on from age 5 and restarts at step 2; column 1 opens an episode; column 2 has a row that only
    resets at step 1. Rejects ages that count that row, and a carried age after a start."""
    start = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    valid = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=torch.bool)
    past = Past(torch.zeros(9, 3), torch.tensor([5, 7, 3]))
    rollout = rollout_of(torch.zeros(4, 3), start=start, valid=valid, past=past)
    assert ages(rollout)[:, 0].tolist() == [5, 6, 0, 1]
    assert ages(rollout)[:, 1].tolist() == [0, 1, 2, 3]
    assert ages(rollout)[[0, 2, 3], 2].tolist() == [3, 0, 1]
    after = past_after(rollout, past)
    assert after.age.tolist() == [2, 4, 2] and after.reward.shape == (9, 3)


def test_past_keeps_the_newest_rewards_in_order() -> None:
    past = Past(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([3]))
    rollout = rollout_of(torch.tensor([[4.0], [5.0]]), past=past)
    after = past_after(rollout, past)
    assert after.reward[:, 0].tolist() == [3.0, 4.0, 5.0] and after.age.tolist() == [5]


def test_a_broken_reward_is_not_carried_into_later_rollouts() -> None:
    """Environment 0 has a NaN in its second of four steps: two steps count since. Rejects a past that hands the NaN on,
    with which every later update would be refused by torch and silently wrong in the kernel."""
    reward = torch.ones(4, 2)
    reward[1, 0] = torch.nan
    past = past_after(rollout_of(reward, past=(before := Past(torch.zeros(6, 2), torch.tensor([9, 9])))), before)
    assert past.age.tolist() == [2, 13] and bool(torch.isfinite(past.reward).all())
    assert past.reward[:, 0].tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]


def test_a_discount_near_one_reads_a_bounded_history() -> None:
    """The rest is completed. Rejects 300,000 lags for gamma .99999."""
    grid = lag_grid(0.99999)
    assert history_length(0.99999) <= 4096 and len(grid.lag) < 70
    assert grid.mass.sum() == pytest.approx((1 - 0.99999**grid.end) / 1e-5, rel=1e-6)


def test_single_decisions_are_credited_through_their_own_return_alone() -> None:
    """Every episode terminates after one step: the only lag is 0, with weight 1. Rejects a W of 1 / (1 - gamma), which
    would make risk a hundredth of the mean, and a completion of lags that no return has."""
    every = torch.ones(6, 4, dtype=torch.bool)
    rollout = rollout_of(torch.zeros(6, 4), terminated=every, start=every)
    weights = lag_weights(rollout, ages(rollout), 0.99)
    assert weights.pair[0] == pytest.approx(1.0) and weights.neutral == 0.0


def test_weights_of_a_time_limit_by_hand() -> None:
    """Episodes of two steps, cut off; gamma 1/2, lags 0 1 2 3 4 5 6. Half of the rows have age 1: lag 1 counts twice.
    Lags from 2 on are in no row and are completed: own part sum 4^-k, the rest of sum 2^-k goes to the mean."""
    start = torch.tensor([[1], [0], [1], [0]], dtype=torch.bool)
    rollout = rollout_of(torch.zeros(4, 1), truncated=~start, start=start)
    weights = lag_weights(rollout, ages(rollout), 0.5)
    own = 4.0**-2 / (1 - 1 / 4)
    neutral = 2.0**-2 / (1 - 1 / 2) - own
    assert weights.pair[0] == pytest.approx((1 + own) / 2)  # W is 2 = 1 / (1 - gamma)
    assert weights.pair[1] == pytest.approx(2 / 2)
    assert weights.neutral == pytest.approx(neutral / 2)


def test_a_few_rows_do_not_carry_a_whole_lag() -> None:
    """One row of 64 has an age of 1: its weight is capped, and the rest of that lag is completed."""
    start = torch.ones(64, 1, dtype=torch.bool)
    start[1] = False
    rollout = rollout_of(torch.zeros(64, 1), truncated=torch.ones(64, 1, dtype=torch.bool), start=start)
    weights = lag_weights(rollout, ages(rollout), 0.5)
    assert weights.pair[1] == pytest.approx(LARGEST_FACTOR / 2)


def test_weights_are_those_of_the_mean_on_average() -> None:
    """With u(y) = y the credit is A_mean times the weight of the row, and these weights have the mean 1."""
    world = random_world(200, 16, end=0.05)
    rollout = rollout_of(world.reward, terminated=world.terminated, truncated=world.truncated, start=world.start)
    near, predicted = torch.full((200, 16, 1), 3.0), torch.ones(200, 16, 1)
    utility = utility_at(MeanMeasure(), near.reshape(-1), 1.0)
    credit = risk_credit(credit_inputs(rollout, near, predicted, utility, 0.9))
    assert float(credit.mean()) == pytest.approx(2.0, rel=1e-6)
    assert float(credit.std()) > 0.1


def test_credit_by_hand() -> None:
    """gamma 1/2, CVaR 50% with threshold 0: u(y) = -2 max(-y, 0). Step 1 of an episode whose first reward was -3.

    At its own return Y = 2 against Z = 0 nothing is below the threshold. The return from step 0 is -3 + Y/2: u is -4
    instead of -6, so the action gained 2 there. Rejects a credit through the own return alone, which is 0.
    """
    start = torch.tensor([[1], [0]], dtype=torch.bool)
    rollout = rollout_of(torch.tensor([[-3.0], [0.0]]), start=start)
    near, predicted = torch.tensor([[[0.0]], [[2.0]]]), torch.zeros(2, 1, 1)
    utility = utility_at(CvarMeasure(), torch.tensor([-1.0, 1.0]), 0.5, threshold=0.0)
    inputs = credit_inputs(rollout, near, predicted, utility, 0.5)
    credit = risk_credit(inputs)
    assert float(credit[1, 0]) == pytest.approx(inputs.weights.pair[1] * 2.0 + inputs.weights.neutral * 1.0 * 2.0)
    assert float(credit[0, 0]) == 0.0


# ------------------------------------------------------------------ the sign and the size


@dataclasses.dataclass(frozen=True)
class Walk:
    """Played exposure w = 1/2: the rollout, true returns Y [T, B, 1] and what w adds to each reward [T, B, 1]."""

    rollout: Rollout
    returns: Tensor
    per_exposure: Tensor


def walk(mu: float, sigma: float, gamma: float, *, limit: int | None = None, death: float = 0.0) -> Walk:
    """limit: episodes are truncated after so many steps; death: chance of a termination after each step."""
    steps, envs, w = 384, 256, 0.5
    beyond = int(8 / (1 - gamma))
    draw = np.random.default_rng(7)
    unit = mu + sigma * draw.standard_normal((steps + beyond, envs))
    dies = draw.random((steps + beyond, envs)) < death
    value, returns = np.zeros(envs), np.zeros((steps + beyond, envs))
    for t in range(len(unit) - 1, -1, -1):
        value = w * unit[t] + gamma * np.where(dies[t], 0.0, value)
        returns[t] = value
    age = draw.integers(limit, size=envs) if limit else np.zeros(envs, dtype=np.int64)
    start, cut = np.zeros((steps, envs), dtype=bool), np.zeros((steps, envs), dtype=bool)
    first = age.copy()
    for t in range(steps):
        start[t] = age == 0
        cut[t] = (age + 1 == limit) & ~dies[t] if limit else False
        age = np.where(dies[t] | cut[t], 0, age + 1)
    history = history_length(gamma)
    # Episodes that run at step 0 have begun before: their rewards are known.
    before = w * (mu + sigma * draw.standard_normal((history, envs)))
    past = Past(torch.from_numpy(before).float(), torch.from_numpy(first))
    flags = [torch.from_numpy(flag) for flag in (dies[:steps], cut, start)]
    rollout = rollout_of(
        torch.from_numpy(w * unit[:steps]), terminated=flags[0], truncated=flags[1], start=flags[2], past=past
    )
    return Walk(rollout, torch.from_numpy(returns[:steps, :, None]), torch.from_numpy(unit[:steps, :, None]))


def credited(case: Walk, measure: Measure, gamma: float, alpha: float, *, own_alone: bool = False) -> float:
    """Mean credit of a slightly larger exposure in every step, over that of the mean, both per unit of exposure."""
    small = 1e-6
    near = case.returns + small * case.per_exposure
    results = []
    for kind in (measure, MeanMeasure()):
        utility = utility_at(kind, case.returns.reshape(-1), alpha)
        if own_alone:  # the credit through the own return, which was used before
            gained = utility.of(near) - utility.of(case.returns)
            results.append(float(gained.mean()) / small)
        else:
            inputs = credit_inputs(case.rollout, near, case.returns, utility, gamma)
            results.append(float(risk_credit(inputs).mean()) / small)
    return results[0] / results[1]


def truth(case: Walk, measure: Measure, alpha: float) -> float:
    """The measure of the pooled returns over their mean: what the credits' ratio has to be."""
    pooled = case.returns.reshape(-1)
    return utility_at(measure, pooled, alpha).value / float(pooled.mean())


ENDS: dict[str, dict[str, float]] = {
    "no end": {},
    "limit 64": {"limit": 64},
    "limit 128": {"limit": 128},
    "termination": {"death": 0.02},
    "both": {"limit": 64, "death": 0.01},
}


@pytest.mark.parametrize("ends", list(ENDS))
@pytest.mark.parametrize("case", RISING + FALLING, ids=str)
def test_credit_has_the_sign_and_the_size_of_the_derivative(case: tuple[float, float, float, float], ends: str) -> None:
    """CVaR over the mean of the pooled returns; the own return alone is off by .15 to 3.5, and has the wrong sign where
    CVaR rises with exposure."""
    mu, sigma, gamma, alpha = case
    played = walk(mu, sigma, gamma, **ENDS[ends])  # type: ignore[arg-type]
    right = truth(played, CvarMeasure(), alpha)
    got = credited(played, CvarMeasure(), gamma, alpha)
    wrong = credited(played, CvarMeasure(), gamma, alpha, own_alone=True)
    assert abs(got - right) <= 0.05 + 0.05 * abs(right), (got, right, wrong)
    assert abs(wrong - right) > 0.1 + 0.2 * abs(right)
    if ends == "no end":
        assert (right > 0) == (case in RISING) and np.sign(got) == np.sign(right)
        assert wrong < 0


@pytest.mark.parametrize("ends", ["no end", "limit 64", "termination"])
def test_credit_in_wangs_measure(ends: str) -> None:
    """Mean - eta std for a normal law: here positive, and negative by the own return alone."""
    mu, sigma, gamma, _ = RISING[0]
    played, measure = walk(mu, sigma, gamma, **ENDS[ends]), WangMeasure(eta=1.0)  # type: ignore[arg-type]
    right = truth(played, measure, 0.25)
    assert credited(played, measure, gamma, 0.25) == pytest.approx(right, abs=0.05)
    if ends == "no end":
        assert right > 0.2 and credited(played, measure, gamma, 0.25, own_alone=True) < 0


def test_rewards_from_before_the_rollout_count() -> None:
    """The same walk whose rollout forgets what came before: lags of running episodes are then missing."""
    mu, sigma, gamma, alpha = RISING[0]
    played = walk(mu, sigma, gamma, limit=64)
    utility = utility_at(CvarMeasure(), played.returns.reshape(-1), alpha)
    near = played.returns + played.per_exposure
    known = credit_inputs(played.rollout, near, played.returns, utility, gamma)
    forgotten = credit_inputs(dataclasses.replace(played.rollout, past=None), near, played.returns, utility, gamma)
    running = torch.from_numpy(known.age[0] > 0)
    assert bool(running.any())
    difference = (risk_credit(known) - risk_credit(forgotten))[0].abs()
    assert float(difference[running].mean()) > 0.05


# ------------------------------------------------------------------ the compiled twin


@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_equals_the_plain_credit(seed: int) -> None:
    """Random shapes, ends, rows that only reset, pasts and measures, to 1e-5 of the credit's spread."""
    draw = np.random.default_rng(seed)
    steps, envs, particles = (int(n) for n in draw.integers([2, 1, 1], [60, 7, 40]))
    gamma = float(draw.choice([0.2, 0.9, 0.97, 0.99]))
    world = random_world(steps, envs, seed=seed, end=0.1, next_step=bool(seed % 2))
    history = history_length(gamma)
    past = Past(
        torch.from_numpy(draw.standard_normal((history, envs))).float(), torch.from_numpy(draw.integers(0, 400, envs))
    )
    start = world.start.clone()
    start[0] = torch.from_numpy(draw.random(envs) < 0.5)
    rollout = rollout_of(
        world.reward,
        terminated=world.terminated,
        truncated=world.truncated,
        valid=world.valid,
        start=start,
        past=past if seed % 3 else None,
    )
    near, predicted = (torch.from_numpy(draw.standard_normal((steps, envs, particles)) * 3).float() for _ in range(2))
    measure: Measure = (CvarMeasure(), WangMeasure(eta=0.75), MeanMeasure())[seed % 3]
    utility = utility_at(measure, near.reshape(-1), 0.25)
    inputs = credit_inputs(rollout, near, predicted, utility, gamma)
    plain = risk_credit(inputs)
    halves = np.array_split(np.arange(envs), 2)
    compiled = compiled_credit(inputs, run=lambda _, work: [work(half, 0) for half in halves if len(half)])  # type: ignore[func-returns-value, misc]
    spread = max(float(plain.std(correction=0)), 1e-3)
    assert float((plain - compiled).abs().max()) <= 1e-5 * max(spread, float(plain.abs().max()))

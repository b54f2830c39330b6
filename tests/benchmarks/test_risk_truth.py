"""The known optima under a limit on the tail, against simulations of the environments themselves and brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from benchmarks.risk_truth import (
    CLIFF_LIMIT,
    CONTINUING,
    EXPOSURES,
    ONE_STEP,
    RISKY_SHARES,
    CliffModel,
    CliffProblem,
    CliffTruth,
    ExposureProblem,
    LotteryProblem,
    cliff_truth,
    exposure_cvar,
    exposure_optimum,
    lottery_cvar,
    lottery_share,
    road_policy,
    student_sum_tail,
    unit_tail,
)
from benchmarks.toy_risk import Noise, ToyVector
from tailwise.core.errors import ConfigError

Floats = npt.NDArray[np.float64]
ALPHA = 0.05
NOISES: tuple[Noise, ...] = ("normal", "student4")


def worst(values: Floats, alpha: float = ALPHA) -> float:
    """Mean of the worst share alpha of the values."""
    count = round(alpha * values.size)
    return float(np.partition(values.ravel(), count - 1)[:count].mean())


def forward_returns(env: ToyVector, policy: Floats, *, steps: int, gamma: float, seed: int) -> tuple[Floats, Floats]:
    """Discounted forward returns [steps, N] and observations [steps, N] of a table [states, actions]; nothing is
    carried over a termination, and as many steps again are played so that the rest is discounted or ended."""
    generator = np.random.default_rng(seed + 1000)  # not the environment's own draws
    cumulative = policy.cumsum(axis=1)
    obs, _ = env.reset(seed=seed)
    rewards, ends, seen = [], [], []
    for _ in range(2 * steps):
        seen.append(obs)
        action = (generator.random(env.num_envs)[:, None] >= cumulative[obs][:, :-1]).sum(axis=1)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert not truncated.any()
        rewards.append(reward)
        ends.append(terminated)
    total, returns = np.zeros(env.num_envs), []
    for reward, end in zip(rewards[::-1], ends[::-1], strict=True):
        total = reward + gamma * np.where(end, 0.0, total)
        returns.append(total)
    return np.stack(returns[::-1])[:steps], np.stack(seen)[:steps]


def test_unit_tails() -> None:
    """The published constants, by integration of the quantile function. Rejects the t(4) tail that is not scaled."""
    assert unit_tail("normal", 0.95, ALPHA) == unit_tail("normal", 0.0, ALPHA) == pytest.approx(2.0627, abs=1e-4)
    assert unit_tail("student4", 0.0, ALPHA) == pytest.approx(2.2648, abs=1e-4)
    levels = (np.arange(200_000) + 0.5) / 200_000 * ALPHA
    for alpha_tail, noise in ((stats.norm.ppf(levels), "normal"), (stats.t.ppf(levels, 4) / math.sqrt(2), "student4")):
        assert unit_tail(noise, 0.0, ALPHA) == pytest.approx(-alpha_tail.mean(), rel=1e-3)  # type: ignore[arg-type]
    assert unit_tail("student4", 0.0, ALPHA) < 0.75 * -stats.t.ppf(levels, 4).mean()


def test_tail_of_a_discounted_sum_of_student_noise() -> None:
    """From the characteristic function: one draw in the limit of no discount, normal in the limit of many, and a
    simulation between. Rejects one draw's q (2.265) and the normal q (2.063) for the sum at gamma .95."""
    for alpha in (0.01, 0.05, 0.2):
        assert student_sum_tail(1e-9, alpha) == pytest.approx(unit_tail("student4", 0.0, alpha), rel=1e-8)
    assert student_sum_tail(0.99, ALPHA) == pytest.approx(unit_tail("normal", 0.0, ALPHA), rel=0.01)
    q, gamma, generator = student_sum_tail(0.95, ALPHA), 0.95, np.random.default_rng(0)
    total = np.zeros(250_000)
    for _ in range(120):
        total = generator.standard_t(4, total.size) / math.sqrt(2) + gamma * total
    simulated = -worst(total) * math.sqrt(1 - gamma**2)
    assert q == pytest.approx(2.10546, abs=1e-5)
    assert simulated == pytest.approx(q, abs=0.015)  # its standard error is .005
    assert abs(simulated - 2.2648) > 0.1 and abs(simulated - 2.0627) > 0.02


@pytest.mark.parametrize("noise", NOISES)
def test_one_step_exposure_against_the_environment(noise: Noise) -> None:
    """Rejects the other tail (mu + q sigma), and the q of the other noise."""
    problem = replace(ONE_STEP, noise=noise)
    env = problem.make(4000)
    env.reset(seed=0)
    w = 0.5
    simulated = worst(np.stack([env.step(np.full(4000, w))[1] for _ in range(250)]))
    truth = exposure_cvar(problem, w)
    assert simulated == pytest.approx(truth, rel=0.01)
    q, other = unit_tail(noise, 0.0, ALPHA), unit_tail("student4" if noise == "normal" else "normal", 0.0, ALPHA)
    for wrong in (w * (0.1 - other * 0.2), -w * (0.1 + q * 0.2)):
        assert simulated != pytest.approx(wrong, rel=0.05)


@pytest.mark.parametrize("noise", NOISES)
def test_continuing_exposure_against_the_environment(noise: Noise) -> None:
    """Rejects q sigma without 1 / sqrt(1 - g^2), with 1 / (1 - g), and a mean that is not summed."""
    problem, w, gamma, steps = replace(CONTINUING, noise=noise), 0.5, 0.95, 160
    env = problem.make(5000, time_limit=50)
    env.reset(seed=0)
    rewards = [env.step(np.full(5000, w))[1] for _ in range(2 * steps)]
    total, returns = np.zeros(5000), []
    for reward in rewards[::-1]:  # over truncations: they are no ends
        total = reward + gamma * total
        returns.append(total)
    simulated = worst(np.stack(returns[steps:]))
    assert simulated == pytest.approx(exposure_cvar(problem, w), rel=0.02)
    q, mu, sigma = unit_tail(noise, gamma, ALPHA), problem.mu, problem.sigma
    root = math.sqrt(1 - gamma**2)
    for wrong in (mu / 0.05 - q * sigma, (mu - q * sigma) / 0.05, mu - q * sigma / root):
        assert simulated != pytest.approx(w * wrong, rel=0.2)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("form", [ONE_STEP, CONTINUING])
def test_exposure_optima_of_five_limits(form: ExposureProblem, noise: Noise) -> None:
    problem = replace(form, noise=noise)
    limits = [exposure_cvar(problem, w) for w in EXPOSURES]
    assert max(limits) < 0 and limits == sorted(limits, reverse=True)
    assert [exposure_optimum(problem, limit) for limit in limits] == pytest.approx(EXPOSURES)
    assert exposure_optimum(problem, 2 * exposure_cvar(problem, 1.0)) == 1.0
    assert exposure_optimum(problem, 0.0) == 0.0
    with pytest.raises(ConfigError, match=r"limit is 0\.1"):
        exposure_optimum(problem, 0.1)
    with pytest.raises(ConfigError, match="gamma in"):
        replace(problem, gamma=1.0)


def test_lottery_against_the_environment() -> None:
    problem, q = LotteryProblem(), 0.5
    env = problem.make(5000)
    env.reset(seed=0)
    generator = np.random.default_rng(1)
    rewards = np.stack([env.step((generator.random(5000) < q).astype(np.int64))[1] for _ in range(100)])
    assert worst(rewards) == pytest.approx(lottery_cvar(problem, q), rel=0.02)
    risky = (1 - problem.p) * problem.risky_win - problem.p * problem.loss
    assert rewards.mean() == pytest.approx(q * risky + (1 - q) * problem.safe, abs=0.01)
    assert risky > 4 * problem.safe


def test_lottery_shares_of_five_limits_follow_the_formula() -> None:
    """q* = alpha (s - c) / (p (L + s)). Rejects the formula that forgets the safe pay that a loss displaces."""
    problem = LotteryProblem()
    for q in RISKY_SHARES:
        limit = lottery_cvar(problem, q)
        assert lottery_share(problem, limit) == pytest.approx(q)
        assert ALPHA * (0.2 - limit) / (0.045 * 3.2) == pytest.approx(q)
        assert ALPHA * (0.2 - limit) / (0.045 * 3.0) != pytest.approx(q, rel=0.05)
    assert lottery_share(problem, -3.0) == 1.0
    assert lottery_share(problem, 0.2) == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ConfigError, match="cannot be kept"):
        lottery_share(problem, 0.3)


@pytest.mark.parametrize("p", [0.01, 0.045, 0.05, 0.2, 0.7])
@pytest.mark.parametrize("limit", [-2.9, -1.5, -0.4, 0.1])
def test_lottery_share_by_brute_force(p: float, limit: float) -> None:
    """The best of 100,001 shares; also where losses overflow the tail (p > alpha) and wins reach into it (q near 1).
    The tail of one share is checked on 10,000 draws written out."""
    problem = LotteryProblem(p=p)
    shares = np.linspace(0, 1, 100_001)
    masses = np.stack([p * shares, 1 - shares, shares * (1 - p)])
    levels = np.minimum(np.cumsum(masses, axis=0), ALPHA)
    cvar = np.diff(levels, axis=0, prepend=0).T @ np.array([-3.0, 0.2, 1.0]) / ALPHA
    assert lottery_share(problem, limit) == pytest.approx(shares[cvar >= limit].max(), abs=2e-5)
    drawn = np.repeat([-3.0, 0.2, 1.0], [round(10_000 * mass) for mass in masses[:, 50_000]])
    assert lottery_cvar(problem, 0.5) == pytest.approx(worst(drawn), abs=0.01)


@cache
def truth() -> CliffTruth:
    return cliff_truth(CliffProblem(), CLIFF_LIMIT)


@pytest.mark.parametrize(("row", "explore"), [(1, 0.0), (2, 0.0), (3, 0.0), (2, 0.3)])
def test_exact_law_of_a_road_against_the_environment(row: int, explore: float) -> None:
    """Mean from the start and pooled tail. Rejects the tail of the returns from the start alone."""
    problem = CliffProblem()
    policy = road_policy(problem, row, explore=explore)
    value = CliffModel(problem).evaluate(policy)
    returns, seen = forward_returns(
        problem.make(2500, time_limit=1000), policy, steps=140, gamma=problem.gamma, seed=row
    )
    assert worst(returns) == pytest.approx(value.cvar, abs=0.03)
    # Episodes begin at state 0; the walk may come back to it, and is then worth the same.
    assert returns[seen == 0].mean() == pytest.approx(value.mean, abs=0.03)
    if explore == 0.0:
        assert row == 1 or abs(worst(returns[seen == 0]) - value.cvar) > 0.1
        assert value.roads == pytest.approx(np.eye(problem.height)[row])
        assert (value.mean, value.cvar) == (truth().roads[row - 1].mean, truth().roads[row - 1].cvar)


def test_falls_length_and_roads_against_the_environment() -> None:
    problem = CliffProblem(wind=0.1)
    policy = 0.3 * road_policy(problem, 1) + 0.7 * road_policy(problem, 3)
    value = CliffModel(problem).evaluate(policy)
    env, generator = problem.make(4000, time_limit=1000), np.random.default_rng(1)
    obs, _ = env.reset(seed=0)
    waiting, running = np.ones(4000, dtype=bool), np.ones(4000, dtype=bool)
    entered, falls, length = np.zeros(problem.height), 0, 0
    while running.any():
        action = (generator.random(4000)[:, None] >= policy[obs].cumsum(axis=1)[:, :-1]).sum(axis=1)
        obs, _, terminated, _, infos = env.step(action)
        length += int(running.sum())
        place = infos.get("final_obs", obs)
        first = waiting & (place % problem.width == 1)
        entered += np.bincount(place[first] // problem.width, minlength=problem.height)
        falls += int((running & terminated & (place != problem.width - 1)).sum())
        waiting &= ~first
        running &= ~terminated
        waiting &= running
    assert value.roads == pytest.approx(entered / 4000, abs=0.03)
    assert value.falls == pytest.approx(falls / 4000, abs=0.03)
    assert value.length == pytest.approx(length / 4000, rel=0.03)


def test_gradients_of_the_exact_laws() -> None:
    """Against differences. Rejects a pooled gradient that holds the visits fixed."""
    problem = CliffProblem()
    model, generator = CliffModel(problem), np.random.default_rng(0)
    policy = 0.7 * road_policy(problem, 2) + 0.3 * generator.dirichlet(np.ones(4), problem.states)
    u, endless = model.utility(model.evaluate(policy).var)
    x = policy[model.alive]
    assert model.expect(x, u, endless, pooled=True)[0] == pytest.approx(model.evaluate(policy).cvar)
    for values, rest, pooled in ((model.returns, model.endless, False), (u, endless, True)):
        slope = model.expect(x, values, rest, pooled=pooled)[1]
        for _ in range(6):
            change = generator.normal(size=x.shape)
            change -= change.mean(axis=1, keepdims=True)
            up, down = (model.expect(x + h * change, values, rest, pooled=pooled)[0] for h in (1e-6, -1e-6))
            assert (up - down) / 2e-6 == pytest.approx(float((slope * change).sum()), rel=1e-4)


def test_without_a_limit_the_cliff_is_passed_by_the_shortest_road() -> None:
    """By value iteration on the mean, which knows nothing of tails."""
    problem = CliffProblem()
    model = CliffModel(problem)
    pay = model.ending @ np.array([problem.prize, -problem.loss]) - problem.step_cost
    value = np.zeros(len(model.alive))
    for _ in range(400):
        value = (pay + problem.gamma * model.onward @ value).max(axis=1)
    assert truth().free.mean == pytest.approx(value[0], abs=1e-4)
    assert truth().roads[0].mean == pytest.approx(value[0], abs=1e-4)
    assert truth().free.roads[1] == pytest.approx(1.0, abs=1e-3)
    assert truth().free.cvar < CLIFF_LIMIT - 4.0


def test_with_the_limit_another_road_is_best_and_the_lines_tell_the_roads_apart() -> None:
    bound, roads = truth().bound, truth().roads
    assert bound.cvar == pytest.approx(CLIFF_LIMIT, abs=1e-3)
    assert bound.roads == pytest.approx((0.0, 0.157, 0.843, 0.0), abs=0.005)
    assert bound.mean == pytest.approx(3.124, abs=0.002)
    passed = [road.cvar >= 0.9 * CLIFF_LIMIT and road.mean >= 0.9 * bound.mean for road in roads]
    assert passed == [False, True, False]
    assert truth().free.mean > 1.15 * bound.mean


def test_no_mixture_and_no_small_change_beats_the_bound() -> None:
    """Mixtures of two roads, decided at the first fork; and 400 random changes of the optimum in all states."""
    problem = CliffProblem()
    model, best = CliffModel(problem), truth().bound
    for share in np.linspace(0, 1, 41):
        policy = road_policy(problem, 1)
        policy[problem.width :] = road_policy(problem, 2)[problem.width :]
        policy[problem.width + 1 : 2 * problem.width] = road_policy(problem, 1)[problem.width + 1 : 2 * problem.width]
        policy[problem.width] = (1 - share, share, 0, 0)
        policy[0] = (1, 0, 0, 0)
        value = model.evaluate(policy)
        assert value.cvar < CLIFF_LIMIT or value.mean <= best.mean + 1e-4
    generator, feasible = np.random.default_rng(0), 0
    for size in np.geomspace(1e-3, 0.5, 400):
        other = generator.dirichlet(np.full(4, 0.3), problem.states)
        states = generator.random(problem.states) < 0.2
        changed = np.where(states[:, None], (1 - size) * truth().bound_policy + size * other, truth().bound_policy)
        value = model.evaluate(changed)
        if value.cvar >= CLIFF_LIMIT - 1e-6:
            feasible += 1
            assert value.mean <= best.mean + 1e-4
    assert feasible > 20


def test_the_bound_is_a_fixed_point_of_advantages_that_see_their_own_return_only() -> None:
    """The learner credits an action through the return from its own state, not through earlier ones. Here that changes
    nothing: with the multiplier that balances the fork, no action in a visited state has a positive advantage."""
    problem = CliffProblem()
    model = CliffModel(problem)
    x = truth().bound_policy[model.alive]
    onward, ending = np.einsum("sa,sat->st", x, model.onward), np.einsum("sa,sao->so", x, model.ending)

    def advantage(values: Floats, endless: float) -> Floats:
        ahead = np.full(len(x), endless)
        for row in values[:0:-1]:
            ahead = ending @ row + onward @ ahead
        q = model.ending @ values[0] + model.onward @ ahead
        return np.asarray(q - (q * x).sum(axis=1, keepdims=True))

    mean, risk = advantage(model.returns, model.endless), advantage(*model.utility(truth().bound.var))
    fork = 1
    multiplier = (mean[fork, 1] - mean[fork, 0]) / (risk[fork, 0] - risk[fork, 1])
    assert multiplier == pytest.approx(0.108, abs=0.002)
    rows = [i for i, state in enumerate(model.alive) if state < 3 * problem.width]
    assert (mean + multiplier * risk)[rows].max() < 1e-3
    assert mean[rows].max() > 0.1


def test_a_limit_out_of_reach_and_an_endless_walk_get_a_sentence() -> None:
    problem = CliffProblem()
    with pytest.raises(ConfigError, match=r"keeps the limit 5\.0"):
        cliff_truth(problem, 5.0)
    endless = road_policy(problem, 2)
    endless[0] = (0, 0, 0, 1)
    with pytest.raises(ConfigError, match="walks for ever"):
        CliffModel(problem).evaluate(endless)

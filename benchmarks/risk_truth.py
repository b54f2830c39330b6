"""The optima of the problems in `benchmarks.toy_risk` under a limit on the tail, computed without any learning.

All speak of `cvar_return`: the mean of the worst share `alpha` of the discounted forward return Y, pooled over all
states that the policy visits, in units of reward. The lower tail is the bad one, and a limit is kept when that mean is
at least `limit`. Exposure asks how much of a good risk to take, the lottery how often, the cliff by which road.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from benchmarks.toy_risk import CliffVector, ExposureVector, LotteryVector, Noise
from tailwise.core.errors import ConfigError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ExposureProblem:
    """`ExposureVector` and what is asked of it.

    mu, sigma   mean and standard deviation of the reward of one step at w = 1
    noise       law of the unit noise, "normal" or "student4"
    gamma       discount per step of the continuing form; 0 is the one-step form
    alpha       share of the tail, below 1/2
    """

    mu: float
    sigma: float
    noise: Noise = "normal"
    gamma: float = 0.0
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not (self.mu > 0.0 and self.sigma > 0.0 and 0.0 <= self.gamma < 1.0 and 0.0 < self.alpha < 0.5):
            raise ConfigError(f"{self}: needs mu and sigma above 0, gamma in [0, 1) and alpha between 0 and 0.5.")

    def make(self, num_envs: int, *, time_limit: int = 200) -> ExposureVector:
        """The environment; `time_limit` (steps) is that of the continuing form."""
        limit = time_limit if self.gamma > 0.0 else None
        return ExposureVector(num_envs, mu=self.mu, sigma=self.sigma, noise=self.noise, time_limit=limit)


ONE_STEP = ExposureProblem(mu=0.1, sigma=0.2)
CONTINUING = ExposureProblem(mu=0.04, sigma=0.2, gamma=0.95)
EXPOSURES = (0.2, 0.35, 0.5, 0.65, 0.8)  # the five w* whose CVaR the limits are


def exposure_cvar(problem: ExposureProblem, w: float) -> float:
    """CVaR, in reward, of the discounted sum of w (mu + sigma e): w (mu / (1-g) - q sigma / sqrt(1-g^2)).

    For one fixed w in [0, 1]; exploration around it makes the tail heavier.
    """
    q = unit_tail(problem.noise, problem.gamma, problem.alpha)
    return w * (problem.mu / (1.0 - problem.gamma) - q * problem.sigma / math.sqrt(1.0 - problem.gamma**2))


def exposure_optimum(problem: ExposureProblem, limit: float) -> float:
    """The exposure w* in [0, 1] with the highest mean whose CVaR is at least `limit` <= 0 (in reward)."""
    if not limit <= 0.0:
        raise ConfigError(f"exposure_optimum: the limit is {limit}; w = 0 earns exactly 0, so use at most 0.")
    full = exposure_cvar(problem, 1.0)
    return 1.0 if full >= limit else limit / full


def unit_tail(noise: Noise, gamma: float, alpha: float) -> float:
    """q > 0: minus the CVaR of the sum of gamma^k e_k over all k >= 0, divided by the sum's standard deviation.

    gamma = 0 is one draw of the unit noise e. Normal sums are normal: q = phi(z) / alpha. Student t(4) is closed for
    one draw; its discounted sum is no Student law and is computed from its characteristic function, to about 1e-8.
    """
    if noise == "normal":
        return float(stats.norm.pdf(stats.norm.ppf(alpha)) / alpha)
    if gamma == 0.0:
        level = stats.t.ppf(alpha, 4)
        return float(stats.t.pdf(level, 4) * (4.0 + level**2) / 3.0 / alpha / math.sqrt(2.0))
    return student_sum_tail(gamma, alpha)


def student_sum_tail(gamma: float, alpha: float) -> float:
    """`unit_tail` of Student t(4) noise for gamma > 0, by integrals over its characteristic function C.

    F(z) = 1/2 + 1/pi int sin(tz) C(t)/t dt and E max(z - S, 0) = z/2 + 1/pi int (1 - cos(tz) C(t))/t^2 dt over t > 0;
    CVaR = z - E max(z - S, 0) / alpha at F(z) = alpha (Rockafellar & Uryasev 2000).
    """
    end = 40.0  # C(40) < 1e-20
    edges = np.concatenate([[0.0], np.geomspace(1e-6, end, 150)])
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(edges)[:, None] / 2.0
    t, w = (edges[:-1, None] + half * (nodes + 1.0)).ravel(), (half * weights).ravel()
    log_c = _log_characteristic(t, gamma)
    c = np.exp(log_c)

    def excess(z: float) -> float:
        return 0.5 - alpha + float((w * np.sin(t * z) * c / t).sum()) / math.pi

    z = float(optimize.brentq(excess, -20.0, 0.0, xtol=1e-13))
    gap = 2.0 * np.sin(t * z / 2.0) ** 2 * c - np.expm1(log_c)  # 1 - cos(tz) c without loss of digits at small t
    shortfall = z / 2.0 + (float((w * gap / t**2).sum()) + 1.0 / end) / math.pi
    return shortfall / alpha - z


def _log_characteristic(t: Floats, gamma: float) -> Floats:
    """[n] log of E exp(i t S), S the discounted sum of unit Student t(4) noise divided by its standard deviation.

    That of one draw is x^2 K_2(x) / 2 at x = sqrt(2) |t|, about 1 - x^2/4 for small x. Draws whose factor is below 1e-3
    are replaced by normal ones.
    """
    steps = math.ceil(math.log(1e-3) / math.log(gamma))
    x = math.sqrt(2.0) * t[:, None] * math.sqrt(1.0 - gamma**2) * gamma ** np.arange(steps)
    safe = np.maximum(x, 1e-4)
    terms = np.where(x < 1e-4, -(x**2) / 4.0, np.log(safe**2 / 2.0 * special.kve(2, safe)) - safe)
    return np.asarray(terms.sum(axis=1) - gamma ** (2 * steps) * t**2 / 2.0)


@dataclass(frozen=True)
class LotteryProblem:
    """`LotteryVector` (pays in reward, `p` the probability of the loss) and the share `alpha` of the tail.

    The risky arm pays .955 * 1 - .045 * 3 = .82 on average, the safe one .2. p below alpha: the losses fit into the
    tail even when the risky arm is always taken.
    """

    safe: float = 0.2
    risky_win: float = 1.0
    loss: float = 3.0
    p: float = 0.045
    alpha: float = 0.05

    def make(self, num_envs: int) -> LotteryVector:
        return LotteryVector(num_envs, safe=self.safe, risky_win=self.risky_win, loss=self.loss, p=self.p)


RISKY_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # the five q* whose CVaR the limits are


def lottery_cvar(problem: LotteryProblem, q: float) -> float:
    """CVaR, in reward, when the risky arm is taken with probability q: the worst alpha of three atoms."""
    left, total = problem.alpha, 0.0
    masses = (problem.p * q, 1.0 - q, q * (1.0 - problem.p))
    for value, mass in zip((-problem.loss, problem.safe, problem.risky_win), masses, strict=True):
        total += min(left, mass) * value
        left -= min(left, mass)
    return total / problem.alpha


def lottery_share(problem: LotteryProblem, limit: float) -> float:
    """The largest probability q* in [0, 1] of the risky arm whose CVaR is at least `limit` (in reward).

    While the losses fit into the tail (p q <= alpha) and safe pay fills the rest of it (p q + 1 - q >= alpha), CVaR is
    safe - p q (loss + safe) / alpha, hence q* = alpha (safe - limit) / (p (loss + safe)). In general CVaR is linear in
    q between kinks at the two borders, so q* is 1, a kink, or where one piece crosses the limit.
    """
    if limit > problem.safe:
        raise ConfigError(f"lottery_share: the limit {limit} is above the safe pay {problem.safe}: it cannot be kept.")
    p, alpha = problem.p, problem.alpha
    borders = [alpha / p if p > 0.0 else 1.0, (1.0 - alpha) / (1.0 - p) if p < 1.0 else 1.0]
    kinks = sorted({0.0, 1.0, *(border for border in borders if border < 1.0)})
    for low, high in zip(kinks[-2::-1], kinks[:0:-1], strict=True):
        at_low, at_high = lottery_cvar(problem, low), lottery_cvar(problem, high)
        if at_high >= limit:
            return high
        if at_low >= limit:
            return low + (high - low) * (at_low - limit) / (at_low - at_high)
    return 0.0


@dataclass(frozen=True)
class CliffProblem:
    """`CliffVector` (pays in reward, `wind` a probability per step), discount per step, share of the tail."""

    width: int = 6
    height: int = 4
    wind: float = 0.02
    step_cost: float = 0.2
    loss: float = 2.0
    prize: float = 10.0
    gamma: float = 0.9
    alpha: float = 0.05

    def make(self, num_envs: int, *, time_limit: int = 200) -> CliffVector:
        """The environment; `time_limit` in steps."""
        names = ("width", "height", "wind", "step_cost", "loss", "prize")
        return CliffVector(num_envs, **{name: getattr(self, name) for name in names}, time_limit=time_limit)

    @property
    def states(self) -> int:
        return self.width * self.height


CLIFF_LIMIT = 2.0  # kept by road 2 (2.51) and not by road 1 (-2.17)


@dataclass(frozen=True)
class CliffValue:
    """What a policy earns, exactly and without a time limit.

    mean     expected discounted return from the start, in reward
    cvar     CVaR_alpha of the discounted forward return pooled over the visited states, in reward
    var      the quantile of that law at alpha, in reward
    roads    [height] probability that column 1 is first entered in that row (row 0 is the cliff)
    falls    probability that an episode ends in the cliff
    length   expected steps of an episode
    """

    mean: float
    cvar: float
    var: float
    roads: tuple[float, ...]
    falls: float
    length: float


class CliffModel:
    """Transition probabilities of the cliff and the exact laws of its policies.

    The return from a state depends on two things only, the number of steps to the end and where it ends. So its law is
    that of an absorbing Markov chain, P^(k-1) B, and nothing is sampled. A policy is a table [states, 4] of
    probabilities; below, x [n, 4] is its part on the n states that are neither goal nor cliff.
    """

    def __init__(self, problem: CliffProblem) -> None:
        self.problem = problem
        width, height, gamma = problem.width, problem.height, problem.gamma
        self.alive = np.array([0, *range(width, problem.states)])
        place = {int(state): index for index, state in enumerate(self.alive)}
        n = len(place)
        self.onward = np.zeros((n, 4, n))  # probability of the next state, where the walk goes on
        self.ending = np.zeros((n, 4, 2))  # probability of the goal, of the cliff
        for state, index in place.items():
            y, x = divmod(state, width)
            for action, move in enumerate(((1, 0), (0, 1), (-1, 0), (0, -1))):
                for probability, (dy, dx) in ((1.0 - problem.wind, move), (problem.wind, (-1, 0))):
                    after = min(max(y + dy, 0), height - 1) * width + min(max(x + dx, 0), width - 1)
                    if after in place:
                        self.onward[index, action, place[after]] += probability
                    else:
                        self.ending[index, action, 0 if after == width - 1 else 1] += probability
        # Walks that have not ended when the discount is below 1e-6 are worth what walking on for ever is.
        steps = np.arange(1, math.ceil(math.log(1e-6) / math.log(gamma)) + 1)
        fees = -problem.step_cost * (1.0 - gamma**steps) / (1.0 - gamma)
        last = gamma ** (steps - 1)
        self.returns = np.stack([fees + last * problem.prize, fees - last * problem.loss], axis=1)  # [steps, 2]
        self.endless = -problem.step_cost / (1.0 - gamma)

    def evaluate(self, policy: Floats) -> CliffValue:
        """Exact value of a policy [states, 4]."""
        x = policy[self.alive]
        p, b = self._chain(x)
        visits = self._visits(p)
        mean = self.expect(x, self.returns, self.endless, pooled=False)[0]
        masses = self._masses(p, visits / visits.sum())
        weights = np.append((masses[:-1] @ b).ravel(), masses[-1].sum())
        values = np.append(self.returns.ravel(), self.endless)
        order = np.argsort(values)
        values, weights, alpha = values[order], weights[order], self.problem.alpha
        taken = np.clip(alpha - (np.cumsum(weights) - weights), 0.0, weights)  # the atom that crosses alpha is split
        var, cvar = values[np.flatnonzero(taken)[-1]], taken @ values / alpha
        falls, length = float(visits @ b[:, 1]), float(visits.sum())
        return CliffValue(mean, float(cvar), float(var), self._roads(x, p), falls, length)

    def expect(self, x: Floats, values: Floats, endless: float, *, pooled: bool) -> tuple[float, Floats]:
        """E[v] and its gradient [n, 4] in x, over walks from the start, or from all visited states pooled.

        values [steps, 2] is v of ending at step k in the goal or the cliff, `endless` of not ending. With m_k the law
        of the state k steps on and W_k the expected v from there, dE/dP = sum_k m_k W_{k+1}; pooling adds how the
        visits depend on P, by one more linear solve.
        """
        p, b = self._chain(x)
        n, steps = len(p), len(values)
        visits = self._visits(p)
        first = visits / visits.sum() if pooled else np.eye(n)[0]
        masses, ahead = self._masses(p, first)[:-1], np.full((steps + 1, n), endless)
        for k in range(steps - 1, -1, -1):
            ahead[k] = b @ values[k] + p @ ahead[k + 1]
        found = float(first @ ahead[0])
        by_p = masses.T @ ahead[1:]
        if pooled:
            by_p += np.outer(visits, np.linalg.solve(np.eye(n) - p, (ahead[0] - found) / visits.sum()))
        by_b = masses.T @ values
        return found, np.einsum("st,sat->sa", by_p, self.onward) + np.einsum("so,sao->sa", by_b, self.ending)

    def utility(self, zeta: float) -> tuple[Floats, float]:
        """u(y) = zeta - max(zeta - y, 0) / alpha of every return: E[u] <= CVaR for any zeta, equal at zeta = VaR."""
        alpha = self.problem.alpha
        return zeta - np.maximum(zeta - self.returns, 0.0) / alpha, zeta - max(zeta - self.endless, 0.0) / alpha

    def _chain(self, x: Floats) -> tuple[Floats, Floats]:
        """P [n, n] between states that go on, and B [n, 2] to the goal and the cliff."""
        return np.einsum("sa,sat->st", x, self.onward), np.einsum("sa,sao->so", x, self.ending)

    def _masses(self, p: Floats, first: Floats) -> Floats:
        """[steps + 1, n] law of the state k steps on, from the law `first`."""
        masses = np.empty((len(self.returns) + 1, len(p)))
        masses[0] = first
        for k in range(len(self.returns)):
            masses[k + 1] = masses[k] @ p
        return masses

    def _visits(self, p: Floats) -> Floats:
        """[n] expected visits of each state per episode."""
        try:
            return np.linalg.solve((np.eye(len(p)) - p).T, np.eye(len(p))[0])
        except np.linalg.LinAlgError as error:
            raise ConfigError("CliffModel: this policy walks for ever; let it leave the start and column 0.") from error

    def _roads(self, x: Floats, p: Floats) -> tuple[float, ...]:
        """[height] where column 1 is first entered: the chain of column 0 alone, left by moves to the right."""
        edge = np.flatnonzero(self.alive % self.problem.width == 0)
        visits = np.linalg.solve((np.eye(len(edge)) - p[np.ix_(edge, edge)]).T, np.eye(len(edge))[0])
        return tuple((visits * x[edge, 1] * (1.0 - self.problem.wind)).tolist())


def road_policy(problem: CliffProblem, row: int, *, explore: float = 0.0) -> Floats:
    """[states, 4]: climb to `row`, walk right along it (climbing back after a gust), descend above the goal.

    The share `explore` of the probability is spread over all actions.
    """
    policy = np.full((problem.states, 4), explore / 4.0)
    for state in range(problem.states):
        y, x = divmod(state, problem.width)
        action = 2 if x == problem.width - 1 or y > row else 0 if y < row else 1
        policy[state, action] += 1.0 - explore
    return policy


@dataclass(frozen=True)
class CliffTruth:
    """roads: the values of the pure roads in rows 1, 2, ...; the best policies [states, 4] and their values."""

    roads: tuple[CliffValue, ...]
    free: CliffValue
    free_policy: Floats
    bound: CliffValue
    bound_policy: Floats


def cliff_truth(problem: CliffProblem, limit: float, *, explore: float = 0.1) -> CliffTruth:
    """The best policy without a limit and the best one whose pooled CVaR is at least `limit` (in reward).

    Both by sequential quadratic programming on the probabilities of all states, with exact gradients, from every road
    (loosened by `explore`). CVaR is the largest E[u_zeta] over zeta, so a policy with E[u_zeta] >= limit for some zeta
    keeps the limit; each round fixes zeta at the VaR of the policy so far. Such a search is local: the best end wins.
    """
    model = CliffModel(problem)
    rows = range(1, problem.height)
    roads = [model.evaluate(road_policy(problem, row)) for row in rows]
    starts = [road_policy(problem, row, explore=explore) for row in rows]
    free = max((_climb(model, start, None) for start in starts), key=lambda policy: model.evaluate(policy).mean)
    # A road that breaks the limit by far is no start: with zeta at its VaR the limit looks out of reach.
    ends = [_climb(model, start, limit) for start, road in zip(starts, roads, strict=True) if road.cvar >= limit]
    kept = [policy for policy in ends if model.evaluate(policy).cvar >= limit - 1e-4]
    if not kept:
        raise ConfigError(f"cliff_truth: no policy was found that keeps the limit {limit}; use a lower limit.")
    bound = max(kept, key=lambda policy: model.evaluate(policy).mean)
    return CliffTruth(tuple(roads), model.evaluate(free), free, model.evaluate(bound), bound)


def _climb(model: CliffModel, policy: Floats, limit: float | None) -> Floats:
    """A policy [states, 4] of locally highest mean that keeps the limit (None: no limit)."""
    n, tiny = len(model.alive), 1e-9  # tiny: the least probability, so that every walk ends
    sums, bounds = np.kron(np.eye(n), np.ones(4)), [(tiny, 1.0)] * (4 * n)

    def loss(v: Floats) -> tuple[float, Floats]:
        value, slope = model.expect(v.reshape(n, 4), model.returns, model.endless, pooled=False)
        return -value, -slope.ravel()

    mean = -math.inf
    for _ in range(10):
        constraints: list[dict[str, Any]] = [{"type": "eq", "fun": lambda v: sums @ v - 1.0, "jac": lambda v: sums}]
        if limit is not None:
            constraints.append(_tail_at_least(model, limit, zeta=model.evaluate(policy).var))
        found = optimize.minimize(
            loss, policy[model.alive].ravel(), jac=True, method="SLSQP", bounds=bounds, constraints=constraints
        )
        x = np.clip(found.x.reshape(n, 4), tiny, 1.0)
        policy = policy.copy()
        policy[model.alive] = x / x.sum(axis=1, keepdims=True)
        before, mean = mean, model.evaluate(policy).mean
        if abs(mean - before) < 1e-6:
            break
    return policy


def _tail_at_least(model: CliffModel, limit: float, *, zeta: float) -> dict[str, Any]:
    """E[u_zeta] - limit >= 0 as scipy's optimiser takes it."""
    u, endless = model.utility(zeta)

    def tail(v: Floats) -> tuple[float, Floats]:
        return model.expect(v.reshape(-1, 4), u, endless, pooled=True)

    return {"type": "ineq", "fun": lambda v: tail(v)[0] - limit, "jac": lambda v: tail(v)[1].ravel()}

"""Small environments with a known optimum, for tests and proofs; registered with Gymnasium as `tailwise/...-v0`.

Each one isolates one ability: masks, memory with masks, several action components, Dict observations, the law of the
return, and the difference between the mean and the tail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tailwise.core.errors import ConfigError

Floats = npt.NDArray[np.float64]


class MaskedBandit(gym.Env[Any, Any]):
    """Contextual bandit in which some actions are forbidden at each pull; 10 pulls per episode, then truncation.

    The context c is one of 3, the actions are 5; action k pays 1 - ((k - c) mod 5) / 4, that is 1, .75, .5, .25 or 0.
    Each action is allowed with probability 1/2, independently, and draws that allow none are repeated. A forbidden
    action pays -1 and sets info["invalid_action"]. Optimum: the best allowed action, on average
    (1 * 1/2 + .75 * 1/4 + .5 * 1/8 + .25 * 1/16) / (31/32) = 0.7903 per pull, 7.903 per episode.
    """

    contexts, actions, pulls = 3, 5, 10
    optimal_return = 10 * 0.765625 / 0.96875

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(self.contexts)
        self.action_space = spaces.Discrete(self.actions)
        self._context = 0
        self._mask = np.ones(self.actions, dtype=np.int8)
        self._pull = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._pull = 0
        self._draw()
        return self._context, {"action_mask": self._mask, "invalid_action": False}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        invalid = not self._mask[action]
        reward = -1.0 if invalid else 1.0 - ((int(action) - self._context) % self.actions) / (self.actions - 1)
        self._pull += 1
        self._draw()
        return (
            self._context,
            reward,
            False,
            self._pull >= self.pulls,
            {"action_mask": self._mask, "invalid_action": invalid},
        )

    def _draw(self) -> None:
        self._context = int(self.np_random.integers(self.contexts))
        mask = np.zeros(self.actions, dtype=np.int8)
        while not mask.any():
            mask = self.np_random.integers(0, 2, self.actions).astype(np.int8)
        self._mask = mask


class RecallMasked(gym.Env[Any, Any]):
    """A cue is shown once; after `delay` blank steps it must be answered. Needs memory and masks at the same time.

    Observation: one-hot of the cue (3 entries, zero after the first step) and a flag "answer now". Actions: 0 waits,
    1..3 answer. The mask allows only waiting until the flag is up, and then two answers: the right one and a wrong one.
    Reward 1 for the right answer, 0 for a wrong one, -1 for a forbidden action (which otherwise acts as waiting, or as
    a wrong answer at the end). Optimum: 1 with memory, 1/2 on average without.
    """

    cues = 3

    def __init__(self, delay: int = 4) -> None:
        if delay < 1:
            raise ConfigError(f"RecallMasked: delay is {delay}; it must be at least 1 step.")
        self.delay = delay
        self.observation_space = spaces.Box(0.0, 1.0, (self.cues + 1,), np.float32)
        self.action_space = spaces.Discrete(self.cues + 1)
        self._cue = 0
        self._wrong = 0
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._cue = int(self.np_random.integers(self.cues))
        self._wrong = (self._cue + 1 + int(self.np_random.integers(self.cues - 1))) % self.cues
        return self._observe(), {"action_mask": self._mask()}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        invalid = not self._mask()[action]
        ending = self._time == self.delay
        reward = -1.0 if invalid else float(ending and int(action) == self._cue + 1)
        self._time = min(self._time + 1, self.delay)
        return self._observe(), reward, ending, False, {"action_mask": self._mask(), "invalid_action": invalid}

    def _observe(self) -> npt.NDArray[np.float32]:
        observation = np.zeros(self.cues + 1, dtype=np.float32)
        if self._time == 0:
            observation[self._cue] = 1.0
        observation[-1] = self._time == self.delay
        return observation

    def _mask(self) -> npt.NDArray[np.int8]:
        mask = np.zeros(self.cues + 1, dtype=np.int8)
        if self._time == self.delay:
            mask[[self._cue + 1, self._wrong + 1]] = 1
        else:
            mask[0] = 1
        return mask


class MultiBandit(gym.Env[Any, Any]):
    """Contextual bandit with two action components, MultiDiscrete([3, 4]); 8 pulls per episode, then truncation.

    The context c is one of 4; component 0 should be c mod 3, component 1 should be 3 - c. Reward: the share of
    components that are right. Optimum: 1 per pull, 8 per episode; uniform random play gets (1/3 + 1/4) / 2 per pull.
    """

    contexts, pulls, optimal_return = 4, 8, 8.0

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(self.contexts)
        self.action_space = spaces.MultiDiscrete([3, 4])
        self._context = 0
        self._pull = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._pull = 0
        self._context = int(self.np_random.integers(self.contexts))
        return self._context, {}

    def step(self, action: npt.NDArray[np.int64]) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = ((int(action[0]) == self._context % 3) + (int(action[1]) == 3 - self._context)) / 2
        self._pull += 1
        self._context = int(self.np_random.integers(self.contexts))
        return self._context, reward, False, self._pull >= self.pulls, {}


class DictReach(gym.Env[Any, Any]):
    """Move a point to one of four corners; Dict observation {"goal": Discrete(4), "position": Box(2)}, Box(2) action.

    Each of the 20 steps moves each coordinate by 0.2 * action (action in [-1, 1]) inside [-1, 1]; the reward is minus
    the distance to it after the move; then truncation. Optimum: full speed along each axis until the goal is reached,
    `optimal_return(position, goal)`; the remaining distance per axis after t steps is max(0, |goal - start| - 0.2 t).
    """

    steps, speed = 20, 0.2
    goals = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"goal": spaces.Discrete(4), "position": spaces.Box(-1.0, 1.0, (2,), np.float32)}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._position = np.zeros(2, dtype=np.float32)
        self._goal = 0
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._goal = int(self.np_random.integers(4))
        self._position = self.np_random.uniform(-0.5, 0.5, 2).astype(np.float32)
        return self._observe(), {}

    def step(self, action: npt.NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = self.speed * np.clip(action, -1.0, 1.0)
        self._position = np.clip(self._position + move, -1.0, 1.0).astype(np.float32)
        self._time += 1
        reward = -float(np.linalg.norm(self.goals[self._goal] - self._position))
        return self._observe(), reward, False, self._time >= self.steps, {}

    def _observe(self) -> dict[str, Any]:
        return {"goal": self._goal, "position": self._position.copy()}

    @classmethod
    def optimal_return(cls, position: npt.NDArray[Any], goal: int) -> float:
        """The highest undiscounted return of an episode that starts at `position` [2]."""
        times = np.arange(1, cls.steps + 1)[:, None]
        left = np.maximum(0.0, np.abs(cls.goals[goal] - position) - cls.speed * times)
        return -float(np.linalg.norm(left, axis=1).sum())


class Lottery(gym.Env[Any, Any]):
    """One decision: 0 takes a sure 0.3; 1 plays for +1 with probability 0.9 and -5 with probability 0.1.

    The lottery's mean is 0.9 - 0.5 = 0.4, its 5% CVaR is -5. Optimum for the mean: play (0.4); for the 5% CVaR: the
    sure reward (0.3). The observation is the constant 1; the episode terminates after the decision.
    """

    sure, win, loss, loss_probability = 0.3, 1.0, -5.0, 0.1

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, dtype=np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        lost = self.np_random.random() < self.loss_probability
        reward = self.sure if int(action) == 0 else (self.loss if lost else self.win)
        return np.ones(1, dtype=np.float32), reward, True, False, {}


@dataclass(frozen=True)
class RewardProcessParams:
    """A Markov reward process of n states.

    means, sds   [n] of the normal reward that is paid on leaving a state
    transition   [n][n] row-stochastic probabilities of the next state
    terminal     [n] probability that the episode terminates on leaving the state (its reward is still paid)
    """

    means: tuple[float, ...]
    sds: tuple[float, ...]
    transition: tuple[tuple[float, ...], ...]
    terminal: tuple[float, ...]

    def __post_init__(self) -> None:
        n = self.states
        if n == 0 or not (len(self.sds) == len(self.transition) == len(self.terminal) == n):
            raise ConfigError(f"RewardProcess: means, sds, transition and terminal need one entry per state ({n}).")
        for state, row in enumerate(self.transition):
            if len(row) != n or min(row) < 0 or abs(sum(row) - 1.0) > 1e-9:
                raise ConfigError(
                    f"RewardProcess: transition row {state} is {row}; give {n} probabilities that add up to 1."
                )
        if min(self.sds) < 0 or min(self.terminal) < 0 or max(self.terminal) > 1:
            raise ConfigError("RewardProcess: sds must be at least 0, terminal probabilities between 0 and 1.")

    @property
    def states(self) -> int:
        return len(self.means)

    @classmethod
    def build(
        cls,
        means: Sequence[float] = (0.0,),
        sds: Sequence[float] = (1.0,),
        transition: Sequence[Sequence[float]] | None = None,
        terminal: Sequence[float] | None = None,
    ) -> RewardProcessParams:
        """From lists, as YAML gives them; by default every next state is equally likely and nothing terminates."""
        n = len(means)
        rows = [[1.0 / n] * n] * n if transition is None else transition
        ends = [0.0] * n if terminal is None else terminal
        return cls(
            tuple(map(float, means)),
            tuple(map(float, sds)),
            tuple(tuple(map(float, row)) for row in rows),
            tuple(map(float, ends)),
        )


class RewardProcess(gym.Env[Any, Any]):
    """A Markov reward process: actions (Discrete(2)) change nothing, so every policy is optimal.

    What can be learned is the law of the return; `return_cvar_monte_carlo` gives the truth of its tail. The observation
    is Discrete(n + 1): the states 0..n-1, and n after termination. Episodes start in a uniformly random state; a
    process that does not terminate is truncated by the registered limit of 200 steps, which must be bootstrapped.
    """

    def __init__(
        self,
        means: Sequence[float] = (0.0,),
        sds: Sequence[float] = (1.0,),
        transition: Sequence[Sequence[float]] | None = None,
        terminal: Sequence[float] | None = None,
    ) -> None:
        self.params = RewardProcessParams.build(means, sds, transition, terminal)
        self.observation_space = spaces.Discrete(self.params.states + 1)
        self.action_space = spaces.Discrete(2)
        self._cumulative = np.cumsum(np.asarray(self.params.transition), axis=1)
        self._state = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(self.params.states))
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        params, state = self.params, self._state
        reward = params.means[state] + params.sds[state] * float(self.np_random.standard_normal())
        terminated = bool(self.np_random.random() < params.terminal[state])
        following = int(np.searchsorted(self._cumulative[state], self.np_random.random(), side="right"))
        self._state = params.states if terminated else min(following, params.states - 1)
        return self._state, reward, terminated, False, {}


def return_cvar_monte_carlo(
    params: RewardProcessParams, gamma: float, alpha: float, seed: int, n: int = 100_000
) -> Floats:
    """[states] mean of the worst `alpha` share of the discounted return from each state, over n simulated returns each.

    Simulated until gamma**steps < 1e-5, so the truncation error is below 1e-5 of the largest return.
    """
    generator = np.random.default_rng(seed)
    means, sds, ends = (np.asarray(values) for values in (params.means, params.sds, params.terminal))
    cumulative = np.cumsum(np.asarray(params.transition), axis=1)
    state = np.repeat(np.arange(params.states), n)
    total = np.zeros(state.size)
    running = np.arange(state.size)  # indices of the simulations that have not terminated
    discount = 1.0
    for _ in range(math.ceil(math.log(1e-5) / math.log(gamma))):
        total[running] += discount * (means[state] + sds[state] * generator.standard_normal(state.size))
        alive = generator.random(state.size) >= ends[state]
        running, state = running[alive], state[alive]
        if running.size == 0:
            break
        if params.states > 1:
            draws = generator.random(state.size)
            state = np.minimum((draws[:, None] >= cumulative[state]).sum(axis=1), params.states - 1)
        discount *= gamma
    worst = max(1, round(alpha * n))
    returns = np.partition(total.reshape(params.states, n), worst - 1, axis=1)[:, :worst]
    return returns.mean(axis=1)


def _register(environment: type[gym.Env[Any, Any]], *, limit: int | None = None) -> str:
    """Register with Gymnasium; the id names this module too, so that it also works in a process that starts with it."""
    identifier = f"tailwise/{environment.__name__}-v0"
    gym.register(identifier, entry_point=f"{__name__}:{environment.__name__}", max_episode_steps=limit)
    return f"{__name__}:{identifier}"


MASKED_BANDIT = _register(MaskedBandit)
RECALL_MASKED = _register(RecallMasked)
MULTI_BANDIT = _register(MultiBandit)
DICT_REACH = _register(DictReach)
REWARD_PROCESS = _register(RewardProcess, limit=200)
LOTTERY = _register(Lottery)

"""Problems with a known optimum under a limit on the tail, as vector environments in numpy: fast enough for proofs.

All draw for all copies at once from one generator (one integer seed), reset in the step that ends an episode
(SAME_STEP, `final_obs` in infos), and continue bit for bit from `get_state`. `benchmarks/risk_truth.py` computes their
optima.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tailwise.core.errors import CheckpointError, ConfigError, EnvironmentContractError, ShapeError

Noise = Literal["normal", "student4"]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Step = tuple[npt.NDArray[Any], Floats, Bools, Bools, dict[str, Any]]

_STUDENT_FREEDOM = 4
_STUDENT_SD = 2.0**0.5  # of Student t(4): sqrt(4 / (4 - 2))


class ToyVector(VectorEnv):  # type: ignore[type-arg]
    """What the problems share: seeds, the ages of the running episodes [N], exact state. Subclasses give the rules.

    `_kept` names the integer arrays [N] in which a subclass keeps its running episodes.
    """

    _kept: ClassVar[tuple[str, ...]] = ("_age",)

    def __init__(self, num_envs: int, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        if num_envs < 1:
            raise ConfigError(f"{type(self).__name__}: num_envs is {num_envs}; a vector environment needs at least 1.")
        self.num_envs = num_envs
        self.single_observation_space = observation
        self.single_action_space = action
        self.observation_space = batch_space(observation, num_envs)
        self.action_space = batch_space(action, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._age: Integers = np.zeros(num_envs, dtype=np.int64)
        self._started = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Begin new episodes in all copies, from `seed` or from where the generator is."""
        if seed is not None:
            if not isinstance(seed, int):
                raise ConfigError(
                    f"{type(self).__name__} draws for all copies at once: its seed is one integer, not {seed}."
                )
            self._np_random = np.random.default_rng(seed)
        self._begin()
        self._started = True
        return self._observe(), {}

    def get_state(self) -> dict[str, Any]:
        """Arrays and plain values with which `set_state` continues bit for bit."""
        if not self._started:
            raise EnvironmentContractError("get_state was called before reset; there is no state yet.")
        kept = {name.lstrip("_"): getattr(self, name).copy() for name in self._kept}
        return {"kind": type(self).__name__, "generator": self.np_random.bit_generator.state, **kept}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `get_state` was taken, in an environment with the same settings."""
        if state["kind"] != type(self).__name__ or np.shape(state["age"]) != (self.num_envs,):
            raise CheckpointError(
                f"The stored state is that of {np.size(state['age'])} copies of {state['kind']}, this is "
                f"{self.num_envs} copies of {type(self).__name__}; resume with the settings that the run started with."
            )
        generator = np.random.default_rng()
        generator.bit_generator.state = state["generator"]
        self._np_random = generator
        for name in self._kept:
            setattr(self, name, np.array(state[name.lstrip("_")], dtype=np.int64))
        self._started = True

    def _begin(self) -> None:
        self._age = np.zeros(self.num_envs, dtype=np.int64)

    def _observe(self) -> npt.NDArray[Any]:
        return np.ones((self.num_envs, 1), dtype=np.float32)

    def _actions(self, actions: Any) -> npt.NDArray[Any]:
        """Actions as an array [N] that lies inside the action space, or a sentence."""
        if not self._started:
            raise EnvironmentContractError("step was called before reset; call reset or set_state first.")
        array = np.asarray(actions)
        if array.shape not in ((self.num_envs,), (self.num_envs, 1)):
            raise ShapeError(f"The actions have shape {array.shape}, expected one for each of {self.num_envs} copies.")
        array = array.reshape(self.num_envs)
        space = self.single_action_space
        low, high = (0, int(space.n) - 1) if isinstance(space, spaces.Discrete) else (0, 1)
        if not ((array >= low) & (array <= high)).all():  # also refuses NaN
            row = int(np.argmin((array >= low) & (array <= high)))
            raise EnvironmentContractError(f"Action {array[row]} of copy {row} lies outside {low} to {high}.")
        return array


class ExposureVector(ToyVector):
    """Choose an exposure w in [0, 1]; the reward is w * (mu + sigma * e), e independent with mean 0 and variance 1.

    mu, sigma    mean and standard deviation of the reward of one step at w = 1
    noise        the law of e: "normal", or "student4": Student t(4) divided by its standard deviation
    time_limit   None: one decision, then the episode terminates. Otherwise the continuing form: nothing terminates and
                 episodes are truncated after so many steps, the first ones at ages that are spread, so that the
                 truncations do not fall on one step
    """

    def __init__(
        self, num_envs: int, *, mu: float, sigma: float, noise: Noise = "normal", time_limit: int | None = None
    ) -> None:
        if noise not in ("normal", "student4"):
            raise ConfigError(f"ExposureVector: noise is {noise!r}; choose 'normal' or 'student4'.")
        if not sigma >= 0.0:
            raise ConfigError(f"ExposureVector: sigma is {sigma}; a standard deviation is at least 0.")
        if time_limit is not None and time_limit < 1:
            raise ConfigError(f"ExposureVector: time_limit is {time_limit}; use at least 1 step, or None for one step.")
        super().__init__(num_envs, spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Box(0.0, 1.0, (1,), np.float32))
        self.mu, self.sigma, self.noise, self.time_limit = mu, sigma, noise, time_limit

    def step(self, actions: Any) -> Step:
        """w [N, 1] or [N]; the observation is the constant 1."""
        exposure = self._actions(actions).astype(np.float64)
        n = self.num_envs
        if self.noise == "normal":
            noise = self.np_random.standard_normal(n)
        else:
            noise = self.np_random.standard_t(_STUDENT_FREEDOM, n) / _STUDENT_SD
        reward = exposure * (self.mu + self.sigma * noise)
        if self.time_limit is None:
            return self._observe(), reward, np.ones(n, np.bool_), np.zeros(n, np.bool_), {"final_obs": self._observe()}
        self._age += 1
        truncated = self._age >= self.time_limit
        self._age[truncated] = 0
        infos = {"final_obs": self._observe()} if truncated.any() else {}
        return self._observe(), reward, np.zeros(n, np.bool_), truncated, infos

    def _begin(self) -> None:
        super()._begin()
        if self.time_limit is not None:
            self._age = self.np_random.integers(self.time_limit, size=self.num_envs)


class LotteryVector(ToyVector):
    """One decision, then the episode ends: arm 0 pays `safe`; arm 1 pays `risky_win`, but -`loss` with probability `p`.

    Where the mean prefers the risky arm, a limit on the tail still allows it, for a share of the decisions.
    """

    def __init__(self, num_envs: int, *, safe: float, risky_win: float, loss: float, p: float) -> None:
        if not 0.0 <= p <= 1.0:
            raise ConfigError(f"LotteryVector: p is {p}; the chance of the loss lies between 0 and 1.")
        if not -loss < safe < risky_win:
            raise ConfigError(
                f"LotteryVector: safe is {safe}; it must lie between the loss {-loss} and the win {risky_win}."
            )
        super().__init__(num_envs, spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(2))
        self.safe, self.risky_win, self.loss, self.p = safe, risky_win, loss, p

    def step(self, actions: Any) -> Step:
        """Arms [N], 0 or 1; the observation is the constant 1."""
        risky = self._actions(actions) == 1
        n = self.num_envs
        lost = self.np_random.random(n) < self.p
        reward = np.where(risky, np.where(lost, -self.loss, self.risky_win), self.safe)
        return self._observe(), reward, np.ones(n, np.bool_), np.zeros(n, np.bool_), {"final_obs": self._observe()}


class CliffVector(ToyVector):
    """Walk from one bottom corner to the other; between them the bottom row is a cliff, and the wind blows downwards.

    Cell (row, column) is state row * width + column, row 0 at the bottom; start (0, 0), goal (0, width - 1), the cliff
    is the rest of row 0. Actions: 0 up, 1 right, 2 down, 3 left; a move out of the grid stays. With probability `wind`
    the move does not happen and the walker is blown one cell down instead (at the start, which is sheltered, it stays).
    So on the lowest road every step may be the last, on the next one two gusts are needed, and so on; each road is two
    steps longer than the one below. Each step costs `step_cost`; the goal pays `prize` and a fall costs `loss`, and
    both terminate. Observation: Discrete(width * height). Truncated after `time_limit` steps.
    """

    _kept = ("_age", "_state")

    def __init__(
        self,
        num_envs: int,
        *,
        width: int,
        height: int,
        wind: float,
        step_cost: float,
        loss: float,
        prize: float,
        time_limit: int = 200,
    ) -> None:
        if width < 3 or height < 2:
            raise ConfigError(f"CliffVector: the grid is {width} x {height}; it needs at least 3 columns and 2 rows.")
        if not 0.0 <= wind < 1.0:
            raise ConfigError(f"CliffVector: wind is {wind}; the chance of a gust is at least 0 and below 1.")
        if time_limit < 1:
            raise ConfigError(f"CliffVector: time_limit is {time_limit}; it must be at least 1 step.")
        super().__init__(num_envs, spaces.Discrete(width * height), spaces.Discrete(4))
        self.width, self.height, self.wind = width, height, wind
        self.step_cost, self.loss, self.prize, self.time_limit = step_cost, loss, prize, time_limit
        self._state: Integers = np.zeros(num_envs, dtype=np.int64)
        rows, columns = np.divmod(np.arange(width * height), width)
        self._after = np.stack(  # [4, states]: where a move leads without wind
            [
                np.minimum(rows + 1, height - 1) * width + columns,
                rows * width + np.minimum(columns + 1, width - 1),
                np.maximum(rows - 1, 0) * width + columns,
                rows * width + np.maximum(columns - 1, 0),
            ]
        )

    def step(self, actions: Any) -> Step:
        """Actions [N], 0 to 3."""
        move = self._actions(actions)
        blown = self.np_random.random(self.num_envs) < self.wind
        state = self._after[np.where(blown, 2, move), self._state]
        goal = state == self.width - 1
        fallen = (state > 0) & (state < self.width - 1)
        reward = self.prize * goal - self.loss * fallen - self.step_cost
        terminated = goal | fallen
        self._age += 1
        truncated = (self._age >= self.time_limit) & ~terminated
        done = terminated | truncated
        infos = {"final_obs": state.copy()} if done.any() else {}
        state[done] = 0
        self._age[done] = 0
        self._state = state
        return self._observe(), reward, terminated, truncated, infos

    def _begin(self) -> None:
        super()._begin()
        self._state = np.zeros(self.num_envs, dtype=np.int64)

    def _observe(self) -> npt.NDArray[Any]:
        return self._state.copy()

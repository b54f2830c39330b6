"""A contextual bandit whose inputs are permuted again and again: all but the first layer stays useful."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from benchmarks.toy_risk import Floats, Integers, Step, ToyVector


class PermutedVector(ToyVector):
    """Observation: `inputs` standard normal numbers in the order of the phase; action: which of `actions` outputs of a
    fixed random network of the unpermuted numbers is largest; reward 1 if right, else 0; every step ends an episode.

    The order changes every `phase_steps` vector steps. task: seed of the network and of all orders, so that phase p of
    an environment that began at phase 0 is that of one that begins at `first_phase` p. Chance pays 1 / actions.
    """

    _kept: ClassVar[tuple[str, ...]] = ("_age", "_taken")

    def __init__(
        self, num_envs: int, *, task: int, phase_steps: int, first_phase: int = 0, inputs: int = 16, actions: int = 4
    ) -> None:
        super().__init__(num_envs, spaces.Box(-np.inf, np.inf, (inputs,), np.float32), spaces.Discrete(actions))
        self.phase_steps, self.first_phase, self.inputs, self.task = phase_steps, first_phase, inputs, task
        draw = np.random.default_rng((task, 0))
        self._hidden = draw.standard_normal((inputs, 16)) / np.sqrt(inputs) * 2.0
        self._output = draw.standard_normal((16, actions))
        self._taken: Integers = np.zeros(num_envs, dtype=np.int64)  # vector steps so far, the same for all copies
        self._seen: Floats = np.zeros((num_envs, inputs))

    def order(self) -> Integers:
        """The permutation of the present phase."""
        phase = self.first_phase + int(self._taken[0]) // self.phase_steps
        return np.random.default_rng((self.task, 1, phase)).permutation(self.inputs)

    def _begin(self) -> None:
        super()._begin()
        self._seen = self.np_random.standard_normal((self.num_envs, self.inputs))

    def _observe(self) -> npt.NDArray[Any]:
        return self._seen[:, self.order()].astype(np.float32)

    def step(self, actions: Any) -> Step:
        """Pay for the context that was shown, and show the next one."""
        chosen = self._actions(actions)
        right = (np.tanh(self._seen @ self._hidden) @ self._output).argmax(axis=1)
        reward = (chosen == right).astype(np.float64)
        shown = self._observe()
        self._taken = self._taken + 1
        self._begin()
        ended, no = np.ones(self.num_envs, dtype=np.bool_), np.zeros(self.num_envs, dtype=np.bool_)
        return self._observe(), reward, ended, no, {"final_obs": shown}

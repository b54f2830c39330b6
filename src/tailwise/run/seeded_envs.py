"""What vector environments with a seed per episode have in common, whether they step here or in processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tailwise.core.errors import CheckpointError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.model.action_spec import ActionSpec
from tailwise.model.observation import ObservationSpec
from tailwise.run.env_results import check_spaces

State = dict[str, Any]


@dataclass(frozen=True)
class RestoreReport:
    """Whether a restored environment continues as if it had never stopped, and if not, why.

    When it does not, every environment has begun a new episode; `observation` and `infos` are those of that reset.
    """

    exact: bool
    reason: str
    observation: Any = None
    infos: Mapping[str, Any] = field(default_factory=dict)


class SeededEnvs(VectorEnv):  # type: ignore[type-arg]
    """N environments with a seed per episode, SAME_STEP autoreset and a state: here, or in processes.

    `first` is one of them. `name` selects the random stream, so that training and evaluation never share a seed.
    `first_environment` is the id of row 0: a second process that owns rows 32..63 passes 32 and draws the same seeds as
    one process with 64 rows.
    """

    def __init__(
        self, first: gym.Env[Any, Any], num_envs: int, streams: Streams, *, name: str, first_environment: int
    ) -> None:
        check_spaces(first)
        self._observation_spec = ObservationSpec.from_space(first.observation_space)
        ActionSpec.from_space(first.action_space)  # refuses what could not even be batched
        self.num_envs = num_envs
        self.streams = streams
        self.name = name
        self.first_environment = first_environment
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = first.render_mode
        self.spec = first.spec
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._started = False

    @property
    def restores_by(self) -> str:
        """ "state" when the environments implement get_state/set_state, else "replay"."""
        raise NotImplementedError

    def get_state(self) -> State:
        """Plain arrays and nested dicts: episode numbers, the running episodes' actions (or states), observations."""
        raise NotImplementedError

    def set_state(self, state: Mapping[str, Any]) -> RestoreReport:
        """Continue where `get_state` was taken; says whether the continuation is exact.

        If it is not, the environments cannot be trusted to be where they were, so all of them begin their next episode.
        """
        for key, ours in (
            ("kind", self.restores_by),
            ("num_envs", self.num_envs),
            ("first_environment", self.first_environment),
        ):
            if state[key] != ours:
                raise CheckpointError(
                    f"The stored environment state has {key} {state[key]!r}, this run has {ours!r}; "
                    "resume with the environment settings that the run was started with."
                )
        self._started = True
        problem = self.restore(state)
        if problem:
            observation, infos = self.begin_next_episodes()
            return RestoreReport(False, f"{problem}; new episodes were begun", observation, infos)
        how = "their own state" if self.restores_by == "state" else "replaying the actions of the running episodes"
        return RestoreReport(True, f"environments restored by {how}")

    def restore(self, state: Mapping[str, Any]) -> str:
        """Bring every environment to where a state was taken; what went wrong, or ""."""
        raise NotImplementedError

    def begin_next_episodes(self) -> tuple[Any, dict[str, Any]]:
        """Leave the running episodes and reset every environment into the one after: (observations, infos)."""
        raise NotImplementedError

    def _check_reset(self, seed: int | list[int | None] | None, options: dict[str, Any] | None) -> None:
        if isinstance(seed, list):
            raise EnvironmentContractError(
                f"{type(self).__name__} derives one seed per episode; pass one integer, not a list."
            )
        if options is not None and "reset_mask" in options:
            raise EnvironmentContractError(
                f"{type(self).__name__} resets finished environments itself; do not pass reset_mask."
            )
        if seed is not None:
            self.streams = Streams(seed)

    def _check_step(self, actions: Any) -> None:
        if not self._started:
            raise EnvironmentContractError("step was called before reset; call reset first.")
        if len(actions) != self.num_envs:
            raise EnvironmentContractError(f"Got {len(actions)} actions for {self.num_envs} environments.")

    def _check_started(self) -> None:
        if not self._started:
            raise EnvironmentContractError("get_state was called before reset; there is no state yet.")


def require_spaces(
    env: gym.Env[Any, Any], row: int, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> None:
    """Raise unless environment `row` has the spaces of environment 0."""
    if env.observation_space != observation_space or env.action_space != action_space:
        raise EnvironmentContractError(
            f"Environment {row} has the spaces {env.observation_space} and {env.action_space}, environment 0 "
            f"has {observation_space} and {action_space}; all environments of a run need the same."
        )

"""One way to drive any Gymnasium environment, whatever it does at the end of an episode.

Gymnasium 1.x vector environments come in three kinds, and a learner that mixes them up trains on transitions that never
happened. `EnvDriver` turns all three into the same stream of `StepResult`s:

    SAME_STEP  resets a finished environment inside the step; the last observation is in infos["final_obs"].
    NEXT_STEP  returns the last observation; the following step ignores its action and resets: that row is valid=False.
    DISABLED   leaves resetting to the caller, who passes options={"reset_mask": finished}; then as SAME_STEP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from tailwise.core.errors import CheckpointError, EnvironmentContractError, NotBuiltError, ShapeError
from tailwise.core.loops import BROKEN_OBSERVATION, BROKEN_REWARD, ENDED, ENDED_IN_RESET
from tailwise.core.streams import Streams
from tailwise.model.action_spec import ActionSpec
from tailwise.model.observation import MASK_KEY, ObservationSpec, as_mask, check_mask
from tailwise.run.env_results import vector_reset, vector_step
from tailwise.run.seeded_envs import RestoreReport, SeededEnvs

Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Spaces:
    """What one environment observes and accepts."""

    observation: ObservationSpec
    action: ActionSpec


class StepResult(NamedTuple):
    """One vector step of B environments; every array is fresh and may be kept.

    obs            float32 [B, D], what the next decision sees
    reward         float64 [B], 0 where not valid
    terminated, truncated   bool [B], never merged; both may be set
    final_obs      float32 [B, D] or None; meaningful in the rows with terminated or truncated
    mask           bool [B, K] for the next decision, or None
    valid          bool [B], False: this step only reset that environment, its action was ignored
    episode_start  bool [B], obs is the first one of an episode
    anomalies      number of rewards and info numbers in this step that are not finite
    infos          what the environment itself said, as it is
    """

    obs: Floats32
    reward: Floats64
    terminated: Bools
    truncated: Bools
    final_obs: Floats32 | None
    mask: Bools | None
    valid: Bools
    episode_start: Bools
    anomalies: int
    infos: Mapping[str, Any]


class StepRows(NamedTuple):
    """Where one step is written: the arrays of that name in its `StepResult`, C-contiguous."""

    obs: Floats32
    reward: Floats64
    terminated: Bools
    truncated: Bools
    valid: Bools
    episode_start: Bools


class Driver(Protocol):
    """What a training asks of the driver of its environments."""

    @property
    def venv(self) -> Any: ...

    @property
    def num_envs(self) -> int: ...

    @property
    def spaces(self) -> Spaces: ...

    @property
    def exact_resume(self) -> bool: ...

    @property
    def exact_resume_reason(self) -> str: ...

    @property
    def mask(self) -> Bools | None: ...

    def reset(self) -> Any: ...

    def pop_episodes(self) -> list[tuple[float, int]]: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Mapping[str, Any]) -> RestoreReport: ...

    def close(self) -> None: ...


class EnvDriver:
    """Drives a vector environment; see the module's text for what it guarantees, `make_driver` for how to get one."""

    def __init__(self, venv: VectorEnv, streams: Streams, *, name: str) -> None:  # type: ignore[type-arg]
        self.venv = venv
        self.streams = streams
        self.name = name
        self.num_envs = venv.num_envs
        self.mode = _autoreset_mode(venv)
        self.spaces = Spaces(
            observation=ObservationSpec.from_space(venv.single_observation_space),
            action=ActionSpec.from_space(venv.single_action_space),
        )
        self.exact_resume, self.exact_resume_reason = _exact_resume(venv)
        self._everyone = np.ones(self.num_envs, dtype=np.bool_)
        self._restarts = 0
        self._has_mask: bool | None = None  # None until the first reset has shown it
        self._obs: Floats32 = np.zeros((self.num_envs, self.spaces.observation.size), dtype=np.float32)
        self.obs_is_finite = True  # whether `obs` has neither NaN nor infinity
        self._mask: Bools | None = None
        self._pending = np.zeros(self.num_envs, dtype=np.bool_)  # NEXT_STEP: rows that the next step only resets
        self._episode_start = np.ones(self.num_envs, dtype=np.bool_)
        self._returns = np.zeros(self.num_envs, dtype=np.float64)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)
        self._finished: list[tuple[float, int]] = []

    @cached_property
    def _take_step(self) -> Callable[..., int]:
        from tailwise.core.loops.arrays import take_step  # compiled code: not before somebody steps

        return take_step

    @property
    def obs(self) -> Floats32:
        """float32 [B, D], what the next decision sees; also right after `set_state`."""
        return self._obs

    @property
    def mask(self) -> Bools | None:
        """bool [B, K] for the next decision, or None."""
        return self._mask

    @property
    def episode_start(self) -> Bools:
        """bool [B], True where `obs` is the first one of an episode."""
        return self._episode_start

    def reset(self) -> tuple[Floats32, Bools | None]:
        """Start over with the first episodes of this driver's stream: (obs [B, D], mask [B, K] or None).

        Two resets give the same episodes, which is what a repeatable evaluation needs.
        """
        self._restarts = 0
        self._finished = []
        return self._begin(*self._fresh_episodes())

    def step(self, action: npt.NDArray[Any], into: StepRows | None = None) -> StepResult:
        """Step all environments with actions as `ActionSpec.to_env` makes them; the result is written to `into`, or to
        fresh memory without it."""
        if self._has_mask is None:
            raise EnvironmentContractError("step was called before reset; call reset or set_state first.")
        raw, reward, terminated, truncated, infos = vector_step(self.venv.step(action))
        rows = self._fresh_rows() if into is None else into
        spec, next_step = self.spaces.observation, self.mode is AutoresetMode.NEXT_STEP
        obs = spec.flatten(raw, self.num_envs, rows.obs)
        flags = self._take_step(
            self._vector(reward, "rewards", np.float64),
            self._vector(terminated, "terminations", np.bool_),
            self._vector(truncated, "truncations", np.bool_),
            obs,
            next_step,
            self._pending,
            self._returns,
            self._lengths,
            rows.reward,
            rows.terminated,
            rows.truncated,
            rows.valid,
            rows.episode_start,
        )
        self.obs_is_finite = not flags & BROKEN_OBSERVATION
        anomalies = _non_finite_numbers(infos) if infos else 0
        final: Floats32 | None = None
        if flags & ENDED:
            done = rows.terminated | rows.truncated
            if flags & ENDED_IN_RESET:
                raise EnvironmentContractError(
                    f"Environment {int(np.argmax(done & rows.episode_start))} ended in the step that reset it; "
                    "a NEXT_STEP environment must return terminated and truncated False there."
                )
            if self.mode is AutoresetMode.DISABLED:
                final, mask, more, infos = self._reset_finished(raw, infos, done, obs)
                anomalies += more
            else:
                final = obs.copy() if next_step else self._final_from(infos, done)
                # NEXT_STEP ignores the next action of a finished row.
                mask = self._read_mask(raw, infos, ~done if next_step else self._everyone)
            for row in np.flatnonzero(done).tolist():
                self._finished.append((float(self._returns[row]), int(self._lengths[row])))
                self._returns[row] = 0.0
                self._lengths[row] = 0
        else:
            mask = self._read_mask(raw, infos, self._everyone)
        if flags & BROKEN_REWARD:
            anomalies += int(self.num_envs - np.count_nonzero(np.isfinite(rows.reward)))
        self._obs, self._mask, self._episode_start = obs, mask, rows.episode_start
        return StepResult(
            obs=obs,
            reward=rows.reward,
            terminated=rows.terminated,
            truncated=rows.truncated,
            final_obs=final,
            mask=mask,
            valid=rows.valid,
            episode_start=rows.episode_start,
            anomalies=anomalies,
            infos=infos,
        )

    def running(self) -> tuple[Bools, Floats64, npt.NDArray[np.int64]]:
        """(pending, returns, lengths) [B] of the running episodes, for compiled code that steps by itself: it goes on
        with them in place, and `went_ahead` has to follow."""
        if self._has_mask is None:
            raise EnvironmentContractError("running was called before reset; call reset or set_state first.")
        return self._pending, self._returns, self._lengths

    def went_ahead(
        self, obs: Floats32, episode_start: Bools, *, finite: bool, finished: Iterable[tuple[float, int]]
    ) -> None:
        """Where the environments stand after steps that were not taken here: obs float32 [B, D], finite or not,
        episode_start bool [B]; finished: as in `pop_episodes`, in the order in which they ended."""
        self._obs, self._mask, self._episode_start = obs, None, episode_start
        self.obs_is_finite = finite
        self._finished.extend(finished)

    def show(self, raw: Any, infos: Mapping[str, Any]) -> None:
        """Let the next decisions be made on other observations of the same episodes, with the masks in infos."""
        self._obs = self.spaces.observation.flatten(raw, self.num_envs)
        self.obs_is_finite = _all_finite(self._obs)
        self._mask = self._read_mask(raw, infos, self._everyone)

    def pop_episodes(self) -> list[tuple[float, int]]:
        """(undiscounted return, length in steps) of the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def get_state(self) -> dict[str, Any]:
        """Nested dicts of arrays and plain values; "vector" is None when the environment has no state to give."""
        vector: Any = self.venv
        return {
            "vector": vector.get_state() if self.exact_resume else None,
            "restarts": self._restarts,
            "has_mask": self._has_mask,
            "obs": self._obs.copy(),
            "mask": None if self._mask is None else self._mask.copy(),
            "pending": self._pending.copy(),
            "episode_start": self._episode_start.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "finished_returns": np.array([episode[0] for episode in self._finished], dtype=np.float64),
            "finished_lengths": np.array([episode[1] for episode in self._finished], dtype=np.int64),
        }

    def set_state(self, state: Mapping[str, Any]) -> RestoreReport:
        """Continue where `get_state` was taken. If that is not exactly possible, every environment begins a new episode
        (the running ones are not counted) and the report says why."""
        expected = (self.num_envs, self.spaces.observation.size)
        if np.shape(state["obs"]) != expected:
            raise CheckpointError(
                f"The stored observations have shape {np.shape(state['obs'])}, this environment has {expected}; "
                "resume with the environment settings that the run was started with."
            )
        self._finished = list(zip(state["finished_returns"].tolist(), state["finished_lengths"].tolist(), strict=True))
        self._restarts = int(state["restarts"])
        if state["vector"] is None or not self.exact_resume:
            self._restarts += 1
            self._begin(*self._fresh_episodes())
            return RestoreReport(False, f"{self.exact_resume_reason}; new episodes were begun")
        vector: Any = self.venv
        report = vector.set_state(state["vector"])
        if isinstance(report, RestoreReport) and not report.exact:
            self._begin(report.observation, report.infos)
            return report
        self._has_mask = bool(state["has_mask"])
        self._obs = np.array(state["obs"], dtype=np.float32)
        self.obs_is_finite = _all_finite(self._obs)
        self._mask = None if state["mask"] is None else np.array(state["mask"], dtype=np.bool_)
        self._pending = np.array(state["pending"], dtype=np.bool_)
        self._episode_start = np.array(state["episode_start"], dtype=np.bool_)
        self._returns = np.array(state["returns"], dtype=np.float64)
        self._lengths = np.array(state["lengths"], dtype=np.int64)
        return report if isinstance(report, RestoreReport) else RestoreReport(True, self.exact_resume_reason)

    def close(self) -> None:
        self.venv.close()

    def _fresh_episodes(self) -> tuple[Any, dict[str, Any]]:
        if isinstance(self.venv, SeededEnvs):
            return self.venv.reset()  # has the streams itself
        return vector_reset(self.venv.reset(seed=self.streams.integer(self.name, index=self._restarts)))

    def _begin(self, raw: Any, infos: Mapping[str, Any]) -> tuple[Floats32, Bools | None]:
        box = self.spaces.action.kind == "box"
        if box and self.spaces.observation.mask is not None:
            raise NotBuiltError(
                "This environment observes an action mask for a Box action space; a Box has bounds instead, [low, "
                "high] per action in info['action_mask'], within which the environment itself keeps actions."
            )
        self._has_mask = not box and (self.spaces.observation.mask is not None or MASK_KEY in infos)
        self._obs = self.spaces.observation.flatten(raw, self.num_envs)
        self.obs_is_finite = _all_finite(self._obs)
        self._mask = self._read_mask(raw, infos, np.ones(self.num_envs, dtype=np.bool_))
        self._pending = np.zeros(self.num_envs, dtype=np.bool_)
        self._episode_start = np.ones(self.num_envs, dtype=np.bool_)
        self._returns = np.zeros(self.num_envs, dtype=np.float64)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)
        return self._obs, self._mask

    def _reset_finished(
        self, raw: Any, infos: Mapping[str, Any], done: Bools, obs: Floats32
    ) -> tuple[Floats32, Bools | None, int, dict[str, Any]]:
        """DISABLED: begin the next episodes of the rows `done`, in `obs` [B, D] as well. Returns (the observations
        before, the mask, numbers in the reset's infos that are not finite, these infos)."""
        final = obs.copy()
        before = self._read_mask(raw, infos, ~done)
        raw, begun = vector_reset(self.venv.reset(options={"reset_mask": done.copy()}))
        obs[done] = self.spaces.observation.flatten(raw, self.num_envs)[done]
        self.obs_is_finite = _all_finite(obs)
        after = self._read_mask(raw, begun, done)
        mask = None if before is None or after is None else np.where(done[:, None], after, before)
        return final, mask, _non_finite_numbers(begun), begun

    def _fresh_rows(self) -> StepRows:
        envs, size = self.num_envs, self.spaces.observation.size
        flags = (np.empty(envs, dtype=np.bool_) for _ in range(4))
        return StepRows(np.empty((envs, size), dtype=np.float32), np.empty(envs), *flags)

    def _vector(self, values: Any, what: str, dtype: Any) -> npt.NDArray[Any]:
        """[B] to be read at once: what the environment itself holds, where that fits."""
        try:
            array = np.asarray(values, dtype=dtype)
        except (TypeError, ValueError) as error:
            raise EnvironmentContractError(
                f"The environment's {what} are no array of numbers ({error}); return an array ({self.num_envs},)."
            ) from error
        if array.shape != (self.num_envs,):
            raise ShapeError(f"The environment's {what} have shape {array.shape}, expected ({self.num_envs},).")
        return array if array.flags.carray else array.copy()  # a kernel is compiled again for what is read-only

    def _final_from(self, infos: Mapping[str, Any], done: Bools) -> Floats32:
        """infos["final_obs"]: an array of objects, one observation per finished row, or one batch for all rows."""
        finals = infos.get("final_obs")
        if finals is None:
            raise EnvironmentContractError(
                "An episode ended but infos has no 'final_obs'; a SAME_STEP vector environment must put the last "
                "observation there, or truncated episodes cannot be bootstrapped."
            )
        spec = self.spaces.observation
        if not (isinstance(finals, np.ndarray) and finals.dtype == object):
            return spec.flatten(finals, self.num_envs)
        flat = np.zeros((self.num_envs, spec.size), dtype=np.float32)
        for row in np.flatnonzero(done).tolist():
            if finals[row] is None:
                raise EnvironmentContractError(f"Environment {row} ended but infos['final_obs'][{row}] is None.")
            flat[row] = spec.flatten_one(finals[row])[0]
        return flat

    def _read_mask(self, raw: Any, infos: Mapping[str, Any], needed: Bools) -> Bools | None:
        """The mask for the next decision; rows that are not `needed` allow everything."""
        if not self._has_mask:
            if self.spaces.action.kind == "box":
                _check_bounds(infos, self.num_envs)
            elif MASK_KEY in infos:
                raise EnvironmentContractError(
                    "The environment gave an 'action_mask' in step but none in reset; put it into both infos."
                )
            return None
        spec, action = self.spaces.observation, self.spaces.action
        mask = spec.mask_from(raw)
        if mask is None:
            present = np.asarray(infos.get(f"_{MASK_KEY}", np.full(self.num_envs, MASK_KEY in infos)))
            if (needed & ~present).any():
                raise EnvironmentContractError(
                    f"Environment {int(np.argmax(needed & ~present))} gave no info['action_mask'] although reset did; "
                    "an environment with masks must give one with every observation."
                )
            if MASK_KEY not in infos:
                return np.ones((self.num_envs, action.logits), dtype=np.bool_)
            mask = as_mask(_stacked(infos[MASK_KEY], action.logits))
        if mask.shape != (self.num_envs, action.logits):
            raise ShapeError(
                f"The action mask has shape {mask.shape}, expected ({self.num_envs}, {action.logits}), "
                "one entry per choice."
            )
        mask |= ~needed[:, None]
        check_mask(mask, action.sizes)
        return mask


def _autoreset_mode(venv: VectorEnv) -> AutoresetMode:  # type: ignore[type-arg]
    mode = venv.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise EnvironmentContractError(
            f"The vector environment {venv} has metadata['autoreset_mode'] = {mode!r}; set it to a member of "
            "gymnasium.vector.AutoresetMode, because the ends of episodes cannot be read without it."
        )
    return mode


def _exact_resume(venv: VectorEnv) -> tuple[bool, str]:  # type: ignore[type-arg]
    if isinstance(venv, SeededEnvs):
        return True, f"environments are restored by {venv.restores_by}"
    if hasattr(venv, "get_state") and hasattr(venv, "set_state"):
        return True, "the vector environment restores its own state"
    return False, f"{type(venv).__name__} has no get_state and set_state, so a resumed run cannot be bit-identical"


def _non_finite_numbers(infos: Mapping[str, Any]) -> int:
    """How many float numbers in infos (nested ones too) are NaN or infinite."""
    count = 0
    for key, value in infos.items():
        if key == "final_obs" or (isinstance(key, str) and key.startswith("_")):
            continue
        if isinstance(value, Mapping):
            count += _non_finite_numbers(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
            count += int(value.size - np.count_nonzero(np.isfinite(value)))
    return count


def _check_bounds(infos: Mapping[str, Any], rows: int) -> None:
    """Bounds of Box actions, [low, high] per row: the environment clips to them, so the learner need not know them; the
    law of its actions is that of what it asked for. Broken ones are an error all the same."""
    if MASK_KEY not in infos:
        return
    bounds = np.asarray(infos[MASK_KEY])
    if bounds.dtype.kind != "f" or bounds.shape[:1] != (rows,) or bounds.shape[-1:] != (2,):
        raise ShapeError(
            f"The action mask of a Box has shape {bounds.shape} ({bounds.dtype}), expected float ({rows}, ..., 2): low "
            "and high."
        )
    bad = ~(np.isfinite(bounds).all(-1) & (bounds[..., 0] <= bounds[..., 1])).reshape(rows, -1).all(-1)
    if bad.any():
        row = int(np.argmax(bad))
        raise EnvironmentContractError(
            f"Environment {row} gives the action bounds {bounds[row].tolist()}; finite low <= high is needed."
        )


def _all_finite(obs: Floats32) -> bool:
    return bool(np.isfinite(obs).all())


def _stacked(masks: Any, width: int) -> npt.NDArray[Any]:
    """Masks of all rows as one array; a row without mask (None in an array of objects) is filled with ones."""
    if not (isinstance(masks, np.ndarray) and masks.dtype == object):
        return np.asarray(masks)
    return np.stack([np.ones(width, dtype=np.bool_) if row is None else np.asarray(row) for row in masks])

"""Collects rollouts: policy steps and environment steps in turn, with the hidden state carried across rollouts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.errors import CheckpointError, EnvironmentContractError
from tailwise.core.loops import BROKEN_REWARD
from tailwise.core.streams import Streams
from tailwise.learner.backend import Backend
from tailwise.learner.credit import past_after
from tailwise.learner.decisions import Ahead, Decisions, Shown
from tailwise.learner.rollout import Past, Rollout
from tailwise.market.action_kinds import nan_action
from tailwise.run.envs import EnvDriver, StepRows
from tailwise.run.health.probes import StepFacts

# Names in a checkpoint.
STATE, PAST_REWARD, AGE = "collector/state", "collector/past_reward", "collector/age"

_Final = tuple[Tensor, Tensor]  # features [n, H] at last observations, and their (step, environment) [n, 2]


class Collector:
    """Holds what carries over between rollouts: the driver, the hidden state [B, S, H] before its current obs, and the
    newest `history` rewards with the ages of the running episodes (None where `history` is 0)."""

    def __init__(
        self,
        driver: EnvDriver,
        backend: Backend,
        streams: Streams,
        *,
        steps: int,
        history: int = 0,
        first_environment: int = 0,
    ) -> None:
        self.driver = driver
        self.backend = backend
        self.streams = streams
        self.steps = steps
        self.state = backend.model.initial_state(driver.num_envs)
        self.environment = first_environment + np.arange(driver.num_envs)
        self.facts = StepFacts()  # what infos told about the newest rollout
        self.past: Past | None = None
        if history:
            zeros = torch.zeros(history, driver.num_envs)
            self.past = Past(zeros, torch.zeros(driver.num_envs, dtype=torch.int64))
        self.broken_off = False  # an exception ended a rollout: environments and hidden state do not fit each other

    def collect(self, update: int) -> tuple[Rollout, int]:
        """The next `steps` steps of every environment, and the number of anomalies the environments showed."""
        driver, backend, model = self.driver, self.backend, self.backend.model
        steps, dtype = self.steps, torch.get_default_dtype()
        decisions = backend.begin(update, self.environment, steps, self.state)
        rows = RolloutRows(driver, steps)
        first_state = self.state.clone()
        self.facts = StepFacts()
        masks: list[npt.NDArray[np.bool_]] = []
        ahead = backend.ahead(driver.venv)
        self.broken_off = True
        if ahead is not None:
            anomalies, finals = self._run_ahead(ahead, decisions, rows)
        else:
            anomalies, finals = self._step_by_step(decisions, rows, masks)
        self.state = decisions.state
        last = torch.from_numpy(driver.obs).to(dtype)
        visible = last if driver.obs_is_finite else _marked(last)
        decisions.features[steps] = backend.encode(visible, self.state, torch.from_numpy(driver.episode_start))
        record = backend.record(
            decisions.features,
            torch.cat([features for features, _ in finals]) if finals else torch.zeros(0, model.features),
            torch.cat([index for _, index in finals]) if finals else torch.zeros(0, 2, dtype=torch.int64),
        )
        rollout = Rollout(
            obs=rows.obs.to(dtype),
            action=decisions.action,
            log_prob=decisions.log_prob,
            params=decisions.params,
            mask=torch.from_numpy(np.stack(masks)) if masks else None,
            reward=rows.reward.to(dtype),
            terminated=rows.terminated,
            truncated=rows.truncated,
            valid=rows.valid,
            start=rows.start,
            state=first_state,
            critic=record,
            environment=torch.from_numpy(self.environment),
            update=update,
            past=self.past,
        )
        if self.past is not None:
            self.past = past_after(rollout, self.past)
        self.broken_off = False
        return rollout, anomalies

    @property
    def state_is_finite(self) -> bool:
        """Whether no entry of the hidden state is NaN or infinite."""
        return bool(torch.isfinite(self.state).all())

    def forget(self) -> None:
        """Begin with a fresh hidden state."""
        self.state = self.backend.model.initial_state(self.driver.num_envs)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: the hidden state, and the newest rewards where they are kept."""
        past = {} if self.past is None else {PAST_REWARD: self.past.reward, AGE: self.past.age}
        return {STATE: self.state, **past}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise unless `load` can take these tensors over; those of older versions have no rewards."""
        check_carried(self.tensors(), tensors)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        self.state = tensors[STATE]
        if self.past is not None and PAST_REWARD in tensors:
            self.past = Past(tensors[PAST_REWARD], tensors[AGE])

    def _step_by_step(
        self, decisions: Decisions, rows: RolloutRows, masks: list[npt.NDArray[np.bool_]]
    ) -> tuple[int, list[_Final]]:
        """(anomalies, what truncated episodes are continued with); masks are appended, if there are any."""
        driver, backend = self.driver, self.backend
        squashed, to_env = backend.model.law.squashed, backend.model.action.to_env
        finals: list[_Final] = []
        anomalies = 0
        for t, into in enumerate(rows.steps):
            obs, mask = driver.obs, driver.mask
            if mask is not None:
                masks.append(mask)
            backend.decide(decisions, t, obs if driver.obs_is_finite else _finite(obs), driver.episode_start, mask)
            step = driver.step(to_env(decisions.actions[t], squashed=squashed), into)
            anomalies += step.anomalies
            if step.infos:
                self.facts.absorb(step.infos, step.episode_start)
            if step.final_obs is None:
                continue
            ended = (step.truncated & ~step.terminated & step.valid).nonzero()[0]
            if len(ended):
                finals.append(self._encode_final(t, ended, step.final_obs[ended], decisions.states[ended]))
        return anomalies, finals

    def _run_ahead(self, ahead: Ahead, decisions: Decisions, rows: RolloutRows) -> tuple[int, list[_Final]]:
        """`_step_by_step` where the backend can do it by itself."""
        driver = self.driver
        memory = rows.shown(*driver.running())
        went = ahead.run(decisions, memory, finite=driver.obs_is_finite)
        if went.broken_action is not None:
            raise EnvironmentContractError(nan_action(went.broken_action[1]))
        finished = [pair for end in went.ends for pair in zip(end.returns.tolist(), end.lengths.tolist(), strict=True)]
        driver.went_ahead(memory.last_obs, memory.last_start, finite=went.finite, finished=finished)
        finals = [self._encode_final(end.step, end.cut, end.final, end.state) for end in went.ends if len(end.cut)]
        broken = memory.reward.size - np.count_nonzero(np.isfinite(memory.reward)) if went.seen & BROKEN_REWARD else 0
        return int(broken), finals

    def _encode_final(
        self, t: int, rows: npt.NDArray[np.int64], final: npt.NDArray[np.float32], state: npt.NDArray[np.float32]
    ) -> _Final:
        """Features at the last observations [n, D] of the episodes of `rows` [n] that were cut off in step t."""
        obs, before = torch.from_numpy(final).to(torch.get_default_dtype()), torch.from_numpy(state)
        # One step from the state *before* that observation; the reset that follows does not concern it.
        features = self.backend.encode(_marked(obs), before, torch.zeros(len(rows), dtype=torch.bool))
        where = torch.from_numpy(rows)
        return features, torch.stack([torch.full_like(where, t), where], dim=-1)


def check_carried(needs: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise unless stored tensors can take the place of `needs`, what a collector carries from rollout to rollout."""
    if STATE not in tensors:
        raise CheckpointError(f"the training state lacks {STATE}")
    own = needs if PAST_REWARD in tensors else {STATE: needs[STATE]}
    for name, needed in own.items():
        given = tensors.get(name)
        if given is None or given.shape != needed.shape or given.dtype != needed.dtype:
            what = "hidden state" if name == STATE else f"'{name}'"
            kind = "missing" if given is None else f"{given.dtype} {tuple(given.shape)}"
            raise CheckpointError(
                f"the stored {what} is {kind}; this run needs {needed.dtype} {tuple(needed.shape)}: resume with "
                "the configuration that the run was started with"
            )
    if AGE in own and int(tensors[AGE].min()) < 0:
        raise CheckpointError("the stored age of an episode is negative; use another checkpoint")


class RolloutRows:
    """Memory of a rollout into which the driver writes its steps, and what step 0 decides on, copied into it.

    obs float32 [T, B, D], start bool [T, B]: what is decided on; reward float64, terminated, truncated, valid bool
    [T, B]: what follows. A step writes what follows into its row and what it shows into the next one; what the last one
    shows belongs to the next rollout and has memory of its own.
    """

    def __init__(self, driver: EnvDriver, steps: int) -> None:
        envs, size = driver.num_envs, driver.spaces.observation.size
        self.obs, self.reward = (
            torch.empty(steps, envs, size, dtype=torch.float32),
            torch.empty(steps, envs, dtype=torch.float64),
        )
        self.terminated, self.truncated, self.valid, self.start = (
            torch.empty(steps, envs, dtype=torch.bool) for _ in range(4)
        )
        # The same memory as arrays: a tensor takes longer for the many small things of a step.
        obs, start = self.obs.numpy(), self.start.numpy()
        obs[0], start[0] = driver.obs, driver.episode_start
        self._decided_on = (obs, start)
        self._last = (np.empty_like(obs[0]), np.empty_like(start[0]))
        flags = (self.terminated.numpy(), self.truncated.numpy(), self.valid.numpy())
        self._follows = (self.reward.numpy(), *flags)

    @property
    def steps(self) -> list[StepRows]:
        """Where each step is written."""
        (obs, start), (last_obs, last_start) = self._decided_on, self._last
        return list(map(StepRows, [*obs[1:], last_obs], *self._follows, [*start[1:], last_start]))

    def shown(
        self, pending: npt.NDArray[np.bool_], returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]
    ) -> Shown:
        """All of it at once, with the running episodes [B]."""
        return Shown(*self._decided_on, *self._follows, *self._last, pending, returns, lengths)


def _finite(obs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the policy acts on: a broken entry counts as 0; the rollout keeps it, and the learner refuses it."""
    return np.nan_to_num(obs, nan=0.0, posinf=0.0, neginf=0.0)


def _marked(obs: Tensor) -> Tensor:
    """What values are read from: the rollout does not keep it, so a broken entry must show in its value, as NaN."""
    return torch.where(torch.isfinite(obs), obs, torch.nan)

"""Collects rollouts: policy steps and environment steps in turn, with the hidden state carried across rollouts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.backend import Backend
from tailwise.learner.rollout import Rollout
from tailwise.run.envs import EnvDriver, StepRows
from tailwise.run.health.step_facts import StepFacts


class Collector:
    """Holds what carries over between rollouts: the driver and the hidden state [B, S, H] before its current obs."""

    def __init__(self, driver: EnvDriver, backend: Backend, streams: Streams, *, steps: int) -> None:
        self.driver = driver
        self.backend = backend
        self.streams = streams
        self.steps = steps
        self.state = backend.model.initial_state(driver.num_envs)
        self.environment = np.arange(driver.num_envs)
        self.facts = StepFacts()  # what infos told about the newest rollout

    def collect(self, update: int) -> tuple[Rollout, int]:
        """The next `steps` steps of every environment, and the number of anomalies the environments showed."""
        driver, backend, model = self.driver, self.backend, self.backend.model
        steps, dtype = self.steps, torch.get_default_dtype()
        made = backend.begin(update, self.environment, steps, self.state)
        rows = _Rows(driver, steps)
        squashed, to_env = model.law.squashed, model.action.to_env
        masks: list[npt.NDArray[np.bool_]] = []
        final_features: list[Tensor] = []
        final_index: list[Tensor] = []
        first_state = self.state.clone()
        anomalies = 0
        facts = self.facts = StepFacts()
        for t, into in enumerate(rows.steps):
            obs, mask = driver.obs, driver.mask
            if mask is not None:
                masks.append(mask)
            backend.decide(made, t, obs if driver.obs_is_finite else _finite(obs), driver.episode_start, mask)
            step = driver.step(to_env(made.actions[t], squashed=squashed), into)
            anomalies += step.anomalies
            if step.infos:
                facts.see(step.infos, step.episode_start)
            if step.final_obs is None:
                continue
            ended = torch.from_numpy((step.truncated & ~step.terminated & step.valid).nonzero()[0])
            if len(ended):
                final = torch.from_numpy(step.final_obs).to(dtype)[ended]
                # One step from the state *before* that observation; the reset that follows does not concern it.
                final_features.append(backend.look(_marked(final), made.state[ended], torch.zeros_like(ended).bool()))
                final_index.append(torch.stack([torch.full_like(ended, t), ended], dim=-1))
        self.state = made.state
        last = torch.from_numpy(driver.obs).to(dtype)
        made.features[steps] = backend.look(_marked(last), self.state, torch.from_numpy(driver.episode_start))
        record = backend.record(
            made.features,
            torch.cat(final_features) if final_features else torch.zeros(0, model.features),
            torch.cat(final_index) if final_index else torch.zeros(0, 2, dtype=torch.int64),
        )
        rollout = Rollout(
            obs=rows.obs.to(dtype),
            action=made.action,
            log_prob=made.log_prob,
            params=made.params,
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
        )
        return rollout, anomalies


class _Rows:
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
        shown = ([*obs[1:], np.empty_like(obs[0])], [*start[1:], np.empty_like(start[0])])
        follows = (tensor.numpy() for tensor in (self.reward, self.terminated, self.truncated, self.valid))
        self.steps = list(map(StepRows, shown[0], *follows, shown[1]))


def _finite(obs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the policy acts on: a broken entry counts as 0; the rollout keeps it, and the learner refuses it."""
    return np.nan_to_num(obs, nan=0.0, posinf=0.0, neginf=0.0)


def _marked(obs: Tensor) -> Tensor:
    """What values are read from: the rollout does not keep it, so a broken entry must show in its value, as NaN."""
    return torch.where(torch.isfinite(obs), obs, torch.nan)

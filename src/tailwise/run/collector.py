"""Collects rollouts: policy steps and environment steps in turn, with the hidden state carried across rollouts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.backend import Backend
from tailwise.learner.rollout import Rollout
from tailwise.run.envs import EnvDriver
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
        steps, envs = self.steps, driver.num_envs
        dtype = torch.get_default_dtype()
        made = backend.begin(update, self.environment, steps, self.state)
        obs, reward = torch.empty(steps, envs, model.observation.size, dtype=dtype), torch.zeros(steps, envs)
        terminated, truncated, valid, start = (torch.zeros(steps, envs, dtype=torch.bool) for _ in range(4))
        # The same memory as arrays: a step writes a dozen small things, and a tensor takes longer for each.
        rows = {
            "obs": obs.numpy(),
            "start": start.numpy(),
            "reward": reward.numpy(),
            "terminated": terminated.numpy(),
            "truncated": truncated.numpy(),
            "valid": valid.numpy(),
        }
        squashed, to_env = model.law.squashed, model.action.to_env
        masks: list[Tensor] = []
        final_features: list[Tensor] = []
        final_index: list[Tensor] = []
        first_state = self.state.clone()
        anomalies = 0
        self.facts = StepFacts()
        for t in range(steps):
            rows["obs"][t] = driver.obs
            rows["start"][t] = driver.episode_start
            if driver.mask is not None:
                masks.append(torch.from_numpy(driver.mask))
            backend.decide(made, t, _finite(rows["obs"][t]), rows["start"][t], driver.mask)
            step = driver.step(to_env(made.actions[t], squashed=squashed))
            rows["reward"][t], rows["valid"][t] = step.reward, step.valid
            rows["terminated"][t], rows["truncated"][t] = step.terminated, step.truncated
            anomalies += step.anomalies
            if step.infos:
                self.facts.see(step.infos, step.episode_start)
            if not np.count_nonzero(step.truncated):
                continue
            ended = (truncated[t] & ~terminated[t] & valid[t]).nonzero().squeeze(-1)
            if len(ended):
                assert step.final_obs is not None
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
            obs=obs,
            action=made.action,
            log_prob=made.log_prob,
            params=made.params,
            mask=torch.stack(masks) if masks else None,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            start=start,
            state=first_state,
            critic=record,
            environment=torch.from_numpy(self.environment),
            update=update,
        )
        return rollout, anomalies


def _finite(obs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the policy acts on: a broken entry counts as 0; the rollout keeps it, and the learner refuses it."""
    if np.count_nonzero(np.isfinite(obs)) == obs.size:
        return obs
    return np.nan_to_num(obs, nan=0.0, posinf=0.0, neginf=0.0)


def _marked(obs: Tensor) -> Tensor:
    """What values are read from: the rollout does not keep it, so a broken entry must show in its value, as NaN."""
    return torch.where(torch.isfinite(obs), obs, torch.nan)

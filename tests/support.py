"""Builders that several tests share: small models, learners and rollouts, all of them real."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tailwise.core.config import parse
from tailwise.core.streams import Streams
from tailwise.learner import batches
from tailwise.learner.backend import Knobs
from tailwise.learner.batches import Prepared, build_targets, prepare
from tailwise.learner.config import LearnerConfig
from tailwise.learner.losses import Losses, compute_losses
from tailwise.learner.optimisers import StepSize
from tailwise.learner.ppo import TorchBackend
from tailwise.learner.rollout import Rollout
from tailwise.model.action_spec import ActionSpec
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import ModelConfig
from tailwise.model.observation import ObservationSpec
from tailwise.run.agent import PPO
from tailwise.run.config import Config, parse_config
from tailwise.run.envs import EnvDriver
from tailwise.run.presets import load_source
from tailwise.run.trainer import Trainer
from tailwise.run.worlds import GymWorld

torch.set_num_threads(1)  # several threads only wait for one another in networks this small

SMALL_MODEL: dict[str, Any] = {
    "encoder": {"kind": "mlp", "hidden": [8]},
    "actor": {"hidden": [8]},
    "critic": {"kind": "quantile", "hidden": [8], "quantiles": 8, "minibatch_particles": 4},
}

ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "multidiscrete": spaces.MultiDiscrete([3, 2]),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put over it, section by section; a section of another `kind` replaces the whole section."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        other_kind = both and any(value.get(tag, below.get(tag)) != below.get(tag) for tag in ("kind", "mode"))
        if both and not other_kind:
            result[key] = merged(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def small_model(**changes: Any) -> ModelConfig:
    """A model of a few hundred parameters."""
    return parse(ModelConfig, merged(SMALL_MODEL, changes), source="test")


def small_backend(
    *,
    model: Mapping[str, Any] | None = None,
    learner: Mapping[str, Any] | None = None,
    action: str = "discrete",
    features: int = 3,
    seed: int = 0,
    tail_alpha: float | None = None,
) -> TorchBackend:
    """A learner on observations of `features` Box entries."""
    streams = Streams(seed)
    network = ActorCritic(
        small_model(**dict(model or {})),
        ObservationSpec.from_space(spaces.Box(-np.inf, np.inf, (features,), np.float32)),
        ActionSpec.from_space(ACTIONS[action]),
        init_seed=streams.integer("init"),
    )
    config = parse(LearnerConfig, {"epochs": 2, "minibatches": 2, **dict(learner or {})}, source="test")
    return TorchBackend(network, config, streams, tail_alpha=tail_alpha)


def learner_of(kind: str, **options: Any) -> TorchBackend:
    """`small_backend` in one of its implementations, "torch" or "fused"."""
    plain = small_backend(**options)
    if kind == "torch":
        return plain
    from tailwise.fused.backend import FusedBackend

    return FusedBackend(plain.model, plain.config, plain.streams, tail_alpha=plain.tail_alpha)


def knobs(
    learning_rate: float = 3e-4,
    *,
    entropy_weight: float = 0.01,
    bounds_weight: float = 0.0,
    prior_weight: float = 0.0,
    measure_terms: bool = False,
    multiplier: float = 0.0,
) -> Knobs:
    """What the schedules say, for a test that calls the learner itself."""
    step_size = StepSize(learning_rate, 1.0, 1.0, 1.0)
    return Knobs(
        step_size,
        entropy_weight,
        measure_terms=measure_terms,
        multiplier=multiplier,
        bounds_weight=bounds_weight,
        prior_weight=prior_weight,
    )


@dataclasses.dataclass(frozen=True)
class World:
    """What environments would have shown: obs [T+1, B, D], final_obs [T, B, D], the rest [T, B]; mask [T, B, K]."""

    obs: Tensor
    final_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    start: Tensor
    mask: Tensor | None


def random_world(
    steps: int = 12,
    envs: int = 4,
    *,
    features: int = 3,
    seed: int = 0,
    end: float = 0.15,
    next_step: bool = False,
    choices: int = 0,
) -> World:
    """Random observations, rewards and episode ends. next_step: a row that only resets follows each end."""
    g = torch.Generator().manual_seed(seed)
    terminated, truncated = torch.zeros(steps, envs, dtype=torch.bool), torch.zeros(steps, envs, dtype=torch.bool)
    valid = torch.ones(steps, envs, dtype=torch.bool)
    start = torch.zeros(steps, envs, dtype=torch.bool)
    start[0] = True
    for t in range(steps):
        if t and next_step:
            ended = terminated[t - 1] | truncated[t - 1]
            valid[t] = ~ended
            start[t] = ~valid[t - 1]
        elif t:
            start[t] = terminated[t - 1] | truncated[t - 1]
        ends = (torch.rand(envs, generator=g) < end) & valid[t]
        by_time = torch.rand(envs, generator=g) < 0.5
        terminated[t], truncated[t] = ends & ~by_time, ends & by_time
    mask = None
    if choices:
        mask = torch.rand(steps, envs, choices, generator=g) < 0.6
        mask[..., 0] |= ~mask.any(-1)
    return World(
        obs=torch.randn(steps + 1, envs, features, generator=g),
        final_obs=torch.randn(steps, envs, features, generator=g),
        reward=torch.where(valid, torch.randn(steps, envs, generator=g), torch.zeros(())),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        start=start,
        mask=mask,
    )


def play(backend: TorchBackend, world: World, *, update: int = 0, state: Tensor | None = None) -> Rollout:
    """The rollout that a collector would have made of `world` with the backend's policy."""
    model = backend.model
    steps, envs = world.reward.shape
    ids = np.arange(envs)
    uniform = torch.from_numpy(
        backend.streams.uniforms("action", update=update, environments=ids, steps=steps, draws=model.law.noise)
    )
    first = state = model.initial_state(envs) if state is None else state
    decisions, finals, index = [], [], []
    for t in range(steps):
        mask = None if world.mask is None else world.mask[t]
        decision = backend.act(world.obs[t], state, world.start[t], mask, uniform[t])
        state = decision.state
        decisions.append(decision)
        for b in (world.truncated[t] & ~world.terminated[t]).nonzero().squeeze(-1).tolist():
            finals.append(backend.encode(world.final_obs[t, b : b + 1], state[b : b + 1], torch.zeros(1).bool()))
            index.append([t, b])
    opens = (world.terminated | world.truncated)[-1] & world.valid[-1] | ~world.valid[-1]
    last = backend.encode(world.obs[-1], state, opens)
    features = torch.stack([*(d.features for d in decisions), last])
    record = backend.record(
        features,
        torch.cat(finals) if finals else torch.zeros(0, features.shape[-1]),
        torch.tensor(index, dtype=torch.int64).reshape(-1, 2),
    )
    return Rollout(
        obs=world.obs[:-1].clone(),
        action=torch.stack([d.action for d in decisions]),
        log_prob=torch.stack([d.log_prob for d in decisions]),
        params=torch.stack([d.params for d in decisions]),
        mask=world.mask,
        reward=world.reward.clone(),
        terminated=world.terminated,
        truncated=world.truncated,
        valid=world.valid,
        start=world.start,
        state=first.clone(),
        critic=record,
        environment=torch.from_numpy(ids),
        update=update,
    )


def prepared(backend: TorchBackend, rollout: Rollout) -> Prepared:
    """Targets and standardised advantages as an update makes them; moves the return scale, as an update does."""
    targets = build_targets(
        rollout, backend.model.config.critic, backend.streams, gamma=backend.config.gamma, lam=backend.config.lam
    )
    return prepare(rollout, targets, backend.model, backend.optimiser, backend.config, backend.mix_advantages)[0]


def whole_batch_losses(
    backend: TorchBackend, rollout: Rollout, ready: Prepared, *, entropy_weight: float = 0.01
) -> Losses:
    """Loss terms over all valid rows at once, with the epoch-0 draws; gradients are attached to the model."""
    model, valid = backend.model, rollout.valid
    recurrent = model.core is not None
    units = np.arange(valid.shape[1]) if recurrent else np.flatnonzero(valid.numpy().reshape(-1))
    (part,) = batches.parts(units, valid, microbatches=1, recurrent=recurrent)
    if part.envs is None or part.inside is None:
        obs = ready.obs.reshape(-1, ready.obs.shape[-1])[part.rows]
        blank = torch.zeros(len(part.rows), 0, 0)
        features = model.latent(obs[None], blank, torch.zeros(1, len(part.rows), dtype=torch.bool)).features[0]
    else:
        latent = model.latent(ready.obs, rollout.state, rollout.start).features
        features = latent.reshape(-1, latent.shape[-1])[part.inside]
    draws = ready.draws(backend.streams, model, update=rollout.update, epoch=0)
    return compute_losses(model, features, ready.batch(part.rows, draws), backend.config, entropy_weight=entropy_weight)


def snapshot(backend: TorchBackend) -> dict[str, Tensor]:
    """Copies of everything that an update may change: weights, normaliser, return scale, Adam's moments."""
    tensors = {name: tensor.detach().clone() for name, tensor in backend.model.state_dict().items()}
    return tensors | {name: tensor.clone() for name, tensor in backend.optimiser.tensors().items()}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two sets of tensors are equal bit for bit (a NaN equals the same NaN)."""
    return first.keys() == second.keys() and all(bits(first[name]) == bits(second[name]) for name in first)


def bits(tensor: Tensor) -> bytes:
    """The bytes of a tensor, with its dtype and shape."""
    return repr((tensor.dtype, tuple(tensor.shape))).encode() + tensor.detach().contiguous().numpy().tobytes()


def gradients(backend: TorchBackend) -> dict[str, Tensor]:
    """Copies of the gradients by parameter name, zeros where there is none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in backend.model.named_parameters()
    }


BACKENDS = ("torch", "fused")  # what a guarantee is tested with

SMALL_RUN: dict[str, Any] = {
    "backend": "torch",
    "model": SMALL_MODEL,
    "learner": {"epochs": 2, "minibatches": 2},
    "risk": {"mode": "report", "alpha": 0.25},
    "run": {"environments": 4, "rollout_steps": 8, "total_steps": 96, "tensorboard": False},
}


def small_run(**changes: Any) -> Config:
    """A configuration that trains in a fraction of a second."""
    return parse_config(merged(SMALL_RUN, changes), source="test")


def small_trainer(env: Any = "CartPole-v1", **changes: Any) -> Trainer:
    """A trainer in memory on a real environment (id, function or vector environment)."""
    config = small_run(**changes)
    if isinstance(env, str):
        config = config.model_copy(update={"env": config.env.model_copy(update={"id": env})})
    return Trainer(config, GymWorld(config, env))


def started(trainer: Trainer) -> Trainer:
    """The same trainer with its environments reset, ready for `collector.collect`."""
    trainer.driver.reset()
    trainer._fresh = False
    return trainer


def driver_of(env: Any, config: Config) -> EnvDriver:
    """The training environments of a configuration."""
    return GymWorld(config, env).training()


class Scripted(gym.Env[Any, Any]):
    """Observations of 3 random entries and a reward that a function of (step, observation, action) gives.

    Never terminates; truncated after `length` steps.
    """

    def __init__(self, reward: Any = None, length: int = 16, action: str = "discrete") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = ACTIONS[action]
        self.pay = reward if reward is not None else (lambda step, obs, action: 1.0)
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.seen = self.np_random.standard_normal(3).astype(np.float32)
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.pay(self.steps, self.seen, action))
        self.steps += 1
        self.seen = self.np_random.standard_normal(3).astype(np.float32)
        return self.seen, reward, False, self.steps >= self.length, {}


def preset_agent(preset: str, *, backend: str, seed: int, steps: int | None = None) -> PPO:
    """An agent that is set up as a preset of a Gymnasium task says; steps: another budget than its own."""
    config: dict[str, Any] = {**load_source(preset).data, "backend": backend, "seed": seed}
    if steps is not None:
        config["run"] = {**config["run"], "total_steps": steps}
    return PPO(config["env"]["id"], config)

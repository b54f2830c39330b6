"""A fused learner beside its plain torch twin, on random shapes, episode ends, masks and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.fused.backend import FusedBackend
from tailwise.fused.epochs import FusedEpochs
from tailwise.learner import batches
from tailwise.learner.batches import Prepared
from tailwise.learner.losses import compute_losses
from tailwise.learner.ppo import TorchBackend
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tests.support import knobs, play, prepared, random_world, small_backend


@dataclasses.dataclass(frozen=True)
class Case:
    """One random combination of everything that the fused backend covers."""

    model: dict[str, Any]
    learner: dict[str, Any]
    action: str
    features: int
    steps: int
    envs: int
    end: float
    next_step: bool
    masked: bool
    threads: int
    seed: int


def random_case(seed: int, core: str | None = None, critic: str | None = None) -> Case:
    """The `seed`-th case; cores take turns unless one is named, and every fifth critic predicts a mean only."""
    g = np.random.default_rng(seed)
    one_of = lambda *options: options[int(g.integers(len(options)))]  # noqa: E731
    core = core or ("none", "lstm", "gru")[seed % 3]
    widest = 100 if seed % 4 == 3 else 12  # whole vectors of every kind and their remainders, or small and quick
    quantiles = int(g.integers(2, max(20, widest)))
    sampled = one_of(*(k for k in range(1, quantiles + 1) if quantiles % k == 0))
    target = "scalar" if g.random() < 0.15 else "particles"
    model: dict[str, Any] = {
        "observations": {"kind": one_of("running", "running", "none")},
        "returns": {"kind": one_of("popart", "popart", "none")},
        "encoder": {
            "hidden": [int(n) for n in g.integers(1, widest, size=g.integers(0, 3))],
            "activation": one_of("tanh", "relu"),
        },
        "core": {"kind": core, **({} if core == "none" else {"hidden": int(g.integers(1, widest))})},
        "actor": {"hidden": [int(n) for n in g.integers(1, widest, size=g.integers(0, 3))], "gain": 1.0},
        "critic": {
            "hidden": [int(n) for n in g.integers(1, widest, size=g.integers(0, 3))],
            "quantiles": quantiles,
            "kappa": float(one_of(0.02, 0.3, 1.0)),
            "twin": bool(g.random() < 0.8),
            "target": target,
            "minibatch_particles": sampled,
        },
    }
    if (critic or ("scalar" if seed % 5 == 4 else "quantile")) == "scalar":
        model["critic"] = {"kind": "scalar", **{key: model["critic"][key] for key in ("hidden", "twin")}}
    envs = int(g.integers(2, 7))
    learner = {
        "epochs": int(g.integers(1, 4)),
        "minibatches": int(g.integers(1, 3)),
        "microbatches": int(g.integers(1, 3)),
        "clip": float(one_of(0.02, 0.2)),
        "dual_clip": one_of(None, 1.5, 3.0),
        "advantages": one_of("global", "per_env"),
        "max_grad_norm": one_of(None, 0.05, 0.5),
        "target_kl": None,
        "max_kl": 100.0,
    }
    action = one_of("discrete", "box")
    if action == "box":
        model["actor"]["box"] = ("gaussian", "squashed")[seed // 3 % 2]
    return Case(
        model=model,
        learner=learner,
        action=action,
        features=int(g.integers(1, 9)),
        steps=int(g.integers(1, 24)),
        envs=envs,
        end=float(one_of(0.0, 0.1, 0.4)),
        next_step=bool(g.random() < 0.3),
        masked=action == "discrete" and bool(g.random() < 0.5),
        threads=int(g.integers(1, 3)),
        seed=seed,
    )


def twins(case: Case) -> tuple[TorchBackend, FusedBackend]:
    """The same learner twice, with parameters that are all different from 0."""
    plain, other = (
        small_backend(
            model=case.model, learner=case.learner, action=case.action, features=case.features, seed=case.seed,
            tail_alpha=1.0,
        )
        for _ in range(2)
    )  # fmt: skip
    g = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for parameter in plain.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=g))
        plain.model.project()
    other.model.load_state_dict(plain.model.state_dict())
    fused = FusedBackend(other.model, other.config, other.streams, tail_alpha=1.0, threads=case.threads)
    return plain, fused


def rollout_for(case: Case, backend: TorchBackend, update: int) -> Rollout:
    """A rollout with random ends and masks, and a random hidden state that an episode carries in."""
    world = random_world(
        case.steps, case.envs, features=case.features, seed=1000 * case.seed + update, end=case.end,
        next_step=case.next_step, choices=4 if case.masked else 0,
    )  # fmt: skip
    g = torch.Generator().manual_seed(case.seed)
    world.start[0] = torch.rand(case.envs, generator=g) < 0.5
    state = 0.5 * torch.randn(backend.model.initial_state(case.envs).shape, generator=g)
    return play(backend, world, update=update, state=state)


def another_policy(rollout: Rollout, seed: int) -> Rollout:
    """The rollout as if a slightly different policy had made it, so that clips of either kind are active."""
    g = torch.Generator().manual_seed(seed)
    noise = 0.3 * torch.randn(rollout.log_prob.shape, generator=g)
    params = torch.where(
        rollout.params > -1e30, rollout.params + 0.1 * torch.randn(rollout.params.shape, generator=g), rollout.params
    )
    return dataclasses.replace(rollout, log_prob=rollout.log_prob + noise, params=params)


def fused_gradient(backend: FusedBackend, rollout: Rollout, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Gradients by parameter name of the loss over all valid rows with the draws of epoch 0; moves the return scale.

    weights: `entropy_weight`, `bounds_weight` and `prior_weight` of the loss.
    """
    ready = prepared(backend, rollout)
    epochs = FusedEpochs(backend, rollout, ready, knobs(**weights))
    parts = batches.parts(_units(backend, rollout), rollout.valid, microbatches=1, recurrent=_recurrent(backend))
    grad, _ = epochs._gradient(parts, epochs.draws(0), sum(part.size for part in parts))
    return backend.bound.views(torch.from_numpy(grad.copy()))


def torch_gradients(
    backend: TorchBackend,
    rollout: Rollout,
    weights: Mapping[str, float],
    dtypes: tuple[torch.dtype, ...] = (torch.float64,),
) -> list[dict[str, Tensor]]:
    """The same by autograd in each dtype, from the same float32 weights and targets; moves the return scale once."""
    ready = prepared(backend, rollout)
    return [_torch_gradient(backend, rollout, ready, weights, dtype) for dtype in dtypes]


def _torch_gradient(
    backend: TorchBackend, rollout: Rollout, ready: Prepared, weights: Mapping[str, float], dtype: torch.dtype
) -> dict[str, Tensor]:
    draws = ready.draws(backend.streams, backend.model, update=rollout.update, epoch=0)
    torch.set_default_dtype(dtype)
    try:
        model = _copy(backend, dtype)
        (part,) = batches.parts(_units(backend, rollout), rollout.valid, microbatches=1, recurrent=_recurrent(backend))
        batch = ready.batch(part.rows, draws)
        batch = dataclasses.replace(
            batch, **{f.name: v.to(dtype) for f in dataclasses.fields(batch) if _is_float(v := getattr(batch, f.name))}
        )
        if part.envs is None or part.inside is None:
            obs = ready.obs.to(dtype).reshape(-1, ready.obs.shape[-1])[part.rows][None]
            blank = torch.zeros(len(part.rows), 0, 0), torch.zeros(1, len(part.rows), dtype=torch.bool)
            features = model.latent(obs, *blank).features[0]
        else:
            latent = model.latent(ready.obs.to(dtype), rollout.state.to(dtype), rollout.start).features
            features = latent.reshape(-1, latent.shape[-1])[part.inside]
        losses = compute_losses(model, features, batch, backend.config, **weights)
        torch.autograd.backward(losses.total)
    finally:
        torch.set_default_dtype(torch.float32)
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


def relative(found: Tensor, expected: Tensor) -> float:
    """Distance of two tensors, relative to the norm of the second (plus what float32 cannot hold)."""
    return float((found.double() - expected.double()).norm() / (expected.double().norm() + 1e-9))


def _copy(backend: TorchBackend, dtype: torch.dtype) -> ActorCritic:
    model = backend.model
    copy = ActorCritic(model.config, model.observation, model.action, init_seed=Streams(0).integer("init"))
    tensors = model.state_dict()
    copy.load_state_dict({name: t.to(dtype) if t.dtype == torch.float32 else t for name, t in tensors.items()})
    copy.prior = None if model.prior is None else model.prior.to(dtype)
    return copy


def _units(backend: TorchBackend, rollout: Rollout) -> np.ndarray:
    return batches.all_units(rollout.valid, recurrent=_recurrent(backend))


def _recurrent(backend: TorchBackend) -> bool:
    return backend.model.core is not None


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()

"""Small looks at the model and at the decisions of a rollout. They read torch modules and stored data, so they are the
same for every backend."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.distributions import CategoricalLaw

PROBED_ENVIRONMENTS = 4
PROBED_ROWS = 512
DEAD_SPREAD = 1e-4  # standard deviation of a unit's output; tanh at its end, or a ReLU that is off

_ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.SiLU)


def valid_rows(rollout: Rollout, tensor: Tensor) -> Tensor:
    """Rows [n, ...] of a tensor [T, B, ...] that are real transitions; a view when all of them are."""
    if bool(rollout.valid.all()):
        return tensor.reshape(-1, *tensor.shape[2:])
    return tensor[rollout.valid]


def _through(stack: nn.Module, x: Tensor, outputs: list[Tensor]) -> Tensor:
    """Output of a stack for x [..., I]; what its activations gave is added to `outputs`."""
    if not isinstance(stack, nn.Sequential):
        x = stack(x)
        outputs.append(x)
        return x
    for layer in stack:
        x = layer(x)
        if isinstance(layer, _ACTIVATIONS):
            outputs.append(x)
    return x


@torch.no_grad()
def dead_units(model: ActorCritic, rollout: Rollout) -> float | None:
    """Share of hidden units whose output does not depend on the observation; None when observations do not vary."""
    envs = min(PROBED_ENVIRONMENTS, rollout.envs)
    steps = min(rollout.steps, max(1, PROBED_ROWS // envs))
    obs = torch.nan_to_num(rollout.obs[:steps, :envs], nan=0.0, posinf=0.0, neginf=0.0)
    x = model.normaliser(obs)
    if steps * envs < 2 or float(x.reshape(-1, x.shape[-1]).std(0).max()) == 0.0:
        return None
    outputs: list[Tensor] = []
    x = _through(model.encoder, x, outputs)
    if model.core is not None:
        x, _ = model.core(x, rollout.state[:envs], rollout.start[:steps, :envs])
        outputs.append(x)
    _through(model.actor.body, x, outputs)
    for critic in model.critic_heads():
        _through(critic.body, x, outputs)
    spreads = [out.reshape(-1, out.shape[-1]).std(0) for out in outputs]
    if not spreads:
        return None
    return float((torch.cat(spreads) < DEAD_SPREAD).float().mean())


def decisions(model: ActorCritic, rollout: Rollout) -> dict[str, float]:
    """How actions are spread, and the size of logits, over the valid rows of a rollout."""
    if not isinstance(model.law, CategoricalLaw):
        return _bounds(model, rollout)
    action, params = valid_rows(rollout, rollout.action), valid_rows(rollout, rollout.params)
    mask = None if rollout.mask is None else valid_rows(rollout, rollout.mask)
    found: dict[str, float] = {}
    found["policy/logit_norm"] = _logit_norm(model.law, params)
    if len(model.law.sizes) == 1 and mask is not None:
        free = mask.sum(-1) > 1
        action = action[free]
    if len(action):
        shares = [float(torch.bincount(action[:, i]).max()) / len(action) for i in range(action.shape[1])]
        found["action/top_share"] = min(shares)
    return found


def largest_entropy(model: ActorCritic, rollout: Rollout) -> float | None:
    """Mean over decisions of the log of the number of allowed actions, components summed; None where unbounded."""
    if not isinstance(model.law, CategoricalLaw):
        return None
    if rollout.mask is None:
        return model.law.max_entropy
    mask = valid_rows(rollout, rollout.mask)
    allowed = [part.sum(-1).double() for part in model.law.split(mask)]
    return float(sum(torch.log(count).mean() for count in allowed))


def _logit_norm(law: CategoricalLaw, params: Tensor) -> float:
    rows = params[:: max(1, len(params) // PROBED_ROWS)]
    total = torch.zeros(len(rows))
    for logits in law.split(rows):
        allowed = logits > torch.finfo(logits.dtype).min
        kept = torch.where(allowed, logits, torch.zeros(()))
        centre = kept.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True)
        total = total + torch.where(allowed, kept - centre, torch.zeros(())).square().sum(-1)
    return float(total.sqrt().mean())


def _bounds(model: ActorCritic, rollout: Rollout) -> dict[str, float]:
    spec = model.action
    if model.law.squashed or not (np.isfinite(spec.low).all() and np.isfinite(spec.high).all()):
        return {}
    action = valid_rows(rollout, rollout.action).numpy()
    return {"action/at_bound": float(((action <= spec.low) | (action >= spec.high)).mean())}


def rewards(rollout: Rollout, earlier: float) -> dict[str, float]:
    """Size of rewards; `earlier`: the largest |reward| of earlier rollouts, 0 when there is none to compare with."""
    reward = valid_rows(rollout, rollout.reward)
    if not bool(torch.isfinite(reward).all()):
        return {}
    largest = float(reward.abs().max())
    found = {"reward/mean": float(reward.mean()), "reward/largest": largest}
    if earlier > 0:
        found["reward/jump"] = largest / earlier
    return found


def reward_spread(rollout: Rollout) -> float:
    """Largest minus smallest reward of the valid rows."""
    reward = valid_rows(rollout, rollout.reward)
    return float(reward.max() - reward.min())


def memory_mb() -> float | None:
    """Resident memory of this process in MB; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

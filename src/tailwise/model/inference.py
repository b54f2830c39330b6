"""Decisions of the policy: one function for training, playback and `predict`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tailwise.model.actor_critic import ActorCritic

ROWS = 64  # playback always computes this many rows, so that a decision never depends on its neighbours


@dataclass(frozen=True)
class Decision:
    """One vector step: action [B, A] raw, log_prob [B], params [B, P], features [B, H], state [B, S, H]."""

    action: Tensor
    log_prob: Tensor
    params: Tensor
    features: Tensor
    state: Tensor


@torch.no_grad()
def decide(
    model: ActorCritic, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None
) -> Decision:
    """obs [B, D], state [B, S, H], start [B], mask [B, K], uniform [B, noise] in (0, 1), None: most likely action."""
    latent = model.latent(obs[None], state, start[None])
    features = latent.features[0]
    params = model.policy(features, mask)
    action = model.law.mode(params) if uniform is None else model.law.sample(params, uniform)
    return Decision(action, model.law.log_prob(params, action), params, features, latent.state)


def decide_padded(
    model: ActorCritic, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None
) -> Decision:
    """`decide` in blocks of exactly ROWS rows, the last one padded: row i is the same whatever stands beside it.

    Matrix kernels choose their order of summation by the number of rows; with a fixed number it cannot change.
    """
    blocks = []
    for first in range(0, obs.shape[0], ROWS):
        block = slice(first, first + ROWS)
        made = decide(
            model,
            _padded(obs[block], 0.0),
            _padded(state[block], 0.0),
            _padded(start[block], 1.0),
            None if mask is None else _padded(mask[block], 1.0),
            None if uniform is None else _padded(uniform[block], 0.5),
        )
        rows = obs[block].shape[0]
        blocks.append(
            Decision(
                made.action[:rows], made.log_prob[:rows], made.params[:rows], made.features[:rows], made.state[:rows]
            )
        )
    if len(blocks) == 1:
        return blocks[0]
    names = ("action", "log_prob", "params", "features", "state")
    return Decision(*(torch.cat([getattr(block, name) for block in blocks]) for name in names))


def _padded(rows: Tensor, fill: float) -> Tensor:
    """rows [n, ...] with n <= ROWS -> [ROWS, ...], filled up with `fill`."""
    padded = torch.full((ROWS, *rows.shape[1:]), fill, dtype=rows.dtype)
    padded[: rows.shape[0]] = rows
    return padded

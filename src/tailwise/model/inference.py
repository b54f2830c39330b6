"""Decisions of the policy: one function for training, playback and `predict`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tailwise.core.errors import DataError
from tailwise.core.numerics import surely_finite
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
    Raises DataError where the law of the action is not finite: the largest of NaNs is no decision.
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
        decision = Decision(
            made.action[:rows], made.log_prob[:rows], made.params[:rows], made.features[:rows], made.state[:rows]
        )
        _check_finite(decision, obs[block], first)
        blocks.append(decision)
    if len(blocks) == 1:
        return blocks[0]
    names = ("action", "log_prob", "params", "features", "state")
    return Decision(*(torch.cat([getattr(block, name) for block in blocks]) for name in names))


def _check_finite(decision: Decision, obs: Tensor, first: int) -> None:
    """Raise unless the law, the action and the hidden state of every row are finite; `first` is the number of row 0."""
    parts = (decision.params, decision.action.to(decision.params.dtype), decision.state)
    if surely_finite(*(part.numpy() for part in parts)):
        return
    finite = torch.stack([torch.isfinite(part.flatten(1)).all(dim=1) for part in parts]).all(dim=0)
    if bool(finite.all()):
        return
    row = int((~finite).nonzero()[0])
    raise DataError(
        f"the policy's answer to observation {first + row} is NaN or infinite, so it is no action (the observation's "
        f"largest entry is {float(obs[row].abs().max()):.3g}, and its weights or hidden state may be broken); check "
        "the observation and the checkpoint."
    )


def _padded(rows: Tensor, fill: float) -> Tensor:
    """rows [n, ...] with n <= ROWS -> [ROWS, ...], filled up with `fill`."""
    padded = torch.full((ROWS, *rows.shape[1:]), fill, dtype=rows.dtype)
    padded[: rows.shape[0]] = rows
    return padded

"""The rollout as the kernels read it: flat arrays, observations normalised once per update."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tailwise.fused.inference import Standard, standardise
from tailwise.fused.rows import Rows
from tailwise.learner.batches import Prepared
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic


@torch.no_grad()
def rows_of(model: ActorCritic, standard: Standard, rollout: Rollout, prepared: Prepared) -> Rows:
    """Views where the layout allows it; standard: the model's normaliser, which stays the same during an update."""
    discrete = model.law.discrete
    rows = prepared.log_prob.shape[0]
    action = prepared.action
    scalars = np.empty((rows, 3), dtype=np.float32)
    for column, part in enumerate((prepared.log_prob, prepared.advantage, prepared.mean_target)):
        scalars[:, column] = part.numpy()
    obs = np.empty((rows, prepared.obs.shape[-1]), dtype=np.float32)
    standardise(prepared.obs.reshape(rows, -1).contiguous().numpy(), standard, obs.reshape(-1), obs.shape[1])
    return Rows(
        obs=obs,
        choice=action[:, 0].contiguous().numpy() if discrete else np.zeros(0, dtype=np.int64),
        action=np.zeros((0, 0), dtype=np.float32) if discrete else action.contiguous().numpy(),
        mask=np.zeros((0, 0), dtype=np.bool_) if prepared.mask is None else prepared.mask.contiguous().numpy(),
        scalars=scalars,
        old=_log_probabilities(prepared.params) if discrete else prepared.params.contiguous().numpy(),
        valid=prepared.valid.reshape(-1).contiguous().numpy(),
        start=rollout.start.reshape(-1).contiguous().numpy(),
        state=rollout.state.contiguous().numpy(),
        envs=rollout.envs,
    )


def _log_probabilities(logits: Tensor) -> np.ndarray:
    """Log-probabilities and probabilities [R, 2K] of logits [R, K].

    A masked logit is the smallest finite number: its log-probability stays that small, its probability is 0. Actions as
    rows: sums over a few of them are then sums of long rows, a third of the time.
    """
    log_p = torch.log_softmax(logits.t().contiguous(), 0)
    both = torch.empty(logits.shape[0], 2 * logits.shape[1])
    both[:, : logits.shape[1]] = log_p.t()
    both[:, logits.shape[1] :] = log_p.exp_().t()
    found: np.ndarray = both.numpy()
    return found

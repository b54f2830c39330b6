"""The rollout as the kernels read it: flat arrays, observations normalised once per update."""

from __future__ import annotations

import numpy as np
import torch

from tailwise.kernels.inference import standard_of, standardise
from tailwise.kernels.rows import Rows
from tailwise.learner.preparation import Prepared
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.distributions import CategoricalLaw


@torch.no_grad()
def rows_of(model: ActorCritic, rollout: Rollout, prepared: Prepared) -> Rows:
    """Views where the layout allows it. The statistics of the normaliser stay the same during an update."""
    discrete = isinstance(model.law, CategoricalLaw)
    rows = prepared.log_prob.shape[0]
    action = prepared.action
    obs = np.empty((rows, prepared.obs.shape[-1]), dtype=np.float32)
    standardise(prepared.obs.reshape(rows, -1).contiguous().numpy(), standard_of(model.normaliser), obs.reshape(-1))
    return Rows(
        obs=obs,
        choice=action[:, 0].contiguous().numpy() if discrete else np.zeros(0, dtype=np.int64),
        action=np.zeros((0, 0), dtype=np.float32) if discrete else action.contiguous().numpy(),
        mask=np.zeros((0, 0), dtype=np.bool_) if prepared.mask is None else prepared.mask.contiguous().numpy(),
        scalars=np.column_stack(
            [part.numpy() for part in (prepared.log_prob, prepared.advantage, prepared.mean_target)]
        ),
        old=_log_probabilities(prepared.params.numpy()) if discrete else prepared.params.contiguous().numpy(),
        valid=prepared.valid.reshape(-1).contiguous().numpy(),
        start=rollout.start.reshape(-1).contiguous().numpy(),
        state=rollout.state.contiguous().numpy(),
        envs=rollout.envs,
    )


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities and probabilities [R, 2K] of logits [R, K], computed in float64 as the kernels do.

    A masked logit is the smallest finite number: its log-probability stays that small, its probability is 0. Actions by
    columns: sums over a few of them are then sums of long rows.
    """
    log_p = logits.T.astype(np.float64)
    log_p -= log_p.max(0)
    log_p -= np.log(np.exp(log_p).sum(0))
    lowest = float(np.finfo(np.float32).min)  # from which a masked logit may have moved
    log_p = np.maximum(log_p, lowest, out=log_p).astype(np.float32)
    return np.ascontiguousarray(np.concatenate([log_p, np.exp(log_p)]).T)

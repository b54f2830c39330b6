"""Memory into which the decisions of a rollout are written, step by step: made once, before the first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.model.actor_critic import ActorCritic
from tailwise.model.inference import Decision


class Decisions:
    """Decisions of T steps of B environments.

    noise [T, B, draws] float64: random numbers that decide, as the implementation wants them; action [T, B, A],
    log_prob [T, B], params [T, B, P]; features [T+1, B, H]: at the observations that were acted on, and at the last
    ones; state [B, S, H]: before the next step, changed in place.
    """

    def __init__(self, model: ActorCritic, noise: npt.NDArray[np.float64], state: Tensor) -> None:
        steps, envs = noise.shape[:2]
        law = model.law
        self.noise = noise
        self.state = state.clone()
        kind = torch.int64 if law.discrete else torch.get_default_dtype()
        self.action = torch.empty(steps, envs, model.action.components, dtype=kind)
        self.log_prob = torch.empty(steps, envs)
        self.params = torch.empty(steps, envs, law.parameters)
        self.features = torch.empty(steps + 1, envs, model.features)

        # The same memory as arrays: a step writes several small things, and a tensor takes longer for each.
        self.states: npt.NDArray[np.float32] = self.state.numpy()
        self.actions: npt.NDArray[Any] = self.action.numpy()
        self.log_probs: npt.NDArray[np.float32] = self.log_prob.numpy()
        self.parameters: npt.NDArray[np.float32] = self.params.numpy()
        self.looks: npt.NDArray[np.float32] = self.features.numpy()
        self.prepared: Any = None  # what an implementation makes once per rollout and reads at every step

    def take(self, t: int, decision: Decision) -> None:
        """Write step t."""
        self.action[t] = decision.action
        self.log_prob[t] = decision.log_prob
        self.params[t] = decision.params
        self.features[t] = decision.features
        self.state.copy_(decision.state)

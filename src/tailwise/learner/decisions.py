"""Memory into which the decisions of a rollout are written, and stretches that need no Python between their steps."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.model.actor_critic import ActorCritic, Decision


def action_noise(
    model: ActorCritic, streams: Streams, update: int, environments: npt.NDArray[np.int64], steps: int
) -> npt.NDArray[np.float64]:
    """Uniforms in (0, 1) [T, B, draws] that decide the actions of a rollout."""
    return streams.uniforms("action", update=update, environments=environments, steps=steps, draws=model.law.noise)


class Decisions:
    """Decisions of T steps of B environments.

    noise [T, B, draws] float64: random numbers that decide, as the implementation wants them, [T, 0, 0] where the most
    likely action is taken; action [T, B, A], log_prob [T, B], params [T, B, P]; features [T+1, B, H]: at the
    observations that were acted on, and at the last ones; state [B, S, H]: before the next step, changed in place.
    """

    def __init__(self, model: ActorCritic, noise: npt.NDArray[np.float64], state: Tensor) -> None:
        steps, envs = len(noise), len(state)
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


Bools = npt.NDArray[np.bool_]


class Shown(NamedTuple):
    """What environments show in a rollout, and the episodes that run in them.

    obs float32 [T, B, D], start bool [T, B]: what is decided on, of which step 0 is there; reward float64, terminated,
    truncated, valid bool [T, B]: what follows; last_obs [B, D], last_start [B]: shown after the last step; pending
    bool, returns float64, lengths int64 [B]: as in `take_step`.
    """

    obs: npt.NDArray[np.float32]
    start: Bools
    reward: npt.NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    valid: Bools
    last_obs: npt.NDArray[np.float32]
    last_start: Bools
    pending: Bools
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]


class End(NamedTuple):
    """Episodes that ended in one step: rows [n] with their returns and lengths; of those that were truncated, cut [m],
    the last observations final [m, D] and the hidden states before them [m, S, H]."""

    step: int
    rows: npt.NDArray[np.int64]
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    cut: npt.NDArray[np.int64]
    final: npt.NDArray[np.float32]
    state: npt.NDArray[np.float32]


class Stretch(NamedTuple):
    """A rollout that was run.

    ends           in the order of steps and rows
    seen           the events (`core.loops`) of all steps together
    finite         whether the observations after the last step are
    broken_action  (step, environment) of the first action that is NaN; nothing after it counts
    """

    ends: list[End]
    seen: int
    finite: bool
    broken_action: tuple[int, int] | None = None


class Ahead(Protocol):
    """A policy and the environments it acts in, in compiled code."""

    def compile(self, envs: int) -> None:
        """Have the code compiled for `envs` environments, without a step."""

    def begin(self, noise: npt.NDArray[np.float64], state: Tensor) -> Decisions:
        """Memory for a playback of T steps from state [B, S, H] with the present weights; noise: of `Decisions`."""

    def run(self, made: Decisions, shown: Shown, *, finite: bool) -> Stretch:
        """All steps of the rollout that `made` began; finite: whether the observations of step 0 are."""

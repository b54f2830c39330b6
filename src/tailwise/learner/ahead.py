"""Stretches of a rollout that need no Python between their steps: what goes in, and what comes out."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tailwise.learner.decisions import Decisions

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
    """A rollout that was run: its ends in the order of steps and rows, the `step_bits` of all steps together, and
    whether the observations after the last step are finite."""

    ends: list[End]
    seen: int
    finite: bool


class Ahead(Protocol):
    """A policy and the environments it acts in, in compiled code."""

    def compile(self, envs: int) -> None:
        """Have the code compiled for `envs` environments, without a step."""

    def run(self, made: Decisions, shown: Shown, *, finite: bool) -> Stretch:
        """All steps of the rollout that `made` began; finite: whether the observations of step 0 are."""

"""Does the predicted law of the return agree with what then happened?

A *window* stores the law that the critics predicted at a state and gathers the discounted rewards that follow in that
environment, across rollouts. It is complete when the episode terminates. Where it is truncated, or after `horizon`
steps, one random draw from the law predicted at the last state, times the discount, stands for the rest: a draw and not
the mean, so that the completed return has the predicted law whenever the predictions are right.

Two rules keep the sample of completed windows fair:
- A truncated window is never thrown away, however short: among windows close to a time limit only those that terminate
  would remain, which are the crashes. How much of the discount was observed is reported instead.
- Windows are counted in the order of their starts, once no older one is open: early in a run the windows that
  complete first are, again, those that terminate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailwise.core.errors import CheckpointError, ShapeError
from tailwise.core.loops.arrays import follow_windows
from tailwise.core.numerics import golden_fractions, tail_horizon
from tailwise.core.streams import Streams
from tailwise.learner.calibration_laws import ROUNDING, Floats, Integers, Laws
from tailwise.learner.calibration_windows import Completed, Flags, OpenWindows, start_rows
from tailwise.learner.return_laws import return_law
from tailwise.learner.returns import require_fraction, stratified_levels
from tailwise.learner.risk import pooled_tail
from tailwise.learner.rollout import Rollout
from tailwise.model.config import Critic

TRACKED = 64  # environments, the first ones
KEPT = 2048  # completed windows
LEAST = 50  # completed windows that a report needs
LEAST_OBSERVED = 0.5  # share of the discount that rewards must have covered for a verdict
STARTS_PER_ROLLOUT = 8
STARTS_PER_HORIZON = 64  # bounds the open windows of an environment
LONGEST = 4096  # steps; gamma = 1 has no horizon of its own
LEVELS = (0.05, 0.50, 0.95)
BINS = 10
_MARKS = np.concatenate([LEVELS, np.linspace(0.0, 1.0, BINS + 1)[1:-1]])  # levels, then edges between bins
# Levels at which the law of each window is read for the pooled one. Where in its stratum a level lies differs from
# window to window, so that together they read the whole tail; the same midpoints for all would cut off its end.
_POOLED = 16
_COUNTERS = ("clock", "next_update", "dropped")


@dataclass(frozen=True)
class CalibrationReport:
    """Predicted against realised, over the newest completed windows. Returns are raw and discounted.

    coverage: share of realised returns below the predicted 5%, 50% and 95% quantile (should be .05, .50, .95);
    pit: shares of ten bins of the probability integral transform (each should be .1); pit_error: its largest
    distance from the uniform distribution function; cvar_*: of the pooled laws and of the returns; spread: standard
    deviation of the returns; observed: mean share of the discount that rewards covered: near 0, the predictions were
    compared with themselves; dropped: windows lost so far to a reset without an end of episode, a number not finite or
    a missing rollout.
    """

    windows: int
    coverage: tuple[float, float, float]
    pit: tuple[float, ...]
    pit_error: float
    cvar_predicted: float
    cvar_realised: float
    spread: float
    observed: float
    dropped: int

    def metrics(self) -> dict[str, float]:
        """The declared metrics by name."""
        values = {f"coverage_{round(100 * q):02d}": c for q, c in zip(LEVELS, self.coverage, strict=True)}
        values |= {"windows": float(self.windows), "pit_error": self.pit_error}
        values |= {"cvar_predicted": self.cvar_predicted, "cvar_realised": self.cvar_realised}
        values |= {"observed": self.observed, "spread": self.spread, "dropped": float(self.dropped)}
        values |= {f"pit/{k}": share for k, share in enumerate(self.pit)}
        return {f"calibration/{name}": value for name, value in values.items()}

    def calibrated(self, tolerance: float) -> bool:
        """Whether predicted and realised CVaR differ by at most `tolerance` standard deviations of the return."""
        return self.agrees(self.cvar_predicted, tolerance)

    def agrees(self, cvar: float, tolerance: float) -> bool:
        """Whether a CVaR and the realised one differ by at most `tolerance` standard deviations of the return.

        Windows of which less than half was observed say nothing: predictions were compared with themselves.
        """
        if self.observed < LEAST_OBSERVED:
            return False
        # Where returns have no spread, float32 rounding must not decide.
        rounding = ROUNDING * max(abs(cvar), abs(self.cvar_realised))
        return abs(cvar - self.cvar_realised) <= tolerance * self.spread + rounding


class Calibration:
    """Fed one rollout after another; holds the open windows and the newest completed ones.

    Bounded: in each environment one window starts per rollout/8 steps, or per horizon/64 steps if that is longer.
    """

    def __init__(
        self,
        critic: Critic,
        streams: Streams,
        *,
        gamma: float,
        alpha: float,
        environments: int,
    ) -> None:
        require_fraction("gamma", gamma)
        self.critic, self.streams, self.gamma, self.alpha = critic, streams, gamma, alpha
        self.environments = environments
        self.tracked = min(environments, TRACKED)
        self.law = return_law(critic)
        self.horizon = LONGEST if gamma == 1 else min(LONGEST, tail_horizon(gamma))
        self.discount = np.multiply.accumulate(np.array([1.0] + [gamma] * self.horizon))  # by age
        self.clock = 0  # steps absorbed so far
        self.next_update = 0  # number of the rollout that continues the open windows
        self.dropped = 0
        self.laws: Laws = np.zeros((0, self.law.size), dtype=np.float32)  # predicted, of all windows
        self.open = OpenWindows.empty()
        self.waiting = Completed.empty()  # complete, but an older window is still open
        self.completed = Completed.empty()  # the newest, oldest first

    # ---------------------------------------------------------------- windows

    def absorb(self, rollout: Rollout) -> None:
        """Continue the open windows through the next rollout, and start new ones in it.

        Give every rollout, also one that the learner refused for numbers that are not finite: only the windows that
        contain such a number are dropped. If a rollout is left out, all open windows are.
        """
        record, steps = rollout.critic, rollout.steps
        if rollout.envs != self.environments or record.law is None or record.final_law is None:
            law = "no law" if record.law is None or record.final_law is None else "a law"
            raise ShapeError(
                f"calibration got a rollout of {rollout.envs} environments with {law} of the return; it was made for "
                f"{self.environments} environments and a {self.critic.kind} critic"
            )
        if rollout.update != self.next_update:  # what came in between is unknown
            self.dropped += len(self.open)
            self.open = OpenWindows.empty()
        self.next_update = rollout.update + 1
        valid, fresh = self._flags(rollout.valid), self._flags(rollout.start)
        terminated, truncated = self._flags(rollout.terminated), self._flags(rollout.truncated)
        boundary = (terminated | truncated) & valid
        new, rows = self._begin(rollout, record.law.numpy(), valid)
        windows = self.open.joined(new)
        column, first = windows.column, np.concatenate([np.zeros(len(self.open), dtype=np.int64), rows])
        reward = rollout.reward.numpy()[:, : self.tracked].astype(np.float64)
        reward = np.where(np.isfinite(reward), reward, np.nan)  # an infinity may warn where NaN just spreads
        last = np.empty_like(first)
        # A reset without an end of the episode (environments that a resumed run had to reset) cuts a window.
        cuts = fresh | ~valid
        follow_windows(reward, boundary, cuts, column, first, windows.age, self.discount, windows.total, last)
        windows.age[:] += last - first + 1  # in place: `joined` made copies
        whole = last >= 0
        done = (boundary[last, column] | (windows.age >= self.horizon)) & whole
        self.open = windows.take(whole & ~done)
        ended, last = windows.take(done), last[done]
        final = terminated[last, ended.column]
        after = record.law.numpy()[last + 1, ended.column]  # the law at the state that follows the last step
        cut_off = np.flatnonzero(truncated[last, ended.column])
        after[cut_off] = record.final_law.numpy()[last[cut_off], ended.column[cut_off]]
        rest = self.law.draw(after, record, ended.luck[:, 0])
        weight = self.discount[ended.age]
        realised = np.where(final, ended.total, ended.total + weight * rest)
        observed = np.where(final, 1.0, 1.0 - weight)
        finite = np.isfinite(realised)
        if not finite.all():
            ended, realised, observed = ended.take(finite), realised[finite], observed[finite]
        self.dropped += len(windows) - len(self.open) - len(ended)
        self._release(self._judged(ended, realised, observed))
        self.clock += steps

    def _flags(self, flags: Tensor) -> Flags:
        tracked: Flags = flags.numpy()[:, : self.tracked]
        return tracked

    def _begin(self, rollout: Rollout, law: NDArray[Any], valid: Flags) -> tuple[OpenWindows, Integers]:
        """The windows that start in this rollout, and the row of each, ascending."""
        record, steps = rollout.critic, rollout.steps
        stride = max(1, steps // STARTS_PER_ROLLOUT, math.ceil(self.horizon / STARTS_PER_HORIZON))
        rows = start_rows(self.clock, steps, self.tracked, stride)
        uniform = self.streams.uniforms(
            "calibration",
            update=rollout.update,
            environments=rollout.environment.numpy()[: self.tracked],
            steps=len(rows),
            draws=4,
        )
        begins = (rows >= 0) & (rows < steps)
        begins &= valid[np.where(begins, rows, 0), np.arange(self.tracked)]
        if record.sigma == 0.0:  # before the first scale every prediction is 0 and means nothing
            begins[:] = False
        index, column = np.nonzero(begins)
        order = np.argsort(rows[index, column], kind="stable")
        index, column = index[order], column[order]
        row, luck = rows[index, column], uniform[index, column]
        predicted = self.law.raw_values(law[row, column], record, luck[:, 3:])
        finite = np.isfinite(predicted)
        if not finite.all():
            sound = finite.all(1)
            row, column, luck, predicted = row[sound], column[sound], luck[sound], predicted[sound]
        windows = OpenWindows(
            law=self._keep(predicted),
            column=column,
            start=self.clock + row,
            age=np.zeros(len(row), dtype=np.int64),
            total=np.zeros(len(row)),
            luck=luck[:, :3],
            grid=np.full((len(row), 2), self.law.grid(record.mu, record.sigma)),
        )
        return windows, row

    def _keep(self, predicted: Laws) -> Integers:
        """Write laws [n, N] into rows of `self.laws` that no window uses; these rows [n]."""
        unused = np.ones(len(self.laws) + len(predicted), dtype=np.bool_)
        for table in (self.open, self.waiting, self.completed):
            unused[table.law] = False
        rows = np.flatnonzero(unused)[: len(predicted)]
        if len(rows) and rows[-1] >= len(self.laws):
            self.laws = np.concatenate([self.laws, np.empty_like(self.laws, shape=(len(predicted), self.law.size))])
        self.laws[rows] = predicted
        return rows

    def _judged(self, ended: OpenWindows, realised: Floats, observed: Floats) -> Completed:
        predicted = self.laws.take(ended.law, axis=0)
        pit = self.law.transform(predicted, realised, ended.luck, ended.grid)
        return Completed(
            law=ended.law, column=ended.column, start=ended.start, realised=realised, pit=pit, observed=observed
        )

    def _release(self, judged: Completed) -> None:
        """Count the windows that are older than every open one, in the order of their starts."""
        waiting = self.waiting.joined(judged)
        order = np.argsort(self.tracked * waiting.start + waiting.column)  # no two windows of a column start together
        oldest = self.open.start.min() if len(self.open) else np.inf
        ready = np.count_nonzero(waiting.start < oldest)
        self.waiting = waiting.take(order[ready:])
        released = waiting.take(order[max(ready - KEPT, 0) : ready])
        outdated = max(len(self.completed) + len(released) - KEPT, 0)
        self.completed = self.completed.since(outdated).joined(released)

    # ---------------------------------------------------------------- report

    def report(self) -> CalibrationReport | None:
        """What the newest completed windows say; None while there are fewer than 50."""
        done = self.completed
        count = len(done)
        if count < LEAST:
            return None
        pit = np.sort(done.pit)
        ranks = np.arange(count + 1) / count
        below = np.searchsorted(pit, _MARKS).tolist()
        below_05, below_50, below_95 = (n / count for n in below[: len(LEVELS)])
        bins = pairwise([0, *below[len(LEVELS) :], count])
        return CalibrationReport(
            windows=count,
            coverage=(below_05, below_50, below_95),
            pit=tuple((end - start) / count for start, end in bins),
            pit_error=float(max((ranks[1:] - pit).max(), (pit - ranks[:-1]).max())),
            cvar_predicted=pooled_tail(torch.from_numpy(self._pooled()), self.alpha)[1],
            cvar_realised=pooled_tail(torch.from_numpy(done.realised), self.alpha)[1],
            spread=float(done.realised.std()),
            observed=float(done.observed.mean()),
            dropped=self.dropped,
        )

    @cached_property
    def _places(self) -> tuple[Integers, NDArray[np.float32] | None]:
        """Where the laws of all windows are read, see `_POOLED`: places of values in each law [KEPT, 16], and how far
        it is to the next one [KEPT * 16], None where only the values themselves are read."""
        offset = golden_fractions(torch.arange(KEPT, dtype=torch.float64))
        levels = stratified_levels(offset[:, None].expand(-1, _POOLED))
        return self.law.places(levels)

    def _pooled(self) -> NDArray[np.float32]:
        """Equally likely values of the predicted laws of all completed windows together, flat."""
        left, fraction = self._places
        rows, values = self.completed.law[:, None], self.laws.reshape(-1)
        places = (self.law.size * rows + left[: len(rows)]).reshape(-1)
        low: NDArray[np.float32] = values.take(places)
        if fraction is None:
            return low
        between = values[1:].take(places)  # the next one of each
        between -= low
        between *= fraction[: len(places)]
        between += low
        return between

    # ---------------------------------------------------------------- checkpoint

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that the next rollout depends on: tensors by name, and plain numbers."""
        tensors: dict[str, Tensor] = {}
        for name in ("open", "waiting", "completed"):
            tensors |= getattr(self, name).tensors(name, self.laws)
        return tensors, {name: getattr(self, name) for name in _COUNTERS}

    def load(self, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
        """The inverse of `state`; raises before anything has changed if it does not fit."""
        expected, counters = self.state()
        if tensors.keys() != expected.keys() or data.keys() != counters.keys():
            have, want = {*tensors, *data}, {*expected, *counters}
            raise CheckpointError(
                f"the calibration state does not fit: missing {sorted(want - have)[:3]}, unexpected "
                f"{sorted(have - want)[:3]}; resume with the version and configuration that the run was started with"
            )
        wrong = [f"{name} = {value!r}" for name, value in data.items() if type(value) is not int or value < 0]
        if wrong:
            raise CheckpointError(
                f"the calibration state has {', '.join(wrong)}; expected counts: use another checkpoint"
            )
        laws, columns = self.laws[:0], self.tracked
        opened, laws = OpenWindows.from_tensors("open", tensors, laws, columns=columns)
        too_old = opened.age[(opened.age < 0) | (opened.age >= self.horizon)]
        if len(too_old):
            raise CheckpointError(
                f"the calibration state has a window that has seen {too_old[0]} steps; expected 0 to "
                f"{self.horizon - 1}: use another checkpoint"
            )
        waiting, laws = Completed.from_tensors("waiting", tensors, laws, columns=columns)
        self.completed, self.laws = Completed.from_tensors("completed", tensors, laws, columns=columns)
        self.open, self.waiting = opened, waiting
        self.clock, self.next_update, self.dropped = (data[name] for name in _COUNTERS)

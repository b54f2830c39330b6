"""`run.geometry: auto`: the environments, steps, epochs and minibatches that fit a budget and a task.

Learning needs updates: with 64 x 128 rows each, 200,000 steps are 24 updates, too few for any task. The rule spends at
most a hundredth of the budget on a rollout. docs/geometry.md has the table and what it was measured on.
"""

from __future__ import annotations

from dataclasses import dataclass

UPDATES = 90  # at least, so that the next lower power of two leaves "about 100"
FEWEST_ROWS = 128  # of a rollout; budgets below UPDATES x this have fewer updates
FEWEST_STEPS = 16  # of a rollout: with many named environments rather fewer updates than advantages over a few steps


@dataclass(frozen=True)
class Geometry:
    """A rollout of environments x rollout_steps rows; epochs passes over it in minibatches parts."""

    environments: int
    rollout_steps: int
    epochs: int
    minibatches: int

    def describe(self, total_steps: int) -> str:
        """One line for the terminal."""
        rows = self.environments * self.rollout_steps
        return (
            f"{-(-total_steps // rows):,} updates of {self.environments} environments x {self.rollout_steps} steps, "
            f"{self.epochs} epochs of {self.minibatches} minibatches"
        )


@dataclass(frozen=True)
class Task:
    """What the rule knows of a task.

    recurrent: minibatches hold whole environments. noisy: a market, or a tail that acts on the policy; single returns
    say little there, and the tail of a rollout is read from its worst rows, so that it has to be large and long.
    """

    recurrent: bool
    noisy: bool


CONTROL_ENVIRONMENTS, CONTROL_ROWS, CONTROL_EPOCHS, CONTROL_BATCH = 8, 2048, 10, 64
NOISY_ENVIRONMENTS, NOISY_STEPS, NOISY_EPOCHS, NOISY_BATCHES = 64, 128, 4, 4
# The rows of a sequence resemble one another, and a minibatch of few sequences is mostly their noise.
RECURRENT_ENVIRONMENTS, RECURRENT_BATCHES = 16, 4


def choose_geometry(
    task: Task,
    *,
    total_steps: int,
    environments: int | None = None,
    rollout_steps: int | None = None,
    epochs: int | None = None,
    minibatches: int | None = None,
) -> Geometry:
    """Fill in what is None; what is given stays as it is, and the rest is chosen to go with it."""
    most = NOISY_ENVIRONMENTS * NOISY_STEPS if task.noisy else CONTROL_ROWS
    rows = _power_of_two(min(max(total_steps // UPDATES, FEWEST_ROWS), most))
    shortest = 1 if environments is None else FEWEST_STEPS
    if environments is None:
        environments = RECURRENT_ENVIRONMENTS if task.recurrent else CONTROL_ENVIRONMENTS
        if task.noisy:  # fewer environments before shorter rollouts
            wanted = rows // (NOISY_STEPS if rollout_steps is None else rollout_steps)
            environments = min(max(wanted, environments), NOISY_ENVIRONMENTS)
        if task.recurrent and minibatches is not None:
            environments = -(-environments // minibatches) * minibatches  # as many in each minibatch
    if rollout_steps is None:
        rollout_steps = _power_of_two(max(rows // environments, shortest))
    if minibatches is None:
        rows = environments * rollout_steps
        wanted = NOISY_BATCHES if task.noisy else min(max(rows // CONTROL_BATCH, 1), CONTROL_ROWS // CONTROL_BATCH)
        if task.recurrent:
            wanted = min(wanted, RECURRENT_BATCHES, max(environments // 2, 1))
        minibatches = largest_divisor(environments if task.recurrent else rows, wanted)
    if epochs is None:
        epochs = NOISY_EPOCHS if task.noisy else CONTROL_EPOCHS
    return Geometry(environments, rollout_steps, epochs, minibatches)


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(k for k in range(min(number, limit), 0, -1) if number % k == 0)


def _power_of_two(number: int) -> int:
    """The largest power of two that is at most `number`, which is at least 1."""
    return 1 << (number.bit_length() - 1)

"""Which rules can hold in an update: one comparison of arrays instead of a look at every rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tailwise.run.health.rule import Condition, Rule


def needed_now(condition: Condition) -> tuple[float, float] | None:
    """(below, above): a condition on the newest value that must hold for this one to hold; None when there is none.

    For the newest value alone it is the condition itself. A window whose smallest value lies above a limit has its
    newest one above it, too; likewise for a largest one below. Of the other statistics the newest value says nothing.
    """
    below = -np.inf if condition.below is None else condition.below
    above = np.inf if condition.above is None else condition.above
    if condition.window == 1 or condition.statistic == "last":
        return below, above
    if condition.statistic == "min" and condition.below is None:
        return -np.inf, above
    if condition.statistic == "max" and condition.above is None:
        return below, np.inf
    return None


class Sieve:
    """The conditions of all rules on the newest values, compiled once: rules [R] x the most of them in one rule [P].

    Each is (position in the vector of signals, below, above). Position 0 holds +inf, so that (0, -inf, finite) is
    always true: rules with fewer conditions are filled up with it.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        needed = [
            [(signal, limits) for signal, condition in rule.reads if (limits := needed_now(condition)) is not None]
            for rule in rules
        ]
        self.names = tuple(dict.fromkeys(signal for row in needed for signal, _ in row))
        position = {name: index for index, name in enumerate(self.names, 1)}
        shape = (len(needed), max((len(row) for row in needed), default=0))
        self._position = np.zeros(shape, dtype=np.intp)
        self._below, self._above = np.full(shape, -np.inf), np.zeros(shape)
        for r, row in enumerate(needed):
            for p, (signal, limits) in enumerate(row):
                self._position[r, p] = position[signal]
                self._below[r, p], self._above[r, p] = limits

    def pass_through(self, signals: Mapping[str, float]) -> list[int]:
        """Indices of the rules that can hold with these signals, in order; a signal that is missing stops a rule."""
        get, missing = signals.get, np.nan
        values: npt.NDArray[np.float64] = np.array([np.inf, *[get(name, missing) for name in self.names]])
        found = values[self._position]
        holds = np.asarray(((found > self._above) | (found < self._below)).all(axis=1))
        passed: list[int] = holds.nonzero()[0].tolist()
        return passed

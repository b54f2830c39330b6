"""Numbers of many minibatches, by name, as one number per name."""

from __future__ import annotations

from collections.abc import Mapping


class Tally:
    """Collects numbers by name; `result` gives one float per name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._maxima: dict[str, float] = {}
        self._minima: dict[str, float] = {}

    def mean(self, values: Mapping[str, float], weight: float) -> None:
        """Add values that are means over `weight` samples."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def largest(self, values: Mapping[str, float]) -> None:
        """Keep the largest value per name."""
        for name, value in values.items():
            self._maxima[name] = max(self._maxima.get(name, value), value)

    def smallest(self, values: Mapping[str, float]) -> None:
        """Keep the smallest value per name."""
        for name, value in values.items():
            self._minima[name] = min(self._minima.get(name, value), value)

    def result(self) -> dict[str, float]:
        """One number per name."""
        means = {name: total / self._weights[name] for name, total in self._sums.items() if self._weights[name] > 0}
        return {**means, **self._maxima, **self._minima}

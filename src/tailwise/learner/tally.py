"""Numbers of many minibatches, by name, as one number per name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

#: A number that was measured; a tensor of one entry is read when all is done, because reading it waits for a device.
Number = float | Tensor


class Tally:
    """Collects numbers by name; `result` reads all of them at once and gives one float per name."""

    def __init__(self) -> None:
        self._means: list[tuple[Mapping[str, Number], float]] = []
        self._largest: list[Mapping[str, Number]] = []
        self._smallest: list[Mapping[str, Number]] = []

    def mean(self, values: Mapping[str, Number], weight: float) -> None:
        """Add values that are means over `weight` samples."""
        self._means.append((values, weight))

    def largest(self, values: Mapping[str, Number]) -> None:
        """Keep the largest value per name."""
        self._largest.append(values)

    def smallest(self, values: Mapping[str, Number]) -> None:
        """Keep the smallest value per name."""
        self._smallest.append(values)

    def result(self) -> dict[str, float]:
        """One number per name."""
        read = iter(_read([*(values for values, _ in self._means), *self._largest, *self._smallest]))
        sums, weights = dict[str, float](), dict[str, float]()
        for _, weight in self._means:
            for name, value in next(read).items():
                sums[name] = sums.get(name, 0.0) + value * weight
                weights[name] = weights.get(name, 0.0) + weight
        result = {name: total / weights[name] for name, total in sums.items() if weights[name] > 0}
        for keep, entries in ((max, self._largest), (min, self._smallest)):
            kept = dict[str, float]()
            for _ in entries:
                for name, value in next(read).items():
                    kept[name] = keep(kept.get(name, value), value)
            result |= kept
        return result


def detached(values: Mapping[str, Number]) -> dict[str, Number]:
    """The same numbers without the graph that they came from, as they are sent between processes."""
    return {name: value.detach() if isinstance(value, Tensor) else value for name, value in values.items()}


def _read(entries: list[Mapping[str, Number]]) -> list[dict[str, float]]:
    """The same mappings with floats, after one transfer."""
    tensors = [value.detach() for values in entries for value in values.values() if isinstance(value, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return [
        {name: next(numbers) if isinstance(value, Tensor) else value for name, value in values.items()}
        for values in entries
    ]

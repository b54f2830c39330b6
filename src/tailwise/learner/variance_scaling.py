"""How far the gradients of microbatches agree, and the factor on the step of a parameter group that follows.

For K microbatches with gradients g_k of means over their rows, and g their mean: var is the variance of g_k, summed
over the group; noise = var / K is the squared error of g, signal = max(0, |g|^2 - noise) its size without that error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from tailwise.learner.optimiser_config import NoVarianceScaling, VarianceScaling

TINY = 1e-30  # squared gradient below which there is no signal
LARGEST_RATIO = 1e9  # of noise to signal; a group without any signal has this one


@dataclass(frozen=True)
class NoiseAverage:
    """Running averages of noise and signal of one parameter group, squared gradients."""

    noise: float
    signal: float

    @property
    def ratio(self) -> float:
        """n = noise / signal; 0 without noise."""
        return 0.0 if self.noise <= 0.0 else min(self.noise / max(self.signal, TINY), LARGEST_RATIO)


def averaged(
    config: NoVarianceScaling | VarianceScaling,
    before: Mapping[str, NoiseAverage],
    measured: Mapping[str, tuple[float, float]],
) -> dict[str, NoiseAverage]:
    """The averages after an update that measured (|g|^2, noise) by group; the first one sets them."""
    after = dict(before)
    if isinstance(config, VarianceScaling):
        for group, (square, noise) in measured.items():
            old, signal = before.get(group), max(0.0, square - noise)
            after[group] = (
                NoiseAverage(noise, signal)
                if old is None
                else NoiseAverage(
                    old.noise + config.rate * (noise - old.noise), old.signal + config.rate * (signal - old.signal)
                )
            )
    return after


def noise_factors(
    config: NoVarianceScaling | VarianceScaling, averages: Mapping[str, NoiseAverage]
) -> dict[str, float]:
    """1 / (1 + strength x n) by group, at least `low`; nothing where scaling is off."""
    if isinstance(config, NoVarianceScaling):
        return {}
    return {
        group: max(config.low, 1.0 / (1.0 + config.strength * average.ratio)) for group, average in averages.items()
    }


def noise_metrics(factors: Mapping[str, float], averages: Mapping[str, NoiseAverage]) -> dict[str, float]:
    """Factors and ratios by group."""
    return {f"step/noise_factor/{group}": factor for group, factor in factors.items()} | {
        f"grad/noise_ratio/{group}": average.ratio for group, average in averages.items()
    }


class GradientNoise:
    """Measures (|g|^2, noise) per parameter group over the minibatches of an update.

    A minibatch calls `part` after the backward pass of each microbatch, whose gradients it takes over, and `complete`,
    which puts their sum back.
    """

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]]) -> None:
        self._groups = {name: list(members) for name, members in groups.items()}
        self._sums: dict[str, list[Tensor | None]] = {}
        self._squares: dict[str, float] = {}  # sum of share |g_k|^2
        self._parts = 0
        self._totals = {name: [0.0, 0.0] for name in self._groups}
        self._rows = 0.0
        self._minibatches = 0
        self.begin()

    def begin(self) -> None:
        """Forget a minibatch that was not completed."""
        self._sums = {name: [None] * len(members) for name, members in self._groups.items()}
        self._squares = dict.fromkeys(self._groups, 0.0)
        self._parts = 0

    def part(self, share: float) -> None:
        """Take over the gradients of a microbatch, which are share x g_k."""
        self._parts += 1
        for name, members in self._groups.items():
            sums = self._sums[name]
            for i, parameter in enumerate(members):
                grad, parameter.grad = parameter.grad, None
                if grad is not None:
                    self._squares[name] += float(grad.double().square().sum()) / share
                    before = sums[i]
                    sums[i] = grad if before is None else before.add_(grad)

    def complete(self, rows: int) -> None:
        """Put the gradient of the minibatch of `rows` rows back and measure it; one microbatch alone shows nothing."""
        for name, members in self._groups.items():
            square = 0.0
            for parameter, total in zip(members, self._sums[name], strict=True):
                parameter.grad = total
                square += 0.0 if total is None else float(total.double().square().sum())
            if self._parts > 1:
                noise = max(0.0, self._squares[name] - square) / (self._parts - 1)
                self._totals[name][0] += square
                self._totals[name][1] += noise
        if self._parts > 1:
            self._rows += rows
            self._minibatches += 1
        self.begin()

    def measured(self) -> dict[str, tuple[float, float]]:
        """(|g|^2, noise) by group, means over the minibatches so far."""
        if self._minibatches == 0:
            return {}
        return {
            name: (square / self._minibatches, noise / self._minibatches)
            for name, (square, noise) in self._totals.items()
        }

    def metrics(self) -> dict[str, float]:
        """The gradient noise scale: rows of a minibatch at which noise and signal of its gradient are equal.

        Rows times noise over signal, of all groups together; nothing while there is no signal to compare with.
        """
        if self._minibatches == 0:
            return {}
        square, noise = (sum(total[k] for total in self._totals.values()) for k in (0, 1))
        signal = square - noise
        return {"grad/noise_scale": self._rows / self._minibatches * noise / signal} if signal > TINY else {}


def gradient_noise(
    config: NoVarianceScaling | VarianceScaling, groups: Mapping[str, Sequence[nn.Parameter]]
) -> GradientNoise | None:
    """What measures it, None where scaling is off."""
    return GradientNoise(groups) if isinstance(config, VarianceScaling) else None


def to_json(averages: Mapping[str, NoiseAverage]) -> dict[str, list[float]]:
    """For a checkpoint."""
    return {group: [average.noise, average.signal] for group, average in averages.items()}


def from_json(data: Mapping[str, Sequence[float]]) -> dict[str, NoiseAverage]:
    """The inverse of `to_json`."""
    return {group: NoiseAverage(float(noise), float(signal)) for group, (noise, signal) in data.items()}

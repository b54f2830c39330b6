"""Running standardisation of observations; statistics live in the model and are frozen between updates."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tailwise.core.moments import Moments, column_moments

OUTLIER_STDS = 100.0
TRIMMED = 0.005  # share of the first rollout's rows left out on either side when its bulk is measured


class ObservationNormaliser(nn.Module):
    """Standardises the entries of a flat observation [..., D] where `scaled` is True; one-hots pass unchanged.

    Statistics are float64 buffers (a float32 running mean of prices near 1e5 loses its last digits) and change only in
    `absorb`, which the learner calls after a committed update: inside a rollout they are constant. `version` counts.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    version: Tensor
    scaled: Tensor

    def __init__(self, scaled: Tensor, *, clip: float | None) -> None:
        super().__init__()
        size = scaled.shape[0]
        self.clip = clip  # None: observations pass as they are
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scaled", scaled.to(torch.bool))

    def forward(self, obs: Tensor) -> Tensor:
        """obs [..., D] raw -> standardised and clipped, same shape and dtype."""
        if self.clip is None:
            return obs
        # A spread below float32's resolution of the value itself is rounding noise: no signal, so it maps to 0.
        signal = self.variance > 1e-12 * (self.mean**2 + self.variance)
        scale = torch.where(signal, torch.rsqrt(self.variance), torch.zeros_like(self.variance))
        standard = ((obs - self.mean.to(obs.dtype)) * scale.to(obs.dtype)).clamp(-self.clip, self.clip)
        return torch.where(self.scaled, standard, obs)

    @torch.no_grad()
    def absorb(self, obs: Tensor, moments: Moments | None = None) -> float:
        """Merge the moments of finite rows obs [n, D] into the statistics (Chan's parallel formula).

        One wild entry would blind an equally weighted average for good, so entries further than 100 known standard
        deviations out (in the first rollout: of its own bulk) are drawn in to that distance first; a true change of
        scale still arrives, in a few rollouts.
        moments: those of obs, where they are known. Returns the share of entries that were drawn in.
        """
        if self.clip is None or obs.shape[0] == 0:
            return 0.0
        found = column_moments(obs.numpy(force=True)) if moments is None else moments
        # numpy: a dozen steps on a few numbers, and a tensor takes longer for each.
        mean, variance, count = self.mean.numpy(force=True), self.variance.numpy(force=True), float(self.count)
        centre, square = (mean, variance) if count > 0 else _bulk(obs.to(torch.float64))
        reach = OUTLIER_STDS * np.where(square > 0, np.sqrt(square), np.inf)
        low, high = centre - reach, centre + reach
        outliers = 0.0
        # No entry is beyond the bounds of the moments; where those reach too far, one has to look.
        if (found.low < low).any() or (found.high > high).any():
            batch = obs.numpy(force=True).astype(np.float64)
            within = batch.clip(low, high)
            outliers = np.count_nonzero(within != batch) / batch.size
            found = column_moments(within) if outliers else found
        n = float(found.count)
        total = count + n
        delta = found.mean - mean
        # Before the first batch the unit variance is a placeholder that must not be averaged in.
        old_sum = variance * count if count > 0 else 0.0
        self.variance.copy_(torch.from_numpy((old_sum + found.variance * n + delta**2 * count * n / total) / total))
        self.mean.copy_(torch.from_numpy(mean + delta * (1.0 / total * n)))
        self.count.fill_(total)
        self.version.add_(1)
        return outliers


def _bulk(batch: Tensor) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean [D] and variance [D] of rows [n, D] without the most extreme ones; variance 0 means: nothing to judge by."""
    rows = batch.shape[0]
    cut = math.ceil(TRIMMED * rows)
    kept = batch.sort(0).values[cut : rows - cut] if rows > 2 * cut else batch[:1]
    return kept.mean(0).numpy(force=True), kept.var(0, unbiased=False).numpy(force=True)

"""Running standardisation of observations; statistics live in the model and are frozen between updates."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tailwise.core.numerics import Moments, column_moments
from tailwise.model.outliers import OUTLIER_STDS, Screened, has_spread, screen


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
    def absorb(self, obs: Tensor, moments: Moments | None = None) -> Screened:
        """Merge the moments of finite rows obs [n, D] into the statistics (Chan's parallel formula).

        One wild entry would blind an equally weighted average for good, so rare entries further than 100 known
        standard deviations out are drawn in first (see `outliers.screen`). Where many are, the scale has changed: it
        is followed, by at most a hundredfold in one rollout.
        moments: those of obs, where they are known. Returns what was absorbed and the share of wild entries.
        """
        rows = obs.numpy(force=True)
        observed = column_moments(rows) if moments is None else moments
        if self.clip is None or observed.count == 0:
            return Screened(observed, 0.0)
        # numpy: a dozen steps on a few numbers, and a tensor takes longer for each.
        mean, variance, count = self.mean.numpy(force=True), self.variance.numpy(force=True), float(self.count)
        known = has_spread(mean, variance) & (count > 0)
        scale = np.where(known, np.sqrt(variance), 0.0)
        screened = screen(rows, observed, mean, scale)
        reach = OUTLIER_STDS * np.where(known, scale, np.inf)
        n = float(screened.moments.count)
        total = count + n
        delta = (screened.moments.mean - mean).clip(-reach, reach)
        newest = np.minimum(screened.moments.variance, reach**2)
        # Before the first batch the unit variance is a placeholder that must not be averaged in.
        old_sum = variance * count if count > 0 else 0.0
        self.variance.copy_(torch.from_numpy((old_sum + newest * n + delta**2 * count * n / total) / total))
        self.mean.copy_(torch.from_numpy(mean + delta * (1.0 / total * n)))
        self.count.fill_(total)
        self.version.add_(1)
        return screened

"""Running scales: the normaliser of observations with its guard against outliers, and the scale of returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tailwise.core.numerics import Moments, column_moments, sample_moments

Floats = NDArray[np.float64]

OUTLIER_STDS = 100.0  # standard deviations, beyond which an entry is wild
DRAWN_IN_STDS = 10.0  # what a rare wild entry counts as: c^2/n of a variance, 1.3% for one in 7,680 rows
RARE = 0.02  # share of a column's rows; where more of them are wild, the scale has changed and is followed
TRIMMED = 0.005  # share of a column's rows left out on either side when its bulk is measured
UNKNOWN_SCALE = 10.0  # times max(1, |centre|): scale of a column in which a single entry differs from all others


@dataclass(frozen=True)
class Screened:
    """moments: those of the rows with rare wild entries drawn in. outliers: share of all entries that are wild."""

    moments: Moments
    outliers: float


def screen(rows: NDArray[np.floating[Any]], moments: Moments, centre: Floats, scale: Floats) -> Screened:
    """Draw in the rare entries of rows [n, D] that lie beyond 100 `scale` [D] (0: unknown) around `centre` [D].

    A column without known scale is judged by its own bulk. A rare wild entry (at most 2% of its column) counts as 10
    standard deviations of the others; more of them are left as they are, because then the scale itself may have
    changed. moments: those of rows.
    """
    unknown = np.flatnonzero((scale <= 0) & (moments.variance > 0))
    if len(unknown):
        centre, scale = centre.copy(), scale.copy()
        centre[unknown], scale[unknown] = _bulk(rows[:, unknown].astype(np.float64))
    reach = OUTLIER_STDS * np.where(scale > 0, scale, np.inf)
    low, high = centre - reach, centre + reach
    # No entry is beyond the bounds of the moments; only where those reach too far are entries compared.
    far = np.flatnonzero((moments.low < low) | (moments.high > high))
    if not len(far):
        return Screened(moments, 0.0)
    batch = rows[:, far].astype(np.float64)
    wild = (batch < low[far]) | (batch > high[far])
    share = wild.mean(0)
    rare = (share > 0) & (share <= RARE)
    if rare.any():
        drawn_in = column_moments(_draw_in(batch[:, rare], wild[:, rare]))
        moments = _with_columns(moments, far[rare], drawn_in)
    return Screened(moments, np.count_nonzero(wild) / rows.size)


def _draw_in(rows: Floats, wild: NDArray[np.bool_]) -> Floats:
    """rows [n, d] with wild entries at 10 standard deviations of the other entries of their column."""
    others = np.ma.masked_array(rows, wild)
    mean, reach = others.mean(0).data, DRAWN_IN_STDS * others.std(0).data
    return np.where(wild, rows.clip(mean - reach, mean + reach), rows)


def _with_columns(moments: Moments, columns: NDArray[np.intp], other: Moments) -> Moments:
    """Moments with those of some columns replaced."""
    arrays = {name: getattr(moments, name).copy() for name in ("mean", "variance", "low", "high")}
    for name, array in arrays.items():
        array[columns] = getattr(other, name)
    return Moments(moments.count, **arrays)


def _bulk(rows: Floats) -> tuple[Floats, Floats]:
    """Centre and scale [d] of rows [n, d] without the most extreme half percent on either side.

    Where the bulk is constant (a rare flag) the scale is the median distance of the entries that differ from it. A
    single one has nothing to be compared with, so it is judged by its distance in units of the constant itself.
    """
    count = len(rows)
    ordered = np.sort(rows, axis=0)
    cut = min(int(np.ceil(TRIMMED * count)), (count - 1) // 2)
    kept = ordered[cut : count - cut]
    centre, scale = kept.mean(0), kept.std(0)
    constant = ~has_spread(centre, scale**2)
    centre[constant] = ordered[count // 2, constant]
    for column in np.flatnonzero(constant):
        distance = np.sort(np.abs(rows[:, column] - centre[column]))
        distance = distance[distance > 0]
        alone = UNKNOWN_SCALE * max(1.0, abs(float(centre[column])))
        scale[column] = distance[(len(distance) - 1) // 2] if len(distance) > 1 else alone
    return centre, scale


def has_spread(mean: Floats, variance: Floats) -> NDArray[np.bool_]:
    """Whether a column varies by more than float32's resolution of its values: less is rounding noise. All [D]."""
    return variance > 1e-12 * (mean**2 + variance)


class Standard(NamedTuple):
    """A normaliser as it is between two changes of its statistics: x -> clamp((x - mean) scale, +-clip) where scaled.

    mean, scale [D] in the dtype of the observations; scaled bool [D].
    """

    mean: Tensor
    scale: Tensor
    scaled: Tensor
    clip: float

    def __call__(self, obs: Tensor) -> Tensor:
        """obs [..., D] raw -> standardised and clipped, same shape and dtype."""
        standard = ((obs - self.mean) * self.scale).clamp(-self.clip, self.clip)
        return torch.where(self.scaled, standard, obs)


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

    @property
    def factor(self) -> Tensor:
        """What a move of each raw entry is multiplied by, float64 [D]; 0 where an entry has no spread to speak of."""
        if self.clip is None:
            return torch.ones_like(self.variance)
        signal = self.variance > 1e-12 * (self.mean**2 + self.variance)
        scale = torch.where(signal, torch.rsqrt(self.variance), torch.zeros_like(self.variance))
        return torch.where(self.scaled, scale, torch.ones_like(scale))

    def forward(self, obs: Tensor) -> Tensor:
        """obs [..., D] raw -> standardised and clipped, same shape and dtype."""
        standard = self.standard(obs.dtype)
        return obs if standard is None else standard(obs)

    def standard(self, dtype: torch.dtype) -> Standard | None:
        """What observations of this dtype are standardised with now; None where they pass as they are."""
        if self.clip is None:
            return None
        # A spread below float32's resolution of the value itself is rounding noise: no signal, so it maps to 0.
        signal = self.variance > 1e-12 * (self.mean**2 + self.variance)
        scale = torch.where(signal, torch.rsqrt(self.variance), torch.zeros_like(self.variance))
        return Standard(self.mean.to(dtype), scale.to(dtype), self.scaled, self.clip)

    @torch.no_grad()
    def absorb(self, obs: Tensor, moments: Moments | None = None) -> Screened:
        """Merge the moments of finite rows obs [n, D] into the statistics (Chan's parallel formula).

        One wild entry would blind an equally weighted average for good, so rare entries further than 100 known
        standard deviations out are drawn in first (see `screen`). Where many are, the scale has changed: it
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


ABSOLUTE_FLOOR = 1e-12


class ReturnScale(nn.Module):
    """Running (mu, sigma) of raw returns in float64; `first` and `peak` sigma serve alerts and the floor.

    floor: smallest sigma as a share of its peak; a collapsing spread must not turn rounding noise into targets.
    """

    mu: Tensor
    sigma: Tensor
    variance: Tensor
    first: Tensor
    peak: Tensor

    def __init__(self, *, rate: float | None, floor: float = 1e-4) -> None:
        super().__init__()
        self.floor = floor
        self.rate = rate  # None: fixed scale, raw == normalised
        initial = 0.0 if rate is not None else 1.0
        for name, value in (("mu", 0.0), ("sigma", initial), ("variance", 0.0), ("first", 0.0), ("peak", 0.0)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    @property
    def initialised(self) -> bool:
        """Whether a rollout set the scale (always, for a fixed scale)."""
        return bool(self.sigma > 0)

    def to_raw(self, normalised: Tensor) -> Tensor:
        """Normalised critic output, any shape -> raw return units."""
        return normalised * self.sigma.to(normalised.dtype) + self.mu.to(normalised.dtype)

    def to_normalised(self, raw: Tensor) -> Tensor:
        """Raw return units, any shape -> normalised. Before the scale is set every return seen was 0, and stays 0."""
        if not self.initialised:
            return raw
        if raw.dtype is not torch.float32 or raw.device.type != "cpu" or raw.requires_grad:
            return ((raw.to(torch.float64) - self.mu) / self.sigma).to(raw.dtype)
        from tailwise.core.loops.arrays import rescale  # compiled code: not before somebody learns

        normalised = torch.empty(raw.shape, dtype=torch.float32)
        rescale(raw.reshape(-1).numpy(), float(self.mu), float(self.sigma), normalised.view(-1).numpy())
        return normalised

    @torch.no_grad()
    def absorb(self, raw_returns: Tensor) -> tuple[float, float, float, float]:
        """Move (mu, sigma) towards the moments of raw returns [n]; returns (old mu, old sigma, mu, sigma)."""
        old_mu, old_sigma = float(self.mu), float(self.sigma)
        if self.rate is None or raw_returns.numel() == 0:
            return old_mu, old_sigma, old_mu, old_sigma
        mean, square = sample_moments(raw_returns.numpy(force=True))
        spread = math.sqrt(square)
        # Plain numbers, written back at the end: a dozen small steps, and a tensor takes longer for each.
        mu, variance = old_mu, float(self.variance)
        if not self.initialised:
            if math.hypot(spread, mean) <= ABSOLUTE_FLOOR:
                return old_mu, old_sigma, old_mu, old_sigma  # nothing but zeros yet: stay uninitialised
            # Identical returns have no spread to learn a scale from; their size serves until there is one.
            start = spread if spread > 1e-9 * abs(mean) else abs(mean)
            mu, variance = mean, start * start
            self.first.fill_(start)
        else:
            # Moments of the mixture (1 - rate) x history + rate x newest; the usual E[y^2] - E[y]^2 cancels digits.
            shift = mean - mu
            variance = (1 - self.rate) * variance + self.rate * square + self.rate * (1 - self.rate) * shift * shift
            mu += self.rate * shift
        peak = float(self.peak)
        sigma = max(math.sqrt(variance), self.floor * peak, ABSOLUTE_FLOOR)
        for buffer, value in ((self.mu, mu), (self.variance, variance), (self.sigma, sigma)):
            buffer.fill_(value)
        self.peak.fill_(max(peak, sigma))
        return old_mu, old_sigma, mu, sigma


def preserve_outputs(head: nn.Linear, *, old_mu: float, old_sigma: float, mu: float, sigma: float) -> None:
    """Rescale a linear head so that mu' + sigma' * head'(x) == mu + sigma * head(x) for every x.

    W <- W s/s', b <- (s b + mu - mu')/s', in float64. Nothing to preserve while the old scale was not initialised.
    """
    if old_sigma == 0.0 or (old_mu == mu and old_sigma == sigma):
        return
    # In place through numpy: for so few numbers torch takes nearly twice as long.
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    np.multiply(weight, old_sigma / sigma, out=weight, dtype=np.float64, casting="same_kind")
    bias[:] = (old_sigma * bias.astype(np.float64) + old_mu - mu) / sigma

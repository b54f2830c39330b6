"""Whether observations still come from where they came from: moments at every rollout, PSI now and then."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tailwise.core.numerics import Moments, column_moments

Floats = npt.NDArray[np.float64]

RATE = 0.1  # of the moving moments: about ten rollouts
WARMUP = 10  # rollouts before a shift is told
SMALLEST_SPREAD = 1e-6  # relative to the entry's size; below it an entry counts as constant
LARGEST_LOG_RATIO = 14.0  # ln of a spread that went to rounding
ROWS, ENTRIES, KEPT, BINS = 128, 16, 5, 10  # of the samples for PSI
EMPTY = 1e-3  # share of an empty bin
TENTHS = np.linspace(0, 1, BINS + 1)[1:-1]


def psi(reference: Floats, sample: Floats, tenths: Floats) -> float:
    """Population stability index of sample [n] against reference [m], over bins that end at `tenths` of the reference.

    sum over bins of (q - p) ln(q / p); 0: the same law. A bin without entries counts as `EMPTY`.
    """
    edges = np.unique(tenths)
    p, q = (
        np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1) / len(values)
        for values in (reference, sample)
    )
    seen = (p > 0) | (q > 0)  # a bin that neither has says nothing
    p, q = (np.maximum(share[seen], EMPTY) for share in (p, q))
    p, q = p / p.sum(), q / q.sum()
    return float(((q - p) * np.log(q / p)).sum())


class Drift:
    """Moving moments of the entries [D] that are scaled, and the newest samples of rows."""

    def __init__(self, scaled: npt.NDArray[np.bool_]) -> None:
        self.columns = np.flatnonzero(scaled)
        self.rollouts = 0
        self.mean = np.zeros(len(self.columns))
        self.variance = np.zeros(len(self.columns))
        self.samples: list[Floats] = []  # each [rows, entries], oldest first

    def _constant(self) -> npt.NDArray[np.bool_]:
        return np.sqrt(self.variance) <= SMALLEST_SPREAD * (np.abs(self.mean) + 1e-12)

    def absorb(self, obs: npt.NDArray[np.float32], moments: Moments | None = None) -> dict[str, float]:
        """Compare a rollout's rows obs [n, D] with the recent ones, then count them among those.

        moments: those of obs, where they are known.
        """
        if not len(self.columns) or not len(obs):
            return {}
        now = column_moments(obs) if moments is None else moments
        shift, variance = now.mean[self.columns] - self.mean, now.variance[self.columns]
        if not math.isfinite(float(variance.sum())):
            return {}
        found = self._compare(shift, variance) if self.rollouts >= WARMUP else {}
        rate = max(RATE, 1.0 / (self.rollouts + 1))
        self.variance = (1 - rate) * self.variance + rate * variance + rate * (1 - rate) * shift**2
        self.mean = self.mean + rate * shift
        self.rollouts += 1
        return found

    def _compare(self, shift: Floats, variance: Floats) -> dict[str, float]:
        moving = ~self._constant()
        if not moving.any():
            return {}
        spread = np.sqrt(self.variance[moving])
        now = np.sqrt(variance[moving])
        ratio = np.log(np.maximum(now / spread, np.exp(-LARGEST_LOG_RATIO)))
        return {
            "obs/drift_mean": float((np.abs(shift[moving]) / spread).max()),
            "obs/drift_std": float(np.abs(ratio).max()),
        }

    def sample(self, obs: npt.NDArray[np.float32]) -> dict[str, float]:
        """PSI of some rows of obs [n, D] against the kept samples; call it at an interval."""
        if not len(self.columns) or not len(obs):
            return {}
        columns = self.columns[:: max(1, -(-len(self.columns) // ENTRIES))]
        rows = obs[:: max(1, len(obs) // ROWS)][:ROWS][:, columns].astype(np.float64)
        if not np.isfinite(rows).all():
            return {}
        found = {}
        if len(self.samples) == KEPT:
            reference = np.concatenate(self.samples)
            triples = zip(reference.T, rows.T, np.quantile(reference, TENTHS, axis=0).T)
            found["obs/drift_psi"] = max(psi(*triple) for triple in triples)
        self.samples = [*self.samples[-(KEPT - 1) :], rows]
        return found

    def against(self, mean: Floats) -> float | None:
        """Largest shift of another mean [D] against the recent rollouts, in their standard deviations."""
        moving = ~self._constant()
        if self.rollouts == 0 or not moving.any():
            return None
        shift = np.abs(mean[self.columns] - self.mean)[moving]
        return float((shift / np.sqrt(self.variance[moving])).max())

    def state(self) -> dict[str, Floats]:
        """Arrays for a checkpoint."""
        arrays = {"mean": self.mean, "variance": self.variance, "rollouts": np.array(float(self.rollouts))}
        return arrays | {f"sample_{i}": rows for i, rows in enumerate(self.samples)}

    def load(self, arrays: dict[str, Floats]) -> None:
        """The inverse of `state`."""
        self.mean, self.variance = arrays["mean"].copy(), arrays["variance"].copy()
        self.rollouts = int(arrays["rollouts"])
        self.samples = [arrays[f"sample_{i}"].copy() for i in range(KEPT) if f"sample_{i}" in arrays]

"""Was the best of several trials chosen by merit? The probability of backtest overfitting by combinatorially symmetric
cross-validation (Bailey, Borwein, López de Prado & Zhu 2017).

The bars are cut into blocks; half of the blocks choose the trial with the highest Sharpe ratio, the other half judge
it; all ways to choose the half are tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.evaluate.performance import NOTHING

Floats = npt.NDArray[np.float64]
BLOCKS = 16  # 12,870 ways to choose a half
_MOST_BLOCKS = 20


@dataclass(frozen=True, eq=False)
class Overfitting:
    """What became, out of sample, of the trial that was best in sample. Arrays [ways to choose a half]."""

    probability: float  # share of the ways in which it was at or below the median of all trials
    loss_probability: float  # share of the ways in which it lost money
    logits: Floats  # log-odds of its relative rank; below 0: in the worse half
    chosen: npt.NDArray[np.int64]  # which trial was best in sample
    in_sample: Floats  # its Sharpe ratio per bar where it was chosen
    out_of_sample: Floats  # and where it was judged


def overfitting(returns: Floats, *, blocks: int = BLOCKS) -> Overfitting:
    """Judge the choice among N trials by their log-returns [T, N] over the same bars."""
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise ShapeError(
            f"returns of trials have shape {values.shape}; finite numbers, a row per bar and a column per trial, and "
            "at least two trials are needed."
        )
    if blocks % 2 or not 2 <= blocks <= _MOST_BLOCKS:
        raise ConfigError(f"{blocks} blocks; an even number from 2 to {_MOST_BLOCKS} is needed.")
    if len(values) < 2 * blocks:
        raise ConfigError(f"{len(values)} bars are too few for {blocks} blocks; at least {2 * blocks} are needed.")
    parts = np.array_split(values, blocks)
    # Sums per block are all that a Sharpe ratio over any set of blocks needs.
    count = np.array([len(part) for part in parts], dtype=np.float64)
    total = np.array([part.sum(axis=0) for part in parts])
    squares = np.array([(part**2).sum(axis=0) for part in parts])
    ways = list(combinations(range(blocks), blocks // 2))
    half = np.zeros((len(ways), blocks))
    half[np.arange(len(ways))[:, None], ways] = 1.0
    inside = _sharpe(half @ count, half @ total, half @ squares)
    other = 1 - half
    outside = _sharpe(other @ count, other @ total, other @ squares)
    chosen = inside.argmax(axis=1)
    each = np.arange(len(ways))
    rank = rankdata(outside, axis=1)[each, chosen] / (values.shape[1] + 1)
    logits = np.log(rank / (1 - rank))
    judged = outside[each, chosen]
    return Overfitting(
        probability=float((logits <= 0).mean()),
        loss_probability=float((judged < 0).mean()),
        logits=logits,
        chosen=chosen.astype(np.int64),
        in_sample=inside[each, chosen],
        out_of_sample=judged,
    )


def _sharpe(count: Floats, total: Floats, squares: Floats) -> Floats:
    """Sharpe ratios per bar [W, N] from sums [W, N] over count [W] bars; 0 for a trial that never moved."""
    mean = total / count[:, None]
    variance = np.maximum(squares / count[:, None] - mean**2, 0.0) * (count / (count - 1))[:, None]
    return np.divide(mean, np.sqrt(variance), out=np.zeros(mean.shape), where=variance > NOTHING**2)

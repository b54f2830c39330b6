"""Predicted laws against realised returns: the mathematics of the calibration check, on arrays of n windows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tailwise.learner.returns import ascending, average_of, normal_scores, places_of_levels

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Laws = NDArray[np.float32]

# Returns are sums of float32 rewards and predictions are float32: closer than this, relative to size, is a tie.
ROUNDING = 2.0**-20


def raw_quantiles(law: NDArray[Any], mu: float, sigma: float) -> Laws:
    """Raw quantiles [n, N], ascending, of the critics' common law [n, C, N]; not finite where that is not."""
    ordered = ascending(law)
    common = average_of([ordered[:, c] for c in range(law.shape[1])])
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(common * sigma + mu, dtype=np.float32)


def draw_from_quantiles(law: NDArray[Any], uniform: Floats, mu: float, sigma: float) -> Floats:
    """One raw draw [n] from each of the laws [n, C, N], by uniforms [n]; NaN where it is not finite.

    The particle of `QuantileReturn.particles` at one level a row, for which two quantiles are read and averaged, and
    not all.
    """
    ordered, rows = ascending(law), np.arange(len(law))
    left, fraction = places_of_levels(uniform, law.shape[-1])
    low, high = (average_of([ordered[rows, c, at] for c in range(law.shape[1])]) for at in (left, left + 1))
    with np.errstate(invalid="ignore", over="ignore"):
        raw = np.asarray(mu + sigma * (low + fraction.astype(law.dtype) * (high - low)), dtype=np.float64)
    finite = np.isfinite(ordered[..., [0, -1]])  # in order: what is not finite lies at the ends
    if not finite.all():
        raw[~finite.all((1, 2))] = np.nan
    return raw


def distribution_of_quantiles(theta: Floats, y: Floats, side: Literal["left", "right"]) -> Floats:
    """P(Z < y) ("left") or P(Z <= y) ("right") where `inverse_cdf_quantiles` reads theta: the inverse of that function.

    theta [n, N] ascending, y [n]; returns [n]. Equal neighbours are an atom.
    """
    return _distribution(theta, y, _count_below(theta, y, side))


def _count_below(theta: Floats, y: Floats, side: Literal["left", "right"]) -> Integers:
    """How many of theta [n, N], ascending, are below y [n], for "right" also those that equal it: [n]."""
    lower = theta < y[:, None] if side == "left" else theta <= y[:, None]
    first_above: Integers = lower.argmin(1)  # sooner found than a sum
    return np.where(lower[:, -1], theta.shape[1], first_above)


def _distribution(theta: Floats, y: Floats, below: Integers) -> Floats:
    """`distribution_of_quantiles` at y [..., n], where `below` [..., n] of theta [n, N] count as lower."""
    count, rows = theta.shape[1], np.arange(len(theta))
    scores = normal_scores(count)
    left = np.minimum(np.maximum(below - 1, 0), count - 2)
    low, high = theta[rows, left], theta[rows, left + 1]
    # Equal ones are met only beyond the ends: between two centres the count above puts y strictly apart from one.
    flat = high == low
    share = (y - low) / np.where(flat, 1.0, high - low)
    start = scores[left]
    return np.where(flat, below > 0, ndtr(start + share * (scores[left + 1] - start)))


def transform_by_quantiles(predicted: Laws, realised: Floats, luck: Floats) -> Floats:
    """Randomised probability integral transform [n] of realised returns [n] under quantile laws `predicted` [n, N].

    luck [n, 3]: uniforms of the windows (`OpenWindows`), of which the second one is read.
    F(y-) + u (F(y) - F(y-)): uniform if the prediction is right, whether its law is smooth, a point or has atoms.
    """
    theta = predicted.astype(np.float64)
    slack = ROUNDING * np.maximum(np.abs(realised), np.maximum(-theta[:, 0], theta[:, -1]))  # ascending
    least, most = realised - slack, realised + slack
    counts = np.stack([_count_below(theta, least, "left"), _count_below(theta, most, "right")])
    below, upto = _distribution(theta, np.stack([least, most]), counts)
    return np.asarray(below + luck[:, 1] * (upto - below), dtype=np.float64)


def transform_by_atoms(predicted: Laws, realised: Floats, luck: Floats, grid: Floats, atoms: int) -> Floats:
    """The same under laws on `atoms` equidistant atoms, `predicted` [n, N] as N equally likely values each.

    grid [n, 2]: lowest atom and spacing, raw.
    A categorical critic learns the law of the return *projected* onto its atoms. So the return is projected as well, at
    random onto one of its two neighbours with the probabilities of the projection; otherwise every return between two
    atoms would count as above all the mass of the lower one.
    """
    low, spacing = grid.T
    place = np.clip((realised - low) / spacing, 0.0, atoms - 1.0)
    onto = low + spacing * (np.floor(place) + (luck[:, 2] < place - np.floor(place)))
    slack = spacing / 4  # averages of two critics may lie half way between atoms
    below = (predicted < (onto - slack)[:, None]).mean(1)
    upto = (predicted <= (onto + slack)[:, None]).mean(1)
    return np.asarray(below + luck[:, 1] * (upto - below), dtype=np.float64)

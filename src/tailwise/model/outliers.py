"""Entries of observations that are too far out to be averaged: which they are, and what they count as instead.

The running statistics weigh all rows equally for ever, so one entry of 1e6 would blind a column for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailwise.core.numerics import Moments, column_moments

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

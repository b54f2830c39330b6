"""What a search learnt: how far the order of the members follows each value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.stats import rankdata

from tailwise.scale.population import Ranking, Step

FEWEST = 4  # scored members of a step, below which an order says nothing


def rank_correlations(steps: Sequence[Step], keys: Iterable[str], ranking: Ranking) -> dict[str, float]:
    """Spearman's rank correlation of each numeric value with the score, within each step, and its mean over the steps.

    Within a step, because members of later ones score higher whatever their values are. Steps with fewer than `FEWEST`
    scored members, with equal values or with equal scores are left out; a key for which none remains is left out too.
    A search that prefers what scored well varies it less, so a small number is no proof that a value does not matter.
    """
    found = {}
    for key in keys:
        each = [one for step in steps if (one := _within(step, key, ranking)) is not None]
        if each:
            found[key] = float(np.mean(each))
    return found


def _within(step: Step, key: str, ranking: Ranking) -> float | None:
    scored = [one for one in step if one.measured.value is not None]
    values = [one.member.values[key] for one in scored]
    if len(scored) < FEWEST or not all(isinstance(value, int | float) for value in values):
        return None
    places = {place: number for number, place in enumerate(sorted({ranking.key(one.measured) for one in scored}))}
    ranks = rankdata(values), rankdata([places[ranking.key(one.measured)] for one in scored])
    if any(np.ptp(one) == 0 for one in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])

"""Test windows of several folds as one path: what an account would have lived through that changed its policy at each
fold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tailwise.core.errors import DataError
from tailwise.market.costs import COMPONENTS
from tailwise.market.path import AccountPath

_SCALED = (*COMPONENTS, "equity_before", "equity", "shortfall", "units", "order_units", "exit_units")


def stitch(paths: Sequence[AccountPath]) -> AccountPath:
    """One path of paths that follow one another in time.

    Each fold begins flat with what the fold before ended with: its last position counts at the last close, without the
    costs of a sale. Everything in money or units is scaled by that; prices, exposures and returns are as they were.
    A ruin ends the path.
    """
    if not paths:
        raise DataError("there are no paths to put together.")
    first = paths[0]
    lived: list[AccountPath] = []
    for before, after in zip([None, *paths[:-1]], paths, strict=True):
        if (after.symbol, after.assets, after.periods_per_year) != (first.symbol, first.assets, first.periods_per_year):
            raise DataError(f"paths of {first.symbol} and {after.symbol} do not belong to one account.")
        if before is not None and not before.time[-1] < after.time[0]:
            raise DataError(
                f"{after.symbol}: a path begins at {after.time[0]}, and the one before it ends at {before.time[-1]}; "
                "test windows must follow one another without overlap."
            )
        if not lived or not lived[-1].ruined:
            lived.append(after)
    factors = [1.0]
    for before, after in pairwise(lived):
        factors.append(factors[-1] * float(before.equity[-1] / after.equity[0]))
    ledger: dict[str, Any] = {}
    for name in first.ledger:
        parts = [path.ledger[name] * (k if name in _SCALED else 1) for path, k in zip(lived, factors, strict=True)]
        ledger[name] = np.concatenate(parts)
    return AccountPath(
        first.symbol,
        first.label,
        first.assets,
        first.periods_per_year,
        np.concatenate([path.time for path in lived]),
        ledger,
        np.concatenate([path.target for path in lived]),
        np.concatenate([path.close for path in lived]),
        sum(path.planned for path in paths),
    )

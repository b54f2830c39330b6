"""The loop that makes a column out of a feature's `update`, and bars as the matrix that it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from tailwise.bars.bars import Bars
from tailwise.core.compiled import kernel
from tailwise.core.errors import DataError
from tailwise.features.contract import BAR_SIZE, TIME, UPDATE_SIGNATURE, Feature, Floats

NANOSECONDS = 1e9
_VECTOR, _MATRIX = types.Array(types.float64, 1, "C"), types.Array(types.float64, 2, "C")
_RUN_SIGNATURE = types.void(types.FunctionType(UPDATE_SIGNATURE), _VECTOR, _MATRIX, _VECTOR)


@kernel
def _run(update: Any, state: Any, bars: Any, out: Any) -> None:
    """out[t] = update(state, bars[t]). `update` is a pointer to the machine code that streams call as well: the loop is
    compiled once for all features, and nothing can be reordered across the call."""
    for t in range(len(bars)):
        out[t] = update(state, bars[t])


def run(feature: Feature, state: Floats, bars: Floats, out: Floats | None = None) -> Floats:
    """The column of a streaming feature, float64 [T], over bars [T, 6], written to `out` if there is one; `state` is
    left as after the last bar."""
    if not _run.overloads:
        _run.compile(_RUN_SIGNATURE)
        _run.disable_compile()  # from here on a function is passed as a pointer, never compiled in
    out = np.empty(len(bars)) if out is None else out
    _run(feature.compile(), state, bars, out)
    return out


def run_batch(feature: Feature, parameters: tuple[int, ...], bars: Floats, stamps: NDArray[np.int64]) -> Floats:
    """The column of a batch-only feature, float64 [T]; stamps are open times in ns [T]."""
    import pandas as pd

    index = pd.DatetimeIndex(stamps.astype("datetime64[ns]"), tz="UTC", name="time")
    columns = ("open", "high", "low", "close", "volume")
    frame = pd.DataFrame({name: bars[:, 1 + k].copy() for k, name in enumerate(columns)}, index=index)
    assert feature.function is not None
    try:
        result = feature.function(frame, *parameters)
    except Exception as error:  # anything may go wrong in a user's function
        raise DataError(f"batch feature '{feature.name}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, pd.Series) or not result.index.equals(index):
        shape = getattr(result, "shape", "")
        raise DataError(
            f"batch feature '{feature.name}' returned a {type(result).__name__} {shape}; return a Series with the "
            f"index of the frame it was given ({len(index)} rows)."
        )
    return np.ascontiguousarray(result.to_numpy(dtype=np.float64, na_value=np.nan))


def seconds(stamps: NDArray[np.int64]) -> Floats:
    """Nanoseconds since 1970 as seconds; exact to a microsecond."""
    result: Floats = stamps / NANOSECONDS
    return result


def as_matrix(bars: Bars) -> tuple[Floats, NDArray[np.int64]]:
    """Bars as `update` reads them, float64 [T, 6], and their open times in ns, int64 [T]."""
    stamps = bars.time.astype(np.int64)
    matrix = np.empty((len(bars), BAR_SIZE))
    matrix[:, TIME] = seconds(stamps)
    for place, values in enumerate((bars.open, bars.high, bars.low, bars.close, bars.volume), start=1):
        matrix[:, place] = values
    return matrix, stamps

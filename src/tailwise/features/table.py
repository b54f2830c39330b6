"""The result: one row of features per bar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailwise.core.errors import DataError, ShapeError


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """values float32 [T, F], read-only: row t is known at the close of bar t and uses nothing later.

    Rows before `first_valid` are warm-up: they hold NaN in every column, so that using one by mistake shows.
    """

    values: NDArray[np.float32]
    names: tuple[str, ...]
    first_valid: int

    def __post_init__(self) -> None:
        if self.values.dtype != np.float32 or self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ShapeError(
                f"a feature table has values {self.values.dtype} {self.values.shape} and {len(self.names)} names; "
                "float32 [bars, features] with one name per column is needed."
            )
        if not 0 <= self.first_valid < len(self.values):
            raise DataError(
                f"a feature table of {len(self.values)} bars has {self.first_valid} of warm-up: no bar is left; "
                "give more bars or shorter windows."
            )
        finite = np.isfinite(self.values[self.first_valid :])
        if not finite.all():
            row, column = (int(place) for place in np.argwhere(~finite)[0])
            raise DataError(
                f"feature '{self.names[column]}' is {self.values[self.first_valid + row, column]} in row "
                f"{self.first_valid + row}, after its warm-up; every value after the warm-up must be finite."
            )
        view = self.values.view()
        view.flags.writeable = False
        object.__setattr__(self, "values", view)

    def __len__(self) -> int:
        return len(self.values)

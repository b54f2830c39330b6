"""The action kind `weights`: one account, several assets, a target exposure for each of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from tailwise.core.config import Section
from tailwise.core.errors import ConfigError

Floats = npt.NDArray[np.float64]


class WeightsAction(Section):
    """Box of shape (A,): a weight per asset, as a multiple of equity; cash is the rest.

    Weights are clipped to [low, high]; then, if the sum of their absolute values exceeds `gross`, all are scaled down
    by the same factor. So 0 must lie within the bounds of every asset.
    """

    kind: Literal["weights"] = "weights"
    low: float | tuple[float, ...] = Field(
        -1.0, description="smallest weight, one number for all assets or one per asset; negative: short"
    )
    high: float | tuple[float, ...] = Field(
        1.0, description="largest weight, one number for all assets or one per asset; above 1: a loan"
    )
    gross: float = Field(1.0, gt=0, le=100, description="largest sum of the absolute weights, as a multiple of equity")

    @model_validator(mode="after")
    def _ordered(self) -> WeightsAction:
        low, high = np.atleast_1d(self.low), np.atleast_1d(self.high)
        if low.size > 1 and high.size > 1 and low.size != high.size:
            raise ConfigError(
                f"low has {low.size} entries and high has {high.size}; give one number, or one for each asset."
            )
        if low.size == 0 or high.size == 0:
            raise ConfigError("low and high need at least one entry; give one number, or one for each asset.")
        wrong = ~((low >= -100) & (low <= 0) & (high >= 0) & (high <= 100) & (low < high))
        if wrong.any():
            raise ConfigError(
                f"low is {self.low} and high is {self.high}; -100 <= low <= 0 <= high <= 100 and low < high must hold "
                "for each asset: 0 is what an asset without bars is forced to."
            )
        return self

    @property
    def largest(self) -> float:
        """Largest exposure of the account, all assets together."""
        return self.gross

    def bounds(self, assets: int) -> tuple[Floats, Floats]:
        """(low, high) float64 [A] each."""
        result = []
        for name, value in (("low", self.low), ("high", self.high)):
            numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
            if numbers.size not in (1, assets):
                raise ConfigError(
                    f"env.action.{name} has {numbers.size} entries and the account has {assets} assets; give one "
                    "number, or one for each asset."
                )
            result.append(np.broadcast_to(numbers, (assets,)).copy())
        return result[0], result[1]

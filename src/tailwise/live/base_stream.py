"""The exposure of `env.base` bar by bar, equal to `base_exposures` on the whole history, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import CheckpointError, NotBuiltError
from tailwise.market.base import VOLATILITY_MEMORY, WARM_UP
from tailwise.market.env_config import Base, BuyAndHoldBase, MomentumBase, VolatilityTargetBase

_DAILY = 400  # bars per year up to which bars are of a day or longer
_CLOSE, _CARRIED, _SEEN = 0, 1, 2  # places in the state


class BaseStream:
    """Closes in, exposures out. The variance is the recursion that `volatility_target` runs as a filter."""

    def __init__(self, base: Base, *, periods_per_year: float, around_the_clock: bool) -> None:
        """A function of one's own reads whole bars and cannot be streamed."""
        if not isinstance(base, BuyAndHoldBase | VolatilityTargetBase | MomentumBase):
            raise NotBuiltError(
                "env.base.kind function reads all bars at once, so a session cannot follow it bar by bar; decide takes "
                "such a policy, paper does not."
            )
        self._base, self._periods = base, periods_per_year
        per_day = 1.0 if periods_per_year <= _DAILY else periods_per_year / (365 if around_the_clock else 252)
        self._keep = VOLATILITY_MEMORY ** (1 / per_day)
        longest = max(round(periods_per_year if periods_per_year <= _DAILY else periods_per_year / 12), 1)
        self._spans: tuple[int, ...] = ()
        if isinstance(base, MomentumBase):
            self._spans = base.look_back or (max(longest // 12, 1), max(longest // 4, 1), longest)
        self._state = np.zeros(3)
        self._closes = np.zeros(max(self._spans, default=0) + 1)  # ring of the newest closes

    def update(self, close: float) -> float:
        """The exposure at this close, scaled and cut."""
        exposure = float(self._raw(close)) * self._base.factor
        return float(np.clip(exposure, -self._base.largest, self._base.largest))

    def _raw(self, close: float) -> float:
        base, seen = self._base, int(self._state[_SEEN])
        self._state[_SEEN] += 1
        if isinstance(base, BuyAndHoldBase):
            return 1.0
        size = self._volatility_target(close, seen)
        if isinstance(base, VolatilityTargetBase):
            return size
        self._closes[seen % len(self._closes)] = close
        if seen < max(self._spans):
            return 0.0 * size
        signs = [np.sign(close - self._closes[(seen - span) % len(self._closes)]) for span in self._spans]
        return float(np.mean(np.array(signs)[:, None], axis=0)[0] * size)

    def _volatility_target(self, close: float, seen: int) -> float:
        """`target` over the forecast volatility, 0 while it warms up; bar number `seen`."""
        assert isinstance(self._base, VolatilityTargetBase | MomentumBase)
        before, self._state[_CLOSE] = self._state[_CLOSE], close
        if seen == 0:
            return 0.0
        # Arrays of one, because numpy's logarithm of a number may differ from that of an array in the last bit.
        logs = np.log(np.array([before, close]))
        move = float(logs[1] - logs[0])
        square = move * move
        if seen == 1:
            self._state[_CARRIED] = self._keep * square
        variance = (1 - self._keep) * square + self._state[_CARRIED]
        self._state[_CARRIED] = self._keep * variance
        if seen < WARM_UP:
            return 0.0
        forecast = math.sqrt(max(variance, 1e-16) * self._periods)
        return self._base.target / forecast

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        return {"state": self._state.copy(), "closes": self._closes.copy()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, own in (("state", self._state), ("closes", self._closes)):
            if name not in state or state[name].shape != own.shape:
                raise CheckpointError(
                    "the stored base rule is another one; restore it with the run that it belongs to."
                )
            own[:] = state[name]

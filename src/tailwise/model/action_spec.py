"""What a policy may do, and how its raw outputs become actions that an environment understands.

The rollout stores *raw* actions [B, A]: component indices 0..K-1 for Discrete and MultiDiscrete, the unbounded Gaussian
sample for Box, in units of half the range around its middle. `to_env` is applied only on the way to `env.step`, so
log-probabilities never see the clipping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from tailwise.core.errors import EnvironmentContractError, ShapeError

LARGEST_BOUND = 1e9  # of a range that means something
ActionKind = Literal["discrete", "multidiscrete", "box"]


@dataclass(frozen=True, eq=False)
class ActionSpec:
    """An action space of A components.

    sizes   number of choices K per component (discrete kinds), () for box
    start   first action value per component (discrete kinds), () for box
    low, high   float64 [A] bounds for box (may be infinite), [0] for discrete kinds
    shape, dtype   of one action as the environment wants it
    scaled  whether raw actions of a bounded component are in units of half its range around the middle, so that
            exploration has the same share of any range; False in policies from before, whose raw actions are the
            environment's own
    """

    kind: ActionKind
    shape: tuple[int, ...]
    dtype: str
    sizes: tuple[int, ...]
    start: tuple[int, ...]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    scaled: bool = True

    @classmethod
    def from_space(cls, space: Space[Any]) -> ActionSpec:
        """Read a single environment's action space (not the batched one of a vector environment)."""
        none = np.zeros(0)
        if isinstance(space, spaces.Discrete):
            return cls("discrete", (), "int64", (int(space.n),), (int(space.start),), none, none)
        if isinstance(space, spaces.MultiDiscrete):
            sizes = tuple(int(n) for n in np.ravel(space.nvec))
            starts = tuple(int(n) for n in np.ravel(space.start))
            return cls("multidiscrete", tuple(space.shape), str(space.dtype), sizes, starts, none, none)
        if isinstance(space, spaces.Box):
            low = np.ravel(space.low).astype(np.float64)
            high = np.ravel(space.high).astype(np.float64)
            if low.size == 0:
                raise EnvironmentContractError(f"The action space {space} has no entries; give it at least one.")
            if not bool((low <= high).all()):
                worst = int(np.argmin(high - low))
                raise EnvironmentContractError(
                    f"Action component {worst} has low {low[worst]} above its high {high[worst]}; swap them."
                )
            return cls("box", tuple(space.shape), str(space.dtype), (), (), low, high)
        raise EnvironmentContractError(
            f"The action space is a {type(space).__name__}, which Tailwise does not support; "
            "use Discrete, MultiDiscrete or Box (MultiBinary(n) is MultiDiscrete([2] * n))."
        )

    @property
    def components(self) -> int:
        """A, the number of action components."""
        return int(self.low.size) if self.kind == "box" else len(self.sizes)

    @property
    def logits(self) -> int:
        """Number of logits of the discrete kinds, which is also K, the width of an action mask; 0 for box."""
        return sum(self.sizes)

    @cached_property
    def bounded(self) -> bool:
        """Whether every bound of a box is finite; True for the discrete kinds."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @property
    def unit_range(self) -> bool:
        """Whether every raw action of a Box means the same below -1 and above 1, because the bounds cut it there."""
        small = (np.abs(self.low) <= LARGEST_BOUND) & (np.abs(self.high) <= LARGEST_BOUND)
        return self.kind == "box" and self.scaled and bool(small.all())

    @cached_property
    def units(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(middle, half range) of each component, float64 [A]; (0, 1) where it is unbounded or not scaled."""
        # Bounds that only say "any float" are none: half of such a range is no unit.
        finite = (np.abs(self.low) <= LARGEST_BOUND) & (np.abs(self.high) <= LARGEST_BOUND) & self.scaled
        low, high = np.where(finite, self.low, 0.0), np.where(finite, self.high, 0.0)
        # Halves first: the sum or the difference of two large bounds may be infinite.
        return low / 2.0 + high / 2.0, np.where(finite, high / 2.0 - low / 2.0, 1.0)

    @cached_property
    def _indices(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Callable[..., int]]:
        """What every step needs: (number of choices, first value) per component as arrays, and `shift_choices`."""
        from tailwise.core.loops.arrays import shift_choices  # compiled code: not before somebody acts

        return np.asarray(self.sizes, dtype=np.int64), np.asarray(self.start, dtype=np.int64), shift_choices

    def require_bounded(self) -> None:
        """A tanh-squashed policy maps onto [low, high], so both must be finite."""
        if not self.bounded:
            index = int(np.argmax(~(np.isfinite(self.low) & np.isfinite(self.high))))
            raise EnvironmentContractError(
                f"Action component {index} is unbounded (low {self.low[index]}, high {self.high[index]}), so a "
                "tanh-squashed policy has no range to map onto; choose the plain Gaussian or give finite bounds."
            )

    def in_env_units(self, raw: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Raw actions [..., A] of a Box in the environment's units, before its bounds cut them."""
        middle, half = self.units
        return np.asarray(middle + half * raw)

    def from_env(self, action: npt.ArrayLike, *, squashed: bool) -> npt.NDArray[np.float64]:
        """Raw action [A] that `to_env` turns into this one of a Box, which must lie within its bounds."""
        values = np.broadcast_to(np.asarray(action, dtype=np.float64).ravel(), self.low.shape)
        middle, half = self.units
        raw = (values - middle) / half
        if not bool(((self.low <= values) & (values <= self.high)).all()) or (squashed and (np.abs(raw) >= 1).any()):
            raise ShapeError(f"The action {values.tolist()} does not lie within {self.low} and {self.high}.")
        return np.asarray(np.arctanh(raw) if squashed else raw)

    def to_env(self, raw: npt.NDArray[Any], *, squashed: bool) -> npt.NDArray[Any]:
        """Actions for `env.step` from raw actions [B, A]: [B] for discrete, else [B, *shape] in the space's dtype.

        Box, not squashed: middle + half range * raw, clipped to [low, high]. Box, squashed: low + (tanh(raw) + 1) / 2 *
        (high - low).
        A NaN of a float Box passes through: an environment must see what the policy really said.
        """
        raw = np.asarray(raw)
        if raw.ndim != 2 or raw.shape[1] != self.components:
            raise ShapeError(f"Raw actions have shape {raw.shape}, expected (rows, {self.components}).")
        if self.kind == "box":
            return self._box_to_env(raw.astype(np.float64), squashed)
        if raw.dtype.kind not in "iu":
            raise ShapeError(f"Raw actions of a {self.kind} space have dtype {raw.dtype}, expected integer indices.")
        sizes, start, shift = self._indices
        values = np.empty(raw.shape, dtype=np.int64)
        bad = shift(np.ascontiguousarray(raw, np.int64), sizes, start, values)
        if bad >= 0:
            row, component = divmod(bad, self.components)
            raise ShapeError(
                f"Raw action row {row} component {component} is {raw[row, component]}, "
                f"expected an index from 0 to {self.sizes[component] - 1}."
            )
        if self.kind == "discrete":
            return values[:, 0]
        return values.astype(self.dtype).reshape(-1, *self.shape)

    def _box_to_env(self, raw: npt.NDArray[np.float64], squashed: bool) -> npt.NDArray[Any]:
        if squashed:
            self.require_bounded()
            raw = self.low + (np.tanh(raw) + 1.0) / 2.0 * (self.high - self.low)
        else:
            raw = self.in_env_units(raw)
        values = np.clip(raw, self.low, self.high)  # after squashing: rounding may leave the range by one ulp
        if np.dtype(self.dtype).kind in "iu":
            if not np.isfinite(values).all():
                raise EnvironmentContractError("A raw action is NaN, which an integer Box cannot express.")
            values = np.rint(values)
        return values.astype(self.dtype).reshape(-1, *self.shape)

    def to_json(self) -> dict[str, Any]:
        """Plain values; JSON knows no infinity, so infinite bounds are the strings "inf" and "-inf"."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "sizes": list(self.sizes),
            "start": list(self.start),
            "low": [_bound_to_json(value) for value in self.low.tolist()],
            "high": [_bound_to_json(value) for value in self.high.tolist()],
            "scaled": self.scaled,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActionSpec:
        """Inverse of `to_json`."""
        return cls(
            kind=data["kind"],
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            sizes=tuple(data["sizes"]),
            start=tuple(data["start"]),
            low=np.array([float(value) for value in data["low"]], dtype=np.float64),
            high=np.array([float(value) for value in data["high"]], dtype=np.float64),
            scaled=data.get("scaled", False),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpec) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.kind, self.shape, self.dtype, self.sizes, self.start))


def _bound_to_json(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)

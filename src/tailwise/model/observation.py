"""From whatever an environment observes to one flat float32 row per environment.

`ObservationSpec.flatten` is the only conversion path of the project: training, evaluation, `predict` and paper
trading all go through it, so the same observation can never reach the network in two different forms.

A space is read as a list of leaves in a fixed order (Dict keys sorted, Tuple entries by position):

    Box            its entries, flattened in C order               scaled by the running normaliser
    Discrete       one-hot of n entries, `start` respected         not scaled
    MultiDiscrete  one one-hot per component                       not scaled
    MultiBinary    its entries as 0.0 / 1.0                        not scaled

The top-level Dict key "action_mask" is not a feature: it is removed and served by `mask_from`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from tailwise.core.errors import EnvironmentContractError, ShapeError

MASK_KEY = "action_mask"
LeafKind = Literal["box", "binary", "onehot"]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Leaf:
    """One array of the observation. `sizes` and `starts` are set for one-hots only, one entry per component."""

    path: Path
    kind: LeafKind
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The place of this leaf inside the observation, as error messages write it."""
        return ".".join(map(str, self.path)) if self.path else "observation"

    @property
    def width(self) -> int:
        """Number of entries in the flat observation."""
        return sum(self.sizes) if self.kind == "onehot" else int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class ObservationSpec:
    """Describes an observation space and flattens batches of it; equal specs flatten equally."""

    leaves: tuple[Leaf, ...]
    mask: Leaf | None = None

    def __post_init__(self) -> None:
        if self.size == 0:
            raise EnvironmentContractError(
                "The observation space holds no features (apart from an action mask); add at least one Box, Discrete, "
                "MultiDiscrete or MultiBinary entry, for instance a constant Box of shape (1,)."
            )

    @classmethod
    def from_space(cls, space: Space[Any]) -> ObservationSpec:
        """Read a single environment's observation space (not the batched one of a vector environment)."""
        mask: Leaf | None = None
        if isinstance(space, spaces.Dict) and MASK_KEY in space.spaces:
            mask = _mask_leaf(space.spaces[MASK_KEY])
            space = spaces.Dict({key: part for key, part in space.spaces.items() if key != MASK_KEY})
        return cls(leaves=tuple(_leaves(space, ())), mask=mask)

    @cached_property
    def size(self) -> int:
        """D, the number of entries of a flat observation."""
        return sum(leaf.width for leaf in self.leaves)

    @cached_property
    def scaled(self) -> npt.NDArray[np.bool_]:
        """[D] True where the running normaliser applies: Box entries. One-hots and bits keep their 0 and 1."""
        flags = np.concatenate([np.full(leaf.width, leaf.kind == "box") for leaf in self.leaves])
        flags.setflags(write=False)
        return flags

    @cached_property
    def _whole(self) -> Leaf | None:
        """The leaf that is the whole observation and is copied as it is; None where there is more to do."""
        leaf = self.leaves[0]
        return leaf if len(self.leaves) == 1 and not leaf.path and leaf.kind != "onehot" else None

    def flatten(self, batch: Any, rows: int, into: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
        """Convert a batch of observations to float32 [rows, D], C-contiguous; the result never aliases the input.

        `batch` has the structure of the space with a leading axis of `rows` on each leaf; a leaf may be a list, an
        array of any real dtype and layout, or a torch tensor. NaN and inf of Box entries pass through: the learner
        refuses and counts them. A value beyond the float32 range becomes inf. `into`: where to write, float32
        [rows, D]; fresh memory without it.
        """
        flat = np.empty((rows, self.size), dtype=np.float32) if into is None else into
        whole = self._whole
        if whole is not None:
            if (
                type(batch) is np.ndarray
                and batch.dtype == np.float32
                and batch.shape == (rows, *whole.shape) == flat.shape
            ):
                flat[...] = batch  # by far the most frequent one
                return flat
            _write_float32(_leaf_array(whole, batch, rows).reshape(rows, -1), flat)
            return flat
        self._check_structure(batch)
        column = 0
        for leaf in self.leaves:
            values = _leaf_array(leaf, _descend(batch, leaf.path), rows).reshape(rows, -1)
            part = flat[:, column : column + leaf.width]
            if leaf.kind == "onehot":
                part[:] = 0.0
                _write_one_hot(leaf, values, flat, column)
            else:
                _write_float32(values, part)
            column += leaf.width
        return flat

    def flatten_one(self, observation: Any) -> npt.NDArray[np.float32]:
        """Convert one observation without batch axis to float32 [1, D]."""
        return self.flatten(self.with_batch_axis(observation), 1)

    def with_batch_axis(self, observation: Any) -> Any:
        """The same observation with a leading axis of one row on every leaf, as `flatten(..., rows=1)` wants it."""
        if isinstance(observation, Mapping):
            return {key: self.with_batch_axis(value) for key, value in observation.items()}
        if isinstance(observation, tuple):
            return tuple(self.with_batch_axis(value) for value in observation)
        return _as_array(observation, "observation")[None]

    def mask_from(self, batch: Any) -> npt.NDArray[np.bool_] | None:
        """The action mask bool [rows, K] of a Dict observation with key "action_mask"; None when there is none."""
        if self.mask is None:
            return None
        values = _as_array(_descend(batch, self.mask.path), MASK_KEY)
        if values.ndim == 0 or values.shape[1:] != self.mask.shape:
            raise ShapeError(_shape_sentence(MASK_KEY, values.shape, ("rows", *self.mask.shape)))
        return as_mask(values.reshape(values.shape[0], -1))

    def arrays(self, batch: Any) -> dict[str, npt.NDArray[Any]]:
        """Copies of the leaves (mask included) by name in their own dtype: what an exact comparison needs."""
        leaves = self.leaves if self.mask is None else (*self.leaves, self.mask)
        return {leaf.name: np.array(_as_array(_descend(batch, leaf.path), leaf.name)) for leaf in leaves}

    def to_json(self) -> dict[str, Any]:
        """Plain lists, strings and integers."""
        mask = None if self.mask is None else _leaf_to_json(self.mask)
        return {"leaves": [_leaf_to_json(leaf) for leaf in self.leaves], "mask": mask}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ObservationSpec:
        """Inverse of `to_json`."""
        mask = None if data["mask"] is None else _leaf_from_json(data["mask"])
        return cls(leaves=tuple(_leaf_from_json(leaf) for leaf in data["leaves"]), mask=mask)

    def _check_structure(self, batch: Any) -> None:
        """Refuse keys that the space does not know: they would otherwise be dropped without a word."""
        if not isinstance(batch, Mapping) or not self.leaves[0].path:
            return  # a leaf, or a tuple: the shape check of each leaf speaks
        known = {leaf.path[0] for leaf in self.leaves} | ({MASK_KEY} if self.mask else set())
        unknown = sorted(str(key) for key in batch if key not in known)
        if unknown:
            raise ShapeError(
                f"The observation has the unexpected key '{unknown[0]}'; its space declares {sorted(map(str, known))}."
            )


def as_mask(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """A mask of bools, or of numbers that are exactly 0 or 1, as bools; anything else is refused."""
    if values.dtype == np.bool_:
        return values.copy()
    if values.dtype == object or not bool(np.isin(values, (0, 1)).all()):
        raise EnvironmentContractError(
            f"The action mask holds other values than 0 and 1 (dtype {values.dtype}); "
            "return bools or int8 with 1 for each allowed action."
        )
    return values.astype(np.bool_)


def check_mask(mask: npt.NDArray[np.bool_], sizes: tuple[int, ...]) -> None:
    """Refuse a mask bool [rows, K] that leaves an action component without a choice; `sizes` (sum K) are the numbers of
    choices per component."""
    if mask.ndim != 2 or mask.shape[1] != sum(sizes):
        raise ShapeError(
            f"The action mask has shape {mask.shape}, expected (rows, {sum(sizes)}), one entry per choice."
        )
    first_choices = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    nothing_allowed = ~np.logical_or.reduceat(mask, first_choices, axis=1)
    if nothing_allowed.any():
        row, component = np.argwhere(nothing_allowed)[0].tolist()
        raise EnvironmentContractError(
            f"The action mask of environment {row} forbids every choice of action component {component}; "
            "at least one must stay allowed."
        )


def _leaves(space: Space[Any], path: Path) -> list[Leaf]:
    where = ".".join(map(str, path)) or "observation"
    if isinstance(space, spaces.Box):
        return [Leaf(path, "box", tuple(space.shape))]
    if isinstance(space, spaces.MultiBinary):
        return [Leaf(path, "binary", tuple(space.shape))]
    if isinstance(space, spaces.Discrete):
        return [Leaf(path, "onehot", (), (int(space.n),), (int(space.start),))]
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in np.ravel(space.nvec))
        starts = tuple(int(n) for n in np.ravel(space.start))
        return [Leaf(path, "onehot", tuple(space.shape), sizes, starts)]
    parts: Sequence[tuple[str | int, Space[Any]]]
    if isinstance(space, spaces.Dict):
        odd = [key for key in space.spaces if not isinstance(key, str)]
        if odd:
            raise EnvironmentContractError(
                f"Observation '{where}' is a Dict space with the key {odd[0]!r}; name its entries with strings."
            )
        parts = sorted(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        raise EnvironmentContractError(
            f"Observation '{where}' is a {type(space).__name__} space, which Tailwise does not support; use Box, "
            "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those (a Gymnasium wrapper can convert it)."
        )
    return [leaf for key, part in parts for leaf in _leaves(part, (*path, key))]


def _mask_leaf(space: Space[Any]) -> Leaf:
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        raise EnvironmentContractError(
            f"Observation 'action_mask' is a {type(space).__name__} space; "
            "declare it as MultiBinary(K) or as an int8 Box of shape (K,) with bounds 0 and 1."
        )
    return Leaf((MASK_KEY,), "binary", tuple(space.shape))


def _descend(batch: Any, path: Path) -> Any:
    """Follow Dict keys and Tuple positions down to one leaf."""
    value = batch
    for depth, key in enumerate(path):
        where = ".".join(map(str, path[: depth + 1]))
        if isinstance(key, str):
            if not isinstance(value, Mapping) or key not in value:
                found = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
                raise ShapeError(f"Observation key '{where}' is missing: got {found}, expected a dict with that key.")
            value = value[key]
        else:
            if not isinstance(value, (tuple, list)) or key >= len(value):
                raise ShapeError(
                    f"Observation entry '{where}' is missing: got {type(value).__name__}, expected a tuple."
                )
            value = value[key]
    return value


def _as_array(value: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "detach") and hasattr(value, "cpu"):
        # A torch tensor. float64 holds every float32 and bfloat16 (which numpy does not know) exactly.
        array = value.detach().cpu().double().numpy()
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ShapeError(
                f"Observation '{name}' is not a regular array ({error}); make its rows equally long."
            ) from error
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise ShapeError(f"Observation '{name}' has dtype {array.dtype}, expected real numbers.")
    return array


def _leaf_array(leaf: Leaf, value: Any, rows: int) -> npt.NDArray[Any]:
    array = _as_array(value, leaf.name)
    if array.shape != (rows, *leaf.shape):
        raise ShapeError(_shape_sentence(leaf.name, array.shape, (rows, *leaf.shape)))
    return array


def _shape_sentence(name: str, got: tuple[Any, ...], expected: tuple[Any, ...]) -> str:
    return f"Observation '{name}' has shape {got}, expected ({', '.join(map(str, expected))}) with the rows first."


def _write_float32(values: npt.NDArray[Any], target: npt.NDArray[np.float32]) -> None:
    if values.dtype == np.float32:
        target[...] = values
        return
    with np.errstate(over="ignore"):  # beyond float32: inf, which the learner refuses and counts
        target[...] = values


def _write_one_hot(leaf: Leaf, values: npt.NDArray[Any], flat: npt.NDArray[np.float32], column: int) -> None:
    """Set a 1 per component of `values` [rows, components] in flat[:, column : column + leaf.width]."""
    sizes = np.asarray(leaf.sizes, dtype=np.int64)
    shifted = values - np.asarray(leaf.starts, dtype=np.int64)
    bad = ~((shifted >= 0) & (shifted < sizes) & (shifted == np.floor(shifted)))  # NaN is bad as well
    if bad.any():
        row, component = (int(index) for index in np.argwhere(bad)[0])
        first = leaf.starts[component]
        raise EnvironmentContractError(
            f"Observation '{leaf.name}' row {row} is {values[row, component]}, "
            f"expected an integer from {first} to {first + leaf.sizes[component] - 1} as its space declares."
        )
    offsets = column + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    np.put_along_axis(flat, shifted.astype(np.int64) + offsets, np.float32(1.0), axis=1)


def _leaf_to_json(leaf: Leaf) -> dict[str, Any]:
    return {
        "path": list(leaf.path),
        "kind": leaf.kind,
        "shape": list(leaf.shape),
        "sizes": list(leaf.sizes),
        "starts": list(leaf.starts),
    }


def _leaf_from_json(data: Mapping[str, Any]) -> Leaf:
    return Leaf(
        path=tuple(data["path"]),
        kind=data["kind"],
        shape=tuple(data["shape"]),
        sizes=tuple(data["sizes"]),
        starts=tuple(data["starts"]),
    )

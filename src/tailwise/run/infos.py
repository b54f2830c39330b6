"""The infos of single environments as one dict of arrays, as Gymnasium's vector environments arrange them.

Gymnasium's own arrangement fails when environments disagree: a number here and None or text there, arrays of different
lengths, a dict beside a number. Such a key becomes an array of objects here; all others are as Gymnasium's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_DEEPEST = 8  # dicts inside dicts; what lies deeper is kept as it is


def add_info(infos: dict[Any, Any], info: Mapping[Any, Any], row: int, rows: int, depth: int = 0) -> dict[Any, Any]:
    """Put the info of environment `row` of `rows` into `infos`, which is changed and returned.

    `infos[key]` is an array [rows] or [rows, ...] or a dict of such, and `infos["_key"]` bool [rows] says who gave one.
    """
    for key, value in info.items():
        held = infos.get(key)
        given = infos.get(f"_{key}")
        if given is None:
            given = np.zeros(rows, dtype=np.bool_)
        nested = isinstance(value, dict) and key != "final_obs"  # an observation is one value, whatever its space
        if nested and depth < _DEEPEST and (held is None or isinstance(held, dict)):
            infos[key] = add_info({} if held is None else held, value, row, rows, depth + 1)
        else:
            array = _room(key, value, rows) if held is None else held
            if not _fits(array, value, row):
                array = _objects(array, given)
                array[row] = value
            infos[key] = array
        given[row] = True
        infos[f"_{key}"] = given
    return infos


def _room(key: Any, value: Any, rows: int) -> np.ndarray:
    """An array for `rows` values like this one; of objects for what is neither a number nor an array."""
    if key != "final_obs":
        if type(value) in (int, float, bool) or isinstance(value, np.number):
            return np.zeros(rows, dtype=type(value))
        if isinstance(value, np.ndarray):
            return np.zeros((rows, *value.shape), dtype=value.dtype)
    return np.full(rows, None, dtype=object)


def _fits(array: Any, value: Any, row: int) -> bool:
    """Put `value` into row `row` of `array` if that changes neither its type nor its shape; say whether it did."""
    if not isinstance(array, np.ndarray):
        return False
    if array.dtype != object:
        number = np.asarray(value) if isinstance(value, int | float | np.generic | np.ndarray) else None
        if number is None or number.shape != array.shape[1:]:
            return False
        if not np.can_cast(number.dtype, array.dtype, "same_kind"):  # an int has no room for a fraction
            return False
    try:
        array[row] = value
    except OverflowError:  # 300 among the bytes of the other environments
        return False
    return True


def _objects(held: Any, given: np.ndarray) -> np.ndarray:
    """The rows of an array, or of a dict of arrays, as objects; None where nothing was given."""
    objects = np.full(len(given), None, dtype=object)
    for row in np.flatnonzero(given).tolist():
        objects[row] = _row_of(held, row)
    return objects


def _row_of(held: Any, row: int) -> Any:
    if isinstance(held, dict):
        return {key: _row_of(part, row) for key, part in held.items() if f"_{key}" in held and held[f"_{key}"][row]}
    return held[row]

"""What environments' `reset` and `step` return, read strictly: a mistake in them becomes a sentence.

An environment is somebody else's code. What it returns is checked here, and what it raises is raised again as an
`EnvironmentContractError` that names the environment, the call and the line; the original error stays its cause.

`add_info` arranges the infos of single environments as Gymnasium's vector environments do. Gymnasium's own arrangement
fails when environments disagree: a number here and None or text there, arrays of different lengths, a dict beside a
number. Such a key becomes an array of objects here.
"""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from tailwise.core.errors import EnvironmentContractError, TailwiseError

T = TypeVar("T")
_STEP = "return (observation, reward, terminated, truncated, info)"
_RESET = "take seed and options by name and return (observation, info)"
_DEEPEST = 8  # dicts inside dicts; what lies deeper is kept as it is


def call_one(row: int, call: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of environment `row`; `call` is its name in the sentence about what it raises."""
    try:
        return function(*arguments)
    except TailwiseError:
        raise
    except Exception as error:  # anything may go wrong in somebody else's environment
        raise _failed(row, call, error) from error


def build_one(row: int, build: Callable[[], T]) -> T:
    """Build environment `row`."""
    return call_one(row, "the function that builds it", build)


def reset_one(env: Any, row: int, *, seed: int, options: dict[str, Any] | None) -> tuple[Any, Mapping[str, Any]]:
    """Reset environment `row` with `seed`: (observation, info)."""
    result = call_one(row, "reset", lambda: env.reset(seed=seed, options=options))
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise EnvironmentContractError(
            f"Environment {row} returned {_kind(result)} from reset; {_RESET}, info being a dict: only Gym before 0.26 "
            "returned the observation alone."
        )
    return result[0], result[1]


def step_one(env: Any, row: int, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Step environment `row`: (observation, reward, terminated, truncated, info)."""
    try:
        observation, reward, terminated, truncated, info = env.step(action)
    except TailwiseError:
        raise
    except Exception as error:  # anything may go wrong in somebody else's environment
        raise _step_failure(row, error) from error
    if type(reward) is float and type(terminated) is bool and type(truncated) is bool and type(info) is dict:
        return observation, reward, terminated, truncated, info
    if not isinstance(info, Mapping):
        raise EnvironmentContractError(
            f"Environment {row} returned {_kind(info)} as the info of a step; return a dict, empty if there is nothing "
            "to say."
        )
    return (
        observation,
        _as_reward(row, reward),
        _as_flag(row, "terminated", terminated),
        _as_flag(row, "truncated", truncated),
        info,
    )


def vector_step(result: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
    """What a vector environment's `step` returned, as five things of which the last is a dict."""
    if not isinstance(result, tuple | list) or len(result) != 5 or not isinstance(result[4], Mapping):
        raise EnvironmentContractError(
            f"The vector environment returned {_kind(result)} from step; {_STEP}, info being a dict."
        )
    return result[0], result[1], result[2], result[3], result[4]


def vector_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    """What a vector environment's `reset` returned, as two things of which the last is a dict."""
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise EnvironmentContractError(
            f"The vector environment returned {_kind(result)} from reset; {_RESET}, info being a dict."
        )
    return result[0], dict(result[1])


def check_spaces(env: Any) -> None:
    """Refuse an environment that does not say what it observes and accepts."""
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)  # Gymnasium declares the attributes without giving them a value
        if not isinstance(space, gym.Space):
            kind = type(env.unwrapped).__name__
            raise EnvironmentContractError(
                f"The environment {kind} has {_kind(space)} as its {name}; set it to a space of gymnasium.spaces when "
                "it is built."
            )


def observation_problem(space: gym.Space[Any], observation: Any, where: str) -> str:
    """What makes one observation unfit for its space (structure, shape or kind of numbers); "" when nothing does."""
    parts: list[tuple[Any, gym.Space[Any]]] = []
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(observation, Mapping) or not space.spaces.keys() <= observation.keys():
            got = sorted(map(str, observation)) if isinstance(observation, Mapping) else type(observation).__name__
            return f"'{where}' is {got}, expected a dict with the keys {sorted(space.spaces)}"
        parts = list(space.spaces.items())
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            return f"'{where}' is not a tuple of {len(space.spaces)} entries"
        parts = list(enumerate(space.spaces))
    else:
        try:
            array = np.asarray(observation)
        except (RuntimeError, TypeError, ValueError) as error:
            return f"'{where}' is not a regular array ({error})"
        if array.shape != space.shape:
            return f"'{where}' has shape {array.shape}, expected {space.shape}"
        if not np.can_cast(array.dtype, space.dtype or array.dtype, "same_kind"):
            return f"'{where}' has dtype {array.dtype}, expected {space.dtype}"
    problems = (observation_problem(part, observation[key], f"{where}.{key}") for key, part in parts)
    return next(filter(None, problems), "")


def cause(error: BaseException) -> str:
    """'TypeError: ... (my_env.py, line 12)': the error and the place that raised it."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {reprlib.repr(message) if len(message) > 300 else message}{place}"


def _step_failure(row: int, error: BaseException) -> EnvironmentContractError:
    """The sentence about what a step of environment `row` raised, or about a result that is not five things."""
    if "to unpack (expected 5, got 4)" in str(error):
        return EnvironmentContractError(
            f"Environment {row} returned four things from step, as Gym before 0.26 did; {_STEP}: `done` became "
            "terminated (the task ended) and truncated (it was cut off, e.g. by a time limit)."
        )
    if "unpack" in str(error) and isinstance(error, TypeError | ValueError):
        return EnvironmentContractError(f"Environment {row} did not return five things from step ({error}); {_STEP}.")
    return _failed(row, "step", error)


def _as_reward(row: int, reward: Any) -> float:
    """A number, or an array (or tensor) of exactly one number whatever its shape."""
    try:
        if isinstance(reward, int | float):
            return float(reward)
        array = np.asarray(reward)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        array = np.empty(0)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise EnvironmentContractError(
            f"Environment {row} returned {_kind(reward)} as its reward; return one number, or an array of one number."
        )
    return float(array.reshape(()))


def _as_flag(row: int, name: str, flag: Any) -> bool:
    """A bool, the number 0 or 1, or an array of exactly one of these."""
    if isinstance(flag, bool | np.bool_):
        return bool(flag)
    if isinstance(flag, int | float | np.number | np.ndarray):
        array = np.asarray(flag)
        if array.size == 1 and array.dtype.kind in "biuf" and array.reshape(()) in (0, 1):
            return bool(array.reshape(()))
    raise EnvironmentContractError(f"Environment {row} returned {_kind(flag)} as {name}; return True or False.")


def _failed(row: int, call: str, error: BaseException) -> EnvironmentContractError:
    odd = call == "reset" and ("argument" in str(error) or "unpack" in str(error))
    hint = f"; {_RESET}" if odd else ""
    return EnvironmentContractError(f"Environment {row} failed in {call}: {cause(error)}{hint}.")


def _kind(value: Any) -> str:
    """A short description of a wrong value: 'None', \"the str 'red'\", 'an array of shape (2,)'."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} ({value.dtype})"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} things"
    return f"the {type(value).__name__} {reprlib.repr(value)}"


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


def join_infos(parts: Sequence[Mapping[Any, Any]], sizes: Sequence[int], depth: int = 0) -> dict[Any, Any]:
    """The infos of several vector environments as those of one that has all of their rows; sizes: rows of each.

    As if `add_info` had been called for one row after another.
    """
    total, starts = sum(sizes), np.cumsum([0, *sizes]).tolist()
    joined: dict[Any, Any] = {}
    for key in dict.fromkeys(key for part in parts for key in part if f"_{key}" in part):
        holders = [index for index, part in enumerate(parts) if key in part]
        held = [parts[index][key] for index in holders]
        if all(isinstance(one, dict) for one in held):
            joined[key] = join_infos([part.get(key, {}) for part in parts], sizes, depth + 1)
        elif not any(isinstance(one, dict) for one in held) and len({(one.dtype, one.shape[1:]) for one in held}) == 1:
            if len(held) == len(parts):  # the usual case, in a third of the time
                joined[key] = np.concatenate(held)
                joined[f"_{key}"] = np.concatenate([part[f"_{key}"] for part in parts])
                continue
            joined[key] = np.full((total, *held[0].shape[1:]), None if held[0].dtype == object else 0, held[0].dtype)
            for index, one in zip(holders, held, strict=True):
                joined[key][starts[index] : starts[index + 1]] = one
        else:  # they disagree about a key, which then depends on the order of rows
            for index, one in zip(holders, held, strict=True):
                for row in np.flatnonzero(parts[index][f"_{key}"]).tolist():
                    value = _row_of(one, row)
                    value = bool(value) if isinstance(value, np.bool_) else value
                    add_info(joined, {key: value}, starts[index] + row, total, depth)
        given = joined[f"_{key}"] = np.zeros(total, dtype=np.bool_)
        for index in holders:
            given[starts[index] : starts[index + 1]] = parts[index][f"_{key}"]
    return joined


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

"""Episodes of the leak-check: the same actions in two environments, and every number that comes out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tailwise.core.errors import EnvironmentContractError

Floats = npt.NDArray[np.float64]
Snapshot = dict[str, Floats]  # all numbers of one moment: name -> flat array


@dataclass(frozen=True)
class Track:
    """The rows that an environment counts its time in: those of one symbol, or the common clock of a portfolio."""

    symbol: str
    time: npt.NDArray[np.datetime64]  # open of each row
    first: int  # the first row at which an episode may begin
    index: int | None  # which of the bars; None for a clock of all of them


@dataclass(frozen=True)
class Episode:
    """Where an episode of the check begins and up to which row of its track it is compared."""

    track: Track
    start: int
    cut: int  # first row of the changed future

    @property
    def steps(self) -> int:
        return self.cut - 1 - self.start


def market_options(episode: Episode) -> dict[str, Any]:
    """Reset options of `MarketEnv` and `tailwise/Market-v0`."""
    index = episode.track.index
    return {"start": episode.start} if index is None else {"start": episode.start, "symbol": index}


def play_freely(env: Any, episode: Episode, options: dict[str, Any], seed: int) -> tuple[list[Any], list[Snapshot]]:
    """Random actions that the masks allow, and all numbers from the reset to the decision at the bar before the cut."""
    rng = np.random.default_rng([seed, episode.track.index or 0, episode.cut])
    env.action_space.seed(int(rng.integers(2**31)))
    obs, info = env.reset(seed=seed, options=options)
    moments, actions = [_moment(env, obs, info)], []
    for _ in range(episode.steps):
        actions.append(_action(env.action_space, info.get("action_mask"), rng))
        moment, over, info = _step(env, actions[-1])
        moments.append(moment)
        if over:
            break
    return actions, moments


def replay(env: Any, actions: Sequence[Any], options: dict[str, Any], seed: int) -> list[Snapshot]:
    obs, info = env.reset(seed=seed, options=options)
    moments = [_moment(env, obs, info)]
    for action in actions:
        moment, over, _ = _step(env, action)
        moments.append(moment)
        if over:
            break
    return moments


def _step(env: Any, action: Any) -> tuple[Snapshot, bool, Mapping[str, Any]]:
    obs, reward, terminated, truncated, info = env.step(action)
    if "final_obs" in info:
        obs, info = _without_new_episodes(obs, info, np.logical_or(terminated, truncated))
    moment = _moment(env, obs, info)
    for name, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        moment[name] = np.asarray(value, dtype=np.float64).ravel()
    return moment, bool(np.any(terminated) or np.any(truncated)), info


def _without_new_episodes(obs: Any, info: Mapping[str, Any], ended: Any) -> tuple[Any, dict[str, Any]]:
    """Where an episode ended [N], its last observation instead of the first one of a new episode, which begins at any
    bar and may show what lies behind the cut; and no mask for it."""
    rows = np.asarray(ended)
    kept = {name: value for name, value in info.items() if name not in ("final_obs", "_final_obs")}
    if "action_mask" in kept:
        kept["action_mask"] = np.asarray(kept["action_mask"])[~rows]
    return np.where(rows.reshape(-1, *[1] * (np.ndim(obs) - 1)), info["final_obs"], obs), kept


def _moment(env: Any, obs: Any, info: Mapping[str, Any]) -> Snapshot:
    parts = dict(_numbers(obs, "observation"))
    parts.update(_numbers(info, "info"))
    names = _observation_names(env)
    flat = parts.get("observation")
    if names and flat is not None:
        # [N accounts, D entries] -> one name per entry; entries that a wrapper added keep their number.
        table = flat.reshape(getattr(env, "num_envs", 1), -1)
        del parts["observation"]
        for column in range(table.shape[1]):
            name = repr(names[column]) if column < len(names) else str(column)
            parts[f"observation {name}"] = table[:, column].copy()
    return parts


def _observation_names(env: Any) -> tuple[str, ...]:
    simulator = getattr(env.unwrapped, "simulator", None)
    return tuple(simulator.names) if simulator is not None else ()


def _numbers(value: Any, name: str) -> Iterator[tuple[str, Floats]]:
    """Every number in nested dictionaries, tuples and arrays; texts and objects are no part of the comparison."""
    if isinstance(value, (float, int)):
        yield name, np.array([value], dtype=np.float64)
    elif isinstance(value, (dict, Mapping)):  # `dict` first: the abstract class is slow to ask
        for key, part in value.items():
            yield from _numbers(part, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from _numbers(part, f"{name}[{index}]")
    else:
        array = np.asarray(value)
        if array.dtype.kind in "fiub":
            yield name, array.astype(np.float64).ravel()


def _action(space: spaces.Space[Any], mask: Any, rng: np.random.Generator) -> Any:
    if mask is None:
        return space.sample()
    if isinstance(space, spaces.Box) and np.size(mask) == 2 * int(np.prod(space.shape)):
        bounds = np.asarray(mask, dtype=np.float64).reshape(*space.shape, 2)  # [low, high] of every component
        return rng.uniform(bounds[..., 0], bounds[..., 1]).astype(space.dtype)
    allowed = np.asarray(mask, dtype=np.bool_)
    if isinstance(space, spaces.Discrete) and allowed.ndim == 1:
        return int(space.start + rng.choice(np.flatnonzero(allowed)))
    if isinstance(space, spaces.MultiDiscrete) and allowed.ndim == 2:
        return np.array([rng.choice(np.flatnonzero(row)) for row in allowed], dtype=space.dtype)
    raise EnvironmentContractError(
        f"leak-check: an action mask of shape {allowed.shape} does not fit the action space {space}."
    )


def random_start(env: Any, seed: int) -> Snapshot | None:
    """Where the first episode of `seed` begins when nobody fixes it; None when the environment cannot tell."""
    if not hasattr(env.unwrapped, "get_state"):
        return None
    env.reset(seed=seed)
    state = env.unwrapped.get_state()
    return {
        f"random start ({name})": state[name].astype(np.float64).ravel() for name in ("row", "symbol") if name in state
    }

"""Where demonstrations come from: Parquet files, a rule that plays the training environments, Minari data sets.

Whatever they hold is checked: shapes, numbers that are finite, actions that the environment has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.modules import load_function
from tailwise.learner.config import FileDemonstrations, Imitation, MinariDemonstrations, NoImitation, RuleDemonstrations
from tailwise.learner.imitation import EDGE, Demos, Episode
from tailwise.model.action_spec import ActionSpec
from tailwise.model.observation import ObservationSpec, as_mask, check_mask
from tailwise.run.envs import Driver, EnvDriver
from tailwise.run.worlds import World

KEY = "learner.imitation.source"
MOST_ROWS = 20_000_000
EPISODES = 16  # environments side by side in which a rule plays

#: observations float32 [B, D] and the names of their D entries -> actions [B, ...] as the environment takes them
Rule = Callable[[npt.NDArray[np.float32], Sequence[str]], npt.ArrayLike]


def demonstrations(
    imitation: Imitation, world: World, driver: Driver, *, seed: int, gamma: float, squashed: bool
) -> Demos | None:
    """All steps of the source of learner.imitation; None without one. driver: of the training environments."""
    if isinstance(imitation, NoImitation):
        return None
    spaces = driver.spaces
    match imitation.source:
        case FileDemonstrations():
            episodes = from_files(imitation.source.paths, spaces.observation, spaces.action, squashed=squashed)
        case RuleDemonstrations():
            episodes = from_rule(imitation.source, world, seed=seed, squashed=squashed)
        case MinariDemonstrations():
            episodes = from_minari(imitation.source.dataset, spaces.observation, spaces.action, squashed=squashed)
    return Demos.of(episodes, gamma=gamma)


def raw_actions(action: ActionSpec, values: Any, rows: int, *, squashed: bool, where: str) -> npt.NDArray[np.generic]:
    """Actions of an environment [n, ...] as policies store them [n, A], the inverse of `ActionSpec.to_env`."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.size != rows * action.components:
        raise DataError(
            f"{where}: the actions have shape {array.shape} ({array.dtype}); expected {rows} rows of "
            f"{action.components} number{'s' if action.components > 1 else ''}"
        )
    flat = array.reshape(rows, action.components)
    if not np.isfinite(flat).all():
        raise DataError(f"{where}: an action is NaN or infinite in row {int(np.argmax(~np.isfinite(flat).all(1)))}")
    if action.kind == "box":
        return np.stack(
            [_raw_box(action, one, squashed, where, row) for row, one in enumerate(flat.astype(np.float64))]
        )
    index = flat - np.asarray(action.start)
    bad = ~((index >= 0) & (index < np.asarray(action.sizes)) & (index == np.floor(index))).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{where}: the action {flat[row].tolist()} of row {row} is none of the environment's")
    return index.astype(np.int64)


def _raw_box(
    action: ActionSpec, values: npt.NDArray[np.float64], squashed: bool, where: str, row: int
) -> npt.NDArray[np.float32]:
    slack = 1e-6 * (1.0 + np.abs(values))
    if not ((values >= action.low - slack) & (values <= action.high + slack)).all():
        raise DataError(
            f"{where}: the action {values.tolist()} of row {row} is outside {action.low.tolist()} to "
            f"{action.high.tolist()}"
        )
    inside = np.clip(values, action.low, action.high)
    if squashed:
        middle, half = (action.high + action.low) / 2, (action.high - action.low) / 2
        inside = middle + np.clip(inside - middle, -EDGE * half, EDGE * half)
    return action.from_env(inside, squashed=squashed).astype(np.float32)


def from_files(
    paths: Sequence[str], observation: ObservationSpec, action: ActionSpec, *, squashed: bool
) -> list[Episode]:
    """Episodes of Parquet files; docs/imitation.md has the columns."""
    if not paths:
        raise ConfigError(f"{KEY}.paths is empty; name at least one Parquet file")
    episodes: list[Episode] = []
    for path in paths:
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: no Parquet file that can be read ({error})") from error
        if table.num_rows > MOST_ROWS:
            raise DataError(f"{path}: {table.num_rows:,} rows are more than {MOST_ROWS:,}; split it")
        episodes += _episodes_of(table, path, observation, action, squashed=squashed)
    return episodes


def _episodes_of(
    table: pa.Table, path: str, observation: ObservationSpec, action: ActionSpec, *, squashed: bool
) -> list[Episode]:
    missing = [name for name in ("episode", "observation", "action", "reward") if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path}: the column {missing[0]} is missing; it has {', '.join(table.column_names)} "
            "(docs/imitation.md lists the columns)"
        )
    rows = table.num_rows
    obs = _matrix(table, "observation", path, width=observation.size).astype(np.float32)
    actions = raw_actions(
        action, _matrix(table, "action", path, width=action.components), rows, squashed=squashed, where=path
    )
    reward = _matrix(table, "reward", path, width=1)[:, 0]
    number = _matrix(table, "episode", path, width=1)[:, 0]
    ends = np.flatnonzero(np.diff(number)) + 1
    names = table.column_names
    terminated = _matrix(table, "terminated", path, width=1)[:, 0] if "terminated" in names else np.zeros(rows)
    mask = None
    if "mask" in names and action.logits:
        mask = as_mask(_matrix(table, "mask", path, width=action.logits))
        check_mask(mask, action.sizes)
    parts = np.split(np.arange(rows), ends)
    if len(np.unique(number)) != len(parts):
        raise DataError(f"{path}: the rows of an episode do not stand together; sort by episode and time")
    return [
        Episode(obs[at], actions[at], reward[at], None if mask is None else mask[at], bool(terminated[at[-1]]))
        for at in parts
        if len(at)
    ]


def _matrix(table: pa.Table, name: str, path: str, *, width: int) -> npt.NDArray[np.float64]:
    """A column of numbers, or of lists of `width` numbers: float64 [n, width], all finite."""
    column = table.column(name).combine_chunks()
    try:
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            lengths = np.diff(column.offsets.to_numpy())
            if (lengths != width).any():
                row = int(np.argmax(lengths != width))
                raise DataError(f"{path}: {name} of row {row} has {int(lengths[row])} numbers; expected {width}")
            column = column.flatten()
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(-1, width)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{path}: the column {name} does not hold {width} numbers per row ({error})") from error
    if len(values) != table.num_rows or not np.isfinite(values).all():
        raise DataError(f"{path}: the column {name} has a missing, NaN or infinite number")
    return np.asarray(values, dtype=np.float64)


def from_rule(source: RuleDemonstrations, world: World, *, seed: int, squashed: bool) -> list[Episode]:
    """Episodes that a rule plays in the training environment; those that are still running at the end are cut off."""
    driver = world.eval_env("train", episodes=EPISODES, seed=seed)
    try:
        return _played(_rule(source, world, driver), driver, source.steps, squashed=squashed)
    finally:
        driver.close()


def _rule(source: RuleDemonstrations, world: World, driver: EnvDriver) -> Callable[[npt.NDArray[np.float32]], Any]:
    names = world.entries(driver).names
    if source.rule == "base":
        action = world.base_action()
        if action is None:
            raise ConfigError(f"{KEY}.rule is base and there is no base rule; set env.base, or name a function")
        spec = driver.spaces.action
        one = np.asarray(action, dtype=np.float64)
        return lambda obs: np.tile(one + (spec.start[0] if spec.kind == "discrete" else 0), (len(obs), 1))
    if ":" not in source.rule:
        raise ConfigError(f"{KEY}.rule is '{source.rule}'; write base, or module.py:function")
    rule: Rule = load_function(source.rule, key=f"{KEY}.rule")
    return lambda obs: rule(obs.copy(), names)


def _played(
    rule: Callable[[npt.NDArray[np.float32]], Any], driver: EnvDriver, steps: int, *, squashed: bool
) -> list[Episode]:
    action, envs = driver.spaces.action, driver.num_envs
    obs, mask = driver.reset()
    kept: list[list[tuple[Any, ...]]] = [[] for _ in range(envs)]
    episodes: list[Episode] = []
    for _ in range(-(-steps // envs)):
        if not np.isfinite(obs).all():
            raise DataError(f"{KEY}.rule: the environment shows NaN or infinite numbers; fix its observation")
        try:
            values = rule(obs)
        except (TypeError, ValueError, LookupError) as error:
            raise DataError(f"{KEY}.rule: {type(error).__name__}: {error}") from error
        raw = raw_actions(action, values, envs, squashed=squashed, where=f"{KEY}.rule")
        result = driver.step(action.to_env(raw, squashed=squashed))
        for row in np.flatnonzero(result.valid).tolist():
            kept[row].append((obs[row], raw[row], result.reward[row], None if mask is None else mask[row]))
            if result.terminated[row] or result.truncated[row]:
                episodes.append(_episode(kept[row], terminated=bool(result.terminated[row])))
                kept[row] = []
        obs, mask = result.obs, result.mask
    return episodes + [_episode(rows, terminated=False) for rows in kept if rows]


def _episode(rows: list[tuple[Any, ...]], *, terminated: bool) -> Episode:
    obs, action, reward, mask = zip(*rows, strict=True)
    masks = None if mask[0] is None else np.stack(mask)
    return Episode(np.stack(obs), np.stack(action), np.array(reward, dtype=np.float64), masks, terminated)


def from_minari(
    dataset: str | None, observation: ObservationSpec, action: ActionSpec, *, squashed: bool
) -> list[Episode]:
    """Episodes of a Minari data set on this machine."""
    if find_spec("minari") is None:
        raise ConfigError(f"{KEY}.kind minari needs the package minari, which is not installed: pip install minari")
    if dataset is None:
        raise ConfigError(f"{KEY}.dataset is not set; write the id of a Minari data set")
    episodes = []
    for number, one in enumerate(import_module("minari").load_dataset(dataset).iterate_episodes()):
        rows, where = len(one.rewards), f"Minari {dataset}, episode {number}"
        obs = observation.flatten(_without_last(one.observations), rows)
        actions = raw_actions(action, one.actions, rows, squashed=squashed, where=where)
        reward = np.asarray(one.rewards, dtype=np.float64)
        if not (np.isfinite(obs).all() and np.isfinite(reward).all()):
            raise DataError(f"{where}: an observation or reward is NaN or infinite")
        episodes.append(Episode(obs, actions, reward, None, bool(one.terminations[-1])))
    return episodes


def _without_last(observations: Any) -> Any:
    """What was acted on: Minari keeps the observation after the last step too."""
    if isinstance(observations, dict):
        return {name: _without_last(part) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_without_last(part) for part in observations)
    return observations[:-1]


def write_episodes(
    path: str | Path, episodes: Sequence[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, bool]]
) -> None:
    """Write (observations [n, D], actions [n, ...], rewards [n], terminated) as the Parquet file that is read here."""
    columns: dict[str, list[Any]] = {name: [] for name in ("episode", "observation", "action", "reward", "terminated")}
    for number, (obs, action, reward, terminated) in enumerate(episodes):
        rows = len(np.asarray(reward))
        columns["episode"] += [number] * rows
        columns["observation"] += np.asarray(obs, dtype=np.float32).reshape(rows, -1).tolist()
        columns["action"] += np.asarray(action, dtype=np.float64).reshape(rows, -1).tolist()
        columns["reward"] += np.asarray(reward, dtype=np.float64).tolist()
        columns["terminated"] += [False] * (rows - 1) + [bool(terminated)]
    pq.write_table(pa.table(columns), path)

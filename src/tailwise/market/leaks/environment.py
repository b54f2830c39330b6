"""Leak-check of environments: same seed, same start, same actions, another future; all up to the cut must be equal.

The decision at the close of bar t may know the bars up to t. So with the bars from c on changed, every observation,
mask, reward, flag and number in `info` up to the decision at bar c - 1 has to be the same bit for bit. The series keeps
its length, because the end of the data ends the episode and is no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError, DataError, EnvironmentContractError, TailwiseError
from tailwise.market.leaks.report import (
    Changes,
    LeakReport,
    Probe,
    changed_future,
    check_probes,
    cut_points,
    deviation_of,
    everything_changed,
    same_bars,
)

# ---------------------------------------------------------------------- episodes
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
    """Where the first episode of `seed` begins without reset options; None when the environment cannot tell."""
    if not hasattr(env.unwrapped, "get_state"):
        return None
    env.reset(seed=seed)
    state = env.unwrapped.get_state()
    return {
        f"random start ({name})": state[name].astype(np.float64).ravel() for name in ("row", "symbol") if name in state
    }


# ---------------------------------------------------------------------- the check
ENVIRONMENT_PROBES: tuple[Probe, ...] = ("shuffle", "scale")


def check_environment(
    build: Callable[[Sequence[Bars]], Any],
    bars: Bars | Sequence[Bars],
    *,
    cuts: int = 12,
    seed: int = 0,
    probes: Sequence[Probe] = ENVIRONMENT_PROBES,
    lead: int = 48,
    first_start: int | None = None,
    options: Callable[[Episode], dict[str, Any]] = market_options,
    longest: int = 200_000,
    work: int = 10_000_000,
) -> LeakReport:
    """Play the same random actions on the real bars and on bars with another future, up to each cut.

    build        a Gymnasium `Env` or `VectorEnv` on the given bars, features included; called for every changed future,
                 and once with fewer bars
    bars         of one or several symbols; of all of them, what is not complete at the decision is changed
    cuts         cuts spread over each symbol; about 25 more are added for each (see `report.cut_points`)
    lead         an episode begins so many bars before its cut
    first_start  first row at which an episode may begin; by default asked of the market's simulator, else 0
    options      reset options that let the first episode begin at row `start` of the `track` of an `Episode`
    longest, work   as in `check_features`
    """
    probes = tuple(probes)
    check_probes(probes, ENVIRONMENT_PROBES)
    if lead < 1:
        raise ConfigError(f"leak-check: lead is {lead}; an episode must begin at least 1 bar before its cut.")
    given = [bars] if isinstance(bars, Bars) else list(bars)
    used = [one if len(one) <= longest else one.slice(0, longest) for one in given]
    rows = sum(map(len, used))
    real = build(used)
    tracks = _tracks(real, used, first_start)
    most = max(work // (rows * len(probes) * len(tracks)), 4)
    plan: list[Episode] = []
    left_out = 0
    for track in tracks:
        rows_cut, missed = _cuts(track, used, cuts, seed, most)
        plan += [Episode(track, max(track.first, cut - lead), cut) for cut in rows_cut]
        left_out += missed
    played = [play_freely(real, episode, options(episode), seed) for episode in plan]
    _check_repeats(real, plan, played, options, seed)
    starts = random_start(real, seed)
    changes, comparisons, values = Changes(), 0, 0
    for episode, (actions, before) in zip(plan, played, strict=True):
        for probe in probes:
            other = _other_future(used, episode, probe, seed)
            if all(map(same_bars, used, other)):
                continue
            try:
                env = build(other)
            except TailwiseError as error:
                changes.add_refusal("the environment", episode.track, error, probe, episode.cut)
                continue
            new_first = [track.first for track in _tracks(env, used, first_start)]
            if new_first != [track.first for track in tracks]:
                # The start may not even exist there, so that nothing else can be compared.
                name = "the first valid bar"
                old_first = np.array([float(track.first) for track in tracks])
                _compare({name: old_first}, {name: np.array(new_first, dtype=np.float64)}, 0, episode, probe, changes)
                env.close()
                continue
            after = replay(env, actions, options(episode), seed)
            comparisons += 1
            for step, (one_moment, other_moment) in enumerate(zip(before, after, strict=False)):
                values += sum(map(len, one_moment.values()))
                _compare(one_moment, other_moment, step, episode, probe, changes)
            if starts is not None:
                _compare(starts, random_start(env, seed) or {}, 0, episode, probe, changes)
            env.close()
    findings = changes.findings(_deviations([before for _, before in played]))
    if not values and not findings:
        raise DataError(
            "leak-check: no value was compared, since every changed future equals the real one; use bars whose prices "
            "move."
        )
    notes = [] if starts is not None else ["random starts were not compared: the environment has no get_state"]
    unjudged: tuple[str, ...] = ()
    try:
        unjudged = _unmoved(build, real, used, plan, played, options, seed)
    except TailwiseError as error:
        notes.append(f"whether everything depends on the bars was not checked: on wholly changed bars, {error}")
    real.close()
    return LeakReport(
        subject="environment",
        findings=findings,
        unjudged=unjudged,
        probes=probes,
        cuts=tuple(episode.cut for episode in plan),
        comparisons=comparisons,
        values=values,
        bars=rows,
        bars_given=sum(map(len, given)),
        cuts_left_out=left_out,
        notes=tuple(notes),
    )


def _tracks(env: Any, bars: Sequence[Bars], first_start: int | None) -> list[Track]:
    simulator = getattr(env.unwrapped, "simulator", None)
    table = None if simulator is None else simulator.table
    if table is not None and table.has_clock:  # all symbols side by side
        first = int(table.first_rows[0]) if first_start is None else first_start
        return [Track("+".join(one.symbol for one in bars), table.time, first, None)]
    firsts = [first_start or 0] * len(bars)
    if table is not None and first_start is None:
        firsts = [int(row) for row in table.first_rows - table.offsets]
    return [Track(one.symbol, one.time, firsts[index], index) for index, one in enumerate(bars)]


def _cuts(track: Track, bars: Sequence[Bars], count: int, seed: int, most: int) -> tuple[list[int], int]:
    if track.index is not None:
        cuts, missed = cut_points(bars[track.index], first=track.first + 1, count=count, seed=seed, most=most)
        return list(cuts), missed
    share, rows, missed = max(most // len(bars), 1), set(), 0
    for one in bars:
        # The bars of a symbol that come after the clock's first possible cut.
        later = int(np.searchsorted(one.time, track.time[track.first], side="right"))
        cuts, more = cut_points(one, first=max(later, 1), count=count, seed=seed, most=share)
        rows |= {int(row) for row in np.searchsorted(track.time, one.time[list(cuts)])}
        missed += more
    return sorted(rows), missed


def _other_future(bars: Sequence[Bars], episode: Episode, probe: Probe, seed: int) -> list[Bars]:
    """Of every symbol, all is changed that is not complete at the decision at row cut - 1."""
    track = episode.track
    now = track.time[episode.cut - 1]
    changed = []
    for index, one in enumerate(bars):
        if track.index is None:  # a clock on which no two bars overlap: what has opened by then closes with it
            cut = int(np.searchsorted(one.time, now, side="right"))
        elif track.index == index:
            cut = episode.cut
        else:
            decision = now + bars[track.index].frequency.bar
            cut = int(np.searchsorted(one.time + one.frequency.bar, decision, side="right"))
        changed.append(changed_future(one, cut, probe, seed=seed))
    return changed


def _compare(before: Snapshot, after: Snapshot, step: int, episode: Episode, probe: Probe, changes: Changes) -> None:
    rows = episode.track
    row = np.array([episode.start + step])
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old is None or new is None or len(old) != len(new):
            texts = [np.array([_count(one)], dtype=object) for one in (old, new)]
            changes.add(name, rows, row, texts[0], texts[1], probe, episode.cut)
            continue
        if old.tobytes() == new.tobytes():  # the usual case, quickly
            continue
        different = ~((old == new) | (np.isnan(old) & np.isnan(new)))
        if different.any():
            at = np.flatnonzero(different)
            changes.add(name, rows, np.repeat(row, len(at)), old[at], new[at], probe, episode.cut)


def _count(numbers: Floats | None) -> str:
    return "absent" if numbers is None else f"{len(numbers)} numbers"


def _check_repeats(
    env: Any,
    plan: Sequence[Episode],
    played: Sequence[tuple[list[Any], list[Snapshot]]],
    options: Callable[[Episode], dict[str, Any]],
    seed: int,
) -> None:
    longest = max(range(len(plan)), key=lambda k: len(played[k][0]))
    actions, before = played[longest]
    after = replay(env, actions, options(plan[longest]), seed)
    for step, (one, other) in enumerate(zip(before, after, strict=False)):
        for name, numbers in one.items():
            if not np.array_equal(numbers, other.get(name, np.zeros(0)), equal_nan=True):
                raise EnvironmentContractError(
                    f"leak-check: with the same seed and actions, {name} differs at step {step} of two episodes on the "
                    "same bars, so that no change can be blamed on the future; make reset(seed=) decide everything."
                )


def _deviations(episodes: Sequence[Sequence[Snapshot]]) -> dict[str, float]:
    values: dict[str, list[Floats]] = {}
    for moments in episodes:
        for moment in moments:
            for name, numbers in moment.items():
                values.setdefault(name, []).append(numbers)
    return {name: deviation_of(np.concatenate(parts)) for name, parts in values.items()}


def _unmoved(
    build: Callable[[Sequence[Bars]], Any],
    real: Any,
    bars: Sequence[Bars],
    plan: Sequence[Episode],
    played: Sequence[tuple[list[Any], list[Snapshot]]],
    options: Callable[[Episode], dict[str, Any]],
    seed: int,
) -> tuple[str, ...]:
    """Observations that vary and yet depend neither on the bars nor on the actions; a reward that ignores the bars."""
    changed = everything_changed(bars, seed=seed)
    elsewhere = build(changed)
    tracks = {track.index: track for track in _tracks(elsewhere, changed, None)}
    varies: set[str] = set()
    by_bars: set[str] = set()
    by_actions: set[str] = set()
    for episode, (actions, before) in zip(plan, played, strict=True):
        first = {**before[min(1, len(before) - 1)], **before[0]}  # a reset has no reward
        _add_differences(varies, [first] * len(before), before)
        _add_differences(by_actions, before, replay(real, actions[::-1], options(episode), seed))
        there = tracks[episode.track.index]  # with a later warm-up, perhaps, and an earlier end
        if there.first <= episode.start < len(there.time) - 1:
            _add_differences(by_bars, before, replay(elsewhere, actions, options(episode), seed))
    elsewhere.close()
    watched = {name for name in varies if name.startswith("observation") and name not in by_actions}
    return tuple(sorted(name for name in watched | (varies & {"reward"}) if name not in by_bars))


def _add_differences(names: set[str], one: Sequence[Snapshot], other: Sequence[Snapshot]) -> None:
    """Add the names of observations and rewards that differ to `names`."""
    for old, new in zip(one, other, strict=False):
        for name, numbers in old.items():
            if name in names or name not in new or name.startswith("info"):
                continue
            if numbers.tobytes() != new[name].tobytes():
                names.add(name)

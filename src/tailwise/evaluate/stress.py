"""What would have become of a policy or a rule if trading had cost more, orders had come later, or the bars been worse.

A scenario is a pure change of bars or costs. `stress` replays a player, anything that turns bars and costs into the
path of an account, through each of them. Changed bars are labelled synthetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.config import parse
from tailwise.core.errors import ConfigError, DataError
from tailwise.core.streams import Streams
from tailwise.evaluate.backtest import play_rule
from tailwise.evaluate.statistics import PathStatistics, path_statistics
from tailwise.market.costs import CostConfig
from tailwise.market.dataset import Dataset, Loaded
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath
from tailwise.market.split import Window
from tailwise.run.policy import Trader
from tailwise.run.worlds import MarketWorld

Player = Callable[[Bars, CostConfig], AccountPath]
ManyPlayer = Callable[[Sequence[Bars], CostConfig], list[AccountPath]]

_PRICES = ("open", "high", "low", "close")


@dataclass(frozen=True)
class Scenario:
    """One change. `bars` is also given the path without any change, so that a crash can hit where it hurts."""

    group: str  # what is changed: costs, latency, crash, volatility, missing bars
    value: float  # how much
    label: str
    bars: Callable[[Bars, AccountPath], Bars] | None = None
    costs: Callable[[CostConfig], CostConfig] | None = None


@dataclass(frozen=True)
class StressResult:
    """A row of the table of a stress test."""

    group: str
    value: float
    label: str
    statistics: PathStatistics


def stress(
    play: Player,
    bars: Bars,
    costs: CostConfig,
    scenarios: Sequence[Scenario] | None = None,
    *,
    alpha: float = 0.05,
    gamma: float = 0.99,
    play_many: ManyPlayer | None = None,
) -> list[StressResult]:
    """Play without any change ("as it was", the first row), then every scenario.

    play_many: plays all changed bars at once, where the player has a faster way to do that.
    """
    base = play(bars, costs)
    scenarios = default_scenarios() if scenarios is None else scenarios
    changed = [bars if one.bars is None else one.bars(bars, base) for one in scenarios]
    together = [at for at, one in enumerate(scenarios) if one.costs is None]
    paths: dict[int, AccountPath] = {}
    if play_many is not None and together:
        paths = dict(zip(together, play_many([changed[at] for at in together], costs), strict=True))
    results = [StressResult("none", 0.0, "as it was", path_statistics(base, alpha=alpha, gamma=gamma))]
    for at, one in enumerate(scenarios):
        paid = costs if one.costs is None else one.costs(costs)
        path = paths[at] if at in paths else play(changed[at], paid)
        numbers = path_statistics(path, alpha=alpha, gamma=gamma)
        results.append(StressResult(one.group, one.value, one.label, numbers))
    return results


def default_scenarios(*, seed: int = 0) -> list[Scenario]:
    """Costs from 0 to 5 times, latency up to 5 bars, crashes of 10 to 40%, volatility doubled, bars missing."""
    scenarios = [cost_scenario(factor) for factor in (0.0, 0.5, 2.0, 3.0, 5.0)]
    scenarios += [latency_scenario(extra) for extra in (1, 2, 5)]
    scenarios += [crash_scenario(size) for size in (0.1, 0.2, 0.4)]
    scenarios.append(volatility_scenario(2.0))
    return [*scenarios, missing_scenario(0.02, seed=seed), missing_scenario(0.10, seed=seed)]


def cost_scenario(factor: float) -> Scenario:
    """All costs times a factor."""
    return Scenario("costs", factor, f"costs x {factor:g}", costs=lambda costs: scaled_costs(costs, factor))


def latency_scenario(extra: int) -> Scenario:
    """Orders that are filled `extra` bars later."""
    label = "1 bar later" if extra == 1 else f"{extra} bars later"
    return Scenario("latency", extra, label, costs=lambda costs: with_latency(costs, costs.latency + extra))


def crash_scenario(size: float) -> Scenario:
    """A gap of `size` against the largest position of the unchanged path, in the bar after it was reached."""

    def change(bars: Bars, base: AccountPath) -> Bars:
        at = int(np.argmax(np.abs(base.exposure[:-1]))) if len(base) > 1 else 0
        row = int(np.searchsorted(bars.time, base.time[min(at + 1, len(base) - 1)]))
        return crashed(bars, row, size if base.exposure[at] >= 0 else -size)

    return Scenario("crash", size, f"crash of {size:.0%} against the largest position", bars=change)


def volatility_scenario(factor: float) -> Scenario:
    """Returns spread `factor` times as wide around the same mean."""
    return Scenario(
        "volatility", factor, f"volatility x {factor:g}", bars=lambda bars, _: with_volatility(bars, factor)
    )


def missing_scenario(share: float, *, seed: int = 0) -> Scenario:
    """A random share of the bars is not there."""
    return Scenario(
        "missing bars", share, f"{share:.0%} of the bars missing", bars=lambda bars, _: without_bars(bars, share, seed)
    )


def scaled_costs(costs: CostConfig, factor: float) -> CostConfig:
    """All costs (`Cost.stressed`) times `factor`; what is received stays."""
    if factor < 0:
        raise ConfigError(f"costs times {factor} would be paid to the account; the factor is at least 0.")
    return parse(CostConfig, {**costs.model_dump(), **costs.scaled(factor)}, source=f"costs x {factor:g}")


def with_latency(costs: CostConfig, latency: int) -> CostConfig:
    """The same costs with fills that come `latency` bars later."""
    return parse(CostConfig, {**costs.model_dump(), "latency": latency}, source="latency sweep")


def crashed(bars: Bars, row: int, size: float) -> Bars:
    """Bar `row` opens a fraction `size` lower (negative: higher) than it did, and the level stays there.

    A gap: nothing trades between the close before and that open, so no stop can be filled in between.
    """
    if not 0 < row < len(bars) or not -10 < size < 1:
        raise ConfigError(f"a crash of {size} at bar {row} of {len(bars)}: bar 1 or later, a fraction below 1.")
    factor = np.where(np.arange(len(bars)) >= row, 1.0 - size, 1.0)
    return _changed(bars, {name: getattr(bars, name) * factor for name in _PRICES}, f"crash of {size:g} at bar {row}")


def with_volatility(bars: Bars, factor: float) -> Bars:
    """Every move from the close before, to open, high, low and close, `factor` times as large; the mean stays."""
    if not 0 < factor <= 100:
        raise ConfigError(f"volatility times {factor}; the factor lies above 0 and up to 100.")
    before = np.concatenate([bars.open[:1], bars.close[:-1]])
    mean = float(np.log(bars.close[-1] / bars.open[0])) / len(bars)
    moves = {name: factor * np.log(getattr(bars, name) / before) - (factor - 1) * mean for name in _PRICES}
    level = np.log(bars.open[0]) + np.concatenate([[0.0], np.cumsum(moves["close"])[:-1]])
    return _changed(bars, {name: np.exp(level + move) for name, move in moves.items()}, f"volatility times {factor:g}")


def without_bars(bars: Bars, share: float, seed: int) -> Bars:
    """Leave out a random share of the bars, never the first or the last; the rhythm stays that of the whole."""
    if not 0 <= share < 1:
        raise ConfigError(f"a share of {share} of the bars cannot be missing; it lies in [0, 1).")
    draws = Streams(seed).uniforms("evaluate/missing", update=0, environments=1, steps=len(bars), draws=1)[:, 0, 0]
    kept = draws >= share
    kept[[0, -1]] = True
    names = ("time", *_PRICES, "volume")
    dividends = None if bars.dividends is None else bars.dividends[kept]
    columns = {name: getattr(bars, name)[kept] for name in names} | {"dividends": dividends}
    return _changed(bars, columns, f"{share:.0%} of the bars left out, seed {seed}")


def _changed(bars: Bars, columns: dict[str, npt.NDArray[np.generic] | None], what: str) -> Bars:
    label = f"synthetic: {what}, of {bars.symbol} ({bars.label})"
    return replace(bars, **columns, label=label, notes=(*bars.notes, what))  # type: ignore[arg-type]


def rule_player(
    rule: Callable[[Bars], Any],
    *,
    config: MarketEnvConfig | None = None,
    start: np.datetime64 | None = None,
    end: np.datetime64 | None = None,
) -> Player:
    """A rule, deciding at the closes of the bars that open in [start, end).

    rule: called with the bars, changed ones too; returns the targets of all of them (backtest.py), or whatever else
    `play_rule` takes.
    """

    def play(bars: Bars, costs: CostConfig) -> AccountPath:
        first = 0 if start is None else int(np.searchsorted(bars.time, start))
        last = len(bars) - 1 if end is None else int(np.searchsorted(bars.time, end)) - 1
        return play_rule(rule(bars), bars, costs, config=config, first=first, last=last)

    return play


def policy_player(
    policy: Trader,
    *,
    purpose: Literal["train", "select", "test"] = "test",
    symbol: int = 0,
    deterministic: bool = True,
    seed: int | None = None,
    market: MarketWorld | None = None,
    base: AccountPath | None = None,
) -> PolicyPlayer:
    """A trained policy on the window of `purpose`, with the bars and costs of the market that it was trained for.

    On changed bars it sees features computed from them, with what was fitted on its train window. Its observation has
    a place for every waiting order, so more latency is played with the decisions that it took without it, later.
    deterministic, seed, market: as in `Policy.trade`; base: its path without any change, if it was played before.
    """
    world = policy.market() if market is None else market
    if world.portfolio:
        raise ConfigError("stress tests play accounts with one asset; this policy holds several in one account.")
    item = world.dataset.loaded[symbol]
    if item.columns:
        raise ConfigError(
            f"{item.bars.symbol} comes with columns beside its bars ({', '.join(item.columns)}); nobody knows what "
            "they would be on changed bars."
        )

    def play_many(changed: Sequence[Bars], costs: CostConfig) -> list[AccountPath]:
        return policy.trade(
            purpose, deterministic=deterministic, seed=seed, market=_world_on(world, changed, costs, symbol)
        )

    def play(bars: Bars, costs: CostConfig) -> AccountPath:
        own = costs.model_copy(update={"latency": world.costs.latency})
        unchanged = bars is item.bars and own == world.costs
        path = base if unchanged and base is not None else play_many([bars], own)[0]
        return path if costs == own else _delayed(path, bars, costs, world.settings)

    # Sampled actions depend on the place of an account in its batch: those are played one by one.
    return PolicyPlayer(play, play_many if deterministic else None, item.bars, world.costs)


@dataclass(frozen=True)
class PolicyPlayer:
    """How a policy plays, and what: the bars and costs of the market that it was trained for."""

    play: Player
    play_many: ManyPlayer | None  # several versions of the bars at once; the same paths in a fraction of the time
    bars: Bars
    costs: CostConfig


def _world_on(world: MarketWorld, versions: Sequence[Bars], costs: CostConfig, symbol: int) -> MarketWorld:
    """Build a market of versions of the bars of one symbol, each an account, its windows cut at the same times."""
    data = world.dataset
    old = data.bars[symbol].time
    windows = {}
    for purpose, cut in data.windows.items():
        parts = []
        for bars in versions:
            first = int(np.searchsorted(bars.time, old[cut[symbol].first]))
            end = int(np.searchsorted(bars.time, old[cut[symbol].end - 1], side="right"))
            if end <= first:
                raise DataError(f"{bars.symbol}: no bar is left in the {purpose} window after the change.")
            parts.append(Window(first, end))
        windows[purpose] = tuple(parts)
    changed = copy.copy(world)
    features = tuple(data.spec.table(bars) for bars in versions)
    dataset = Dataset(tuple(Loaded(bars, {}) for bars in versions), data.spec, features, windows)
    changed.dataset = dataset.with_base(world.settings.base)
    changed.costs = costs
    return changed


def _delayed(path: AccountPath, bars: Bars, costs: CostConfig, config: MarketEnvConfig) -> AccountPath:
    """Play the decisions of a path again with the latency of `costs`."""
    first = int(np.searchsorted(bars.time, path.time[0])) - 1
    targets = np.zeros(len(bars))
    targets[first : first + len(path)] = path.target[:, 0]
    played = play_rule(targets, bars, costs, config=config, first=first, last=first + len(path))
    return replace(played, planned=path.planned)

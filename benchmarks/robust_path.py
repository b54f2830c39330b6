"""What training on worst-case paths (learner.adversary.kind path) does to returns and tails on bars it has not seen.

Two trainings of a seed differ in the adversary alone, whose settings are its defaults and were set beforehand. Markets:
drawn regimes, a draw for each seed, judged on its own test window; and the S&P 500 of the preset, trained on its train
window and judged on its select window, as it was and in resampled blocks. The test window of the preset is not
touched. Each pair is also judged on the worst path that is found against it on those bars.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.jobs import run_all
from benchmarks.report import Check, Options
from benchmarks.robust_continual import interval

SEEDS = tuple(range(10))
STEPS = 100_000
BUDGET, LARGEST, SEARCH = 0.02, 4.0, 4  # of the path that both are judged on
WORLDS, BLOCK = 8, 60.0  # resampled histories of the select bars
ADVERSARY = {"kind": "path"}
REGIMES: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "regime_switching", "parameters": {"length": 4000}},
    "features": {"include": ["return_1", "return_5", "return_20", "volatility_20", "volatility_ratio_5_60"]},
    "env": {"kind": "market", "action": {"kind": "exposure", "low": -1, "high": 1}, "episode_length": 256},
    "costs": {"taker_fee_bps": 1, "half_spread_bps": 1, "slippage_bps": 1, "impact_bps": 0},
    "learner": {"gamma": 0.97},
    "risk": {"mode": "report", "alpha": 0.05},
    "run": {"environments": 16, "rollout_steps": 128},
}  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A policy on bars that it has not seen. mean_return: log-return of the window; tail: CVaR of discounted
    log-returns; attacked: log-return on the worst path that was found; resampled: means over resampled windows."""

    mean_return: float
    tail: float
    attacked: float
    resampled_return: float | None = None
    resampled_tail: float | None = None


def settings(market: str, seed: int, *, adversary: bool, quick: bool) -> dict[str, Any]:
    """The configuration of a training."""
    from tailwise.run.presets import load_source

    if market == "regimes":
        data = {**REGIMES, "data": {**REGIMES["data"], "seeds": [seed]}}
    else:
        data = dict(load_source("sp500").data)
        split = data["data"]["split"]  # its own test window is not to be seen here
        judged = {"kind": "dates", "train": split["train"], "select": None, "test": split["select"]}
        data["data"] = {**data["data"], "split": judged}
    learner = {**data.get("learner", {}), **({"adversary": ADVERSARY} if adversary else {})}
    steps = 4096 if quick else STEPS
    return {**data, "seed": seed, "learner": learner, "run": {**data["run"], "total_steps": steps}}


def measure(market: str, seed: int, adversary: bool, *, quick: bool = False) -> Judged:
    """Train and judge."""
    from tailwise.evaluate.statistics import path_statistics
    from tailwise.market.shifts import ShiftBudget
    from tailwise.run.agent import PPO
    from tailwise.run.config import parse_config
    from tailwise.run.path_worlds import PathSearch
    from tailwise.run.play import ModelPlayer
    from tailwise.run.worlds import trade_window

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = PPO(config=parse_config(settings(market, seed, adversary=adversary, quick=quick), source=market))
        agent.learn()
    world = agent.world().market()

    def player() -> ModelPlayer:
        return ModelPlayer(agent.model, deterministic=True, seed=seed)

    def judged(where: Any) -> tuple[float, float]:
        paths = trade_window(player(), where, "test", seed=seed)
        tails = [path_statistics(p, alpha=0.05, gamma=agent.config.learner.gamma).cvar_return for p in paths]
        assert all(tail is not None for tail in tails), "the window is too short for its tail"
        return float(np.mean([np.log(p.wealth[-1]) for p in paths])), float(
            np.mean([t for t in tails if t is not None])
        )

    mean_return, tail = judged(world)
    search = PathSearch(world, "test", player, ShiftBudget(BUDGET, BUDGET * LARGEST), seed=seed)
    _, worst = search.worst(steps=1 if quick else SEARCH)
    again = judged(resampled_test(world)) if market == "sp500" else (None, None)
    return Judged(mean_return, tail, float(worst.log_return.mean()), *again)


def resampled_test(world: Any) -> Any:
    """The same market with WORLDS test windows in random blocks of its own test bars, each after the real bars before
    it; the same for every seed."""
    import copy

    from tailwise.market.dataset import Dataset, scaled_exposures
    from tailwise.market.resample import Source, block_rows
    from tailwise.market.shifts import joined_symbols
    from tailwise.market.split import Window

    dataset, settings_of = world.dataset, world.settings
    window, item = dataset.window("test")[0], dataset.loaded[0]
    source = Source.of(item.bars, [Window(window.first - 1, window.end)], remove_drift=False)
    drawn = []
    for number in range(WORLDS):
        rows = source.rows[block_rows(len(source.rows), block=BLOCK, seed=0, world=number)]
        made = source.rebuild(rows, item.bars.time[window.first : window.end])
        names = ("open", "high", "low", "close", "volume")
        columns = {n: np.concatenate([getattr(item.bars, n)[: window.first], getattr(made, n)]) for n in names}
        bars = replace(item.bars.slice(0, window.end), **columns, label=made.label)
        base = settings_of.base
        bases = () if base is None else (scaled_exposures(base, bars, world.scales),)
        drawn.append(
            Dataset(
                (replace(item, bars=bars),), dataset.spec, (dataset.spec.table(bars),), {"test": (window,)}, bases=bases
            )
        )
    other = copy.copy(world)
    other.dataset = joined_symbols(drawn, "test")
    return other


def checks(options: Options) -> list[Check]:
    """What the adversary changes, paired by seed, with intervals."""
    markets = ("regimes",) if options.quick else ("regimes", "sp500")
    seeds = SEEDS[:1] if options.quick else SEEDS
    cases = [(market, seed, adversary) for market in markets for seed in seeds for adversary in (False, True)]
    outcomes = run_all([(measure, case, {"quick": options.quick}) for case in cases], options)
    by_case = dict(zip(cases, outcomes, strict=True))
    found = []
    for market in markets:
        pairs = [(by_case[market, seed, False], by_case[market, seed, True]) for seed in seeds]
        found += checks_of(market, pairs)
    return found


def checks_of(market: str, pairs: Sequence[tuple[Judged, Judged]]) -> list[Check]:
    """One check for each thing that is measured in a market; pairs: without and with the adversary."""
    measured = {
        "test return": "mean_return",
        "test tail (CVaR 5%)": "tail",
        f"return on the worst path at {BUDGET:g}": "attacked",
        "return on resampled test bars": "resampled_return",
        "tail on resampled test bars": "resampled_tail",
    }
    found = []
    for what, name in measured.items():
        values = [(getattr(plain, name), getattr(trained, name)) for plain, trained in pairs]
        if any(value is None for pair in values for value in pair):
            continue
        plain, trained = np.array(values).T
        gain, half = interval(trained - plain)
        seen = ", ".join(f"{a:.3g} -> {b:.3g}" for a, b in values)
        found.append(
            Check(
                f"path: {market}, what the adversary changes: {what}",
                gain,
                "measured on every seed; docs/robust.md says what follows",
                bool(np.isfinite(trained).all() and np.isfinite(plain).all()),
                f"+- {half:.2g}, mean {plain.mean():.4g} -> {trained.mean():.4g}; seeds {seen}",
            )
        )
    return found

"""How fast is the market? Steps per CPU-second of `MarketEnv` on one core, all costs on, and of two peers.

    python -m benchmarks.environment [--json] [--quick] [--only alone]   (alone: without the peers)

A step is one account that lives through one bar. What is measured is `MarketEnv.step` as a caller sees it: actions
checked, fresh arrays for observations, rewards and flags, episodes restarted inside. The random actions are drawn
beforehand; compiling is excluded. CPU time is `time.process_time` of one thread. In each round every configuration and
every peer has one slot, one after the other, so that a busy machine slows them alike; medians over the rounds count.
The peers cannot advance many accounts at once; they run one environment, which is their fastest way.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# One core, also for what numpy's libraries would do with more; must be set before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks import environment_peers as peers
from benchmarks.report import Check, Options, main
from tailwise.bars.bars import Bars
from tailwise.bars.builtin import nasdaq, sp500
from tailwise.features.table import FeatureTable
from tailwise.market.costs import CostConfig
from tailwise.market.env import MarketEnv, MarketEnvConfig, PositionsAction
from tailwise.market.env_config import GuardsConfig
from tailwise.market.records import EVENTS, LEDGER, identity_error
from tailwise.market.tables import SymbolTable

FEATURES = 32
SIZES = (64, 256, 1024, 4096)
GOALS = {256: 5e6, 4096: 4e6}
BAND = 1.5  # largest ratio between two marginal costs of an account that still counts as linear
ROUNDS, SLOT = 60, 0.04  # CPU-seconds per slot; many short ones, so that a change of load meets all sizes alike
QUICK_ROUNDS, QUICK_SLOT = 3, 0.03
ACTIONS = 64  # rows of random actions that are used in turn

# Everything that the simulator can charge, stops on, and exposures at which loans and borrows are paid.
POSITIONS = (-2.0, -1.0, 0.0, 1.0, 2.0)
CONFIG = MarketEnvConfig(
    action=PositionsAction(positions=POSITIONS),
    episode_length=256,
    stop_loss=0.03,
    take_profit=0.04,
)
COSTS = CostConfig(
    taker_fee_bps=2.0,
    maker_fee_bps=1.0,
    half_spread_bps=1.0,
    slippage_bps=1.0,
    impact_bps=10.0,
    borrow_rate=0.01,
    loan_rate=0.05,
    cash_rate=0.02,
    funding_bps=0.1,
    liquidation_bps=50.0,
)
LOTS = COSTS.model_copy(update={"latency": 2, "lot_size": 0.01, "minimum_notional": 10.0})
GUARDED = CONFIG.model_copy(
    update={
        "guards": GuardsConfig(
            max_exposure=1.5, order_fraction=2.0, daily_turnover=3.0, daily_loss=0.05, drawdown=0.5, absurd_gap=0.2
        )
    }
)
COPIES = 30  # of the two indices, for a table that no cache holds
CHARGED = ("fee", "spread", "slippage", "impact", "borrow", "funding", "interest")


def symbols(markets: Sequence[Bars]) -> list[SymbolTable]:
    """The bars with features that are noise, for their number alone costs time."""
    rng = np.random.default_rng(0)
    names = tuple(f"noise_{k}" for k in range(FEATURES))
    return [
        SymbolTable.from_bars(
            bars, FeatureTable(rng.standard_normal((len(bars.close), FEATURES)).astype(np.float32), names, 0)
        )
        for bars in markets
    ]


@dataclass
class Market:
    """One configuration, ready to be measured in slots."""

    env: MarketEnv
    actions: Any  # int64 [ACTIONS, N]
    at: int = 0

    @classmethod
    def make(
        cls,
        tables: list[SymbolTable],
        accounts: int,
        *,
        config: MarketEnvConfig = CONFIG,
        costs: CostConfig = COSTS,
    ) -> Market:
        env = MarketEnv(tables, config, costs, num_envs=accounts)
        env.reset(seed=1)
        market = cls(env, np.random.default_rng(accounts).integers(0, len(POSITIONS), (ACTIONS, accounts)))
        market.measure(0.01)  # compiles, and touches the memory
        return market

    def measure(self, seconds: float) -> float:
        """CPU-seconds of one `step` of all accounts."""
        env, actions, at, steps = self.env, self.actions, self.at, 0
        batch = max(1, 8192 // env.num_envs)
        clock = time.process_time()
        while True:
            for _ in range(batch):
                env.step(actions[at % ACTIONS])
                at += 1
            steps += batch
            passed = time.process_time() - clock
            if passed >= seconds:
                break
        self.at = at
        return passed / steps


def run(options: Options) -> list[Check]:
    """All measurements share the same rounds."""
    indices = (sp500(), nasdaq())  # twenty years each
    tables = symbols(indices)
    rounds, slot = (QUICK_ROUNDS, QUICK_SLOT) if options.quick else (ROUNDS, SLOT)
    checks = [_costs_are_on(tables)]
    markets = {size: Market.make(tables, size) for size in SIZES}
    others = {
        "1 account": Market.make(tables, 1),
        "256 accounts with lots, masks and a latency of 2 bars": Market.make(tables, 256, costs=LOTS),
        "256 accounts with six guards": Market.make(tables, 256, config=GUARDED),
        f"256 accounts over {len(tables) * COPIES * len(tables[0].close):,} bars": Market.make(tables * COPIES, 256),
    }
    compared = () if "alone" in options.only else tuple(peers.MODULES)
    names = [name for name in compared if peers.installed(name)]
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    other_times: dict[str, list[float]] = {name: [] for name in others}
    speeds: dict[str, list[float]] = {name: [] for name in names}
    with peers.running(names, indices[0]) as running:
        for peer in running:
            peer.measure(slot)  # its warm-up
        for number in range(rounds):
            for size, market in markets.items():
                times[size].append(market.measure(slot))
            for name, market in others.items():
                other_times[name].append(market.measure(slot))
            for peer in running:
                speeds[peer.name].append(peer.measure(slot))
            if number % 10 == 0:
                options.say(
                    f"round {number + 1} of {rounds}: "
                    + ", ".join(f"{size} accounts {size / times[size][-1] / 1e6:.2f} million" for size in SIZES)
                )
    checks += [_speed(size, times[size], options) for size in SIZES]
    checks.append(_linear(times, options))
    checks += [_note(name, market.env.num_envs, other_times[name]) for name, market in others.items()]
    ours = [256 / value for value in times[256]]
    alone = [1 / value for value in other_times["1 account"]]
    checks += [_against(name, ours, alone, speeds.get(name), options) for name in compared]
    return checks


def _costs_are_on(tables: list[SymbolTable]) -> Check:
    """Every component is charged, stops and take-profits happen in what is measured, and it all adds up."""
    env = MarketEnv(tables, CONFIG.model_copy(update={"report": True}), COSTS, num_envs=256)
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    charged, events, worst = dict.fromkeys(CHARGED, False), set(), 0.0
    for _ in range(256):
        parts = env.step(rng.integers(0, len(POSITIONS), 256))[4]["parts"]
        ledger = np.zeros(256, dtype=LEDGER)
        for name in LEDGER.names or ():
            ledger[name] = parts[name]
        charged = {name: charged[name] or bool(np.any(ledger[name] != 0.0)) for name in CHARGED}
        events |= {EVENTS[int(event)] for event in ledger["event"]}
        worst = max(worst, float(identity_error(ledger).max()))
    seen = [name for name in CHARGED if charged[name]] + sorted(events & {"stop_loss", "take_profit"})
    expected = len(CHARGED) + 2
    return Check(
        "costs and exits that happen in the measured steps",
        float(len(seen)),
        f"{expected}",
        len(seen) == expected and worst < 1e-9,
        f"{', '.join(seen)}; they explain every change of equity to {worst:.1e}",
    )


def _speed(size: int, times: list[float], options: Options) -> Check:
    speeds = sorted(size / value for value in times)
    value = statistics.median(speeds)
    goal = GOALS.get(size)
    judged = goal is not None and not options.quick
    detail = (
        f"median of {len(speeds)} rounds; from {speeds[0] / 1e6:.2f} to {speeds[-1] / 1e6:.2f} million; "
        f"{1e9 / value:.0f} ns per account" + ("; smoke run: the goal is not judged" if options.quick else "")
    )
    return Check(
        f"steps per CPU-second, {size} accounts",
        value,
        "for comparison" if goal is None else f">= {goal:,.0f}",
        value >= goal if judged and goal is not None else math.isfinite(value),
        detail,
    )


def _linear(times: dict[int, list[float]], options: Options) -> Check:
    """What one account more costs must not depend on how many there are."""
    middle = {size: statistics.median(values) for size, values in times.items()}
    pairs = list(itertools.pairwise(SIZES[1:]))
    marginal = [(middle[more] - middle[less]) / (more - less) for less, more in pairs]
    # Costs can come out at zero or below when a smoke run is too short; that is not linear and not a crash.
    ratio = max(marginal) / min(marginal) if min(marginal) > 0 else math.inf
    parts = [
        f"{less} to {more}: {cost * 1e9:.0f} ns per account" for (less, more), cost in zip(pairs, marginal, strict=True)
    ]
    fixed = middle[SIZES[0]] - SIZES[0] * marginal[0]
    return Check(
        "linear in environments: ratio of marginal costs",
        ratio if math.isfinite(ratio) else None,
        f"<= {BAND:g}",
        options.quick or ratio <= BAND,
        f"{'; '.join(parts)}; about {max(fixed, 0.0) * 1e6:.0f} us per call besides"
        + ("; smoke run: the goal is not judged" if options.quick else ""),
    )


def _note(name: str, size: int, times: list[float]) -> Check:
    value = size / statistics.median(times)
    return Check(f"steps per CPU-second, {name}", value, "for comparison", math.isfinite(value), "no goal")


def _against(name: str, ours: list[float], alone: list[float], theirs: list[float] | None, options: Options) -> Check:
    """Ratio of speeds, per round, since the two stood next to one another on the same machine."""
    title = f"times as fast as {name}"
    if theirs is None:
        return Check(title, None, "-", True, f"not installed: not compared; {peers.HOW[name]}")
    ratio, single = (
        statistics.median(mine / other for mine, other in zip(speeds, theirs, strict=True)) for speeds in (ours, alone)
    )
    detail = (
        f"ours with 256 accounts; it makes {statistics.median(theirs):,.0f} steps per CPU-second "
        f"({peers.WHAT[name]}; one environment, its fastest way); ours with 1 account: {single:.2g} times"
    )
    return Check(title, ratio, "> 1", options.quick or ratio > 1, detail)


if __name__ == "__main__":
    main("Environment", run)

"""Can it learn what is there to be learnt on a market, and leave alone what is not? Synthetic markets with known truth.

    python -m benchmarks.learnability [--json] [--quick] [--only sine]

Each market is trained with its shipped preset on the oldest bars and judged on the newest, which neither training nor
selection saw; costs are on. Three seeds, each with bars of its own. The oracle knows all prices and trades the same
positions at the same costs (benchmarks/oracle.py), so that 100% can be reached by nobody who has to look ahead.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.oracle import oracle_targets
from benchmarks.report import Check, Options, main

SEEDS = (0, 1, 2)
LEAK_SECONDS = 60.0  # CPU-seconds of training
LARGEST_TURNOVER = 0.1  # notional traded per bar as a multiple of equity; a coin between three positions trades 0.89
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Outcome:
    """One seed on its test bars. Log-returns per bar [n] after costs; oracle: sum of log-returns, after costs too."""

    returns: np.ndarray
    costs: np.ndarray  # [n], fraction of equity per bar
    traded: np.ndarray  # [n], multiple of equity per bar
    squares: np.ndarray  # [n], what a position e loses by variance alone: (e^2 - e) r^2 / 2
    oracle: float
    seconds: float  # CPU-seconds of training

    @property
    def share(self) -> float:
        return float(self.returns.sum() / self.oracle)


def run(options: Options) -> list[Check]:
    """Four markets, one or two checks each."""
    checks: list[Check] = []
    for name, judge in (("leak", _leak), ("sine", _sine), ("ar1", _ar1), ("random-walk", _random_walk)):
        if options.only and name not in options.only:
            continue
        outcomes = []
        for seed in SEEDS[:1] if options.quick else SEEDS:
            outcomes.append(_train(name, seed, options))
        found = judge(outcomes)
        if options.quick:
            note = "smoke run: the goal is not judged"
            found = [Check(c.name, c.value, c.goal, c.value is not None, f"{c.detail}; {note}") for c in found]
        checks += found
    return checks


def _train(preset: str, seed: int, options: Options) -> Outcome:
    from tailwise import PPO, backtest
    from tailwise.run.presets import load_source
    from tailwise.run.worlds import MarketWorld

    data: dict[str, Any] = dict(load_source(preset).data)
    data["seed"] = seed
    data["data"] = {**data["data"], "seeds": [1000 + seed]}
    if options.quick:
        data["run"] = {**data["run"], "total_steps": 16_384}
    options.say(f"{preset}: seed {seed}, {data['run']['total_steps']:,} steps")
    clock = time.process_time()
    agent = PPO(config=data)
    agent.learn()
    seconds = time.process_time() - clock
    path = agent.trade("test")[0]
    world = agent.world()
    assert isinstance(world, MarketWorld)
    bars, table = world.dataset.bars[0], world.dataset.tables("test")[0]
    first, last = table.first_valid, len(table.close) - 1
    part = bars.slice(0, last + 1)
    best = oracle_targets(part, data["env"]["action"]["positions"], world.costs, first=first)
    oracle = backtest(best, part, world.costs, config=world.settings, first=first)
    market = np.log(bars.close[path.ledger["row"]] / bars.open[path.ledger["row"]])
    outcome = Outcome(
        returns=path.log_returns,
        costs=path.costs,
        traded=path.traded,
        squares=0.5 * (path.exposure**2 - path.exposure) * market**2,
        oracle=float(oracle.log_returns.sum()),
        seconds=seconds,
    )
    options.say(
        f"  test log-return {outcome.returns.sum():.3f}, oracle {outcome.oracle:.3f} ({outcome.share:.1%}), "
        f"{seconds:.0f} CPU-seconds"
    )
    return outcome


def _leak(outcomes: list[Outcome]) -> list[Check]:
    shares = [outcome.share for outcome in outcomes]
    seconds = [outcome.seconds for outcome in outcomes]
    return [
        Check(
            "leak: share of the oracle's log-return",
            min(shares),
            ">= 0.9, every seed",
            min(shares) >= 0.9,
            _all(shares),
        ),
        Check(
            "leak: CPU-seconds of training",
            max(seconds),
            f"< {LEAK_SECONDS:g}, every seed",
            max(seconds) < LEAK_SECONDS,
            ", ".join(f"{s:.0f}" for s in seconds),
        ),
    ]


def _sine(outcomes: list[Outcome]) -> list[Check]:
    shares = [outcome.share for outcome in outcomes]
    return [
        Check(
            "sine: share of the oracle's log-return after costs",
            min(shares),
            ">= 0.7, every seed",
            min(shares) >= 0.7,
            _all(shares),
        )
    ]


def _ar1(outcomes: list[Outcome]) -> list[Check]:
    values = [float(o.returns.mean() / o.returns.std(ddof=1) * np.sqrt(len(o.returns))) for o in outcomes]
    per_bar = ", ".join(f"{1e4 * o.returns.mean():.1f}" for o in outcomes)
    return [
        Check(
            "AR(1), phi .3: t of the mean log-return after costs",
            min(values),
            "> 5, every seed",
            min(values) > 5,
            f"{', '.join(f'{v:.1f}' for v in values)}; bps per bar {per_bar}",
        )
    ]


def _random_walk(outcomes: list[Outcome]) -> list[Check]:
    """The mean return must be what costs (and the variance of a compounding position) explain, up to chance."""
    from arch.bootstrap import StationaryBootstrap

    inside, told = 0, []
    for outcome in outcomes:
        block = max(10, round(len(outcome.returns) ** (1 / 3)))
        bootstrap = StationaryBootstrap(block, outcome.returns, seed=0)
        low, high = bootstrap.conf_int(np.mean, reps=2000, method="percentile", size=CONFIDENCE)[:, 0]
        expected = -(outcome.costs + outcome.squares).mean()
        inside += bool(low <= expected <= high)
        told.append(
            f"{1e4 * outcome.returns.mean():.2f} in [{1e4 * low:.2f}, {1e4 * high:.2f}], costs {1e4 * expected:.2f}"
        )
    turnover = [float(outcome.traded.mean()) for outcome in outcomes]
    return [
        Check(
            "random walk: seeds whose interval of the mean return holds minus their costs",
            inside / len(outcomes),
            "1, every seed",
            inside == len(outcomes),
            f"bps per bar, {CONFIDENCE:.0%} stationary bootstrap: {'; '.join(told)}",
        ),
        Check(
            "random walk: turnover per bar",
            statistics.fmean(turnover),
            f"< {LARGEST_TURNOVER:g} x equity, every seed",
            max(turnover) < LARGEST_TURNOVER,
            _all(turnover),
        ),
    ]


def _all(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    main("Learnability", run)

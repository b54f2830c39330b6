"""A policy under a tail limit and a rule of one's own, in the same account on the same later bars.

python examples/rule_against_policy.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tailwise
from tailwise.bars.bars import Bars
from tailwise.bars.builtin import sp500
from tailwise.evaluate.statistics import path_statistics

CONFIG = {
    "data": {"kind": "builtin", "names": ["sp500"]},
    "features": {"include": ["return_1", "return_5", "volatility_20"]},
    "env": {"kind": "market", "action": {"kind": "positions", "positions": [0, 0.5, 1]}, "episode_length": 256},
    "learner": {"gamma": 0.9},
    "risk": {"mode": "constraint", "limit": {"of": "buy_and_hold", "share": 0.5}},
    "run": {"total_steps": 16_384, "environments": 16, "rollout_steps": 128},  # a taste; 200,000 is a real run
}


def above_average(past: Bars) -> float:
    """Hold while the close is above its average of 200 days."""
    return float(past.close[-1] > past.close[-200:].mean())


def main(folder: Path) -> dict[str, dict[str, float]]:
    """Train, trade the test window both ways, print what came of it; statistics by name."""
    training = tailwise.train(CONFIG, out=folder / "limited")
    path = training.policy().trade("test")[0]
    bars = sp500()
    first = int((bars.time < path.time[0]).sum())
    rule = tailwise.backtest(above_average, bars, first=first)
    print(training.seeds[0].limit)
    rows = {}
    limited = path_statistics(path, alpha=0.05, gamma=0.9)
    for name, one in (("policy under the limit", limited), ("close above its average", rule.statistics())):
        rows[name] = {"a year": one.annual_return, "worst drawdown": one.max_drawdown, "worst 5% of days": one.cvar_bar}
        print(f"{name:24}", *(f"{label} {100 * value:6.1f}%" for label, value in rows[name].items()))
    return rows


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))

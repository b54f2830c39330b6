"""Small policies on markets of all kinds, hardly trained: weights of a large gain decide differently bar by bar."""

from __future__ import annotations

from typing import Any

import numpy as np

import tailwise
from benchmarks.live_world import LSTM, MARKET
from tailwise.run.ensemble import Ensemble
from tailwise.run.policy import Trader
from tailwise.run.worlds import MarketWorld
from tests.support import merged

WEIGHTS = {
    "data": {"seeds": [3, 4]},
    "env": {"action": {"kind": "weights", "low": -1.0, "high": 1.0}},
}
GUARDS = {
    "env": {
        "action": {"kind": "exposure", "low": -1.0, "high": 1.0},
        "stop_loss": 0.02,
        "guards": {
            "max_exposure": 0.8,
            "daily_loss": 0.01,
            "drawdown": 0.05,
            "order_fraction": 0.5,
            "absurd_move": 0.05,
        },
    }
}
CASES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "lstm": LSTM,
    "sampled": merged(LSTM, {"evaluate": {"deterministic": False}}),
    "guards": merged(LSTM, GUARDS),
    "lots": {"costs": {"lot_size": 40.0, "latency": 1}},
    "base": {"env": {"base": {"kind": "volatility_target", "scale": 0.7}}},
    "momentum": {"env": {"base": {"kind": "momentum", "look_back": [5, 30], "scale": 1.0}}},
    "two symbols": merged(LSTM, {"data": {"seeds": [3, 4]}, "evaluate": {"deterministic": False}}),
    "pool": {
        "data": {"seeds": [3, 4], "pool": {"tails": "symbol"}},
        "env": {
            "base": {"kind": "volatility_target"},
            "action": {"kind": "exposure", "low": 0, "high": 2},
            "episode_length": 128,
        },
        "learner": {"gamma": 0.9},
    },
    "portfolio": merged(LSTM, WEIGHTS),
    "ensemble": LSTM,
}


def trader_of(name: str) -> Trader:
    """The policy, or the policies that decide together, of a case; with one update, so that scales are known."""
    if name == "ensemble":
        return Ensemble([trained(seed, CASES[name]) for seed in (1, 2, 3)], "vote")
    return trained(1, CASES[name])


def trained(seed: int, changes: dict[str, Any]) -> tailwise.PPO:
    agent = tailwise.PPO(config=merged(MARKET, {"seed": seed, **changes}))
    agent.learn(64)
    return agent


def first_tested(world: MarketWorld) -> np.datetime64:
    """Open time of the first bar of the test window."""
    window = world.dataset.window("test")[0]
    return world.dataset.bars[0].time[window.first]

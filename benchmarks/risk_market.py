"""A regime-switching market: does the limit hold on bars that training never saw, and what does it cost?

The market drifts upwards in calm times and downwards in storms, whose volatility is four times that of calm times. A
policy that may hold 0 to 1.5 times its equity is trained without a limit and with three limits, each a share of what
the policy without limit loses, and played on newer bars. The policy without limit, its positions scaled down until its
tail is the same, is what a user could have without any of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
GAMMA, ALPHA = 0.95, 0.05
LENGTH = 60_000  # bars: 70% to train on, the rest to test
STEPS = 600_000


def settings(*, seed: int, limit: float | None, quick: bool) -> dict[str, Any]:
    """A small policy on four features; costs are those of the default market except impact."""
    risk = (
        {"mode": "report", "alpha": ALPHA} if limit is None else {"mode": "constraint", "alpha": ALPHA, "limit": limit}
    )
    return {
        "seed": seed,
        "data": {
            "kind": "synthetic",
            "market": "regime_switching",
            "seeds": [2000 + seed],
            "parameters": {"length": 6_000 if quick else LENGTH, "drift": [0.0004, 0.0]},
            "split": {"kind": "shares", "train": 0.7, "select": 0.0, "test": 0.3},
        },
        "features": {"include": ["return_1", "return_20", "volatility_20", "volatility_ratio_5_60"]},
        "env": {
            "kind": "market",
            "action": {"kind": "positions", "positions": [0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5]},
            "episode_length": 256,
        },
        "costs": {"impact_bps": 0},
        "model": {
            "encoder": {"hidden": [32]},
            "actor": {"hidden": [32]},
            "critic": {"kind": "quantile", "hidden": [32]},
        },
        "learner": {"gamma": GAMMA},
        "risk": risk,
        "run": {
            "total_steps": 16_384 if quick else STEPS,
            "environments": 64,
            "rollout_steps": 128,
            "tensorboard": False,
        },
    }


@dataclass(frozen=True)
class Played:
    """Test bars. returns [n]: log-returns per bar after costs; tail: cvar_return; trained: the measure at the end."""

    returns: Floats
    tail: float
    trained: float
    multiplier: float


def forward_tail(returns: Floats) -> float:
    """CVaR of the discounted log-return from every bar that has 3/(1-gamma) bars before it; plain, in numpy."""
    horizon = round(3 / (1 - GAMMA))
    weights = GAMMA ** np.arange(horizon)
    sums = np.convolve(returns, weights[::-1], mode="valid")
    ordered = np.sort(sums)
    return float(ordered[: max(1, round(ALPHA * len(ordered)))].mean())

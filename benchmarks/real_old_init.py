"""What `tailwise init` wrote on 2026-11-18 (revision 2df3860), frozen: the reference for gaps.

Every key is written out, also those that `init` left to the defaults, so that a change of a default does not change
the reference. What `init` chose by the bars (features, costs, discount, length of an episode) is chosen here by a copy
of its rules.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.bars.bars import Bars
from tailwise.market.costs import currency_pair, volume_doubt
from tailwise.market.dataset import build_dataset
from tailwise.run.config import Config, parse_config

COLUMNS = [
    "return_1",
    "return_5",
    "return_20",
    "return_60",
    "momentum_20",
    "efficiency_20",
    "macd_12_26",
    "rsi_14",
    "zscore_20",
    "range_position_60",
    "drawdown_60",
    "close_location",
    "volatility_20",
    "volatility_ratio_5_60",
    "downside_share_20",
    "volume_ratio_20",
]
FROZEN: dict[str, Any] = {
    "backend": "auto",
    "features": {"timeframes": {}, "modules": [], "leak_check": "before_training", "standardise": True, "clip": 10.0},
    "env": {
        "action": {"kind": "positions", "positions": [-1.0, 0.0, 1.0]},
        "fill": "next_open",
        "initial_cash": 100000.0,
        "start": "random",
        "symbol": "random",
        "tolerance": 0.01,
        "stop_loss": None,
        "take_profit": None,
        "maintenance_margin": 0.25,
        "guards": {
            "max_exposure": None,
            "order_fraction": None,
            "order_units": None,
            "order_notional": None,
            "daily_turnover": None,
            "daily_loss": None,
            "drawdown": None,
            "on_halt": "reduce_only",
            "stale_bars": None,
            "absurd_gap": None,
            "absurd_move": None,
            "absurd_volatility": None,
            "volatility_bars": 50,
            "absurd_flat_bars": None,
        },
        "report": False,
        "kind": "market",
    },
    "costs": {
        "taker_fee_bps": 1.0,
        "maker_fee_bps": 1.0,
        "half_spread_bps": 1.0,
        "slippage_bps": 1.0,
        "impact_bps": 10.0,
        "borrow_rate": 0.01,
        "loan_rate": 0.05,
        "cash_rate": 0.0,
        "funding_bps": 0.0,
        "liquidation_bps": 50.0,
        "latency": 0,
        "lot_size": 0.0,
        "minimum_notional": 0.0,
    },
    "model": {
        "observations": {"kind": "running", "clip": 10.0},
        "returns": {"kind": "popart", "rate": 0.05, "floor": 0.0001},
        "norm": "none",
        "encoder": {"kind": "mlp", "hidden": [64, 64], "activation": "tanh"},
        "core": {"kind": "none"},
        "actor": {"hidden": [64], "gain": 0.01, "box": "gaussian", "log_std": 0.0},
        "critic": {
            "hidden": [64],
            "twin": True,
            "combine": "lower",
            "clip": {"kind": "disable"},
            "lambda": 0.99,
            "minibatch_particles": 8,
            "kind": "quantile",
            "quantiles": 64,
            "kappa": 0.02,
            "particles": None,
            "target": "particles",
            "mean": "head",
        },
    },
    "learner": {
        "lambda": 0.95,
        "epochs": 4,
        "minibatches": 4,
        "microbatches": 1,
        "learning_rate": 0.0003,
        "schedule": {"kind": "linear", "end": 0.0},
        "clip": 0.2,
        "dual_clip": 3.0,
        "advantages": "global",
        "entropy": {"kind": "constant", "weight": 0.01},
        "exploration": {"kind": "auto"},
        "value_weight": 0.5,
        "max_grad_norm": 0.5,
        "target_kl": 0.02,
        "kl_factor": {"kind": "off"},
        "max_kl": 1.0,
        "awr": {"kind": "off"},
    },
    "risk": {"mode": "report", "alpha": 0.05},
    "run": {
        "total_steps": 1000000,
        "geometry": "auto",
        "environments": 64,
        "rollout_steps": 128,
        "checkpoint_every": 10,
        "keep": 3,
        "threads": 1,
        "tensorboard": True,
        "max_refused": 5,
    },
    "health": {
        "gradients_every": 20,
        "signals_every": 10,
        "rules": [],
        "disable": [],
        "actions": {},
        "shrink": 0.5,
        "max_shrinks": 4,
        "max_skips": 20,
        "max_rollbacks": 3,
        "cooldown": 10,
    },
    "evaluate": {"every": 5, "episodes": 20, "deterministic": None, "patience": None, "min_delta": 0.0},
}


def old_init(files: list[Path], bars: list[Bars]) -> Config:
    """The configuration that `init` wrote for these bars, which must be those of the files."""
    data = copy.deepcopy(FROZEN)
    first = bars[0]
    round_the_clock = first.frequency.calendar == "24/7"
    per_day = first.frequency.periods_per_year / (365 if round_the_clock else 252)
    has_volume = min(float(np.mean(one.volume > 0)) for one in bars) > 0.5
    data["seed"] = 0
    data["data"] = {
        "kind": "files",
        "paths": [str(file) for file in files],
        "split": {"kind": "shares", "select": 0.15, "test": 0.25},
    }
    data["features"]["include"] = [name for name in COLUMNS if has_volume or "volume" not in name]
    data["env"]["episode_length"] = int(np.clip(first.frequency.periods_per_year, 128, 512))
    data["learner"]["gamma"] = 0.99 if per_day <= 1.5 else 0.97
    fee = 0.0 if currency_pair(first.symbol) else 1.0
    data["costs"]["taker_fee_bps"] = fee
    if not has_volume or any(volume_doubt(one, data["env"]["initial_cash"]) is not None for one in bars):
        data["costs"]["impact_bps"] = 0.0
    config = parse_config(data, source="old init")
    assert config.data is not None and config.features is not None
    constant = build_dataset(config.data, config.features).spec.constant
    data["features"]["include"] = [name for name in data["features"]["include"] if name not in constant]
    return parse_config(data, source="old init")

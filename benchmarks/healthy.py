"""Twenty sound runs of different problems: none of them may raise an alert of severity warn or above."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.toy_configs import TOYS

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "ar1", "parameters": {"length": 6000, "phi": 0.3}},
    "features": {"include": ["return_1", "return_2", "return_5", "return_10", "momentum_20", "volatility_20"]},
    "env": {
        "kind": "market",
        "action": {"kind": "positions", "positions": [-1, 0, 1]},
        "episode_length": 256,
    },
    "costs": {"impact_bps": 0},
    "run": {"total_steps": 60 * 1024, "environments": 16, "rollout_steps": 64},
    "learner": {"gamma": 0.9},
}


@dataclass(frozen=True)
class Sound:
    """A run that must stay quiet: a preset, a toy problem or None (neither), and what is changed about it."""

    name: str
    base: str | None
    changes: dict[str, Any]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put over it, section by section; a section of another kind replaces the old one."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and _same_kind(below, value):
            result[key] = merged(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _same_kind(below: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return all(value.get(tag, below.get(tag)) == below.get(tag) for tag in ("kind", "mode"))


def _steps(n: int, **more: Any) -> dict[str, Any]:
    return {"total_steps": n, "tensorboard": False, **more}


def _market(**changes: Any) -> dict[str, Any]:
    return merged(MARKET, changes)


# Limits of rules were chosen on runs of seeds below 1000: whether those are quiet proves little.
FIRST_SEED = 1000

LIMIT = {"mode": "constraint", "alpha": 0.1, "limit": -0.05}

SOUND: tuple[Sound, ...] = (
    Sound("cartpole", "cartpole", {"run": _steps(40_960)}),
    Sound("cartpole, seed 1", "cartpole", {"seed": 1, "run": _steps(40_960)}),
    Sound("cartpole, torch", "cartpole", {"backend": "torch", "seed": 2, "run": _steps(20_480)}),
    Sound("cartpole with memory", "cartpole-memory", {"run": _steps(30_720)}),
    Sound("cartpole, categorical", "categorical", {"run": _steps(20_480)}),
    Sound("cartpole, scalar", "scalar", {"run": _steps(20_480)}),
    Sound("cartpole, GRU", "gru", {"run": _steps(20_480)}),
    Sound("pendulum", "pendulum", {"run": _steps(48_000)}),
    Sound(
        "pendulum, evaluated, KL factor",
        "pendulum",
        {
            "seed": 1,
            "run": _steps(32_000),
            "learner": {"kl_factor": {"kind": "on"}},
            "evaluate": {"every": 5, "episodes": 4},
        },
    ),
    Sound("acrobot", "acrobot", {"run": _steps(40_960)}),
    Sound("memory under masks", "recall-masked", {"run": _steps(48_000)}),
    Sound("masked bandit", "masked-bandit", {"run": _steps(32_000)}),
    Sound("two components", "multi-bandit", {"run": _steps(30_720)}),
    Sound("dict and squashed actions", "dict-reach", {"run": _steps(38_400)}),
    Sound("market", None, _market(run=_steps(61_440))),
    Sound("market, LSTM", None, _market(seed=1, model={"core": {"kind": "lstm", "hidden": 16}}, run=_steps(30_720))),
    Sound(
        "random walk, evaluated",
        None,
        _market(seed=2, data={"market": "random_walk", "parameters": {"length": 6000}}, evaluate={"every": 10})
        | {"data": {"kind": "synthetic", "market": "random_walk", "parameters": {"length": 6000}}},
    ),
    Sound(
        "sine",
        None,
        _market(seed=3)
        | {"data": {"kind": "synthetic", "market": "sine", "parameters": {"length": 6000, "noise": 0.002}}},
    ),
    Sound("market with a limit", None, _market(seed=4, risk=LIMIT)),
    Sound("market with a penalty", None, _market(seed=5, risk={"mode": "penalty", "alpha": 0.1, "weight": 0.5})),
)


def config_of(sound: Sound) -> dict[str, Any]:
    """The whole configuration tree of a sound run, with a seed that no limit was chosen on."""
    from tailwise.run.presets import load_source

    if sound.base is None:
        base = {}
    else:
        base = TOYS[sound.base] if sound.base in TOYS else load_source(sound.base).data
    changed = merged(base, sound.changes)
    changed["seed"] = int(changed.get("seed", 0)) + FIRST_SEED
    changed["run"] = {**changed["run"], "tensorboard": False}
    return changed

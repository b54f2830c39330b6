"""Configurations that train on the toy environments; each shows one ability of the learner."""

from __future__ import annotations

from typing import Any

from benchmarks.toy_envs import DICT_REACH, MASKED_BANDIT, MULTI_BANDIT, RECALL_MASKED

TOYS: dict[str, dict[str, Any]] = {
    # The environment forbids some actions at each pull. Pulls are independent of one another, so gamma looks not far.
    "masked-bandit": {
        "env": {"id": MASKED_BANDIT},
        "run": {"total_steps": 40_000, "environments": 16, "rollout_steps": 50},
        "learner": {"gamma": 0.5, "learning_rate": 1e-3, "epochs": 4, "minibatches": 4},
    },
    # MultiDiscrete actions: two components at once.
    "multi-bandit": {
        "env": {"id": MULTI_BANDIT},
        "run": {"total_steps": 40_000, "environments": 16, "rollout_steps": 48},
        "learner": {"gamma": 0.5, "learning_rate": 1e-3, "epochs": 4, "minibatches": 4},
    },
    # LSTM and action masks together. Recurrent minibatches hold whole environments: 32 / 4 = 8 in each.
    "recall-masked": {
        "env": {"id": RECALL_MASKED, "kwargs": {"delay": 4}},
        "run": {"total_steps": 60_000, "environments": 32, "rollout_steps": 50},
        "model": {"core": {"kind": "lstm", "hidden": 32}},
        "learner": {"gamma": 0.95, "learning_rate": 2e-3, "epochs": 4, "minibatches": 4},
    },
    # Dict observations, and continuous actions that are squashed into their bounds.
    "dict-reach": {
        "env": {"id": DICT_REACH},
        "run": {"total_steps": 60_000, "environments": 16, "rollout_steps": 60},
        "model": {"actor": {"box": "squashed", "log_std": -0.5}},
        "learner": {
            "gamma": 0.9,
            "learning_rate": 1e-3,
            "epochs": 4,
            "minibatches": 4,
            "entropy": {"weight": 0.001},
        },
    },
}

"""The run that the self-check makes, in several variants."""

from __future__ import annotations

from typing import Any

from tailwise.run.config import Config, parse_config

ENVIRONMENT = "CartPole-v1"


def tiny_config(*, backend: str = "auto", core: str = "none", updates: int = 2, seed: int = 0) -> Config:
    """A run of a few seconds at most."""
    tree: dict[str, Any] = {
        "seed": seed,
        "backend": backend,
        "env": {"id": ENVIRONMENT},
        "model": {
            "encoder": {"kind": "mlp", "hidden": [16]},
            "core": {"kind": core, **({} if core == "none" else {"hidden": 8})},
            "actor": {"hidden": [8]},
            "critic": {"kind": "quantile", "quantiles": 40, "minibatch_particles": 8, "hidden": [8]},
        },
        "learner": {"epochs": 2, "minibatches": 2, "target_kl": None},
        "run": {
            "environments": 4,
            "rollout_steps": 16,
            "total_steps": 64 * updates,
            "checkpoint_every": 1,
            "tensorboard": False,
        },
    }
    return parse_config(tree, source="the self-check")

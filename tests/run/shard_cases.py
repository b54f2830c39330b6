"""Trainings in shards, and a program that torchrun starts on several ranks to do them:
`shard_cases.py FOLDER memory|gloo`; with gloo the ranks share no memory, and fewer cases are trained."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GYM = {"env": {"id": "CartPole-v1", "hide": [1, 3]}}
MARKET = {
    "data": {"kind": "synthetic", "market": "heston", "seeds": [3], "parameters": {"length": 900}},
    "env": {"kind": "market", "episode_length": 20},
}
MLP, LSTM = {"kind": "none"}, {"kind": "lstm", "hidden": 8}
LIMIT = {"mode": "constraint", "limit": -0.05, "alpha": 0.25}

CASES: dict[str, dict[str, Any]] = {
    "gym, mlp, torch": {**GYM, "backend": "torch", "model": {"core": MLP}, "run": {"shards": 2}},
    "gym, lstm, torch": {**GYM, "backend": "torch", "model": {"core": LSTM}, "run": {"shards": 4}},
    "gym, lstm, fused": {**GYM, "backend": "fused", "model": {"core": LSTM}, "run": {"shards": 2}},
    # Exploration that narrows is the first rank's doing: the others have to be given what it changed.
    "box, mlp, torch": {
        "env": {"id": "Pendulum-v1"},
        "backend": "torch",
        "model": {"core": MLP},
        "learner": {"exploration": {"kind": "narrow"}},
        "run": {"shards": 4},
    },
    "market, mlp, fused": {**MARKET, "backend": "fused", "model": {"core": MLP}, "run": {"shards": 4}},
    "market, lstm, torch": {**MARKET, "backend": "torch", "model": {"core": LSTM}, "risk": LIMIT, "run": {"shards": 2}},
    "market, lstm, fused": {**MARKET, "backend": "fused", "model": {"core": LSTM}, "risk": LIMIT, "run": {"shards": 2}},
}

WITHOUT_MEMORY = ("gym, lstm, torch", "market, lstm, fused")


def config_of(case: str, **run: Any) -> dict[str, Any]:
    """Four updates with controllers that move, and an evaluation."""
    config = CASES[case]
    return {
        **config,
        "learner": {
            "minibatches": 2,
            "epochs": 2,
            "kl_factor": {"kind": "on"},
            "target_kl": 2e-3,
            **config.get("learner", {}),
        },
        "run": {
            "environments": 16,
            "rollout_steps": 16,
            "total_steps": 4 * 256,
            "checkpoint_every": 2,
            "tensorboard": False,
            **config["run"],
            **run,
        },
        "health": {"gradients_every": 2},
    }


def train(case: str, folder: Path) -> None:
    """Train a case into a new folder."""
    from tailwise.run.agent import PPO

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = PPO(config=config_of(case), run_dir=folder / case.replace(", ", "-"))
    agent.learn(progress=False)
    agent.trainer.driver.close()


def main(folder: Path, cases: Iterable[str], way: str) -> None:
    """On the first rank train the cases; on the others follow it. way: how they have to talk."""
    from tailwise.run.follower import follow
    from tailwise.run.ranks import group_for, joined, place_of

    place = place_of(os.environ)
    assert place is not None
    with joined(place):
        words = group_for(place.ranks).words
        assert words is not None and words.startswith(f"{place.ranks}, which talk through {way}"), words
        if not place.first:
            follow()
            return
        for case in cases:
            train(case, folder)


if __name__ == "__main__":
    if sys.argv[2:] == ["gloo"]:
        from tailwise.run import rank_memory

        rank_memory.MEMORY = Path("/there-is-none")
        main(Path(sys.argv[1]), WITHOUT_MEMORY, "gloo")
    else:
        main(Path(sys.argv[1]), CASES, "memory")

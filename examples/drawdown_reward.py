"""A reward of one's own beside the log-return: its parts are metrics, and they add up to what is learnt from.

python examples/drawdown_reward.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tailwise

CALM = '''
import numpy as np


def calm(step):
    """Holding a position under water costs."""
    return -0.01 * np.abs(step.seen("exposure")) * step.drawdown
'''
CONFIG = {
    "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0], "parameters": {"length": 2000}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 128, "action": {"kind": "positions", "positions": [0, 0.5, 1]}},
    "learner": {"gamma": 0.9},
    "run": {"total_steps": 8192, "environments": 16, "rollout_steps": 64},
}


def main(folder: Path) -> dict[str, float]:
    """Train with a penalty on drawdowns and a function; the mean size of each part of the reward."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(CALM)
    env = {**CONFIG["env"], "reward": {"drawdown_penalty": 0.02, "function": f"{folder / 'mine.py'}:calm"}}
    training = tailwise.train({**CONFIG, "env": env}, out=folder / "calm")
    metrics = training.seeds[0].metrics
    parts = {name.split("/")[-1]: value for name, value in metrics.items() if name.startswith("reward/part/")}
    for name, value in parts.items():
        print(f"{name:18} {value:.2e} a bar")
    return parts


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))

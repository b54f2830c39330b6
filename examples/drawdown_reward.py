# %% [markdown]
# # A reward of your own beside the log-return
#
# A market pays the log-return of the account. Terms can be added: named ones, and a function of your own. They are for
# training alone: accounts are judged by what they earned. Their parts are metrics, which show what is learnt from.

# %%
import tempfile
from pathlib import Path

import tailwise

folder = Path(tempfile.mkdtemp())
function = '''
import numpy as np


def calm(step):
    """Holding a position under water costs."""
    return -0.01 * np.abs(step.seen("exposure")) * step.drawdown
'''
(folder / "mine.py").write_text(function)

# %% [markdown]
# The function sees copies of what the account sees, for all accounts at once, and a leak-check looks whether it peeks.

# %%
config = {
    "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0], "parameters": {"length": 2000}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {
        "kind": "market",
        "episode_length": 128,
        "action": {"kind": "positions", "positions": [0, 0.5, 1]},
        "reward": {"drawdown_penalty": 0.02, "function": f"{folder / 'mine.py'}:calm"},
    },
    "learner": {"gamma": 0.9},
    "run": {"total_steps": 8192, "environments": 16, "rollout_steps": 64},
}
training = tailwise.train(config, out=folder / "calm")

# %% [markdown]
# Mean size of each part, per bar; signed, they add up to the reward.

# %%
metrics = training.seeds[0].metrics
parts = {name.split("/")[-1]: value for name, value in metrics.items() if name.startswith("reward/part/")}
for name, value in parts.items():
    print(f"{name:18} {value:.2e} a bar")

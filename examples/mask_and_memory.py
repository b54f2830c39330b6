# %% [markdown]
# # A task that needs a memory and has forbidden actions
#
# A sign is shown once and asked for three steps later. Before that only waiting is allowed: the environment says so in
# `info["action_mask"]`, and nothing else is needed.

# %%
from typing import Any

import gymnasium as gym
import numpy as np

import tailwise

WAIT = 3


class Recall(gym.Env[np.ndarray, int]):
    """A sign in the first step; after WAIT steps it has to be named. Before that only waiting (action 2) is allowed."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)  # the sign, and whether it is asked for
    action_space = gym.spaces.Discrete(3)
    age, sign = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age, self.sign = 0, int(self.np_random.integers(2))
        return np.array([2 * self.sign - 1, 0], dtype=np.float32), self._info()

    def step(self, action: int) -> Any:
        asked = self.age == WAIT
        reward = float(asked and action == self.sign)
        self.age += 1
        return np.array([0, self.age == WAIT], dtype=np.float32), reward, asked, False, self._info()

    def _info(self) -> dict[str, Any]:
        asked = self.age == WAIT
        return {"action_mask": np.array([asked, asked, not asked], dtype=np.int8)}


# %%
def train(core: dict[str, Any], steps: int) -> float:
    """Train with this core; the mean return of 100 episodes, of which 1 is perfect and 0.5 is chance."""
    config = {
        "seed": 0,
        "model": {"core": core, "encoder": {"hidden": [16]}},
        "learner": {"gamma": 0.95, "learning_rate": 3e-3},
        "run": {"environments": 16, "rollout_steps": 32},
    }
    agent = tailwise.PPO(Recall, config)
    agent.learn(steps, progress=False)
    return float(agent.evaluate(episodes=100).mean)


# %% [markdown]
# Without a memory there is nothing to learn: chance is 0.5.

# %%
without = train({"kind": "none"}, steps=4096)
print(f"without memory: {without:.2f} of 1")

# %%
remembered = train({"kind": "lstm", "hidden": 16}, steps=20_000)
print(f"LSTM: {remembered:.2f} of 1")

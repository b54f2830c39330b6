"""stable-baselines3 and sb3-contrib as contenders, in their best plain way.

All accounts in one `VecEnv` whose step is the compiled one, with no wrapper and no copy in between; one network for
policy and value as ours has, which is less work than their default of two; one thread; no logging.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from benchmarks.plain_market import PlainMarket
from benchmarks.speed_contenders import Done
from benchmarks.speed_work import Work


class Accounts(VecEnv):
    """`PlainMarket` as stable-baselines3 wants it."""

    def __init__(self, accounts: int) -> None:
        self.market = PlainMarket(accounts)
        super().__init__(accounts, self.market.single_observation_space, self.market.single_action_space)
        self._infos: list[dict[str, Any]] = [{}] * accounts  # nothing to say: every end is a termination
        self._actions = np.zeros(accounts, dtype=np.int64)

    def reset(self) -> np.ndarray:
        return self.market.reset(seed=0)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, reward, done = self.market.step_all(self._actions)
        return obs, reward, done, self._infos

    def close(self) -> None:
        self.market.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.market, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Encoder(BaseFeaturesExtractor):
    """The dense layers that policy and value share."""

    def __init__(self, observation_space: Any, widths: tuple[int, ...]) -> None:
        super().__init__(observation_space, widths[-1])
        parts: list[nn.Module] = []
        inputs = observation_space.shape[0]
        for width in widths:
            parts += [nn.Linear(inputs, width), nn.Tanh()]
            inputs = width
        self.layers = nn.Sequential(*parts)

    def forward(self, observations: Tensor) -> Tensor:
        encoded: Tensor = self.layers(observations)
        return encoded


class Theirs:
    """See `Contender`."""

    def __init__(self, work: Work, model: Any) -> None:
        self.work, self.model = work, model

    def iterate(self, times: int) -> None:
        self.model.learn(times * self.work.samples, log_interval=None, reset_num_timesteps=False)

    def done(self) -> Done:
        taken = {int(state["step"]) for state in self.model.policy.optimizer.state.values()}
        return Done(int(self.model.num_timesteps), max(taken, default=0))

    def facts(self) -> dict[str, float]:
        return {"parameters": float(sum(p.numel() for p in self.model.policy.parameters()))}


def _arguments(work: Work) -> dict[str, Any]:
    """What both share; the constants are those of our defaults."""
    torch.set_num_threads(1)
    return {
        "env": Accounts(work.environments),
        "n_steps": work.steps,
        "batch_size": work.samples // work.minibatches,
        "n_epochs": work.epochs,
        "learning_rate": 3e-4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "device": "cpu",
        "seed": 0,
    }


def _policy(work: Work) -> dict[str, Any]:
    return {
        "net_arch": [],
        "activation_fn": nn.Tanh,
        "features_extractor_class": Encoder,
        "features_extractor_kwargs": {"widths": work.encoder},
    }


def ppo(work: Work) -> Theirs:
    return Theirs(work, PPO("MlpPolicy", policy_kwargs=_policy(work), **_arguments(work)))


def recurrent_ppo(work: Work) -> Theirs:
    from sb3_contrib import RecurrentPPO

    # One LSTM for policy and value, as in ours; by default it would have one for each.
    kwargs = _policy(work) | {"lstm_hidden_size": work.hidden, "shared_lstm": True, "enable_critic_lstm": False}
    return Theirs(work, RecurrentPPO("MlpLstmPolicy", policy_kwargs=kwargs, **_arguments(work)))

"""An adversary that learns: a policy of our own, trained by PPO to choose what another, frozen policy is shown.

To it the frozen policy is a part of the environment. It sees the observation, what the frozen policy remembers and what
it would do, answers with a move of every open entry in units of its budget, and is paid what the other one loses.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from tailwise.core.errors import ConfigWarning, EnvironmentContractError
from tailwise.evaluate.attack_moves import Moment, decide_at
from tailwise.learner.adversary import Box
from tailwise.model.actor_critic import ActorCritic, Decision, decide
from tailwise.run.agent import PPO, Policy
from tailwise.run.envs import EnvDriver, StepResult
from tailwise.run.worlds import World

Arrays = npt.NDArray[Any]


def situation(box: Box, state: Tensor, clean: Decision) -> npt.NDArray[np.float32]:
    """What the adversary sees [B, n]: normalised observations, hidden state before them, parameters of the clean law.

    Logits of forbidden actions are told as -30 and no lower.
    """
    parts = [box.centre, state.flatten(1), clean.params.clamp(min=-30.0)]
    return torch.cat(parts, dim=-1).numpy().astype(np.float32)


def move_of(action: Tensor, box: Box) -> Tensor:
    """Observations [B, D] as actions [B, k] in [-1, 1] want them, k entries with a budget."""
    delta = torch.zeros_like(box.centre)
    delta[:, box.budget > 0] = action.clamp(-1.0, 1.0).to(delta.dtype)
    return box.moved(delta * box.budget)[0]


class AttackEnv(VectorEnv):  # type: ignore[type-arg]
    """The environments of a frozen policy as those of its adversary; deterministic: whether its most likely action is
    played. budget [D], in standard deviations of its normaliser."""

    def __init__(
        self, model: ActorCritic, driver: EnvDriver, budget: Tensor, *, deterministic: bool, seed: int
    ) -> None:
        if driver.mode is AutoresetMode.NEXT_STEP:
            raise EnvironmentContractError(
                "a learned adversary needs environments that reset in the step in which an episode ends; this one "
                "resets in the next one"
            )
        self.model, self.driver, self.budget, self.deterministic = model, driver, budget, deterministic
        self.generator = torch.Generator().manual_seed(seed)
        self.num_envs = driver.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        size = driver.spaces.observation.size + int(np.prod(model.state_shape)) + model.law.parameters
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (int((budget > 0).sum()),), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.state = model.initial_state(self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """Begin the first episodes of the driver; its streams decide which, not `seed`."""
        self.driver.reset()
        self.state = self.model.initial_state(self.num_envs)
        self._look(self.driver.obs, self.driver.episode_start)
        return self._situation, {}

    def step(self, actions: Any) -> tuple[Arrays, Arrays, Arrays, Arrays, dict[str, Any]]:
        model, driver = self.model, self.driver
        shown = move_of(torch.from_numpy(np.asarray(actions, dtype=np.float32)), self._box)
        start, mask = torch.from_numpy(driver.episode_start), _tensor(driver.mask)
        decision = decide_at(model, shown, self.state, start, mask, self._uniform())
        result = driver.step(model.action.to_env(decision.action.numpy(), squashed=model.law.squashed))
        self.state = decision.state
        infos = self._final(result)
        self._look(result.obs, result.episode_start)
        return self._situation, -result.reward, result.terminated, result.truncated, infos

    def _uniform(self) -> Tensor | None:
        if self.deterministic:
            return None
        draws = torch.rand(self.num_envs, self.model.law.noise, generator=self.generator, dtype=torch.float64)
        return draws.clamp(1e-12, 1.0 - 1e-12)

    def _look(self, obs: Arrays, episode_start: Arrays) -> None:
        """Where the frozen policy stands now: the box around what it sees, and what the adversary sees."""
        start = torch.from_numpy(episode_start)
        self.state = torch.where(start[:, None, None], torch.zeros_like(self.state), self.state)
        self._box, self._situation = self._seen(obs, _tensor(self.driver.mask))

    def _seen(self, obs: Arrays, mask: Tensor | None) -> tuple[Box, npt.NDArray[np.float32]]:
        box = Box.around(self.model, self.model.normaliser(torch.from_numpy(obs)), self.budget)
        begun = torch.zeros(len(obs), dtype=torch.bool)
        return box, situation(box, self.state, decide_at(self.model, box.centre, self.state, begun, mask, None))

    def _final(self, result: StepResult) -> dict[str, Any]:
        """Last situations of the episodes that ended, before the hidden state is forgotten."""
        if result.final_obs is None:
            return {}
        return {"final_obs": self._seen(result.final_obs, None)[1], "_final_obs": result.terminated | result.truncated}


def _tensor(mask: Arrays | None) -> Tensor | None:
    return None if mask is None else torch.from_numpy(mask)


class LearnedAttack:
    """What a trained adversary chooses, by its most likely action."""

    name = "learned"

    def __init__(self, adversary: ActorCritic) -> None:
        self.adversary = adversary

    def shown(self, model: ActorCritic, moment: Moment) -> Tensor:
        box, adversary = moment.box, self.adversary
        state = torch.where(moment.start[:, None, None], torch.zeros_like(moment.state), moment.state)
        obs = torch.from_numpy(situation(box, state, moment.clean))
        blank, begun = adversary.initial_state(len(obs)), torch.zeros(len(obs), dtype=torch.bool)
        action = decide(adversary, obs, blank, begun, None, None).action
        return move_of(action, box)


def train_adversary(
    policy: Policy, world: World, budget: Tensor, *, steps: int, seed: int, deterministic: bool
) -> LearnedAttack:
    """Train an adversary for `steps` steps in the training environments of a policy, which stays as it is.

    With its hidden state among what it sees, an adversary of a policy with memory needs none of its own.
    """
    driver = world.without_terms().training()  # the policy is judged by log-returns, and nobody's function is called
    try:
        env = AttackEnv(policy.model, driver, budget, deterministic=deterministic, seed=seed)
        learner = {"gamma": policy.config.learner.gamma}
        settings = {"seed": seed, "risk": {"mode": "off"}, "learner": learner, "run": {"total_steps": steps}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)  # about a configuration that nobody wrote
            agent = PPO(env, settings)
        agent.learn()
    finally:
        driver.close()
    return LearnedAttack(agent.model)

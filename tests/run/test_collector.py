"""Rollouts from real environments: what is stored belongs to the policy that acted."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.toy_envs import DICT_REACH, MASKED_BANDIT, MULTI_BANDIT, RECALL_MASKED
from tailwise.learner.rollout import Rollout
from tailwise.run.health import Health
from tailwise.run.trainer import Trainer
from tests.support import Scripted, bits, knobs, merged, small_trainer, started

GAIN = {"actor": {"gain": 1.0}}


def next_step_env() -> Any:
    return SyncVectorEnv([lambda: Scripted(length=5)] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "masked discrete": (MASKED_BANDIT, {}),
    "masked recall": (RECALL_MASKED, {}),
    "multidiscrete": (MULTI_BANDIT, {}),
    "box": (DICT_REACH, {}),
    "squashed": (DICT_REACH, {"actor": {"gain": 1.0, "box": "squashed"}}),
    "cartpole": ("CartPole-v1", {}),
    "next step": (next_step_env, {}),
}


def trainer_for(case: str, core: str) -> Trainer:
    env, model = CASES[case]
    env = env() if env is next_step_env else env
    return started(
        small_trainer(env, model=merged(merged(GAIN, model), {"core": {"kind": core}}), run={"rollout_steps": 32})
    )


def direct_log_ratio(trainer: Trainer, rollout: Rollout) -> float:
    """max |ln pi_now(a) - stored| over valid rows, by a forward pass over the whole rollout."""
    model = trainer.model
    latent = model.latent(rollout.obs, rollout.state, rollout.start)
    log_prob = model.law.log_prob(model.policy(latent.features, rollout.mask), rollout.action)
    return float((log_prob - rollout.log_prob)[rollout.valid].abs().max().detach())


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("case", list(CASES))
def test_log_ratio_before_the_first_step_is_rounding(case: str, core: str) -> None:
    """H4, FORMULAS 3: within 1e-5 at gain 1, in the metric and directly, also in the second rollout."""
    trainer = trainer_for(case, core)
    for update in range(2):
        rollout, _ = trainer.collector.collect(update)
        assert direct_log_ratio(trainer, rollout) <= 1e-5
        assert float(rollout.log_prob.abs().max()) > 0
        report = trainer.backend.update(rollout, knobs(3e-3))
        assert report.committed, report.reason
        assert report.metrics["policy/first_log_ratio"] <= 1e-5
        assert report.metrics["policy/log_ratio_max"] > 1e-4  # later in the update it is not


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("case", ["masked recall", "cartpole", "box", "next step"])
def test_hidden_state_one_step_late_is_noticed(case: str, core: str) -> None:
    """H4, the wrong version: the state *after* the first step stored as the one before it. At least 1e-2, an alert."""
    trainer = trainer_for(case, core)
    for update in range(2):
        rollout, _ = trainer.collector.collect(update)
        trainer.backend.update(rollout, knobs())
    rollout, _ = trainer.collector.collect(2)
    # As if an episode went on: without a start flag the stored state matters from the first row.
    rollout = dataclasses.replace(rollout, start=rollout.start & (torch.arange(32)[:, None] > 0))
    state, features = rollout.state, []
    for t in range(32):
        latent = trainer.model.latent(rollout.obs[t : t + 1], state, rollout.start[t : t + 1])
        features.append(latent.features)
        state = latent.state
        if t == 0:
            late = state
    params = trainer.model.policy(torch.cat(features), rollout.mask).detach()
    honest = dataclasses.replace(rollout, log_prob=trainer.model.law.log_prob(params, rollout.action), params=params)
    assert direct_log_ratio(trainer, honest) <= 1e-5
    wrong = dataclasses.replace(honest, state=late.detach())
    assert direct_log_ratio(trainer, wrong) >= 1e-2
    report = trainer.backend.update(wrong, knobs())
    assert report.metrics["policy/log_ratio_max"] >= 1e-2
    one_batch = report.metrics["policy/first_log_ratio"]
    fired = {alert.rule for alert in Health().look(1, report.metrics, report)}
    assert ("first_log_ratio" in fired) == (one_batch > 1e-3)


def test_observation_statistics_are_frozen_inside_a_rollout() -> None:
    """002-1: their hash is constant from step to step and changes with a committed update. Rejects updates per step."""

    def digest(trainer: Trainer) -> str:
        buffers = dict(trainer.model.normaliser.named_buffers())
        return hashlib.sha256(b"".join(bits(buffers[name]) for name in sorted(buffers))).hexdigest()

    seen: list[str] = []
    trainer: Trainer

    def watch(step: int, obs: Any, action: Any) -> float:
        seen.append(digest(trainer))
        return 1.0

    trainer = started(small_trainer(lambda: Scripted(watch)))
    rollout, _ = trainer.collector.collect(0)
    assert len(seen) == 32 and len(set(seen)) == 1
    assert trainer.backend.update(rollout, knobs()).committed
    assert int(trainer.model.normaliser.version) == 1
    trainer.collector.collect(1)
    assert len(set(seen)) == 2 and len(set(seen[32:])) == 1


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_value_at_a_truncation_is_that_of_the_untruncated_rollout(core: str) -> None:
    """001-8. The same environment with and without a time limit at step 5: V(final_obs) = V of step 5 without limit.

    Rejects V from the zero state, which the reset that follows would give (asserted for cores).
    """
    records = []
    for length in (5, 100):
        trainer = started(
            small_trainer(lambda n=length: Scripted(length=n), model={"core": {"kind": core}}, run={"rollout_steps": 6})
        )
        trainer.model.return_scale.absorb(torch.tensor([1.0, 3.0]))
        records.append(trainer.collector.collect(0)[0])
    cut, whole = records
    assert bool(cut.truncated[4].all()) and not bool(whole.truncated.any())
    assert torch.equal(cut.obs[:5], whole.obs[:5]) and not torch.equal(cut.obs[5], whole.obs[5])
    torch.testing.assert_close(cut.critic.final_mean[4], whole.critic.mean[5], atol=1e-6, rtol=1e-5)
    assert cut.critic.final_law is not None and whole.critic.law is not None
    torch.testing.assert_close(cut.critic.final_law[4], whole.critic.law[5], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(cut.critic.mean[5], whole.critic.mean[5], atol=1e-4)  # the reset observation
    assert torch.equal(cut.critic.final_mean[:4], torch.zeros_like(cut.critic.final_mean[:4]))
    if core != "none":
        zero = trainer.backend.encode(whole.obs[5], trainer.model.initial_state(4), torch.ones(4).bool())
        assert not torch.allclose(trainer.model.values(zero).mean, whole.critic.mean[5], atol=1e-4)


def test_hidden_state_is_carried_between_rollouts_and_zeroed_at_episode_starts() -> None:
    """One rollout of 12 steps equals two of 6. Rejects a state that begins at zero with every rollout (asserted)."""

    def collect(steps: int, rollouts: int) -> tuple[torch.Tensor, Trainer, Rollout]:
        trainer = started(
            small_trainer(lambda: Scripted(length=9), model={"core": {"kind": "lstm"}}, run={"rollout_steps": steps})
        )
        made = [trainer.collector.collect(0)[0] for _ in range(rollouts)]  # the same draws for both halves
        return torch.cat([r.critic.mean[:-1] for r in made]), trainer, made[-1]

    long, _, whole = collect(12, 1)
    short, trainer, second = collect(6, 2)
    # Values do not depend on actions here, because observations do not.
    torch.testing.assert_close(long, short, atol=1e-6, rtol=1e-5)
    assert whole.start.nonzero()[:, 0].unique().tolist() == [0, 9]
    zeroed = trainer.model.latent(second.obs, torch.zeros_like(second.state), second.start).features
    assert not torch.allclose(trainer.model.values(zeroed).mean[0], long[6], atol=1e-4)


def test_masked_actions_are_never_taken() -> None:
    for env in (MASKED_BANDIT, RECALL_MASKED):
        trainer = started(small_trainer(env, model=GAIN, run={"rollout_steps": 64}))
        rollout, _ = trainer.collector.collect(0)
        assert rollout.mask is not None
        assert bool(rollout.mask.gather(-1, rollout.action).all())
        assert float(rollout.reward.min()) >= 0  # a forbidden action pays -1


def test_next_step_environments_mark_their_reset_rows() -> None:
    trainer = trainer_for("next step", "lstm")
    rollout, _ = trainer.collector.collect(0)
    ends = rollout.truncated | rollout.terminated
    assert torch.equal(~rollout.valid[1:], ends[:-1])
    assert torch.equal(rollout.start[2:], ~rollout.valid[1:-1])
    assert bool(rollout.start[0].all()) and not bool(rollout.start[1].any())


class Poisoned(gym.Env[Any, Any]):
    """Gives NaN in one observation: `where` is "inside" (step 3), "final" (at the truncation) or nowhere."""

    def __init__(self, where: str, value: float = float("nan")) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.where, self.value = where, value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        obs = self.np_random.standard_normal(3).astype(np.float32)
        if (self.where, self.steps) in (("inside", 3), ("final", 6)):
            obs[1] = self.value
        return obs, 1.0, False, self.steps >= 6, {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    ("where", "steps", "name"),
    [("inside", 5, "observation"), ("final", 7, "value at truncation"), ("inside", 3, "bootstrap value")],
)
def test_broken_observation_is_refused_wherever_it_stands(
    where: str, steps: int, name: str, core: str, value: float
) -> None:
    """Inside, at a truncation, and after the last step. Rejects taking it for 0 where only a value is read from it."""
    trainer = started(
        small_trainer(lambda: Poisoned(where, value), model={"core": {"kind": core}}, run={"rollout_steps": steps})
    )
    trainer.model.return_scale.absorb(torch.tensor([1.0, 3.0]))
    rollout, _ = trainer.collector.collect(0)
    assert name in rollout.non_finite()
    report = trainer.backend.update(rollout, knobs())
    assert not report.committed and report.reason is not None and name in report.reason
    clean = started(small_trainer(lambda: Poisoned("nowhere"), run={"rollout_steps": steps}))
    assert clean.collector.collect(0)[0].non_finite() == {}


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_looking_builds_no_graph(backend: str) -> None:
    """Rejects features that drag the graph of a whole network along, at every end of an episode."""
    trainer = small_trainer(backend=backend, model={"core": {"kind": "lstm"}})
    obs, start = torch.zeros(4, trainer.model.observation.size), torch.zeros(4, dtype=torch.bool)
    assert not trainer.backend.encode(obs, trainer.model.initial_state(4), start).requires_grad

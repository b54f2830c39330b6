"""The policy that a limit speaks of: exploration that ends narrow, and what evaluations play."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.toy_risk import ExposureVector, LotteryVector
from tailwise import PPO
from tailwise.core.errors import ConfigError
from tailwise.learner.config import NarrowingExploration
from tailwise.model.config import LOG_STD
from tailwise.run.config import parse_config
from tailwise.run.controllers import narrowing
from tailwise.run.health.actions import LearnerCopy
from tests.support import BACKENDS

END = NarrowingExploration().end_std
LIMIT = {"mode": "constraint", "limit": -0.05, "alpha": 0.25}
SMALL = {
    "model": {"encoder": {"hidden": [8]}, "actor": {"hidden": [8]}, "critic": {"kind": "quantile", "hidden": [8]}},
    "run": {"environments": 8, "rollout_steps": 16, "total_steps": 1024, "tensorboard": False},
}


def test_the_width_is_reached_at_the_end_whatever_the_steps_between() -> None:
    """Rejects a factor per update, which would depend on the number of updates, and one that goes on past the end."""
    config = NarrowingExploration(end_std=0.1)
    for stops in ([1000], [10, 500, 1000], [400, 900, 1300, 2000]):
        applied = 0.0
        for steps in stops:
            applied = narrowing(config, math.log(0.5), steps, 1000, applied)
        assert applied == pytest.approx(math.log(0.2), rel=1e-12)
    assert narrowing(config, 0.0, 500, 1000, -3.0) == -3.0  # a longer budget does not widen what is narrow
    assert narrowing(None, 0.0, 10, 100, -1.0) == -1.0


def test_a_policy_that_starts_narrower_than_the_end_is_left_alone() -> None:
    """Rejects a factor, which would take the last exploration of it, and a schedule that widens."""
    assert narrowing(NarrowingExploration(end_std=0.05), math.log(0.04), 1000, 1000, 0.0) == 0.0


def test_learning_in_pieces_narrows_once() -> None:
    """Rejects a factor per call of `learn`: three calls would leave a 400th of it."""
    env = ExposureVector(8, mu=0.1, sigma=0.2)
    agent = PPO(env, {**SMALL, "risk": LIMIT, "learner": {"learning_rate": 1e-9}})
    widths = []
    for _ in range(3):
        agent.learn(512)
        assert agent.model.actor.log_std is not None
        widths.append(float(agent.model.actor.log_std.exp()))
    assert widths == pytest.approx([END] * 3, rel=1e-3)


def test_a_plateau_of_the_entropy_is_seen_while_exploration_narrows() -> None:
    """The policy does not change but for the schedule, whose fall of .37 nats an update is no learning. Rejects the
    slope of the entropy itself, with which no plateau ever begins."""
    entropy = {"kind": "plateau", "window": 4, "tolerance": 1e-3}
    env = ExposureVector(8, mu=0.1, sigma=0.2)
    agent = PPO(env, {**SMALL, "risk": LIMIT, "learner": {"learning_rate": 1e-9, "entropy": entropy}})
    agent.learn()
    assert agent.trainer.controllers.plateau_at == 4


def test_discrete_actions_have_no_width_to_narrow() -> None:
    """Rejects a schedule that counts on, which the plateau of the entropy would take for learning."""
    agent = PPO(LotteryVector(8, safe=0.2, risky_win=1.0, loss=3.0, p=0.045), {**SMALL, "risk": LIMIT})
    agent.learn(512)
    assert agent.trainer.controllers.narrowed == 0.0


def test_a_restored_state_is_as_narrow_as_it_was() -> None:
    """What a rollback brings back is narrowed again by the next update. Rejects a width that stays behind for good."""
    env = ExposureVector(8, mu=0.1, sigma=0.2)
    agent = PPO(env, {**SMALL, "risk": LIMIT, "learner": {"learning_rate": 1e-9}})
    trainer = agent.trainer
    first = LearnerCopy(trainer.update, trainer.backend.snapshot(), trainer.controllers.to_json())
    agent.learn(512)
    first.restore(trainer.backend, trainer.controllers)
    log_std = agent.model.actor.log_std
    assert log_std is not None and float(log_std.exp()) == pytest.approx(math.exp(LOG_STD), rel=1e-3)
    agent.learn(512)
    assert float(log_std.exp()) == pytest.approx(END, rel=1e-3)


def width_after(risk: dict[str, object], **learner: object) -> float:
    env = ExposureVector(8, mu=0.1, sigma=0.2)
    agent = PPO(env, {**SMALL, "risk": risk, "learner": {"learning_rate": 1e-9, **learner}})
    agent.learn()
    log_std = agent.model.actor.log_std
    assert log_std is not None
    return float(log_std.exp())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("weight", "returns"), [(1.0, True), (0.0, False)])
def test_a_narrow_policy_beyond_its_bounds_comes_back(backend: str, weight: float, returns: bool) -> None:
    """With a width of .05 and a mean of 1.6 every sample is cut to the same action, so nothing tells the policy that
    less would keep the limit. Rejects narrowing alone, which left such runs with the whole exposure for good."""
    settings = {**SMALL, "run": {**SMALL["run"], "total_steps": 8192}, "model": {**SMALL["model"]}}
    settings["model"]["actor"] = {"hidden": [8], "log_std": math.log(0.05)}
    exploration = {"kind": "narrow", "bounds_weight": weight}
    learner = {"learning_rate": 3e-3, "exploration": exploration}
    agent = PPO(
        ExposureVector(8, mu=0.1, sigma=0.2), {**settings, "risk": LIMIT, "learner": learner, "backend": backend}
    )
    with torch.no_grad():
        agent.model.actor.head.bias.fill_(1.6)
    agent.learn()
    with torch.no_grad():
        latent = agent.model.latent(
            torch.ones(1, 1, 1), agent.model.initial_state(1), torch.ones(1, 1, dtype=torch.bool)
        )
        mean = float(agent.model.policy(latent.features[0], None)[0, 0])
    assert mean < 1.4 if returns else mean > 1.55  # KL lets so narrow a policy move by .01 in an update


def test_exploration_ends_narrow_under_a_limit_and_nowhere_else() -> None:
    """With a step size of next to nothing only the schedule moves the width: to its end, or not at all."""
    first = math.exp(LOG_STD)
    assert width_after(LIMIT) == pytest.approx(END, rel=1e-3)
    assert width_after({"mode": "report"}) == pytest.approx(first, rel=1e-3)
    assert width_after(LIMIT, exploration={"kind": "learnt"}) == pytest.approx(first, rel=1e-3)
    half = width_after({"mode": "report"}, exploration={"kind": "narrow", "end_std": 0.5})
    assert half == pytest.approx(0.5, rel=1e-3)


def test_narrowing_of_discrete_actions_is_refused() -> None:
    with pytest.raises(ConfigError, match="narrows the width of Box actions and the action space is discrete"):
        PPO("CartPole-v1", {**SMALL, "learner": {"exploration": {"kind": "narrow"}}})


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("risk", [LIMIT, {"mode": "report"}, {"mode": "penalty", "weight": 1.0}])
def test_evaluations_play_the_policy_that_the_limit_speaks_of(discrete: bool, risk: dict[str, object]) -> None:
    """Under a limit the best discrete policy is mixed, and the limit is steered on its samples. Rejects playing the
    most likely action there, which is another policy."""
    config = parse_config({"risk": risk}, source="test")
    sampled = discrete and risk["mode"] == "constraint"
    assert config.plays_most_likely(discrete=discrete) is not sampled
    for wish in (True, False):
        asked = parse_config({"risk": risk, "evaluate": {"deterministic": wish}}, source="test")
        assert asked.plays_most_likely(discrete=discrete) is wish


def test_a_policy_says_how_it_is_meant_to_be_played() -> None:
    lottery = PPO(LotteryVector(8, safe=0.2, risky_win=1.0, loss=3.0, p=0.045), {**SMALL, "risk": LIMIT})
    exposure = PPO(ExposureVector(8, mu=0.1, sigma=0.2), {**SMALL, "risk": LIMIT})
    assert not lottery.deterministic and exposure.deterministic

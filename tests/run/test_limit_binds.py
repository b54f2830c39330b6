"""One number is set and the trained policy's realised tail obeys it. Longer proofs: `python -m benchmarks.risk`."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from benchmarks.risk_toys import ONE_STEP_SIZE, cvar, exposure_env, exposures, play, settings, width
from benchmarks.risk_truth import ONE_STEP, exposure_cvar
from tailwise.run.agent import PPO
from tests.support import BACKENDS

WANTED = 0.4  # of the equity, where the limit puts the optimum
LIMIT = exposure_cvar(ONE_STEP, WANTED)


def trained(updates: int, **changes: Any) -> PPO:
    environments, steps, _, rate = ONE_STEP_SIZE
    size = (environments, steps, updates, rate)
    data = settings(size, seed=0, gamma=0.99, alpha=ONE_STEP.alpha, limit=LIMIT, entropy=0.0, width=width(logit=True))
    return PPO(exposure_env(ONE_STEP, environments, logit=True), data | changes)


def judged(agent: PPO) -> tuple[float, float]:
    """(mean exposure, CVaR) on fresh draws of the environment."""
    actions, rewards, _ = play(agent, exposure_env(ONE_STEP, 2000, logit=True), steps=50, seed=99)
    return float(exposures(actions).mean()), cvar(rewards.ravel(), ONE_STEP.alpha)


@pytest.mark.parametrize("backend", BACKENDS)
def test_exposure_goes_where_the_limit_puts_it(backend: str) -> None:
    """H2, 000-F1: one step, normal noise, w* = .4: mean action and realised CVaR within 10% of the closed form."""
    agent = trained(80, backend=backend)
    agent.learn()
    action, tail = judged(agent)
    assert action == pytest.approx(WANTED, rel=0.1)
    assert tail == pytest.approx(LIMIT, rel=0.1)


def wrong_sign(mean: Tensor, risk: Tensor | None, multiplier: float) -> Tensor:
    assert risk is not None
    return (mean - multiplier * risk) / (1 + multiplier)


@pytest.mark.parametrize("mixture", [lambda mean, risk, multiplier: mean, wrong_sign], ids=["ignored", "wrong sign"])
def test_a_constraint_that_does_not_act_is_told_apart(mixture: Any) -> None:
    """The failures of the old systems: the term exists, is logged, and the policy takes the whole risk."""
    agent = trained(80)
    agent.trainer.backend.mix_advantages = mixture
    agent.learn()
    action, tail = judged(agent)
    assert action > 1.3 * WANTED
    assert tail < 1.3 * LIMIT
    assert agent.history[-1]["risk/multiplier"] > 1.0  # the controller sees it and can do nothing

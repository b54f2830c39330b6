"""How large the part of risk in the policy's gradient is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tailwise.learner.returns import mix_advantages, normalise, part_of_normalised
from tailwise.learner.risk import RiskSettings
from tailwise.learner.risk_config import CvarMeasure
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tests.support import BACKENDS, knobs, learner_of, play, random_world

MODES = ["global", "per_env"]


def policy_gradient(model: ActorCritic, rollout: Rollout, advantage: Tensor) -> Tensor:
    """Gradient of -mean(ratio x advantage [T, B]) by all parameters of the actor, flat."""
    features = model.latent(rollout.obs, rollout.state, rollout.start).features
    log_prob = model.law.log_prob(model.policy(features, None), rollout.action)
    loss = -((log_prob - rollout.log_prob).exp() * advantage).mean()
    return torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, list(model.actor.parameters()))])


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_the_risk_part_is_the_manual_difference(mode: str, kind: str) -> None:
    """003-2b: gradient of the policy's loss on the actor with risk, minus the one without it at the same scale.

    Rejects the risk part standardised by its own spread (asserted), whose gradient is as large for any multiplier.
    """
    norms = []
    for multiplier in (0.1, 3.0):
        backend = learner_of(kind, learner={"advantages": mode, "epochs": 1, "minibatches": 1})
        backend.risk = RiskSettings(CvarMeasure(), 0.25)
        mixed: list[tuple[Tensor, Tensor]] = []

        def mix(mean: Tensor, risk: Tensor | None, weight: float, mixed: Any = mixed) -> Tensor:
            assert risk is not None
            mixed.append((mean, risk))
            return mix_advantages(mean, risk, weight)

        backend.mix_advantages = mix
        rollout = play(backend, random_world(steps=16, envs=8))
        before = backend.snapshot()
        measured = backend.update(rollout, knobs(measure_terms=True, multiplier=multiplier)).term_gradients
        backend.restore(before)
        mean, risk = (part.double() for part in mixed[0])
        dims = 0 if mode == "per_env" else None
        both = (mean + multiplier * risk) / (1 + multiplier)
        scale = both.var(dims, correction=0, keepdim=True).sqrt()
        with_risk, without = (
            policy_gradient(backend.model, rollout, ((raw - raw.mean(dims, keepdim=True)) / scale).float())
            for raw in (both, mean / (1 + multiplier))
        )
        manual = float((with_risk - without).norm())
        assert measured["risk"]["actor"] == pytest.approx(manual, rel=1e-3)
        assert measured["policy"]["actor"] == pytest.approx(float(with_risk.norm()), rel=1e-3)
        norms.append(manual)
    assert norms[1] > 3 * norms[0]


@pytest.mark.parametrize("mode", MODES)
def test_parts_add_up_to_the_normalised_advantages(mode: Any) -> None:
    """Invalid rows count nowhere and are 0; a part that is constant, or a whole without signal, contributes exactly 0.
    Rejects the spread over all rows."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 12, 4, generator=generator)
    valid = torch.rand(12, 4, generator=generator) < 0.7
    first[~valid] = math.nan
    whole = first + 5.0 * second
    parts = [part_of_normalised(part, whole, valid, mode=mode) for part in (first, 5.0 * second)]
    torch.testing.assert_close(parts[0] + parts[1], normalise(whole, valid, mode=mode)[0], rtol=0, atol=1e-6)
    assert bool((parts[0][~valid] == 0).all()) and bool((parts[1][~valid] == 0).all())
    constant = torch.full_like(second, 0.1)
    assert not bool(part_of_normalised(constant, second, valid, mode=mode).any())
    assert not bool(part_of_normalised(second, constant, valid, mode=mode).any())

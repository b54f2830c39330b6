"""A fused run, followed by torch: at each update the plain backend starts from the same state and does the same.

Runs that differ by rounding end at different scores, and scores of single seeds say little. Here nothing is left to
chance: not the policies of the first updates alone, also those that later ones reach, near certain and clipped.
"""

from __future__ import annotations

import copy

import pytest
import torch

from tailwise import PPO
from tailwise.learner.backend import Knobs, UpdateReport
from tailwise.learner.rollout import Rollout
from tests.support import preset_agent


def parameters_of(agent: PPO) -> torch.Tensor:
    parameters = agent.trainer.backend.model.parameters()
    return torch.cat([parameter.detach().reshape(-1).double() for parameter in parameters])


@pytest.mark.parametrize(("preset", "steps"), [("cartpole-memory", 20_480), ("pendulum", 16_000)])
def test_torch_agrees_with_every_update_of_a_run(preset: str, steps: int) -> None:
    """Rejects what single updates from fresh weights cannot show: a lean that grows as a policy becomes certain, a
    state that is carried wrongly from rollout to rollout, actions that do not follow their probabilities."""
    fused, plain = (preset_agent(preset, backend=name, seed=5, steps=steps) for name in ("fused", "torch"))
    backend, twin = fused.trainer.backend, plain.trainer.backend
    learn, distances, replayed, same_actions = backend.update, [], [], []

    def follow(rollout: Rollout, knobs: Knobs) -> UpdateReport:
        twin.model.load_state_dict(copy.deepcopy(backend.model.state_dict()))
        twin.optimiser.load(backend.optimiser.tensors())
        law = twin.model.law
        noise = backend.streams.uniforms(
            "action", update=rollout.update, environments=rollout.environment.numpy(), steps=rollout.steps,
            draws=law.noise,
        )  # fmt: skip
        drawn = law.sample(rollout.params, torch.from_numpy(noise))
        same_actions.append((drawn - rollout.action).abs().max().item() <= 1e-5)
        before = parameters_of(fused)
        expected, found = twin.update(copy.deepcopy(rollout), knobs), learn(rollout, knobs)
        assert (found.committed, found.stopped_early) == (expected.committed, expected.stopped_early)
        assert found.metrics["policy/epochs"] == expected.metrics["policy/epochs"]
        moved = parameters_of(plain) - before
        distances.append(((parameters_of(fused) - before - moved).norm() / moved.norm()).item())
        # How far torch's log-probabilities along the sequences are from those that acted, before the first step.
        replayed.append(abs(expected.metrics["policy/first_log_ratio"]))
        return found

    backend.update = follow  # type: ignore[method-assign]
    fused.learn()
    assert len(distances) >= 10 and all(same_actions)
    assert max(distances) <= 5e-5 and max(replayed) <= 2e-5, (max(distances), max(replayed))
    twin.model.load_state_dict(copy.deepcopy(backend.model.state_dict()))
    assert plain.evaluate(episodes=5).mean == pytest.approx(fused.evaluate(episodes=5).mean, rel=1e-4)

"""The critics learn: one fixed batch is overfitted, closed forms are reached, and changes of units are survived."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tailwise.learner.ppo import TorchBackend
from tests.support import knobs, play, prepared, random_world, small_backend, whole_batch_losses

CRITICS: dict[str, dict[str, Any]] = {
    "quantile": {"kind": "quantile", "hidden": [32], "quantiles": 8, "minibatch_particles": 8},
    "categorical": {"kind": "categorical", "hidden": [32], "atoms": 21, "particles": 8, "minibatch_particles": 8},
    "scalar": {"kind": "scalar", "hidden": [32]},
}


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("kind", list(CRITICS))
def test_critics_overfit_one_fixed_batch(kind: str, core: str) -> None:
    """H1: every critic's mean reaches the targets of a batch it sees 300 times; explained variance above .95.

    Rejects a critic whose loss has no path to its weights: the same loop on detached heads stays where it was.
    """
    backend = small_backend(
        model={
            "critic": CRITICS[kind],
            "encoder": {"hidden": [32]},
            "core": {"kind": core},
            "returns": {"kind": "none"},
        }
    )
    rollout = play(backend, random_world(8, 4, end=0.1))
    ready = prepared(backend, rollout)
    frozen = {name: p.detach().clone() for name, p in backend.model.critics.named_parameters()}
    optimiser = torch.optim.Adam(backend.model.parameters(), lr=5e-3)
    first: dict[str, float] = {}
    for step in range(300):
        losses = whole_batch_losses(backend, rollout, ready)
        critic = torch.stack([term for name, term in losses.terms.items() if name[:4] in ("mean", "law_")]).sum()
        if step == 0:
            first = {name: float(term.detach()) for name, term in losses.terms.items()}
        optimiser.zero_grad()
        critic.backward()
        optimiser.step()
    last = {name: float(term.detach()) for name, term in whole_batch_losses(backend, rollout, ready).terms.items()}
    spread = float(ready.mean_target.var(unbiased=False))
    for i in (0, 1):
        assert last[f"mean_{i}"] / (0.5 / 2) < 0.05 * spread, (first, last)
        if kind != "scalar":
            assert last[f"law_{i}"] < 0.8 * first[f"law_{i}"], (first, last)
    assert all(not torch.equal(p, frozen[name]) for name, p in backend.model.critics.named_parameters())


def constant_world(steps: int, envs: int, reward: float) -> Any:
    """Episodes of 10 steps that are truncated, never terminated, with a constant observation."""
    world = random_world(steps, envs, end=0.0)
    world.truncated[9::10] = True
    world.start[10::10] = True
    return dataclasses.replace(
        world,
        reward=torch.full((steps, envs), reward),
        obs=torch.ones_like(world.obs),
        final_obs=torch.ones_like(world.final_obs),
    )


def raw_value(backend: TorchBackend) -> torch.Tensor:
    """Raw means [C] at the constant observation."""
    state, start = backend.model.initial_state(1), torch.ones(1).bool()
    features = backend.encode(torch.ones(1, 3), state, start)
    return backend.model.return_scale.to_raw(backend.model.values(features).mean)[0].detach()


@pytest.mark.parametrize("kind", ["quantile", "scalar"])
def test_constant_reward_with_truncation_only_converges_to_the_geometric_sum(kind: str) -> None:
    """FORMULAS 1: V -> 1/(1 - gamma) = 10. Rejects truncation treated as termination: the value stays near 5.7."""
    backend = small_backend(model={"critic": CRITICS[kind], "observations": {"kind": "none"}}, learner={"gamma": 0.9})
    for update in range(80):
        report = backend.update(play(backend, constant_world(20, 2, 1.0), update=update), knobs(6e-3))
        assert report.committed, report.reason
    for value in raw_value(backend).tolist():
        assert value == pytest.approx(10.0, rel=0.05)
    wrong = small_backend(model={"critic": CRITICS[kind], "observations": {"kind": "none"}}, learner={"gamma": 0.9})
    for update in range(25):
        world = constant_world(20, 2, 1.0)
        ended = dataclasses.replace(world, terminated=world.truncated, truncated=torch.zeros_like(world.truncated))
        wrong.update(play(wrong, ended, update=update), knobs(6e-3))
    assert float(raw_value(wrong).max()) < 8


def learnable_world(seed: int, factor: float) -> Any:
    """A reward that the observation tells: its first entry, so that the value of a state is known."""
    world = random_world(16, 16, seed=seed, end=0.3)
    return dataclasses.replace(world, reward=factor * world.obs[:-1, :, 0])


@pytest.mark.parametrize("kind", ["quantile", "scalar"])
def test_rewards_times_1000_in_mid_training_are_survived(kind: str) -> None:
    """004-C3: the normalised value loss stays O(1) and explained variance returns above .5.

    Rejects learning in raw units: the same change then gives a loss above 1e4 (the old systems: 377,720).
    """

    def run(returns: str, updates: int) -> tuple[float, list[float], float]:
        backend = small_backend(
            model={"critic": CRITICS[kind], "encoder": {"hidden": [32]}, "returns": {"kind": returns}},
            learner={"gamma": 0.5, "epochs": 4, "minibatches": 2},
        )
        largest, explained = 0.0, []
        for update in range(updates):
            rollout = play(backend, learnable_world(update, 1.0 if update < 20 else 1000.0), update=update)
            metrics = backend.update(rollout, knobs(3e-3)).metrics
            explained.append(metrics["critic/explained_variance"])
            if update >= 20:
                largest = max(largest, metrics["critic/loss"])
        return largest, explained, metrics["return/sigma_over_first"]

    largest, explained, ratio = run("popart", 50)
    assert explained[19] > 0.5
    assert largest < 100 and explained[-1] > 0.5, (largest, explained[-5:])
    assert ratio > 100  # what the return_scale alert reads
    assert run("none", 21)[0] > 1e4


def test_critic_that_is_never_trained_does_not_pass() -> None:
    """The counterpart of the tests above: with value_weight next to nothing nothing is explained."""
    backend = small_backend(
        model={"critic": CRITICS["scalar"], "encoder": {"hidden": [32]}},
        learner={"gamma": 0.5, "value_weight": 1e-9, "max_grad_norm": None},
    )
    for parameter in backend.model.critics.parameters():
        parameter.requires_grad_(False)
    for update in range(20):
        metrics = backend.update(play(backend, learnable_world(update, 1.0), update=update), knobs(3e-3)).metrics
    assert metrics["critic/explained_variance"] < 0.5

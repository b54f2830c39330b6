"""Rows that are no transitions (the reset steps of NEXT_STEP autoreset) must not matter, whatever stands in them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tailwise.learner.rollout import Rollout
from tests.support import World, gradients, knobs, play, prepared, random_world, same, small_backend, snapshot
from tests.support import whole_batch_losses as losses_of


def world(choices: int = 4) -> World:
    made = random_world(steps=14, envs=4, next_step=True, end=0.3, choices=choices, seed=3)
    assert int((~made.valid).sum()) > 5
    return made


def poisoned(rollout: Rollout, value: float = float("nan")) -> Rollout:
    """The same rollout with `value` in everything that belongs to an invalid row."""
    bad = ~rollout.valid

    def floats(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[: bad.shape[0]][bad] = value
        return changed

    action = rollout.action.clone()
    action[bad] = 0 if not action.is_floating_point() else torch.full_like(action[bad], value)
    mask = rollout.mask
    if mask is not None:
        mask = mask.clone()
        mask[bad] = False  # no action is allowed at all
    critic = rollout.critic
    return dataclasses.replace(
        rollout,
        obs=floats(rollout.obs),
        action=action,
        log_prob=floats(rollout.log_prob),
        params=floats(rollout.params),
        reward=floats(rollout.reward),
        mask=mask,
        critic=dataclasses.replace(
            critic,
            mean=floats(critic.mean),
            law=None if critic.law is None else floats(critic.law),
            final_mean=floats(critic.final_mean),
            final_law=None if critic.final_law is None else floats(critic.final_law),
        ),
    )


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_invalid_rows_change_no_loss_and_no_gradient(core: str, value: float) -> None:
    """003-V2, bit for bit. Rejects masks that multiply by 0: 0 * NaN is NaN (asserted for a masked mean)."""
    results = []
    for poison in (False, True):
        backend = small_backend(model={"core": {"kind": core}, "critic": {"clip": {"kind": "per_quantile"}}})
        rollout = play(backend, world())
        if poison:
            rollout = poisoned(rollout, value)
        assert rollout.non_finite() == {}
        found = losses_of(backend, rollout, prepared(backend, rollout))
        found.total.backward()
        terms = {name: term.detach() for name, term in found.terms.items()}
        results.append((terms, gradients(backend), found.means))
    assert same(results[0][0], results[1][0])
    assert same(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]
    if value != value:
        rollout = poisoned(play(small_backend(model={"core": {"kind": core}}), world()))
        multiplied = (rollout.reward * rollout.valid.float()).sum() / rollout.valid.sum()
        assert bool(multiplied.isnan())


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("action", ["discrete", "box"])
@pytest.mark.parametrize("critic", ["quantile", "categorical", "scalar"])
def test_invalid_rows_change_nothing_in_a_whole_update(core: str, action: str, critic: str) -> None:
    """Weights, optimiser, normaliser, return scale and metrics after an update, bit for bit."""
    kinds = {
        "quantile": {},
        "categorical": {"kind": "categorical", "atoms": 11, "particles": 8, "minibatch_particles": 4},
        "scalar": {"kind": "scalar"},
    }
    results = []
    for poison in (False, True):
        backend = small_backend(model={"core": {"kind": core}, "critic": kinds[critic]}, action=action, tail_alpha=0.25)
        rollout = play(backend, world(choices=4 if action == "discrete" else 0))
        report = backend.update(poisoned(rollout) if poison else rollout, knobs())
        assert report.committed, report.reason
        results.append((snapshot(backend), report.metrics))
    assert same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_valid_rows_do_matter() -> None:
    """The counterpart, so that the comparison above cannot pass by ignoring everything."""
    results = []
    for change in (0.0, 1.0):
        backend = small_backend()
        rollout = play(backend, world())
        row = tuple(rollout.valid.nonzero()[3].tolist())
        reward = rollout.reward.clone()
        reward[row] += change
        backend.update(dataclasses.replace(rollout, reward=reward), knobs())
        results.append(snapshot(backend))
    assert not same(results[0], results[1])


def test_invalid_rows_do_not_enter_the_observation_statistics() -> None:
    """Rejects statistics over all rows: the count would include the reset rows."""
    backend = small_backend()
    rollout = play(backend, world())
    backend.update(rollout, knobs())
    assert float(backend.model.normaliser.count) == int(rollout.valid.sum()) < rollout.valid.numel()

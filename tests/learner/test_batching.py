"""Minibatches and microbatches: the same gradient however the batch is cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tailwise.learner import batches
from tailwise.learner.ppo import TorchBackend
from tailwise.learner.rollout import Rollout
from tests.support import gradients, knobs, play, prepared, random_world, small_backend, snapshot, whole_batch_losses


def first_gradient(microbatches: int, core: str, rollout_of: Any, **more: Any) -> dict[str, torch.Tensor]:
    """The accumulated gradient of the first minibatch: with one epoch and one minibatch it is still there after."""
    backend = small_backend(
        model={"core": {"kind": core}, "actor": {"gain": 1.0}},
        learner={"epochs": 1, "minibatches": 1, "microbatches": microbatches, "max_grad_norm": None, **more},
    )
    report = backend.update(rollout_of(backend), knobs())
    assert report.committed, report.reason
    return gradients(backend)


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_one_batch_of_64_equals_four_of_16(core: str) -> None:
    """000-F3, 002-2. Rejects a plain mean over microbatches of unequal size (next test) and per-part normalisation."""

    def rollout_of(backend: TorchBackend) -> Rollout:
        return play(backend, random_world(8, 8))

    whole = first_gradient(1, core, rollout_of)
    size = max(float(g.abs().max()) for g in whole.values())
    assert size > 1e-3
    for parts in (2, 4, 8):
        assert largest_difference(first_gradient(parts, core, rollout_of), whole) <= 1e-6 * max(size, 1.0)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_parts_of_unequal_weight_and_an_empty_part(core: str) -> None:
    """Environments with 1, 8, 0 and 8 valid rows: parts weigh by valid rows. Rejects equal weights (asserted)."""

    def rollout_of(backend: TorchBackend) -> Rollout:
        rollout = play(backend, random_world(8, 4, end=0.0))
        valid = torch.ones(8, 4, dtype=torch.bool)
        valid[1:, 0] = False
        valid[:, 2] = False
        return dataclasses.replace(rollout, valid=valid)

    whole, parts = first_gradient(1, core, rollout_of), first_gradient(4, core, rollout_of)
    assert largest_difference(whole, parts) <= 1e-6

    backend = small_backend(model={"core": {"kind": core}, "actor": {"gain": 1.0}})
    rollout = rollout_of(backend)
    ready = prepared(backend, rollout)
    total = {name: torch.zeros_like(g) for name, g in whole.items()}
    for env in (0, 1, 3):  # the mean of the parts' means
        only = rollout.valid & (torch.arange(4) == env)
        backend.model.zero_grad()
        whole_batch_losses(backend, dataclasses.replace(rollout, valid=only), ready).total.backward()
        for name, gradient in gradients(backend).items():
            total[name] += gradient / 3
    assert largest_difference(whole, total) > 1e-3


def test_advantages_are_normalised_once_per_rollout() -> None:
    """003-V1. Over all valid rows mean 0 and std 1; a minibatch of them has another mean, so it was not done again."""
    backend = small_backend()
    rollout = play(backend, random_world(16, 8, next_step=True))
    ready = prepared(backend, rollout)
    valid = rollout.valid.reshape(-1)
    kept = ready.advantage[valid].double()
    assert abs(float(kept.mean())) < 1e-6 and float(kept.std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    rows = valid.nonzero().squeeze(-1)[:20]
    draws = ready.draws(backend.streams, backend.model, update=0, epoch=0)
    inside = ready.batch(rows, draws).advantage
    assert torch.equal(inside, ready.advantage[rows])
    assert abs(float(inside.mean())) > 1e-3


@pytest.mark.parametrize("recurrent", [True, False])
def test_every_valid_row_is_in_exactly_one_minibatch(recurrent: bool) -> None:
    valid = torch.rand(9, 6, generator=torch.Generator().manual_seed(0)) < 0.7
    units = batches.all_units(valid, recurrent=recurrent)
    order = np.random.default_rng(0).permutation(len(units))
    rows: list[int] = []
    sizes = []
    for chunk in batches.minibatches(units, count=3, permutation=order):
        sizes.append(len(chunk))
        for part in batches.parts(chunk, valid, microbatches=2, recurrent=recurrent):
            rows.extend(part.rows.tolist())
            if part.envs is not None and part.inside is not None:
                inside = torch.zeros(9, len(part.envs), dtype=torch.bool).reshape(-1)
                inside[part.inside] = True
                assert torch.equal(inside.reshape(9, -1), valid[:, part.envs])
    assert sorted(rows) == valid.reshape(-1).nonzero().squeeze(-1).tolist()
    assert max(sizes) - min(sizes) <= 1


def test_minibatches_are_reshuffled_between_epochs_and_updates() -> None:
    """Rejects a fixed order: the same rows would always come last."""
    backend = small_backend()
    orders = [
        backend.streams.permutation("minibatch", 48, update=u, epoch=e).tolist() for u in range(2) for e in range(2)
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_particles_of_an_epoch_are_one_per_stratum() -> None:
    """Rejects picking the first m particles, which are the lowest quantiles."""
    backend = small_backend()
    rollout = play(backend, random_world())
    ready = prepared(backend, rollout)
    chosen, _ = ready.draws(backend.streams, backend.model, update=0, epoch=0)
    again, _ = ready.draws(backend.streams, backend.model, update=0, epoch=1)
    assert chosen is not None and again is not None
    assert chosen.shape == (48, 4)  # 8 particles, 4 strata of 2
    assert torch.equal(chosen // 2, torch.arange(4).expand(48, 4))
    assert not torch.equal(chosen, again)


def test_update_is_reproducible() -> None:
    states = []
    for _ in range(2):
        backend = small_backend(model={"core": {"kind": "lstm"}})
        for update in range(2):
            backend.update(play(backend, random_world(), update=update), knobs())
        states.append(snapshot(backend))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])

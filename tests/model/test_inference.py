"""Decisions: a row never depends on its neighbours, and noise comes from outside."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tailwise.model.actor_critic import ROWS, ActorCritic, Decision, decide, decide_padded
from tests.support import bits, small_backend

FIELDS = ("action", "log_prob", "params", "features", "state")


def inputs(model: ActorCritic, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mask = None
    if model.law.discrete:
        mask = torch.rand(rows, model.law.parameters, generator=g) < 0.7
        mask[:, [0, 3]] = True  # a choice stays allowed in each component of MultiDiscrete([3, 2]) too
    return (
        torch.randn(rows, 3, generator=g),
        torch.randn(rows, *model.state_shape, generator=g),
        torch.rand(rows, generator=g) < 0.3,
        mask,
        torch.rand(rows, model.law.noise, generator=g, dtype=torch.float64).clamp(1e-6, 1 - 1e-6),
    )


def row(decision: Decision, index: int) -> list[bytes]:
    return [bits(getattr(decision, name)[index]) for name in FIELDS]


def put(values: Tensor | None, other: Tensor | None, index: int) -> Tensor | None:
    """`other` with its row `index` replaced by the first row of `values`."""
    if values is None or other is None:
        return None
    result = other.clone()
    result[index] = values[0]
    return result


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box"])
def test_decision_is_bit_identical_whatever_stands_beside_it(core: str, action: str) -> None:
    """At any position, alone or with up to 150 neighbours of any content. Rejects statistics over the batch (below)."""
    model = small_backend(model={"core": {"kind": core}, "actor": {"gain": 1.0}}, action=action).model
    one = inputs(model, 1, seed=1)
    alone = row(decide_padded(model, *one), 0)
    for rows, index, seed in ((2, 0, 2), (7, 6, 3), (ROWS, 0, 4), (ROWS, ROWS - 1, 5), (150, 64, 6), (150, 149, 7)):
        crowd = tuple(put(mine, other, index) for mine, other in zip(one, inputs(model, rows, seed), strict=True))
        assert row(decide_padded(model, *crowd), index) == alone, (rows, index)  # type: ignore[arg-type]


def test_statistics_over_the_batch_would_be_noticed() -> None:
    """The wrong version: observations standardised by their own batch."""
    model = small_backend(model={"actor": {"gain": 1.0}}).model
    one, crowd = inputs(model, 1, seed=1), inputs(model, 8, seed=2)
    joined = tuple(put(mine, other, 3) for mine, other in zip(one, crowd, strict=True))

    def wrong(obs: Tensor, *rest: Tensor | None) -> Decision:
        return decide_padded(model, obs - obs.mean(0), *rest)  # type: ignore[arg-type]

    assert row(wrong(*one), 0) != row(wrong(*joined), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_padded_decision_equals_the_plain_one(core: str) -> None:
    model = small_backend(model={"core": {"kind": core}, "actor": {"gain": 1.0}}).model
    given = inputs(model, 130, seed=3)
    plain, padded = decide(model, *given), decide_padded(model, *given)
    assert torch.equal(plain.action, padded.action)
    for name in FIELDS[1:]:
        torch.testing.assert_close(getattr(plain, name), getattr(padded, name), atol=1e-5, rtol=1e-5)


def test_deterministic_is_the_mode_and_stochastic_follows_its_noise() -> None:
    model = small_backend(model={"actor": {"gain": 1.0}}).model
    obs, state, start, mask, uniform = inputs(model, 40, seed=1)
    fixed = decide(model, obs, state, start, mask, None)
    assert torch.equal(fixed.action, model.law.mode(fixed.params))
    assert torch.equal(fixed.action, decide(model, obs, state, start, mask, None).action)
    drawn = decide(model, obs, state, start, mask, uniform)
    assert torch.equal(drawn.action, decide(model, obs, state, start, mask, uniform).action)
    assert not torch.equal(drawn.action, decide(model, obs, state, start, mask, 1 - uniform).action)
    assert not torch.equal(drawn.action, fixed.action)


def test_start_zeroes_the_state() -> None:
    model = small_backend(model={"core": {"kind": "lstm"}}).model
    obs, state, _, mask, uniform = inputs(model, 5, seed=1)
    begun = decide(model, obs, state, torch.ones(5).bool(), mask, uniform)
    fresh = decide(model, obs, torch.zeros_like(state), torch.zeros(5).bool(), mask, uniform)
    kept = decide(model, obs, state, torch.zeros(5).bool(), mask, uniform)
    assert torch.equal(begun.features, fresh.features) and not torch.equal(begun.features, kept.features)

"""AdamW in the compiled step: its betas, its decay and what it decays to equal those of `learner.lasting`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tailwise.fused.backend import FusedBackend
from tailwise.learner.optimisers import scaled_heads
from tailwise.learner.ppo import TorchBackend
from tests.support import knobs, play, random_world, same, small_backend, snapshot

KINDS: list[dict[str, Any]] = [
    {"kind": "adamw", "weight_decay": 0.0},
    {"kind": "adamw", "weight_decay": 2.0},
    {"kind": "adamw", "weight_decay": 2.0, "decay_to": "initial"},
    {"kind": "adamw", "beta1": 0.5, "beta2": 0.8, "weight_decay": 2.0, "decay_to": "initial"},
]


def twins(optimiser: dict[str, Any]) -> tuple[TorchBackend, FusedBackend]:
    plain, other = (small_backend(learner={"optimiser": optimiser}) for _ in range(2))
    return plain, FusedBackend(other.model, other.config, other.streams)


def distance(plain: TorchBackend, fused: FusedBackend) -> tuple[float, str]:
    first, second = snapshot(plain), snapshot(fused)
    assert first.keys() == second.keys()
    return max(
        (float((second[n].double() - first[n].double()).norm() / (first[n].double().norm() + 1e-3)), n) for n in first
    )


@pytest.mark.parametrize("optimiser", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_both_backends_decay_alike(optimiser: dict[str, Any]) -> None:
    """Two updates of four steps. Rejects a decay of other heads, of other strength or to elsewhere: without any, the
    weights differ by more than a hundred times the tolerance (asserted)."""
    plain, fused = twins(optimiser)
    without, _ = twins({**optimiser, "weight_decay": 0.0})
    for update in range(2):
        rollout = play(plain, random_world(seed=update), update=update)
        for backend in (plain, fused, without):
            assert backend.update(rollout, knobs(1e-3)).committed
    found, name = distance(plain, fused)
    assert found <= 2e-5, name
    if optimiser["weight_decay"] > 0:
        a, b = plain.model.encoder.state_dict(), without.model.encoder.state_dict()
        assert max(float((a[n] - b[n]).abs().max()) for n in a) > 2e-5
        states = fused.optimiser.tensors()
        initial = {name for name in states if name.endswith("/initial")}
        anchored = optimiser.get("decay_to") == "initial"
        heads = len(scaled_heads(fused.model))
        assert len(initial) == (len(list(fused.model.parameters())) - heads if anchored else 0)


@pytest.mark.parametrize("optimiser", KINDS[1:3], ids=["zero", "initial"])
def test_the_state_goes_from_one_backend_to_the_other(optimiser: dict[str, Any]) -> None:
    """Also what weights decay to: the fused learner was built with another seed. Rejects an anchor taken anew."""
    plain, _ = twins(optimiser)
    assert plain.update(play(plain, random_world()), knobs()).committed
    other = small_backend(learner={"optimiser": optimiser}, seed=3)
    fused = FusedBackend(other.model, other.config, plain.streams)
    fused.optimiser.check(plain.optimiser.tensors(), fresh=False)
    fused.model.load_state_dict(plain.model.state_dict())
    fused.optimiser.load(plain.optimiser.tensors())
    assert same(snapshot(plain), snapshot(fused))
    rollout = play(plain, random_world(seed=1), update=1)
    for backend in (plain, fused):
        assert backend.update(rollout, knobs(1e-3)).committed
    assert distance(plain, fused)[0] <= 2e-5
    plain.optimiser.check(fused.optimiser.tensors(), fresh=False)


def test_a_decayed_head_would_be_noticed() -> None:
    """Gradients of 0 leave the heads of the return scale where they are and pull everything else to zero."""
    _, fused = twins(KINDS[1])
    heads, before = scaled_heads(fused.model), {p: p.detach().clone() for p in fused.model.parameters()}
    rates = dict(zip(fused.model.parameters(), fused.optimiser.decay.tolist(), strict=True))
    assert {rates[p] for p in heads} == {0.0} and {rates[p] for p in before if p not in heads} == {2.0}
    assert torch.equal(torch.tensor(fused.bound.segments[:, 1]), torch.tensor([p.numel() for p in before]))

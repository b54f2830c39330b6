"""What an update reads from tensors while it runs: on a device each reading waits until everything before is done."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tailwise.learner import batches
from tailwise.model.distributions import log_softmax
from tests.support import knobs, play, prepared, random_world, small_backend

READING = ("aten::item", "aten::_local_scalar_dense")


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("critic", ["quantile", "scalar"])
def test_losses_metrics_and_gradients_read_nothing(core: str, critic: str) -> None:
    """A microbatch forward and back; its metrics become numbers at the end of the update. Rejects a `float()` of every
    metric, which were three dozen."""
    model = {"core": {"kind": core} | ({} if core == "none" else {"hidden": 4}), "critic": {"kind": critic}}
    backend = small_backend(model=model)
    rollout = play(backend, random_world(12, 4))
    epochs, recurrent = backend.epochs(rollout, prepared(backend, rollout), knobs()), core != "none"
    units = batches.all_units(rollout.valid, recurrent=recurrent)
    (part,) = batches.parts(units, rollout.valid, microbatches=1, recurrent=recurrent)
    draws = epochs.draws(0)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        losses = epochs.losses(part, draws)
        torch.autograd.backward(losses.total)
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["aten::addmm"] > 0  # the profiler saw the work
    assert {name: counts.get(name, 0) for name in READING} == dict.fromkeys(READING, 0)
    epochs.tally.mean(losses.means, part.size)
    metrics = epochs.metrics()
    assert all(type(value) is float for value in metrics.values()) and metrics["policy/entropy"] > 0


def test_log_softmax_of_few_actions_is_torchs() -> None:
    """Bit for bit for three actions, forward and back, also with a forbidden one. Rejects a dimension mixed up."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 5, 3, generator=g)
    logits[0, 0, 1] = torch.finfo(torch.float32).min
    own, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    weight = torch.randn(64, 5, 3, generator=g)
    first, second = log_softmax(own), torch.log_softmax(plain, -1)
    assert torch.equal(first, second)
    (first * weight).sum().backward()
    (second * weight).sum().backward()
    assert own.grad is not None and plain.grad is not None
    torch.testing.assert_close(own.grad, plain.grad, atol=1e-6, rtol=1e-6)

"""What an update reads from tensors while it runs: on a device each reading waits until everything before is done."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tailwise.learner.ppo import run_epochs
from tests.support import knobs, play, prepared, random_world, small_backend

READING = ("aten::item", "aten::_local_scalar_dense")


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("critic", ["quantile", "scalar", "categorical"])
def test_a_minibatch_reads_numbers_only_to_decide(core: str, critic: str) -> None:
    """Two per step, the norm of the gradient before and after clipping; metrics wait until the end. Rejects a `float()`
    of every metric, which were three dozen."""
    model = {"core": {"kind": core} | ({} if core == "none" else {"hidden": 4})}
    model["critic"] = {"kind": critic} | ({"particles": 8} if critic == "categorical" else {})
    backend = small_backend(model=model, learner={"epochs": 2, "minibatches": 2, "target_kl": None})
    rollout = play(backend, random_world(12, 4))
    epochs = backend.epochs(rollout, prepared(backend, rollout), knobs())
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        assert run_epochs(backend, epochs, rollout) is None
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["aten::backward" if "aten::backward" in counts else "aten::mm"] > 0  # the profiler saw the work
    steps = 2 * 2
    assert max(counts.get(name, 0) for name in READING) <= 3 * steps
    metrics = epochs.metrics()
    assert all(type(value) is float for value in metrics.values()) and metrics["policy/entropy"] > 0


def test_log_softmax_of_few_actions_is_torchs() -> None:
    """Bit for bit for three actions, forward and back, also with a forbidden one. Rejects a dimension mixed up."""
    from tailwise.model.distributions import log_softmax

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

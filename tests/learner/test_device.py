"""Epochs on a device: the numbers of the CPU, one transfer per rollout, and nothing but single numbers read inside.

`PretendDevice` stands for a GPU where there is none; the last tests need a real one and are skipped without.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tailwise.core.errors import ConfigError
from tailwise.learner.backend import Knobs, UpdateReport
from tailwise.learner.device import DeviceBackend
from tailwise.learner.rollout import Rollout
from tailwise.run.agent import PPO
from tests.pretend_device import PRETEND, PretendDevice
from tests.support import knobs, play, random_world, same, small_backend, small_run, snapshot

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
LSTM = {"core": {"kind": "lstm", "hidden": 4}}


def on(device: torch.device, **options: Any) -> DeviceBackend:
    """`small_backend` with its epochs on a device."""
    plain = small_backend(**options)
    return DeviceBackend(plain.model, plain.config, plain.streams, tail_alpha=plain.tail_alpha, device=device)


def host_tensors(backend: DeviceBackend, rollout: Rollout) -> list[torch.Tensor]:
    """What is on the host when an update begins."""
    records = (rollout, rollout.critic)
    own = [getattr(record, field.name) for record in records for field in dataclasses.fields(record)]
    return [*backend.model.state_dict().values(), *(one for one in own if isinstance(one, torch.Tensor))]


def pretended(**options: Any) -> tuple[DeviceBackend, PretendDevice]:
    pretend = PretendDevice()
    with pretend:
        return on(PRETEND, **options), pretend


def update_there(pretend: PretendDevice, backend: DeviceBackend, rollout: Rollout, which: Knobs) -> UpdateReport:
    """An update on the pretended device; transfers inside epochs are counted under "epoch"."""
    pretend.keep(host_tensors(backend, rollout))
    begin = backend.epochs

    def counted(*arguments: Any) -> Any:
        epochs = begin(*arguments)
        step = epochs.minibatch

        def minibatch(*parts: Any) -> Any:
            with pretend.marked("epoch"):
                return step(*parts)

        epochs.minibatch = minibatch  # type: ignore[method-assign]
        return epochs

    backend.epochs = counted  # type: ignore[method-assign]
    with pretend:
        report = backend.update(rollout, which)
    backend.epochs = begin  # type: ignore[method-assign]
    return report


CASES: dict[str, dict[str, Any]] = {
    "discrete": {},
    "box": {"action": "box"},
    "squashed": {"action": "box", "model": {"actor": {"box": "squashed"}}},
    "multidiscrete": {"action": "multidiscrete"},
    "lstm": {"model": LSTM},
    "scalar": {"model": {"critic": {"kind": "scalar"}}},
    "categorical": {"model": {"critic": {"kind": "categorical"}}},
    "gru": {"model": {"core": {"kind": "gru", "hidden": 4}}},
    "awr": {"learner": {"awr": {"kind": "on"}}},
    "variance": {"learner": {"microbatches": 2, "variance_scaling": {"kind": "on"}}},
    "value clip": {"model": {"critic": {"clip": {"kind": "mean_only"}}}},
    "microbatches": {"learner": {"microbatches": 2}},
    "adamw": {"learner": {"optimiser": {"kind": "adamw"}}},
    "adamw to its start": {"learner": {"optimiser": {"kind": "adamw", "weight_decay": 0.1, "decay_to": "initial"}}},
    "upgd": {"learner": {"optimiser": {"kind": "upgd"}}},
}


@pytest.mark.parametrize("case", CASES)
def test_an_update_on_a_device_is_that_on_the_cpu(case: str) -> None:
    """Three updates, weights, moments and metrics to the last bit; what a GPU would refuse raises. Rejects row numbers,
    random numbers or constants that stay on the host, and moments that do not come back."""
    plain = small_backend(tail_alpha=0.25, **CASES[case])
    device, pretend = pretended(tail_alpha=0.25, **CASES[case])
    for number in range(3):
        rollout = play(plain, random_world(12, 4, seed=number), update=number)
        which = knobs(3e-3, measure_terms=number == 0)
        expected = plain.update(rollout, which)
        report = update_there(pretend, device, rollout, which)
        assert report.metrics == expected.metrics and report.term_gradients == expected.term_gradients
        assert expected.committed and (report.committed, report.kl) == (expected.committed, expected.kl)
        assert same(snapshot(plain), snapshot(device))


@pytest.mark.parametrize("case", ["discrete", "lstm"])
def test_a_rollout_is_sent_once_and_epochs_read_single_numbers(case: str) -> None:
    """Inside epochs: to the device go row numbers alone, as many times in each epoch; back come at most three times at
    most three numbers per minibatch. Rejects observations that are sent with every minibatch, and a tensor that is
    fetched."""
    sent = []
    for epochs in (2, 4):
        options = {**CASES[case], "learner": {"epochs": epochs, "minibatches": 2, "target_kl": None}}
        device, pretend = pretended(**options)
        rollout = play(small_backend(**options), random_world(12, 4))
        for _ in range(2):  # the first one also sends constants that are kept for good
            pretend.sent, pretend.read = [], []
            assert update_there(pretend, device, rollout, knobs()).committed
        inside = {name: [n for phase, n in getattr(pretend, name) if phase == "epoch"] for name in ("sent", "read")}
        assert inside["read"] and max(inside["read"]) <= 3 and len(inside["read"]) <= 3 * 2 * epochs
        assert inside["sent"] and max(inside["sent"]) <= rollout.reward.numel()
        sent.append(len(inside["sent"]))
        assert sum(n == rollout.obs.numel() for _, n in pretend.sent) == 1
    assert sent[1] == 2 * sent[0]


def test_a_refused_update_leaves_everything() -> None:
    device, pretend = pretended(learner={"max_kl": 1e-9, "target_kl": None})
    rollout, before = play(small_backend(), random_world(12, 4)), snapshot(device)
    report = update_there(pretend, device, rollout, knobs(3e-3))
    assert not report.committed and report.went_too_far and same(before, snapshot(device))


def test_the_choice_of_a_device_is_said() -> None:
    """Without a GPU: cuda is refused with the way out, auto says why it is not used, and fused is for the CPU."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"run.device is cuda and cannot be used: torch .* finds no GPU; set"):
        PPO(config=small_run(env={"id": "CartPole-v1"}, backend="torch", run={"device": "cuda"}))
    with pytest.raises(ConfigError, match=r"backend fused is compiled for the CPU and run.device is cuda"):
        PPO(config=small_run(env={"id": "CartPole-v1"}, backend="fused", run={"device": "cuda"}))
    for backend, words in (("torch", "on the CPU, because torch"), ("fused", "on the CPU, which it is compiled for")):
        agent = PPO(config=small_run(env={"id": "CartPole-v1"}, backend=backend, run={"device": "auto"}))
        assert words in agent.trainer.backend_choice
        agent.trainer.driver.close()
    with pytest.raises(ConfigError, match=r"run.shards 2 exchange gradients between CPUs and run.device is auto"):
        small_run(run={"shards": 2, "environments": 4, "device": "auto"}, learner={"minibatches": 2})


@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_an_update_on_a_gpu_is_near_that_on_the_cpu(case: str) -> None:
    plain, device = small_backend(tail_alpha=0.25, **CASES[case]), on(torch.device("cuda"), **CASES[case])
    rollout = play(plain, random_world(12, 4))
    assert plain.update(rollout, knobs()).committed and device.update(rollout, knobs()).committed
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(device.model.state_dict()[name], weight, atol=1e-4, rtol=1e-4)


@needs_gpu
def test_a_run_on_a_gpu_resumes_on_the_cpu(tmp_path: Path) -> None:
    agent = PPO(config=small_run(env={"id": "CartPole-v1"}, backend="torch", run={"device": "cuda"}), run_dir=tmp_path)
    agent.learn()
    tensors, _ = agent.trainer.training_state()
    assert "epochs on cuda" in agent.trainer.backend_choice
    assert all(tensor.device.type == "cpu" for tensor in tensors.values())

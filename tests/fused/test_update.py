"""Whole updates with both backends from the same rollout: parameters, moments, scales and every metric."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tailwise.fused.backend import FusedBackend
from tailwise.learner.optimisers import first_non_finite
from tailwise.learner.ppo import TorchBackend
from tailwise.learner.risk import RiskSettings
from tailwise.learner.risk_config import CvarMeasure
from tests.fused.twins import another_policy, random_case, rollout_for, twins
from tests.support import knobs, play, random_world, same, small_backend, snapshot

# Log-ratios of the first pass are rounding errors of exp and log: both are 0 to float32.
ROUNDING = {"policy/first_log_ratio": 5e-6, "policy/log_ratio_max": 5e-6, "policy/kl": 1e-7, "policy/kl_after": 1e-7}
ROUNDING["critic/mean_gap"] = 5e-6  # a difference of means of the critics: what cancels in it stays as an error


def fused_twin(**options: Any) -> tuple[TorchBackend, FusedBackend]:
    plain, other = small_backend(tail_alpha=0.25, **options), small_backend(**options)
    return plain, FusedBackend(other.model, other.config, other.streams, tail_alpha=0.25)


def undecided(squares: torch.Tensor) -> torch.Tensor:
    """Where gradients cancel to less than a millionth of those beside them: Adam divides what is left of them, which is
    rounding, by its own size and takes a whole step."""
    return squares <= 1e-12 * squares.max()


def largest_difference(plain: TorchBackend, fused: FusedBackend) -> tuple[float, str]:
    """Of everything an update changes: the largest distance relative to the tensor's norm, and whose it is; parameters
    that rounding decides are left out."""
    first, second = snapshot(plain), snapshot(fused)
    assert first.keys() == second.keys()

    def distance(name: str) -> float:
        difference, squares = second[name].double() - first[name].double(), first.get(f"optimiser/{name}/exp_avg_sq")
        if squares is not None:
            difference[undecided(squares)] = 0.0
        return float(difference.norm() / (first[name].double().norm() + 1e-3))

    return max((distance(name), name) for name in first)


def settle(plain: TorchBackend, fused: FusedBackend) -> None:
    """Give the parameters that rounding decides the same values in both, so that the next update begins alike."""
    squares, others = snapshot(plain), dict(plain.model.named_parameters())
    with torch.no_grad():
        for name, parameter in fused.model.named_parameters():
            here = undecided(squares[f"optimiser/{name}/exp_avg_sq"])
            parameter[here] = others[name][here]


def check_metrics(plain: dict[str, float], fused: dict[str, float]) -> None:
    assert plain.keys() == fused.keys()
    for name, value in plain.items():
        assert fused[name] == pytest.approx(value, rel=2e-5, abs=ROUNDING.get(name, 2e-6)), name


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_parameters_after_an_update_are_equal(first: int) -> None:
    """Several epochs of clipped Adam steps. Rejects one epsilon for both groups, a step counted twice, and the like."""
    for seed in range(first, first + 10):
        case = random_case(seed)
        plain, fused = twins(case)
        for update in range(2):
            rollout = rollout_for(case, plain, update)
            if update:
                rollout = another_policy(rollout, seed)
            reports = [backend.update(rollout, knobs(1e-4)) for backend in (plain, fused)]
            assert reports[0].committed and reports[1].committed, (case, reports)
            difference, name = largest_difference(plain, fused)
            assert difference <= 1e-5, (case, name)
            settle(plain, fused)
            check_metrics(reports[0].metrics, reports[1].metrics)
            assert reports[1].kl == pytest.approx(reports[0].kl, rel=1e-4, abs=1e-7)


def test_what_is_left_in_memory_reaches_nothing() -> None:
    """Heads that share their features end in columns of zeros. Rejects a gradient that is not cleared there: NaN from
    elsewhere times a weight of 0 is NaN."""
    case = next(c for c in map(random_case, range(200)) if not c.model["actor"]["hidden"] + c.model["critic"]["hidden"])
    plain, fused = twins(case)
    assert fused.bound.network.output_width % 8 == 0
    for scratch in fused.workers.scratches:
        scratch.back.fill(float("nan"))
    rollout = rollout_for(case, plain, 0)
    reports = [backend.update(rollout, knobs(1e-4)) for backend in (plain, fused)]
    assert reports[0].committed and reports[1].committed
    assert largest_difference(plain, fused)[0] <= 1e-5


def test_terms_are_measured_and_equal() -> None:
    plain, fused = fused_twin()
    rollout = play(plain, random_world(12, 4))
    reports = [backend.update(rollout, knobs(measure_terms=True)) for backend in (plain, fused)]
    assert reports[1].term_gradients == reports[0].term_gradients and reports[1].term_gradients["policy"]["actor"] > 0


def test_the_update_stops_at_the_same_minibatch() -> None:
    """Rejects a stop at target_kl itself, or after the step."""
    plain, fused = fused_twin(learner={"epochs": 6, "target_kl": 1e-3})
    rollout = play(plain, random_world(16, 8))
    reports = [backend.update(rollout, knobs(0.01)) for backend in (plain, fused)]
    assert reports[0].stopped_early and reports[1].stopped_early
    check_metrics(reports[0].metrics, reports[1].metrics)
    assert largest_difference(plain, fused)[0] <= 1e-5


@pytest.mark.parametrize("after", [0, 2])
def test_a_rolled_back_update_leaves_everything_as_it_was(after: int) -> None:
    """Before and after the first step of Adam. Rejects a snapshot that shares memory with what it saves."""
    _, fused = fused_twin(learner={"max_kl": 1e-7, "target_kl": None})
    fused.config = fused.config.model_copy(update={"max_kl": 100.0})
    for update in range(after):
        assert fused.update(play(fused, random_world(12, 4, seed=update), update=update), knobs()).committed
    fused.config = fused.config.model_copy(update={"max_kl": 1e-7})
    before, rollout = snapshot(fused), play(fused, random_world(12, 4, seed=9), update=after)
    report = fused.update(rollout, knobs(0.01))
    assert not report.committed and report.went_too_far
    assert same(before, snapshot(fused))


def test_torch_sees_the_parameters_that_kernels_change() -> None:
    """Rejects copies: after an update torch's inference and the state_dict show the new weights."""
    _, fused = fused_twin()
    flat = fused.bound.flat
    weights = {name: p.detach().clone() for name, p in fused.model.named_parameters()}
    assert fused.update(play(fused, random_world(12, 4)), knobs()).committed
    for name, parameter in fused.model.named_parameters():
        first = fused.bound.by_name[name][0]
        assert parameter.data_ptr() == flat.data_ptr() + 4 * first
        assert not torch.equal(parameter, weights[name])


def test_optimiser_state_goes_from_one_backend_to_the_other() -> None:
    """A checkpoint of either continues in the other."""
    plain, fused = fused_twin()
    assert fused.optimiser.tensors() == {}
    for update in range(2):
        assert plain.update(play(plain, random_world(12, 4, seed=update), update=update), knobs()).committed
    fused.model.load_state_dict(plain.model.state_dict())
    fused.optimiser.load(plain.optimiser.tensors())
    assert same(snapshot(plain), snapshot(fused))
    rollout = play(plain, random_world(12, 4, seed=5), update=2)
    assert plain.update(rollout, knobs()).committed and fused.update(rollout, knobs()).committed
    assert largest_difference(plain, fused)[0] <= 1e-5
    back = small_backend(tail_alpha=0.25)
    back.model.load_state_dict(fused.model.state_dict())
    back.optimiser.load(fused.optimiser.tensors())
    assert same(snapshot(back), snapshot(fused))


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_two_workers_give_the_same_every_time(core: str) -> None:
    """Bit for bit, and one worker's result to rounding. Rejects gradients that are added as workers finish."""
    results = []
    for threads in (2, 2, 1):
        made = small_backend(model={"core": {"kind": core}})
        fused = FusedBackend(made.model, made.config, made.streams, threads=threads)
        for update in range(2):
            rollout = play(fused, random_world(40, 6, seed=update), update=update)
            assert fused.update(rollout, knobs()).committed
        results.append(snapshot(fused))
    assert same(results[0], results[1])
    for name, tensor in results[0].items():
        assert torch.allclose(results[2][name].double(), tensor.double(), rtol=1e-4, atol=1e-6), name


def test_risk_acts_the_same_in_both() -> None:
    """Mixed advantages, the threshold of earlier updates and the probe. Rejects a fused path that drops the risk."""
    settings = RiskSettings(CvarMeasure(), 0.25)
    plain, other = small_backend(tail_alpha=0.25), small_backend()
    plain.risk = settings
    fused = FusedBackend(other.model, other.config, other.streams, tail_alpha=0.25, risk=settings)
    for update in range(2):
        rollout = play(plain, random_world(12, 4, seed=update), update=update)
        at = dataclasses.replace(knobs(1e-4, measure_terms=True, multiplier=2.0), threshold=-0.5)
        first, second = (backend.update(rollout, at) for backend in (plain, fused))
        assert first.committed and second.committed
        check_metrics(first.metrics, second.metrics)
        assert largest_difference(plain, fused)[0] <= 1e-5
        assert second.term_gradients["risk"]["actor"] == pytest.approx(first.term_gradients["risk"]["actor"], rel=1e-3)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_parameter_or_buffer_that_is_not_finite_is_found_by_name(broken: float) -> None:
    """Every one, by the name that the plain look gives; sizes whose squares overflow are no reason to refuse. Rejects
    a look at parameters alone, and one that takes its own doubt for a finding."""
    _, fused = twins(random_case(3))
    assert fused.first_non_finite() is None
    for name, tensor in fused.model.state_dict().items():
        if tensor.is_floating_point():
            before = tensor.clone()
            tensor.reshape(-1)[-1] = broken
            assert fused.first_non_finite() == first_non_finite(fused.model) == name
            tensor.reshape(-1)[-1] = 1e30
            assert fused.first_non_finite() is None
            tensor.copy_(before)

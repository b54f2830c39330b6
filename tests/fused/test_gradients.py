"""All gradients of the fused backend against autograd in float64: random shapes, episode ends, masks and clips.

A single number for every tensor does not exist: where contributions of rows cancel, a gradient is small beside the
rounding errors of what it is summed from, in any float32 implementation. So there are two measures: 1e-5 of a tensor's
norm, with what rounding leaves of the whole gradient's norm on top; and, strictly tensor by tensor, how far torch's own
float32 is from float64. The kernels may not be further than that.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.fused.twins import (
    another_policy,
    fused_gradient,
    random_case,
    relative,
    rollout_for,
    torch_gradients,
    twins,
)
from tests.support import knobs

CASES = 200
PER_TEST = 20
WEIGHTS = ({"entropy_weight": 0.0}, {"entropy_weight": 0.01, "bounds_weight": 0.7})  # of the first and second rollout


@pytest.mark.parametrize("first", range(0, CASES, PER_TEST))
def test_all_gradients_equal_autograd(first: int) -> None:
    """Rejects a wrong derivative anywhere: 1e-5 of each tensor's norm, or what float32 leaves of the whole gradient's
    (1e-7 of it) where a tensor's own is smaller by cancellation; and kernels that round worse than torch does.
    """
    errors: list[tuple[float, float]] = []
    for seed in range(first, first + PER_TEST):
        case = random_case(seed)
        plain, fused = twins(case)
        # The second rollout comes from another policy: ratios beyond both clips, a KL above 0.
        for update, weights in enumerate(WEIGHTS):
            rollout = rollout_for(case, plain, update)
            if update:
                rollout = another_policy(rollout, seed)
            exact, single = torch_gradients(plain, rollout, weights, (torch.float64, torch.float32))
            found = fused_gradient(fused, rollout, weights)
            whole = sum(float(g.norm()) ** 2 for g in exact.values()) ** 0.5
            for name, gradient in exact.items():
                slack = 1e-2 * whole / (float(gradient.norm()) + 1e-9)
                error = relative(found[name], gradient)
                assert error <= 1e-5 * (1.0 + slack), (case, update, name)
                errors.append((error, relative(single[name], gradient)))
    ours, torchs = np.array(errors).T
    assert np.median(ours) <= 1.5 * np.median(torchs) <= 1e-6
    assert np.quantile(ours, 0.99) <= 2.0 * np.quantile(torchs, 0.99)


@pytest.mark.parametrize("box", ["gaussian", "squashed"])
def test_means_beyond_their_bounds_are_pulled_back_alike(box: str) -> None:
    """Also the loss in the metrics. Rejects a pull that the kernels forget, that has the wrong sign, or that acts on a
    squashed policy, whose means have no bounds."""
    case = random_case(1)
    case = dataclasses.replace(
        case, action="box", masked=False, model={**case.model, "actor": {"hidden": [8], "box": box}}
    )
    plain, fused = twins(case)
    with torch.no_grad():
        for backend in (plain, fused):
            backend.model.actor.head.bias.copy_(torch.tensor([1.6, -1.3]))
    rollout = rollout_for(case, plain, 0)
    weights = {"entropy_weight": 0.01, "bounds_weight": 0.7}
    (exact,), (without,) = (torch_gradients(plain, rollout, w) for w in (weights, {"entropy_weight": 0.01}))
    found = fused_gradient(fused, rollout, weights)
    for name, gradient in exact.items():
        assert relative(found[name], gradient) <= 1e-4, name
    pull = exact["actor.head.bias"] - without["actor.head.bias"]
    if box == "squashed":
        assert float(pull.abs().max()) == 0.0
        return
    assert float(pull[0]) > 0.5 and float(pull[1]) < -0.2  # 2 x .7 x (1.6 - 1) and 2 x .7 x (1 - 1.3), about
    reports = [backend.update(rollout, knobs(**weights)).metrics["loss/bounds"] for backend in (plain, fused)]
    assert reports[0] == pytest.approx(reports[1], rel=1e-4) and reports[0] > 0.2


@pytest.mark.parametrize("actions", ["discrete", "discrete, masked", "gaussian", "squashed"])
def test_the_pull_to_a_prior_is_that_of_autograd(actions: str) -> None:
    """Gradient, loss and metric. Rejects a pull that the kernels forget, that has the wrong sign, that ignores the mask
    in the metric, or that leaves out the width."""
    case, discrete = random_case(1), actions.startswith("discrete")
    actor = {"hidden": [8]} if discrete else {"hidden": [8], "box": actions}
    case = dataclasses.replace(
        case, action="discrete" if discrete else "box", masked="masked" in actions, model={**case.model, "actor": actor}
    )
    plain, fused = twins(case)
    size = plain.model.law.parameters
    prior = torch.linspace(0.0, 2.0, size) if discrete else torch.tensor([0.3, -0.5, -1.0, -1.5])[:size]
    for backend in (plain, fused):
        backend.model.prior = prior
    rollout = rollout_for(case, plain, 0)
    weights = {"entropy_weight": 0.01, "prior_weight": 0.3}
    (exact,), (without,) = (torch_gradients(plain, rollout, w) for w in (weights, {"entropy_weight": 0.01}))
    found = fused_gradient(fused, rollout, weights)
    for name, gradient in exact.items():
        assert relative(found[name], gradient) <= 1e-4, name
    assert relative(without["actor.head.bias"], exact["actor.head.bias"]) > 1e-2
    if not discrete:
        assert relative(without["actor.log_std"], exact["actor.log_std"]) > 1e-2
    reports = [backend.update(rollout, knobs(**weights)).metrics for backend in (plain, fused)]
    for name in ("loss/prior", "policy/prior_kl"):
        assert reports[0][name] == pytest.approx(reports[1][name], rel=1e-4), name
    assert reports[0]["loss/prior"] == pytest.approx(0.3 * reports[0]["policy/prior_kl"], rel=1e-6)
    assert reports[0]["policy/prior_kl"] > 0.01

"""All gradients of the fused backend against autograd in float64: random shapes, episode ends, masks and clips."""

from __future__ import annotations

import pytest

from tests.kernels.twins import (
    another_policy,
    exact_gradient,
    fused_gradient,
    random_case,
    relative,
    rollout_for,
    twins,
)

CASES = 200
PER_TEST = 20


@pytest.mark.parametrize("first", range(0, CASES, PER_TEST))
def test_all_gradients_equal_autograd(first: int) -> None:
    """Rejects a wrong derivative anywhere: 1e-5 of each tensor's norm, or what
    float32 leaves of the whole gradient's (1e-7 of it) where a tensor's own is smaller by cancellation.
    """
    for seed in range(first, first + PER_TEST):
        case = random_case(seed)
        plain, fused = twins(case)
        # The second rollout comes from another policy: ratios beyond both clips, a KL above 0.
        for update, entropy_weight in ((0, 0.0), (1, 0.01)):
            rollout = rollout_for(case, plain, update)
            if update:
                rollout = another_policy(rollout, seed)
            exact = exact_gradient(plain, rollout, entropy_weight)
            found = fused_gradient(fused, rollout, entropy_weight)
            whole = sum(float(g.norm()) ** 2 for g in exact.values()) ** 0.5
            for name, gradient in exact.items():
                slack = 1e-2 * whole / (float(gradient.norm()) + 1e-9)
                assert relative(found[name], gradient) <= 1e-5 * (1.0 + slack), (case, update, name)

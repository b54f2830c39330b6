"""Risk as an advantage: influence functions of the measures, and what they do to the actor."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tailwise.core.config import parse
from tailwise.core.errors import ConfigError, DataError, ShapeError
from tailwise.learner.batches import Targets
from tailwise.learner.ppo import targets_of
from tailwise.learner.risk import (
    Assessment,
    RiskSettings,
    assess_risk,
    cvar_from_atoms,
    pooled_tail,
    utility_at,
    wang_from_quantiles,
)
from tailwise.learner.risk_config import CvarMeasure, MeanMeasure, Measure, WangMeasure
from tests.support import bits, knobs, play, random_world, small_backend, snapshot

ALPHA = 0.25
MEASURES: dict[str, Measure] = {"cvar": CvarMeasure(), "wang": WangMeasure(eta=0.75), "mean": MeanMeasure()}
CRITICS: dict[str, dict[str, Any]] = {
    "quantile": {"kind": "quantile", "hidden": [8], "quantiles": 8, "minibatch_particles": 4},
    "categorical": {"kind": "categorical", "hidden": [8], "atoms": 11, "particles": 8, "minibatch_particles": 4},
}


# ------------------------------------------------------------------ the pooled tail


def test_pooled_tail_by_hand() -> None:
    """Values 1..8, worst quarter: 1 and 2. At alpha .3 it is (1 + 2 + 0.4 x 3) / 2.4: the crossing value is split."""
    values = torch.tensor([4.0, 8, 1, 6, 2, 7, 3, 5])
    assert pooled_tail(values, 0.25) == (2.0, 1.5)
    zeta, cvar = pooled_tail(values, 0.3)
    assert zeta == 3.0
    assert cvar == pytest.approx((1 + 2 + 0.4 * 3) / 2.4, rel=1e-12)
    with pytest.raises(DataError, match="no values"):
        pooled_tail(torch.zeros(0), 0.05)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=80), st.floats(0.01, 1.0))
def test_pooled_tail_equals_the_sorted_forms(values: list[float], alpha: float) -> None:
    sample = torch.tensor(values, dtype=torch.float64)
    zeta, cvar = pooled_tail(sample, alpha)
    assert zeta == sorted(values)[max(1, math.ceil(alpha * len(values) - 1e-12 * len(values))) - 1]
    assert cvar == pytest.approx(float(cvar_from_atoms(sample.double(), None, alpha)), rel=1e-9, abs=1e-9)


# ------------------------------------------------------------------ influence functions


def measured(measure: Measure, sample: Tensor) -> float:
    """The measure of equally weighted values, by its definition."""
    if isinstance(measure, CvarMeasure):
        return float(cvar_from_atoms(sample.double(), None, ALPHA))
    if isinstance(measure, WangMeasure):
        return float(wang_from_quantiles(sample.double(), measure.eta))
    return float(sample.double().mean())


@pytest.mark.parametrize("name", list(MEASURES))
def test_the_utility_is_the_influence_function(name: str) -> None:
    """Adding a few values at y moves the measure by (share) x (u(y) - E[u]). Rejects a u that forgets 1/alpha."""
    sample = torch.randn(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    measure = MEASURES[name]
    utility = utility_at(measure, sample, ALPHA)
    assert utility.value == pytest.approx(measured(measure, sample), abs=1e-9)
    assert float(utility.of(sample).mean()) == pytest.approx(utility.value, abs=1e-9)
    for y in (-2.5, -1.0, 0.0, 1.5):
        added = 80
        share = added / (len(sample) + added)
        moved = measured(measure, torch.cat([sample, torch.full((added,), y, dtype=torch.float64)]))
        influence = (moved - measured(measure, sample)) / share
        predicted = float(utility.of(torch.tensor([y], dtype=torch.float64))) - utility.value
        assert influence == pytest.approx(predicted, rel=0.02, abs=0.02), y
        if name == "cvar" and y < -1.0:
            assert influence != pytest.approx(predicted * ALPHA, abs=0.1)


def test_wang_of_a_normal_law_and_of_one_value() -> None:
    sample = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    assert utility_at(WangMeasure(eta=0.5), sample, ALPHA).value == pytest.approx(-0.5, abs=2e-3)
    one = utility_at(WangMeasure(), torch.tensor([3.0]), ALPHA)
    assert one.value == pytest.approx(3.0)
    assert float(one.of(torch.tensor([3.0]))) == pytest.approx(3.0)


@pytest.mark.parametrize("threshold", [None, 0.7])
@pytest.mark.parametrize("name", list(MEASURES))
def test_the_mean_slope_is_what_a_small_shift_of_all_returns_is_worth(name: str, threshold: float | None) -> None:
    """Rejects the share of returns above the threshold."""
    pooled = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    utility = utility_at(MEASURES[name], pooled, ALPHA, threshold=threshold)
    shift = 1e-7
    gained = float((utility.of(pooled + shift) - utility.of(pooled)).mean()) / shift
    # The own threshold is one of 50 values in the tail, and moves with the shift.
    assert utility.mean_slope == pytest.approx(gained, rel=1e-5 if threshold is not None else 0.021)


def test_the_mean_slope_is_one_where_returns_are_equal() -> None:
    """Most accounts are flat. Rejects ties at the VaR that count as above it: a shift of all would be worth nothing."""
    pooled = torch.tensor([0.0] * 99 + [1.0])
    assert utility_at(CvarMeasure(), pooled, 0.05).mean_slope == 1.0


def test_the_share_of_risk_follows_the_multiplier() -> None:
    """3 x 2 beside 6: a half. Rejects the share of the risk advantage before it is weighted."""
    flat = torch.zeros(1, 1)
    assessed = Assessment(0.0, None, None, 1.0, flat, advantage_std=2.0, mean_advantage_std=6.0)
    assert assessed.metrics(3.0)["risk/advantage_share"] == 0.5
    assert assessed.metrics(0.0)["risk/advantage_share"] == 0.0


def test_a_threshold_from_elsewhere_is_used() -> None:
    """Pool 0..3, alpha 1/2, threshold 3: u is -3, -1, 1, 3, mean 0. Rejects the sample's own threshold."""
    pooled = torch.tensor([0.0, 1, 2, 3])
    utility = utility_at(CvarMeasure(), pooled, 0.5, threshold=3.0)
    assert utility.value == 0.0 and utility.of(pooled).tolist() == [-3.0, -1.0, 1.0, 3.0]
    assert utility.threshold == 1.0  # what is reported is this sample's VaR


def test_measure_from_the_long_lambda_and_advantage_from_the_near_one() -> None:
    """Rejects either one read from the other's particles.

    Pool 0..3, alpha 1/2: zeta 1, u(y) = 1 - 2 max(1 - y, 0). Each episode is one step, so that lag 0 has the weight 1.
    """
    flat, ends = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    targets = Targets(
        advantage=flat,
        lambda_return=flat,
        value=flat,
        particles=torch.tensor([[[0.0, 1.0], [2.0, 3.0]]]),
        predicted=torch.full((1, 2, 2), 5.0),
        near=torch.tensor([[[0.0, 0.0], [9.0, 9.0]]]),
    )
    backend = small_backend()
    rollout = dataclasses.replace(play(backend, random_world(1, 2)), terminated=ends, truncated=~ends, start=ends)
    settings = RiskSettings(CvarMeasure(), 0.5)
    assessed = assess_risk(targets, rollout, settings, gamma=0.99)
    assert (assessed.measured, assessed.threshold) == (0.5, 1.0)
    assert assessed.advantage.tolist() == [[-2.0, 0.0]]
    fewer = dataclasses.replace(targets, predicted=torch.full((1, 2, 1), 5.0))
    with pytest.raises(ShapeError, match="predicted particles"):
        assess_risk(fewer, rollout, settings, gamma=0.99)


def test_rows_that_only_reset_are_not_in_the_measure() -> None:
    """Rejects a pool over all rows: the particles of an invalid row are far below all others."""
    flat = torch.zeros(1, 2)
    particles = torch.tensor([[[0.0, 1.0], [-100.0, -100.0]]])
    targets = Targets(flat, flat, flat, particles, predicted=particles, near=particles)
    rollout = play(small_backend(), random_world(1, 2))
    rollout.valid[0, 1] = False
    assessed = assess_risk(targets, rollout, RiskSettings(CvarMeasure(), 0.5), gamma=0.9)
    assert assessed.measured == 0.0 and assessed.spread == 0.5


def test_expected_score_is_the_gradient_of_cvar() -> None:
    """A bandit with two arms, P(risky) = p: E[A_risk d ln pi/dp] equals dCVaR/dp of the pooled law.

    Rejects the upper tail, a threshold taken from the risky arm alone, and the gradient of the mean.
    """
    generator = torch.Generator().manual_seed(1)
    count, p = 400_000, 0.4
    safe = 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
    risky = 0.2 + torch.randn(count, generator=generator, dtype=torch.float64)

    def pool(share: float) -> Tensor:
        taken = round(share * count)
        return torch.cat([risky[:taken], safe[: count - taken]])

    step = 0.02
    slope = (pooled_tail(pool(p + step), ALPHA)[1] - pooled_tail(pool(p - step), ALPHA)[1]) / (2 * step)
    utility = utility_at(CvarMeasure(), pool(p), ALPHA)
    # d ln pi / dp is 1/p for the risky arm and -1/(1-p) for the safe one; weighted by the shares of the arms.
    score = float(utility.of(risky).mean() - utility.of(safe).mean())
    assert score == pytest.approx(slope, rel=0.02)
    upper = utility_at(CvarMeasure(), -pool(p), ALPHA)
    assert float(upper.of(-safe).mean() - upper.of(-risky).mean()) > 0 > slope
    alone = utility_at(CvarMeasure(), risky, ALPHA)
    assert float(alone.of(risky).mean() - alone.of(safe).mean()) != pytest.approx(slope, rel=0.1)
    assert float(risky.mean() - safe.mean()) > 0 > slope


# ------------------------------------------------------------------ in an update


def acting(name: str = "cvar", **options: Any) -> Any:
    backend = small_backend(**options)
    backend.risk = RiskSettings(MEASURES[name], ALPHA)
    return backend


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("critic", list(CRITICS))
@pytest.mark.parametrize("twin", [True, False], ids=["twin", "single"])
@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box"])
def test_risk_reaches_the_actor_and_never_a_critic(core: str, critic: str, twin: bool, action: str) -> None:
    """H2, 000-F1, 001-3: the row `risk` of the ownership matrix, for every combination."""
    backend = acting(model={"core": {"kind": core}, "critic": {**CRITICS[critic], "twin": twin}}, action=action)
    report = backend.update(play(backend, random_world()), knobs(measure_terms=True, multiplier=1.0))
    assert report.committed
    row = report.term_gradients["risk"]
    assert row["actor"] > 0.0 and row["encoder"] > 0.0
    assert {group: norm for group, norm in row.items() if group.startswith("critic_")} == {
        f"critic_{i}": 0.0 for i in range(2 if twin else 1)
    }
    assert report.metrics["risk/advantage_share"] > 0.0


@pytest.mark.parametrize("name", list(MEASURES))
def test_the_multiplier_moves_the_actor_and_leaves_critics_alone(name: str) -> None:
    """One step with and without risk from the same rollout: actor differs, critics are bit-identical.

    With gradient clipping off and without shared layers below, what the critics learn cannot depend on advantages.
    """
    after = []
    for multiplier in (0.0, 5.0):
        backend = acting(name, learner={"epochs": 1, "minibatches": 1, "max_grad_norm": None, "target_kl": None})
        rollout = play(backend, random_world(steps=16, envs=8))
        assert backend.update(rollout, knobs(1e-3, multiplier=multiplier)).committed
        after.append(snapshot(backend))
    moved = {name for name in after[0] if bits(after[0][name]) != bits(after[1][name])}
    assert any(name.startswith("actor.") for name in moved)
    assert not any(name.startswith("critics.") for name in moved), moved
    assert any(name.startswith("critics.") for name in after[0])


def test_masked_rows_and_invalid_rows_carry_no_risk() -> None:
    """Masks and reset rows: finite, committed, and rewards of invalid rows change nothing."""
    states = []
    for junk in (0.0, 1e6):
        backend = acting()
        rollout = play(backend, random_world(steps=16, envs=8, choices=4, next_step=True))
        rollout.reward[~rollout.valid] = junk
        assert backend.update(rollout, knobs(multiplier=2.0)).committed
        states.append(snapshot(backend))
    assert all(bits(states[0][name]) == bits(states[1][name]) for name in states[0])


def test_multiplier_zero_is_the_update_without_risk() -> None:
    plain, zero = small_backend(), acting()
    for backend in (plain, zero):
        assert backend.update(play(backend, random_world()), knobs()).committed
    a, b = snapshot(plain), snapshot(zero)
    assert all(bits(a[name]) == bits(b[name]) for name in a)


def test_the_update_takes_the_threshold_of_its_knobs() -> None:
    """Above every return u is linear: zeta - (zeta - mean) / alpha. Rejects an update that takes its own VaR."""
    backend = acting()
    rollout = play(backend, random_world(steps=16, envs=8))
    mean = float(targets_of(backend, rollout).particles[rollout.valid].double().mean())
    report = backend.update(rollout, dataclasses.replace(knobs(multiplier=1.0), threshold=1e3))
    assert report.metrics["risk/measure"] == pytest.approx(1e3 - (1e3 - mean) / ALPHA, rel=1e-5)


def test_scalar_critics_cannot_carry_risk() -> None:
    backend = acting(model={"critic": {"kind": "scalar", "hidden": [8]}})
    with pytest.raises(ConfigError, match="particles of the return's law"):
        backend.update(play(backend, random_world()), knobs(multiplier=1.0))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in backend.model.parameters())


def test_measures_are_parsed() -> None:
    assert parse(WangMeasure, {"kind": "wang", "eta": 0.5}, source="test").eta == 0.5
    with pytest.raises(ConfigError, match="eta"):
        parse(WangMeasure, {"kind": "wang", "eta": -1.0}, source="test")

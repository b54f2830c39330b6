"""The constraint over a run: warm-up, the reference, feasibility, and a state that survives a checkpoint."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tailwise.core.config import parse
from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.learner.constraint import Constraint
from tailwise.learner.risk_config import RiskConstraint, RiskPenalty


def constraint(**changes: Any) -> Constraint:
    data = {"mode": "constraint", "limit": -2.0, "warmup": {"updates": 2, "longest": 6}} | changes
    return Constraint(parse(RiskConstraint, data, source="test"))


def feed(watched: Constraint, values: list[float], *, first: int = 1, calibrated: bool = True) -> list[float]:
    for update, value in enumerate(values, start=first):
        watched.see(update, measured=value, spread=1.0, calibrated=calibrated)
    return [watched.multiplier]


def test_nothing_acts_during_warm_up_and_calibration_ends_it() -> None:
    watched = constraint()
    feed(watched, [-9.0])
    assert (watched.active_since, watched.multiplier) == (None, 0.0)
    feed(watched, [-9.0], first=2)
    assert watched.active_since == 2
    assert watched.trusted
    assert watched.multiplier > 0.0


def test_warm_up_waits_for_calibration_but_not_for_ever() -> None:
    watched = constraint()
    feed(watched, [-9.0] * 5, calibrated=False)
    assert watched.active_since is None
    feed(watched, [-9.0], first=6, calibrated=False)
    assert watched.active_since == 6
    assert not watched.trusted
    assert watched.metrics()["risk/began_calibrated"] == 0.0


@pytest.mark.parametrize(("came", "trusted"), [(-9.0, True), (-7.0, False)])
def test_it_is_trusted_where_what_was_measured_agrees_with_what_came(came: float, trusted: bool) -> None:
    """The critics' tail is off, the mean of the measured ones over the warm-up decides; the first alone, -5, or the
    newest, -13, would not. Rejects a warning about a tail that steers nothing."""
    watched = constraint()
    for update, cvar in enumerate([-5.0, -9.0, -9.0, -9.0, -9.0, -13.0], start=1):
        watched.see(
            update, measured=cvar, spread=1.0, calibrated=False, cvar=cvar, agrees=lambda found: abs(found - came) < 1.0
        )
    assert watched.active_since == 6
    assert watched.warmup_cvar == pytest.approx(-9.0)
    assert watched.trusted == trusted


def test_the_reference_is_fixed_when_it_begins() -> None:
    """In units of |limit|; near a limit of 0, of the return's spread. Later returns do not change it."""
    watched = constraint()
    feed(watched, [-9.0, -9.0])
    assert watched.reference == 2.0
    watched.see(3, measured=-9.0, spread=1e6, calibrated=True)
    assert watched.reference == 2.0
    near_zero = constraint(limit=0.0)
    feed(near_zero, [-9.0, -9.0])
    assert near_zero.reference == pytest.approx(0.1)
    constant = constraint(limit=0.0, warmup={"updates": 1, "longest": 1})
    constant.see(1, measured=0.0, spread=0.0, calibrated=True)
    assert (constant.reference, constant.unit) == (1.0, 1.0)


def test_the_controller_counts_in_the_spread_or_the_limit() -> None:
    """|limit| or half the spread: a limit of -.1 on returns with a spread of 1 may be broken by 10 limits at once, and
    gains in units of the limit would switch the multiplier between 0 and its cap."""
    tight, wide = constraint(limit=-0.1), constraint(limit=-2.0)
    feed(tight, [-0.15, -0.15])
    feed(wide, [-2.2, -2.2])
    assert (tight.unit, wide.unit) == (0.5, 2.0)
    assert tight.multiplier == pytest.approx(wide.multiplier) != 0.0  # both are broken by a tenth of their unit


@pytest.mark.parametrize("limit", [-2.0, 50.0])
def test_a_broken_limit_is_counted_from_the_first_update(limit: float) -> None:
    """Whatever the sign of the measure: .4 x .1 an update. Rejects averages that start at 0, where a measure above 0
    looks like a cost that falls and the integral waits for ten updates."""
    watched = constraint(limit=limit, warmup={"updates": 0, "longest": 0})
    feed(watched, [limit - 1e3] * 3)
    assert watched.pid.integral == pytest.approx(0.12)


def test_a_state_without_units_counts_in_its_reference() -> None:
    """Earlier runs have none. Rejects a constraint that stands still after it was resumed."""
    watched, again = constraint(), constraint()
    feed(watched, [-2.1] * 4)
    data = {key: value for key, value in watched.state().items() if key != "unit"}
    for earlier in (data, {**data, "unit": None}):
        again.load(earlier)
        assert again.unit == again.reference == 2.0
        before = again.multiplier
        feed(again, [-1.0], first=5)
        assert again.multiplier != before


def test_units_of_reward_do_not_matter() -> None:
    """Everything times 1,000, the limit too: the same multipliers."""
    small, large = constraint(), constraint(limit=-2000.0)
    for update, value in enumerate([-5.0, -4.0, -3.0, -2.5, -1.9, -2.2], start=1):
        small.see(update, measured=value, spread=1.0, calibrated=True)
        large.see(update, measured=1000 * value, spread=1000.0, calibrated=True)
        assert small.multiplier == pytest.approx(large.multiplier, rel=1e-12)
    assert small.multiplier > 0.0


def test_no_data_is_skipped_and_poisons_nothing() -> None:
    watched = constraint()
    feed(watched, [-9.0] * 4)
    before = watched.state()
    watched.see(5, measured=math.nan, spread=1.0, calibrated=True)
    watched.see(6, measured=-9.0, spread=math.inf, calibrated=True)
    assert watched.state() == before


def test_a_limit_out_of_reach_is_counted_with_the_best_value() -> None:
    watched = constraint(max_multiplier=1.5, pid={"smoothing": 0.5})
    feed(watched, [-9.0, -9.0, -8.8, -8.6, -9.1])
    assert watched.updates_at_cap == 4
    assert watched.metrics()["risk/best_measure"] == -8.6
    feed(watched, [-1.0], first=6)
    assert watched.updates_at_cap == 0


def test_a_policy_on_its_way_to_the_limit_is_not_stuck() -> None:
    """The multiplier stands at its cap from the start; only what does not come closer to the limit counts.

    Rejects a count of all updates at the cap, which called every limit out of reach that took ten updates to reach,
    and a comparison without a margin, which noise around a level far from the limit resets every other update.
    """
    coming, noise = constraint(max_multiplier=1.5), constraint(max_multiplier=1.5)
    feed(coming, [-9.0 * 0.96**update for update in range(30)])
    assert coming.multiplier == 1.5 and coming.updates_at_cap < 10
    feed(noise, [-9.0 + 0.1 * (-1) ** update for update in range(30)])
    assert noise.updates_at_cap == 29
    stopped = coming.updates_at_cap
    feed(coming, [-9.0 * 0.96**29] * 25, first=31)
    assert stopped < 10 <= coming.updates_at_cap


def test_a_limit_that_is_broken_by_far_is_not_kept() -> None:
    """Rejects a moving average that starts at 0 and calls the first updates kept; it also counts them."""
    watched = constraint(warmup={"updates": 1, "longest": 1})
    for update in range(1, 4):
        watched.see(update, measured=-2.8, spread=1.0, calibrated=True)  # 40% beyond
        assert not watched.kept
        assert watched.updates_broken == update
    feed(watched, [-2.0] * 20, first=4)
    assert watched.kept and watched.updates_broken == 0


def test_the_threshold_is_a_moving_average() -> None:
    watched = constraint()
    for update, threshold in enumerate([-1.0, -2.0, math.nan, -2.0], start=1):
        watched.see(update, measured=-1.0, spread=1.0, threshold=threshold, calibrated=True)
    assert watched.threshold == pytest.approx(-1.0 * 0.64 - 2.0 * 0.36)
    again = constraint()
    again.load(watched.state())
    assert again.threshold == watched.threshold


def test_state_continues_bit_for_bit() -> None:
    values = [-5.0, -4.0, -3.0, -2.5, -1.9, -2.2, -2.1]
    whole, first = constraint(), constraint()
    feed(whole, values)
    feed(first, values[:4])
    second = constraint()
    second.load(json.loads(json.dumps(first.state())))
    feed(second, values[4:], first=5)
    assert second.state() == whole.state()
    with pytest.raises(CheckpointError, match="lacks pid"):
        second.load({key: value for key, value in whole.state().items() if key != "pid"})


def test_a_penalty_is_there_from_the_first_update_and_never_moves() -> None:
    watched = Constraint(parse(RiskPenalty, {"mode": "penalty", "weight": 0.7}, source="test"))
    assert watched.multiplier == 0.7
    feed(watched, [-100.0] * 5)
    assert watched.multiplier == 0.7
    assert watched.metrics() == {"risk/multiplier": 0.7}


def test_bad_settings_are_sentences() -> None:
    with pytest.raises(ConfigError, match="limit"):
        parse(RiskConstraint, {"mode": "constraint"}, source="test")
    with pytest.raises(ConfigError, match="kp and ki are both 0"):
        constraint(pid={"kp": 0, "ki": 0})
    with pytest.raises(ConfigError, match="longest 1 is below updates 5"):
        constraint(warmup={"updates": 5, "longest": 1})

"""The PID multiplier: golden numbers, bounds, and the behaviour that each part is there for."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.learner.constraint import PidState, next_multiplier
from tailwise.learner.risk_config import Pid


def follow(
    costs: list[float], limit: float, gains: Pid, *, largest: float = 1e9, start: PidState | None = None
) -> list[float]:
    state, found = start or PidState(), []
    for cost in costs:
        multiplier, state = next_multiplier(state, cost, limit, gains, largest=largest)
        found.append(multiplier)
    return found


def test_golden_numbers() -> None:
    """By hand, first update: I = .001 + .01 x 25, P = .05 x 25, D = .05 x 50: .251 + .125 + .025."""
    gains = Pid(kp=0.1, ki=0.01, kd=0.01, smoothing=0.95, integral_clip=1e9)
    found = follow([50, 50, 50, 10, 10], 25, gains, start=PidState(integral=0.001))
    assert found == pytest.approx([0.401, 0.7935, 1.178875, 0.937481, 0.700657], abs=5e-7)


def test_a_kept_limit_costs_nothing_and_a_broken_one_grows() -> None:
    gains = Pid()
    assert follow([0.5] * 20, 1.0, gains) == [0.0] * 20
    rising = follow([1.5] * 20, 1.0, gains)
    assert all(a < b for a, b in pairwise(rising))


def test_the_integral_keeps_what_the_limit_takes() -> None:
    """On the limit, P is 0 and the multiplier stays at the integral. Rejects a controller without memory."""
    gains = Pid(kp=2.0, ki=0.1, smoothing=0.5, integral_clip=1e9)
    found = follow([2.0] * 10 + [1.0] * 40, 1.0, gains)
    assert found[-1] == pytest.approx(1.0, abs=1e-6)


def test_the_derivative_reacts_to_a_rise_only() -> None:
    gains, calm = Pid(kp=0.0, ki=1e-9, kd=1.0, smoothing=0.0), [1.0] * 12
    assert follow([*calm, 3.0], 5.0, gains)[-1] == pytest.approx(2.0)
    # Above 0, where the bound of the multiplier cannot hide a derivative that follows a fall.
    high = PidState(integral=7.0)
    assert follow([*calm, 0.0], 5.0, gains, start=high)[-1] == pytest.approx(7.0, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=40), st.floats(-10, 10), st.floats(0.1, 100))
def test_always_between_zero_and_the_cap(costs: list[float], limit: float, largest: float) -> None:
    found = follow(costs, limit, Pid(kp=3.0, ki=0.5, kd=2.0, smoothing=0.3), largest=largest)
    assert all(0.0 <= value <= largest for value in found)


def test_no_windup() -> None:
    """After 1,000 updates beyond reach, one kept update in a row of a few brings the multiplier down again."""
    found = follow([100.0] * 1000 + [0.0] * 60, 1.0, Pid(ki=0.5, integral_clip=1e9), largest=10.0)
    assert found[999] == 10.0
    assert found[-1] == 0.0


def test_the_integral_keeps_no_debt() -> None:
    """After 1,000 easily kept updates a broken limit is answered as by a fresh controller. Rejects an I below 0."""
    gains = Pid(kp=0.0, ki=0.05)
    fresh = follow([1.5] * 5, 1.0, gains)
    assert follow([0.0] * 1000 + [1.5] * 5, 1.0, gains)[-5:] == pytest.approx(fresh)
    assert fresh[-1] > 0.0


def test_the_integral_is_clipped_on_both_sides() -> None:
    """A violation of -50 lowers the integral by as much as one of +50 raises it, ki x integral_clip. Rejects a clip
    from above only: one rollout far below the limit would empty the integral."""
    gains = Pid(kp=0.0, ki=0.1, integral_clip=0.2)
    start = PidState(integral=1.0)
    assert follow([51.0], 1.0, gains, start=start) == pytest.approx([1.02])
    assert follow([-49.0], 1.0, gains, start=start) == pytest.approx([0.98])


def test_a_long_way_to_the_limit_does_not_fill_the_integral() -> None:
    """A policy that can move 2% of the limit per update, started three times beyond it. Rejects the plain integral.

    The plain one has gathered so much on the way that the policy is driven far past the limit before it turns.
    """

    def lowest(clip: float) -> float:
        gains = Pid(kp=2.0, ki=0.1, smoothing=0.8, integral_clip=clip)
        state, cost, seen = PidState(), 3.0, []
        for _ in range(400):
            multiplier, state = next_multiplier(state, cost, 1.0, gains, largest=100.0)
            cost += 0.02 if multiplier < 0.5 else -0.02  # a weight of one half is what the limit takes
            seen.append(cost)
        return min(seen)

    assert lowest(0.2) > 0.4
    assert lowest(1e9) < 0.2


def test_the_integral_waits_while_the_violation_shrinks() -> None:
    """A cost that falls to its limit adds nothing after the first updates, one that stands still adds ki x clip each
    time; below the limit alike. Rejects plain integration, which would be driven past the limit by what it gathered."""
    gains = Pid(kp=0.0, ki=1.0, integral_clip=0.1, smoothing=0.0)
    before = PidState(integral=5.0, costs=(3.0,) * 10)
    falling = [3.0 - 0.1 * k for k in range(1, 20)]
    assert follow(falling, 1.0, gains, start=before) == [5.0] * 19
    assert follow([3.0] * 5, 1.0, gains, start=before) == pytest.approx([5.1, 5.2, 5.3, 5.4, 5.5])
    assert follow([3.1], 1.0, gains, start=before) == pytest.approx([5.1])
    low = PidState(integral=5.0, costs=(0.0,) * 10)
    assert follow([0.1 * k for k in range(1, 10)], 1.0, gains, start=low) == [5.0] * 9
    assert follow([0.0] * 3, 1.0, gains, start=low) == pytest.approx([4.9, 4.8, 4.7])


def test_what_happened_long_ago_does_not_hold_the_integral_back() -> None:
    """After many updates below the limit a violation counts at once, although its average is still below."""
    gains = Pid(kp=0.0, ki=1.0, integral_clip=0.1, smoothing=0.9)
    calm = follow([0.0] * 50, 1.0, gains)
    assert follow([0.0] * 50 + [1.5] * 3, 1.0, gains)[-3:] == pytest.approx([calm[-1] + 0.1 * k for k in (1, 2, 3)])


def slow_policy(gains: Pid, *, needed: float, speed: float, updates: int) -> list[float]:
    """Costs of a policy in closed loop with the controller, started at a cost of 2 with a limit of 1.

    It lowers its cost by `speed` times the multiplier's relative distance from what the limit needs, at most by `speed`
    an update (Adam's steps are bounded).
    """
    state, cost, costs = PidState(), 2.0, []
    for _ in range(updates):
        multiplier, state = next_multiplier(state, cost, 1.0, gains, largest=10.0)
        cost -= speed * min(max((multiplier - needed) / needed, -1.0), 1.0)
        costs.append(cost)
    return costs


@pytest.mark.parametrize("needed", [0.5, 1.5])
def test_a_slow_policy_settles_on_its_limit(needed: float) -> None:
    """Within 5% over the last quarter of 720 updates. Rejects gains that swing around it: 2 and .1 (12 and 66%)."""

    def worst(gains: Pid) -> float:
        return max(abs(cost - 1.0) for cost in slow_policy(gains, needed=needed, speed=0.0025, updates=720)[-180:])

    assert worst(Pid()) < 0.05
    assert worst(Pid(kp=2.0, ki=0.1, smoothing=0.8)) > 0.1


def test_state_survives_json() -> None:
    gains, costs = Pid(kd=0.5), [2.0, 1.4, 0.3, 1.1, 1.9]
    whole = follow(costs * 4, 1.0, gains)
    state = PidState()
    for cost in costs * 2:
        _, state = next_multiplier(state, cost, 1.0, gains, largest=1e9)
    again = PidState.from_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    assert follow(costs * 2, 1.0, gains, start=again) == whole[10:]

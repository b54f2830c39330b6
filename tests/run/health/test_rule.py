"""Statistics of windows by hand, and the words of the evidence."""

from __future__ import annotations

import pytest

from tailwise.core.errors import ConfigError
from tailwise.run.health.rule import Condition, Rule, Statistic, fill

VALUES = [1.0, 2.0, 4.0, 3.0]


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        ("last", 3.0),
        ("mean", 2.5),
        ("min", 1.0),
        ("max", 4.0),
        ("slope", (-1.5 * 1 - 0.5 * 2 + 0.5 * 4 + 1.5 * 3) / 5.0),
        ("growth", 2.0),
        ("drop", 1.0),
        ("of_median", 1.5),  # the median of 1, 2, 4 is 2; the newest does not count among them
        ("of_peak", 0.75),
    ],
)
def test_statistics_by_hand(statistic: Statistic, expected: float) -> None:
    """Rejects a ratio to a median or peak that includes the newest value itself."""
    condition = Condition(above=0.0, statistic=statistic, window=4)
    assert condition.measure(VALUES) == pytest.approx(expected)
    assert condition.measure([9.0, *VALUES]) == pytest.approx(expected)  # older ones are out of the window


def test_a_window_has_to_be_full() -> None:
    assert Condition(above=0.0, statistic="mean", window=5).measure(VALUES) is None
    assert Condition(above=0.0, statistic="drop", window=5).measure(VALUES) == 1.0


def test_limits_on_both_sides() -> None:
    condition = Condition(above=2.0, below=1.0)
    assert [condition.holds(value) for value in (0.5, 1.0, 2.0, 2.5)] == [True, False, False, True]
    assert condition.words(0.5) == "below 1" and condition.words(2.5) == "above 2"


def test_a_condition_without_a_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a limit"):
        Condition()
    with pytest.raises(ConfigError, match="window of at least 2"):
        Condition(above=1.0, statistic="slope")


def test_evidence_fills_in_metrics() -> None:
    assert fill("{risk/limit:.2f} and {a/b}", {"risk/limit": -1.0}) == "-1.00 and unknown"
    rule = Rule("x", "policy/kl", Condition(above=0.1), "warn", "advice", "reason")
    assert rule.describe(0.25, {}, {}) == "policy/kl is 0.25 nats, above 0.1 nats"

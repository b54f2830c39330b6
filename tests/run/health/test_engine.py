"""The sieve leaves out only rules for which nothing would change."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tailwise.run.health import RULES, Health
from tailwise.run.health.engine import Sieve, needed_now
from tailwise.run.health.rule import Condition, Rule

SIGNALS = tuple(dict.fromkeys(signal for rule in RULES for signal, _ in rule.reads))
TOLD = {"risk/multiplier": 1.0, "risk/limit": -1.0, "risk/best_measure": -2.0}  # of a limit that is out of reach


class Unsieved(Health):
    """Looks at every rule in every update, as rules are defined."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        super().__init__(rules)
        self._sieve = Everything(rules)


class Everything(Sieve):
    def pass_through(self, update: int, signals: object) -> list[int]:
        return list(range(len(RULES)))


def random_rows(updates: int, seed: int) -> list[dict[str, float]]:
    """Signals on both sides of all limits, missing, NaN and infinite; in stretches, so that rules fire and clear."""
    g = np.random.default_rng(seed)
    limits: dict[str, list[float]] = {name: [0.0] for name in SIGNALS}
    for rule in RULES:
        for name, condition in rule.reads:
            limits[name] += [limit for limit in (condition.above, condition.below) if limit is not None]
    now = dict[str, float]()
    rows = []
    for _ in range(updates):
        for name in SIGNALS:
            if g.random() < 0.15:
                limit = float(g.choice(limits[name]))
                now[name] = limit + float(g.choice([-2.0, -1e-3, 0.0, 1e-3, 2.0])) * (abs(limit) or 1.0)
            if g.random() < 0.02:
                now[name] = float(g.choice([math.nan, math.inf, -math.inf]))
            if g.random() < 0.05:
                now.pop(name, None)
        rows.append({**now, **TOLD})
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_sieved_rules_say_what_all_rules_say(seed: int) -> None:
    """Events, rules that hold, and what a checkpoint keeps. Rejects a sieve that forgets what must still clear."""
    rules = tuple(
        replace(rule, not_before=min(rule.not_before, 5), raise_after=min(rule.raise_after, 3)) for rule in RULES
    )
    sieved, whole = Health(rules), Unsieved(rules)
    events = 0
    for update, row in enumerate(random_rows(400, seed), 1):
        told = sieved.judge_row(update, row)
        assert told == whole.judge_row(update, row)
        assert sieved.holding == whole.holding and sieved.firing == whole.firing
        events += len(told)
    assert events > 100
    assert sieved.state() == whole.state()


def test_sieve_passes_few_rules_of_a_sound_update() -> None:
    """A line in the middle of all limits leaves the windows alone that the newest value says nothing about."""
    high = ("update/committed", "risk/began_calibrated", "grad/critic_smallest", "return/std_of_peak")
    sound = dict.fromkeys(SIGNALS, 0.0) | dict.fromkeys(high, 1.0)
    sound |= {"policy/entropy_share": 0.5, "calibration/coverage_05": 0.05}
    passed = [RULES[index].name for index in Sieve(RULES).pass_through(60, sound)]
    assert len(passed) < len(RULES) / 5 and "value_low" in passed and "gradient_norm" not in passed


@pytest.mark.parametrize(
    ("condition", "needed"),
    [
        (Condition(above=2.0), (-math.inf, 2.0)),
        (Condition(above=2.0, below=1.0), (1.0, 2.0)),
        (Condition(above=2.0, statistic="min", window=3), (-math.inf, 2.0)),
        (Condition(below=2.0, statistic="max", window=3), (2.0, math.inf)),
        (Condition(below=2.0, statistic="min", window=3), None),  # an older value may be the smallest
        (Condition(above=2.0, below=1.0, statistic="min", window=3), None),
        (Condition(above=2.0, statistic="mean", window=3), None),
        (Condition(above=2.0, statistic="drop", window=3), None),
    ],
)
def test_what_the_newest_value_must_be(condition: Condition, needed: tuple[float, float] | None) -> None:
    assert needed_now(condition) == needed

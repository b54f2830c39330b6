"""What a limit means, in words: units, horizon, translation, warm-up, and the verdict at the end of training."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tailwise.bars.builtin import sp500
from tailwise.bars.frequency import infer_frequency
from tailwise.bars.synthetic import random_walk
from tailwise.run.config import Config, parse_config, warnings_of
from tailwise.run.presets import load_source
from tailwise.run.risk_words import bars_in_a_day, limit_sentences, training_verdict


def market(gamma: float = 0.97, **risk: Any) -> Config:
    data = load_source("sp500").data | {"learner": {"gamma": gamma}, "risk": {"mode": "constraint", **risk}}
    return parse_config(data, source="test")


def gym(**risk: Any) -> Config:
    return parse_config({"env": {"id": "CartPole-v1"}, "risk": risk}, source="test")


def daily(config: Config) -> list[str]:
    return limit_sentences(config, bars_per_day=1.0, bars_per_year=252.0)


def numbers(sentence: str) -> list[float]:
    return [float(found) for found in re.findall(r"[+-]?\d+\.?\d*(?=%)", sentence)]


def test_the_limit_is_told_with_measure_unit_horizon_and_beginning() -> None:
    """Rejects a limit that is printed as a bare number: -0.08 of what, over which time, from when on?"""
    told = daily(market(limit=-0.08, warmup={"tolerance": 0.25, "updates": 5, "longest": 50}, max_multiplier=10))
    assert told[0] == (
        "CVaR 5% (mean of the worst 5%) of the discounted log-return that follows (all visited states together) is to "
        "stay at or above -0.08 (a log-return of -8%, -7.69% of equity)"
    )
    assert told[1] == (
        "horizon: gamma 0.97 weighs the k-th next bar by 0.97^k; after 100 bars (4.8 months) a weight of 5% is left"
    )
    assert told[2].startswith("translated, not enforced: with independent normal bars without drift it is")
    assert "at most 0.25 standard deviations of the return, after at least 5 updates; after 50 updates" in told[3]
    assert "multiplier between 0 and 10" in told[4] and "sampled actions on the training data" in told[4]
    assert len(told) == 5


def test_the_translation_agrees_with_simulated_normal_bars() -> None:
    """Rejects a limit divided by its horizon, or by the square root of it: neither is the tail of a day."""
    gamma, limit = 0.97, -0.08
    volatility, a_day, a_year = numbers(daily(market(limit=limit))[2])[0], *numbers(daily(market(limit=limit))[2])[2:]
    bars = np.random.default_rng(0).standard_normal((200_000, 300)) * volatility / 100 / np.sqrt(252)
    discounted = np.sort(bars @ gamma ** np.arange(300))
    assert discounted[: len(discounted) // 20].mean() == pytest.approx(limit, rel=0.02)
    one = np.sort(bars[:, 0])[: len(bars) // 20].mean()
    assert a_day == pytest.approx(100 * np.expm1(one), abs=0.06)
    year = np.sort(bars[:, :252].sum(1))[: len(bars) // 20].mean()
    assert a_year == pytest.approx(100 * np.expm1(year), rel=0.03)
    for wrong in (limit / 100, limit / 10):
        assert abs(100 * np.expm1(wrong) - a_day) > 0.06


def test_finer_bars_have_a_longer_day() -> None:
    """The same limit and gamma on minutes speaks of another time; rejects bars per day that are taken for 1."""
    told = limit_sentences(market(limit=-0.08), bars_per_day=390.0, bars_per_year=390 * 252.0)
    assert "after 100 bars (8.9 hours)" in told[1]
    assert numbers(told[2])[2] < -20  # CVaR of a day of 390 bars, each as wide as a whole day's before
    no_day = limit_sentences(market(limit=-0.08), bars_per_day=None, bars_per_year=52.0)
    assert "in a day" not in no_day[2] and "in a year" in no_day[2]


@pytest.mark.parametrize("limit", [0.0, 0.02])
def test_a_limit_that_demands_a_gain_is_not_translated(limit: float) -> None:
    """Rejects a volatility of zero or below, which the formula would give."""
    told = daily(market(limit=limit))
    assert not any("translated" in sentence for sentence in told)
    assert ("demands a gain" in told[0]) == (limit > 0)
    assert ("+2.02% of equity" in told[0]) == (limit > 0)


def test_each_measure_is_told_and_translated_as_what_it_is() -> None:
    """Rejects the words and the quantile of CVaR for another measure."""
    wang = daily(market(limit=-0.08, measure={"kind": "wang", "eta": 1.0}))
    assert wang[0].startswith("Wang's distorted mean (eta 1; for a normal law mean - 1 std)")
    # 1 std is -0.08, so a bar has 0.08 sqrt(1 - .97^2) and a year sqrt(252) of it
    assert numbers(wang[2])[0] == pytest.approx(100 * 0.08 * np.sqrt((1 - 0.97**2) * 252), abs=0.06)
    assert "Wang 1 is then" in wang[2]
    mean = daily(market(limit=0.01, measure={"kind": "mean"}))
    assert mean[2] == "translated, not enforced: if every bar earned the same, +7.9% a year"
    assert daily(market(limit=0.01, alpha=1.0))[2] == mean[2]  # CVaR 100% is the mean; its normal quantile would be 0


def test_outside_a_market_the_unit_is_the_reward() -> None:
    """Rejects log-returns and bars for an environment that has neither."""
    told = limit_sentences(gym(mode="constraint", limit=-20), bars_per_day=None, bars_per_year=None)
    assert "the discounted reward that follows" in told[0] and "-20 (reward)" in told[0]
    assert "after 300 steps a weight of 5%" in told[1]
    assert not any(word in " ".join(told) for word in ("log-return", "bar", "translated", "equity"))


def test_penalty_promises_nothing_and_report_says_nothing() -> None:
    """Rejects a penalty that reads like a limit."""
    told = limit_sentences(gym(mode="penalty", weight=0.5), bars_per_day=None, bars_per_year=None)
    assert told[0].startswith("no limit: CVaR 5%") and "(mean + 0.5 x measure) / (1 + 0.5)" in told[0]
    assert told[0].endswith("is not promised") and len(told) == 2
    for risk in ({"mode": "off"}, {"mode": "report"}):
        assert limit_sentences(gym(**risk), bars_per_day=None, bars_per_year=None) == []


def test_without_a_warm_up_the_words_do_not_promise_one() -> None:
    told = daily(market(limit=-0.08, warmup={"updates": 0, "longest": 0}))
    assert "acts from the second update on" in told[3] and "begins once" not in told[3]


def test_bars_in_a_day_follow_the_calendar() -> None:
    """Rejects 252 days for a market that never closes."""
    assert bars_in_a_day(sp500().frequency) == 1.0
    assert bars_in_a_day(random_walk(seed=0, length=400).frequency) == pytest.approx(24, rel=0.01)
    weeks = np.datetime64("2020-01-06", "ns") + np.arange(60) * np.timedelta64(7, "D")
    assert bars_in_a_day(infer_frequency(weeks)) is None


def rows(*measures: float, active: float = 1.0, multiplier: float = 0.4) -> list[dict[str, float]]:
    return [{"risk/measure": m, "risk/active": active, "risk/multiplier": multiplier} for m in measures]


def test_the_verdict_of_training() -> None:
    """Rejects a verdict over updates in which the constraint did not act yet, or over what was not measured."""
    config = market(limit=-0.08)
    kept = training_verdict(config, [*rows(-0.2, active=0.0), *rows(-0.07, -0.08)])
    assert kept is not None and kept.startswith(
        "limit kept on the training data: CVaR 5% over 100 bars was -7.5% on average over"
    )
    assert "the last 2 updates, the limit is -8%; the multiplier was 0.4" in kept
    missed = training_verdict(config, rows(-0.1, float("nan")))
    assert missed is not None and missed.startswith("limit missed by 2 percentage points on the training data")
    elsewhere = training_verdict(gym(mode="constraint", limit=-20.0), rows(-21.5))
    assert elsewhere is not None and elsewhere.startswith(
        "limit missed by 1.5 reward on the training data: CVaR 5% over 300 steps was -21.5 reward"
    )
    idle = training_verdict(config, rows(-0.07, multiplier=0.0))
    assert idle is not None and idle.endswith("the multiplier was 0: the limit did not bind")
    hovering = training_verdict(config, [*rows(-0.07), *rows(-0.08, multiplier=0.0)])  # 0 now, but not before
    assert hovering is not None and hovering.endswith("the multiplier was 0.2")
    never = training_verdict(config, rows(-0.07, active=0.0))
    assert never is not None and "has not begun" in never
    assert training_verdict(gym(mode="report"), rows(-0.07)) is None


@pytest.mark.parametrize(("steps", "gamma", "warned"), [(32, 0.99, True), (128, 0.99, False), (32, 0.95, False)])
def test_rollouts_that_are_short_against_the_discount_are_told(steps: int, gamma: float, warned: bool) -> None:
    """The tail that steers the limit is then mostly predicted. Without a limit it is nobody's concern."""
    base = {"run": {"rollout_steps": steps, "environments": 8}, "learner": {"gamma": gamma}}
    limited = parse_config({**base, "risk": {"mode": "constraint", "limit": -0.1}}, source="test")
    assert any("are few against the " in sentence for sentence in warnings_of(limited)) == warned
    assert not any("are few" in sentence for sentence in warnings_of(parse_config(base, source="test")))

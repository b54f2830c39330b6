"""What a tail limit means, in words: printed when a run starts, before anybody relies on the number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import ndtri

from tailwise.bars.frequency import DAY, TRADING_DAYS, Frequency
from tailwise.core.numerics import tail_horizon
from tailwise.learner.risk_config import CvarMeasure, MeanMeasure, Measure, RiskConstraint, RiskPenalty, WangMeasure
from tailwise.run.config import Config

CALENDAR_DAYS = 365  # of a market that never closes


def bars_in_a_day(frequency: Frequency) -> float | None:
    """Bars of one (trading) day; None when a bar is longer than that."""
    if frequency.bar > np.timedelta64(DAY, "ns"):
        return None
    return frequency.periods_per_year / (CALENDAR_DAYS if frequency.calendar == "24/7" else TRADING_DAYS)


def measure_name(measure: Measure, alpha: float) -> str:
    """CVaR 5%, Wang 0.75, mean."""
    if isinstance(measure, CvarMeasure):
        return f"CVaR {share(alpha)}"
    return f"Wang {measure.eta:g}" if isinstance(measure, WangMeasure) else "mean"


def share(alpha: float) -> str:
    """5%, 2.5%."""
    return f"{100 * alpha:g}%"


def tail_name(measure: Measure, alpha: float, config: Config) -> str:
    """The same with its horizon: CVaR 5% over 100 bars."""
    return f"{measure_name(measure, alpha)} over {tail_horizon(config.learner.gamma):,} {config.env.words.step}s"


def amount(value: float, config: Config, digits: int = 3) -> str:
    """A return or a tail with its unit: log-returns of a market in percent, elsewhere rewards."""
    return config.env.words.amount(value, digits)


def limit_sentences(config: Config, *, bars_per_day: float | None, bars_per_year: float | None) -> list[str]:
    """What the section `risk` asks of the policy, a sentence each; empty unless it acts.

    bars_per_day, bars_per_year: of the market's data; None outside a market, or where a bar is longer than a day.
    """
    acting = config.acting_risk
    if acting is None:
        return []
    gamma = config.learner.gamma
    words = config.env.words
    horizon = _horizon(gamma, words.step, bars_per_year)
    law = _law(acting.measure, acting.alpha, words.reward)
    if isinstance(acting, RiskPenalty):
        return [_penalty(acting, law), horizon]
    sentences = [_limit(acting, law, percent=words.percent), horizon]
    if bars_per_year is not None:
        sentences += _translation(acting, gamma, bars_per_day, bars_per_year)
    return [*sentences, _beginning(acting), _steering(acting)]


def _law(measure: Measure, alpha: float, unit: str) -> str:
    """What is measured, as a noun."""
    pooled = f"the discounted {unit} that follows (all visited states together)"
    if isinstance(measure, CvarMeasure):
        return f"{measure_name(measure, alpha)} (mean of the worst {share(alpha)}) of {pooled}"
    if isinstance(measure, WangMeasure):
        return f"Wang's distorted mean (eta {measure.eta:g}; for a normal law mean - {measure.eta:g} std) of {pooled}"
    return f"the mean of {pooled}"


def _limit(constraint: RiskConstraint, law: str, *, percent: bool) -> str:
    limit = constraint.level
    unit = f"a log-return of {100 * limit:.3g}%, {_fraction(limit, 3)} of equity" if percent else "reward"
    demand = "; this limit demands a gain" if limit > 0 else ""
    return f"{law} is to stay at or above {limit:g} ({unit}{demand})"


def _penalty(penalty: RiskPenalty, law: str) -> str:
    weight = f"{penalty.weight:g}"
    return (
        f"no limit: {law} counts in the objective with weight {weight}, (mean + {weight} x measure) / "
        f"(1 + {weight}); how low it then is, is not promised"
    )


def _horizon(gamma: float, step: str, bars_per_year: float | None) -> str:
    steps = tail_horizon(gamma)
    years = "" if bars_per_year is None else f" ({_span(steps / bars_per_year)})"
    return (
        f"horizon: gamma {gamma:g} weighs the k-th next {step} by {gamma:g}^k; after {steps:,} {step}s{years} a weight "
        f"of {gamma**steps:.0%} is left"
    )


def _span(years: float) -> str:
    """A time in its natural unit."""
    if years >= 1:
        return f"{years:.1f} years"
    if years * 12 >= 1:
        return f"{years * 12:.1f} months"
    days = years * 365.25
    return f"{days:.1f} days" if days >= 1 else f"{days * 24:.1f} hours"


def _fraction(log_return: float, digits: int = 2) -> str:
    """A log-return as a change of equity, with a sign."""
    return f"{100 * math.expm1(log_return):+.{digits}g}%"


def _translation(
    constraint: RiskConstraint, gamma: float, bars_per_day: float | None, bars_per_year: float
) -> list[str]:
    """The limit in units of a day and a year, under a stated approximation."""
    limit, measure, alpha = constraint.level, constraint.measure, constraint.alpha
    if isinstance(measure, MeanMeasure) or (isinstance(measure, CvarMeasure) and alpha == 1):
        yearly = limit * (1 - gamma) * bars_per_year
        return [f"translated, not enforced: if every bar earned the same, {_fraction(yearly)} a year"]
    if limit >= 0:
        return []  # without drift no law has its bad tail above zero
    # Standard deviations between the mean and the measure, of a normal law.
    width = measure.eta if isinstance(measure, WangMeasure) else _normal_cvar(alpha)
    per_bar = -limit * math.sqrt(1 - gamma**2) / width  # the discounted sum has the variance s^2 / (1 - gamma^2)
    yearly = per_bar * math.sqrt(bars_per_year)
    name = measure_name(measure, alpha)
    day = "" if bars_per_day is None else f"{_fraction(-width * per_bar * math.sqrt(bars_per_day))} in a day, "
    return [
        f"translated, not enforced: with independent normal bars without drift it is a volatility of {yearly:.1%} a "
        f"year; {name} is then {day}{_fraction(-width * yearly)} in a year"
    ]


def _normal_cvar(alpha: float) -> float:
    """CVaR of a standard normal law, as a positive number: phi(z) / alpha."""
    z = float(ndtri(alpha))
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / alpha


def _beginning(constraint: RiskConstraint) -> str:
    warmup = constraint.warmup
    if warmup.longest <= 1:
        return "it acts from the second update on, whether or not the critics predict the tail well"
    least = f", after at least {_updates(warmup.updates)}" if warmup.updates > 1 else ""
    return (
        f"it begins once predicted and realised CVaR differ by at most {warmup.tolerance:g} standard deviations of the "
        f"return{least}; after {_updates(warmup.longest)} it begins in any case, with an alert; before that the policy "
        "follows the mean alone"
    )


def _updates(count: int) -> str:
    return f"{count} update{'' if count == 1 else 's'}"


def _steering(constraint: RiskConstraint) -> str:
    return (
        f"a multiplier between 0 and {constraint.max_multiplier:g} weighs the tail against the mean until the limit is "
        "kept; it is steered by sampled actions on the training data: Box actions end narrow, so that the most likely "
        "one keeps it too, and discrete policies are evaluated by samples"
    )


def training_verdict(config: Config, rows: Sequence[Mapping[str, float]]) -> str | None:
    """Whether the limit was kept in the given last updates of training (their metrics); None without a limit.

    The measure is that of the returns that the learner saw: training data, sampled actions.
    """
    constraint = config.acting_risk
    if not isinstance(constraint, RiskConstraint) or not rows:
        return None
    acted = [row for row in rows if row.get("risk/active") == 1.0 and math.isfinite(row.get("risk/measure", math.nan))]
    if not acted:
        return "limit: the constraint has not begun (risk.warmup says when); the policy follows the mean alone"
    mean = sum(row["risk/measure"] for row in acted) / len(acted)
    limit, multipliers = constraint.level, [row["risk/multiplier"] for row in acted]
    short = limit - mean
    verdict = "kept" if mean >= limit else f"missed by {config.env.words.difference(short)}"
    when = "in the last update" if len(acted) == 1 else f"on average over the last {len(acted)} updates"
    weight = f"the multiplier was {sum(multipliers) / len(multipliers):.2g}"
    if not any(multipliers):
        weight += ": the limit did not bind"
    return (
        f"limit {verdict} on the training data: {tail_name(constraint.measure, constraint.alpha, config)} was "
        f"{amount(mean, config)} {when}, the limit is {amount(limit, config)}; {weight}"
    )

"""Built-in features of volatility: standard deviations per bar, not annualised, and ratios of them.

`garch` is the GARCH(1,1) forecast, fitted with `arch` on the train rows of each symbol:
variance[t+1] = omega + alpha (r[t] - mu)**2 + beta variance[t], with r the log-return; the feature is
sqrt(variance[t+1]), known at the close of t, divided by its average over the train rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.core.errors import DataError
from tailwise.features.contract import CLOSE, HIGH, LOW, OPEN, Floats, feature
from tailwise.features.windows import (
    BARS,
    HEAD,
    LAST,
    SPARE,
    feature_of_bars,
    feature_of_returns,
    log_return,
    one_window,
    push,
    push_return,
    push_value,
    spread,
    total,
)

_SMALLEST_RATIO = 1e-6  # of two variances: the logarithm of a ratio of volatilities ends at ln(1/1000)
_PARKINSON = 4.0 * math.log(2.0)
_GARMAN_KLASS = 2.0 * math.log(2.0) - 1.0


@feature_of_returns(
    "volatility",
    unit="log-return per bar",
    meaning="realised volatility: root mean square of the one-bar returns; 0 if flat",
)
@kernel
def volatility(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    return math.sqrt(spread(returns, 0.0) / returns.size) if returns.size > 0 else math.nan


@feature(
    "ewma_volatility",
    parameters=("span",),
    warm_up=lambda span: span,
    state_size=HEAD,
    unit="log-return per bar",
    meaning="root of the exponentially weighted mean of squared one-bar returns; 0 if flat",
)
@kernel
def ewma_volatility(state: Any, bar: Any) -> float:
    keep, k = 1.0 - 2.0 / (state[0] + 1.0), state[BARS]
    move = log_return(state, bar)
    if k == 0.0:
        return math.nan
    state[SPARE] = keep * state[SPARE] + move * move
    state[SPARE + 1] = keep * state[SPARE + 1] + 1.0
    return math.sqrt(state[SPARE] / state[SPARE + 1]) if k >= state[0] else math.nan


@feature_of_bars(
    "parkinson",
    unit="log-return per bar",
    meaning="Parkinson's volatility from high and low; 0 if flat",
)
@kernel
def parkinson(state: Any, bar: Any) -> float:
    span = math.log(bar[HIGH] / bar[LOW])
    squares = state[push_value(state, span * span)]
    return math.sqrt(total(squares) / (squares.size * _PARKINSON)) if squares.size > 0 else math.nan


@feature_of_bars(
    "garman_klass",
    unit="log-return per bar",
    meaning="Garman and Klass's volatility from all four prices of a bar; 0 if flat",
)
@kernel
def garman_klass(state: Any, bar: Any) -> float:
    span, body = math.log(bar[HIGH] / bar[LOW]), math.log(bar[CLOSE] / bar[OPEN])
    variances = state[push_value(state, 0.5 * span * span - _GARMAN_KLASS * body * body)]
    return math.sqrt(max(total(variances), 0.0) / variances.size) if variances.size > 0 else math.nan


@feature_of_bars(
    "rogers_satchell",
    unit="log-return per bar",
    meaning="Rogers and Satchell's volatility, which a drift does not inflate; 0 if flat",
)
@kernel
def rogers_satchell(state: Any, bar: Any) -> float:
    above = math.log(bar[HIGH] / bar[CLOSE]) * math.log(bar[HIGH] / bar[OPEN])
    below = math.log(bar[LOW] / bar[CLOSE]) * math.log(bar[LOW] / bar[OPEN])
    variances = state[push_value(state, above + below)]
    return math.sqrt(max(total(variances), 0.0) / variances.size) if variances.size > 0 else math.nan


@feature(
    "volatility_ratio",
    parameters=("short", "long"),
    smallest=(1, 2),
    warm_up=lambda short, long: long,
    state_size=lambda short, long: one_window(long),
    unit="ln of a ratio",
    meaning="ln(volatility_short / volatility_long), at least ln(1/1000); 0 if flat",
)
@kernel
def volatility_ratio(state: Any, bar: Any) -> float:
    short, long, k = int(state[0]), int(state[1]), int(state[BARS])
    returns = state[push(state, HEAD, long, k - 1, log_return(state, bar))]
    if returns.size == 0:
        return math.nan
    slow = spread(returns, 0.0) / long
    if slow <= 0.0:
        return 0.0
    quick = spread(returns[long - short :], 0.0) / short
    return 0.5 * math.log(max(quick / slow, _SMALLEST_RATIO))


@kernel
def true_range(state: Any, bar: Any) -> float:
    """ln of the highest over the lowest of high, low and previous close; 0 at the first bar. Counts the bar."""
    k, before = state[BARS], state[LAST]
    state[BARS] = k + 1.0
    state[LAST] = bar[CLOSE]
    return math.log(max(bar[HIGH], before) / min(bar[LOW], before)) if k > 0.0 else 0.0


@feature_of_returns(
    "atr",
    unit="log-return per bar",
    meaning="average true range: mean of ln(highest / lowest of high, low, previous close); 0 if flat",
)
@kernel
def atr(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    ranges = state[push(state, HEAD, n, k - 1, true_range(state, bar))]
    return total(ranges) / n if ranges.size > 0 else math.nan


@feature_of_returns(
    "atr_ratio",
    smallest=2,
    unit="1, from -1",
    meaning="true range of this bar / atr_window - 1; 0 if flat",
)
@kernel
def atr_ratio(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    span = true_range(state, bar)
    ranges = state[push(state, HEAD, n, k - 1, span)]
    if ranges.size == 0:
        return math.nan
    average = total(ranges) / n
    return span / average - 1.0 if average > 0.0 else 0.0


# ---------------------------------------------------------------------- GARCH
_GARCH_WARM_UP = 100  # bars; the start variance then weighs beta**100, below 3% even for beta 0.965
_LEAST_ROWS = 250  # train returns; with fewer, the estimates are mostly noise
_MU, _OMEGA, _ALPHA, _BETA, _VARIANCE, _AVERAGE, _LAST = range(7)
_PERCENT = 100.0  # `arch` fits best when returns are of the order of 1
_UNSTABLE = 0.9999  # alpha + beta from which shocks practically never fade


def fit_garch(bars: Floats, name: str, *, most_steps: int = 1000) -> dict[str, float]:
    """mu, omega, alpha, beta (of log-returns per bar), start variance and average forecast, from train bars [T, 6]."""
    from arch import arch_model

    close = bars[:, CLOSE]
    returns = np.log(close[1:] / close[:-1])
    if len(returns) < _LEAST_ROWS:
        raise DataError(
            f"feature 'garch': {name} has {len(returns)} train returns; at least {_LEAST_ROWS} are needed to fit it. "
            "Use more train bars or leave the feature out."
        )
    if not np.ptp(returns) > 1e-12:
        raise DataError(f"feature 'garch': the price of {name} does not vary in the train bars; leave the feature out.")
    model = arch_model(returns * _PERCENT, mean="Constant", vol="GARCH", p=1, q=1, dist="normal", rescale=False)
    result = model.fit(disp="off", show_warning=False, options={"maxiter": most_steps})
    mu, omega, alpha, beta = (float(result.params[key]) for key in ("mu", "omega", "alpha[1]", "beta[1]"))
    if result.convergence_flag != 0:
        raise DataError(
            f"feature 'garch': the fit to {name} did not converge (code {result.convergence_flag} of the optimiser); "
            "use more train bars, or ewma_volatility_20 in its place."
        )
    if not (alpha + beta < _UNSTABLE and omega > 0.0):
        raise DataError(
            f"feature 'garch': the fit to {name} is unstable (alpha {alpha:.4f} + beta {beta:.4f}, omega {omega:.3g}): "
            "its volatility has no finite mean; use more train bars, or ewma_volatility_20 in its place."
        )
    mu, omega = mu / _PERCENT, omega / _PERCENT**2
    fitted = {"mu": mu, "omega": omega, "alpha": alpha, "beta": beta, "variance": omega / (1.0 - alpha - beta)}
    return {**fitted, "average": _average_forecast(returns, **fitted)}


def _average_forecast(returns: Floats, mu: float, omega: float, alpha: float, beta: float, variance: float) -> float:
    forecasts = []
    for shock in (returns - mu).tolist():
        variance = omega + alpha * shock * shock + beta * variance
        forecasts.append(math.sqrt(variance))
    return float(np.mean(forecasts[_GARCH_WARM_UP - 1 :]))  # the forecast after return k stands in row k + 1


def start_garch(mu: float, omega: float, alpha: float, beta: float, variance: float, average: float) -> Floats:
    """The state before the first bar: the fitted numbers, and no close yet."""
    return np.array([mu, omega, alpha, beta, variance, average, 0.0])


@feature(
    "garch",
    warm_up=_GARCH_WARM_UP,
    state_size=7,
    init=start_garch,
    fit=fit_garch,
    unit="share of the train average",
    meaning="GARCH(1,1) forecast of the next bar's volatility / its average over the train rows",
)
@kernel
def garch(state: Any, bar: Any) -> float:
    before = state[_LAST]
    state[_LAST] = bar[CLOSE]
    if before > 0.0:
        shock = math.log(bar[CLOSE] / before) - state[_MU]
        state[_VARIANCE] = state[_OMEGA] + state[_ALPHA] * shock * shock + state[_BETA] * state[_VARIANCE]
    return math.sqrt(state[_VARIANCE]) / state[_AVERAGE]

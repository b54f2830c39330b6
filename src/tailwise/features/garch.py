"""The GARCH(1,1) forecast of volatility, fitted with `arch` on the train rows of each symbol.

variance[t+1] = omega + alpha (r[t] - mu)**2 + beta variance[t], with r the log-return; the feature is
sqrt(variance[t+1]), known at the close of t, divided by its average over the train rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.core.errors import DataError
from tailwise.features.contract import CLOSE, Feature, Floats, feature

WARM_UP = 100  # bars; the start variance then weighs beta**100, below 3% even for beta 0.965
LEAST_ROWS = 250  # train returns; with fewer, the estimates are mostly noise
_MU, _OMEGA, _ALPHA, _BETA, _VARIANCE, _AVERAGE, _LAST = range(7)
_PERCENT = 100.0  # `arch` fits best when returns are of the order of 1
_UNSTABLE = 0.9999  # alpha + beta from which shocks practically never fade


def fit(bars: Floats, name: str, *, most_steps: int = 1000) -> dict[str, float]:
    """mu, omega, alpha, beta (of log-returns per bar), start variance and average forecast, from train bars [T, 6]."""
    from arch import arch_model

    close = bars[:, CLOSE]
    returns = np.log(close[1:] / close[:-1])
    if len(returns) < LEAST_ROWS:
        raise DataError(
            f"feature 'garch': {name} has {len(returns)} train returns; at least {LEAST_ROWS} are needed to fit it. "
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
    return float(np.mean(forecasts[WARM_UP - 1 :]))  # the forecast after return k stands in row k + 1


def start(mu: float, omega: float, alpha: float, beta: float, variance: float, average: float) -> Floats:
    """The state before the first bar: the fitted numbers, and no close yet."""
    return np.array([mu, omega, alpha, beta, variance, average, 0.0])


@feature(
    "garch",
    warm_up=WARM_UP,
    state_size=7,
    init=start,
    fit=fit,
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


FEATURES: tuple[Feature, ...] = (garch,)

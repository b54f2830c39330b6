"""Synthetic markets with a known law, so that one can check whether a learner has found it.

Shared by all of them: bar t has log-return r[t] = ln(close[t] / open[t]) and open[t+1] = close[t], so that a position
decided at the close of t and filled at the open of t+1 earns r[t+1] before costs, and "the oracle" means one thing.
Wicks and volumes are drawn independently of the returns: they carry no information. Times are a 24/7 grid.
The draw of bar t does not depend on the length: a longer market of the same seed begins with the shorter one.
Rates (`sigma`, `drift`, probabilities) are per bar unless they say per year. The label of the bars says "synthetic".
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import poisson

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import infer_frequency, parse_rule
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams

Floats: TypeAlias = NDArray[np.float64]
START_TIME = np.datetime64("2000-01-01T00:00:00", "ns")
START_PRICE = 100.0
MOST_BARS = 20_000_000  # 40 years of minutes; drawing them takes a few gigabytes
_LAST_TIME = np.datetime64("2200-01-01", "ns")
_VOLUME = 1e6  # median volume, units


def sine(
    *, seed: int, length: int = 5000, amplitude: float = 0.1, period: float = 40.0, noise: float = 0.0, bar: str = "1h"
) -> Bars:
    """Log price amplitude * sin(2 pi t / period), plus a random walk of `noise` per bar.

    Truth: without noise, always being on the right side earns 4 * amplitude of log-return per period (up twice the
    amplitude and down again), if the period is a multiple of 4, so that both turning points fall on a bar.
    """
    _check_length(length)
    _check("period", period, 2.0, math.inf)
    _check("amplitude", amplitude, 0.0, 5.0)
    _check("noise", noise, 0.0, 1.0)
    swing = amplitude * np.sin(2 * np.pi * np.arange(length + 1) / period)
    returns = np.diff(swing) + noise * _normals(seed, "sine", length, 1)[:, 0]
    return _bars(
        "sine", returns, {"amplitude": amplitude, "period": period, "noise": noise}, seed, bar, 0.1 * amplitude
    )


def ar1(*, seed: int, length: int = 5000, phi: float = 0.3, sigma: float = 0.01, bar: str = "1h") -> Bars:
    """r[t] = phi r[t-1] + sigma sqrt(1 - phi**2) z[t], stationary from the first bar on.

    Truth: standard deviation sigma, autocorrelation phi**k at lag k; the best forecast is phi r[t], and holding
    sign(phi r[t]) earns |phi| sigma sqrt(2 / pi) per bar on average before costs.
    """
    _check_length(length)
    _check("phi", phi, -0.999, 0.999)
    _check("sigma", sigma, 0.0, 1.0, open_low=True)
    shocks = sigma * math.sqrt(1 - phi**2) * _normals(seed, "ar1", length, 1)[:, 0]
    shocks[:1] /= math.sqrt(1 - phi**2)  # the first return has the stationary law
    returns: Floats = lfilter([1.0], [1.0, -phi], shocks)
    return _bars("ar1", returns, {"phi": phi, "sigma": sigma}, seed, bar, 0.3 * sigma)


def random_walk(*, seed: int, length: int = 5000, sigma: float = 0.01, drift: float = 0.0, bar: str = "1h") -> Bars:
    """r[t] = drift + sigma z[t], independent.

    Truth: nothing predicts anything; every strategy earns drift * exposure minus its costs on average.
    """
    _check_length(length)
    _check("sigma", sigma, 0.0, 1.0, open_low=True)
    _check("drift", drift, -1.0, 1.0)
    returns = drift + sigma * _normals(seed, "random_walk", length, 1)[:, 0]
    return _bars("random_walk", returns, {"sigma": sigma, "drift": drift}, seed, bar, 0.3 * sigma)


def regime_switching(
    *,
    seed: int,
    length: int = 5000,
    leave_calm: float = 0.01,
    leave_storm: float = 0.03,
    drift: tuple[float, float] = (0.0005, -0.001),
    sigma: tuple[float, float] = (0.005, 0.02),
    bar: str = "1h",
) -> Bars:
    """Two-state Markov chain (0 calm, 1 storm); r[t] = drift[s] + sigma[s] z[t] with s the state of bar t.

    Truth: a share leave_calm / (leave_calm + leave_storm) of the bars is storm, a storm lasts 1 / leave_storm bars on
    average, and the variance of returns is the mixture of the two. `regime_states` returns the states.
    """
    states = regime_states(seed=seed, length=length, leave_calm=leave_calm, leave_storm=leave_storm)
    for value in sigma:
        _check("sigma", value, 0.0, 1.0, open_low=True)
    for value in drift:
        _check("drift", value, -1.0, 1.0)
    z = _normals(seed, "regime_switching", length, 1)[:, 0]
    returns = np.asarray(drift)[states] + np.asarray(sigma)[states] * z
    parameters = {"leave_calm": leave_calm, "leave_storm": leave_storm, "drift": drift, "sigma": sigma}
    return _bars("regime_switching", returns, parameters, seed, bar, 0.3 * min(sigma))


def regime_states(*, seed: int, length: int, leave_calm: float = 0.01, leave_storm: float = 0.03) -> NDArray[np.int64]:
    """The hidden states of `regime_switching` with the same arguments: 0 calm, 1 storm, int64 [T]."""
    _check("leave_calm", leave_calm, 0.0, 1.0, open_low=True)
    _check("leave_storm", leave_storm, 0.0, 1.0, open_low=True)
    _check_length(length)
    draws = Streams(seed).uniforms("market/regime_states", update=0, environments=1, steps=length, draws=1)[:, 0, 0]
    leave = (leave_calm, leave_storm)
    state = int(draws[0] < leave_calm / (leave_calm + leave_storm))  # the first bar has the stationary law
    states = [state]
    for u in draws[1:].tolist():
        state = 1 - state if u < leave[state] else state
        states.append(state)
    return np.asarray(states, dtype=np.int64)


def jump_diffusion(
    *,
    seed: int,
    length: int = 5000,
    sigma: float = 0.01,
    drift: float = 0.0,
    jumps: float = 0.02,
    jump_mean: float = -0.03,
    jump_sigma: float = 0.03,
    bar: str = "1h",
) -> Bars:
    """Merton (1976): r = drift + sigma z + sum of N jumps, N Poisson(jumps) per bar, each normal.

    Truth: mean drift + jumps * jump_mean, variance sigma**2 + jumps * (jump_mean**2 + jump_sigma**2), fourth cumulant
    jumps * (m**4 + 6 m**2 s**2 + 3 s**4) with m, s mean and standard deviation of a jump.
    """
    _check_length(length)
    _check("sigma", sigma, 0.0, 1.0, open_low=True)
    _check("drift", drift, -1.0, 1.0)
    _check("jumps", jumps, 0.0, 10.0)
    _check("jump_mean", jump_mean, -1.0, 1.0)
    _check("jump_sigma", jump_sigma, 0.0, 1.0)
    z = _normals(seed, "jump_diffusion", length, 2)
    levels = Streams(seed).uniforms("market/jump_counts", update=0, environments=1, steps=length, draws=1)[:, 0, 0]
    count = poisson.ppf(levels, jumps) if jumps else np.zeros(length)
    returns = drift + sigma * z[:, 0] + count * jump_mean + np.sqrt(count) * jump_sigma * z[:, 1]
    parameters = {"sigma": sigma, "drift": drift, "jumps": jumps, "jump_mean": jump_mean, "jump_sigma": jump_sigma}
    return _bars("jump_diffusion", returns, parameters, seed, bar, 0.3 * sigma)


def heston(
    *,
    seed: int,
    length: int = 5000,
    drift: float = 0.05,
    kappa: float = 4.0,
    theta: float = 0.04,
    xi: float = 0.4,
    rho: float = -0.7,
    bar: str = "1h",
) -> Bars:
    """Heston (1993), rates per year.

    dv = kappa (theta - v) dt + xi sqrt(v) dW and d ln S = (drift - v / 2) dt + sqrt(v) dB, stepped once per bar
    with full truncation (Lord et al. 2010). dW and dB have correlation rho; v starts at theta.
    Truth: long-run variance theta per year, variances forget by exp(-kappa dt) per bar, and for rho < 0 a fall is
    followed by higher variance.
    """
    _check_length(length)
    for name, value in (("kappa", kappa), ("theta", theta), ("xi", xi)):
        _check(name, value, 0.0, 100.0, open_low=True)
    _check("rho", rho, -1.0, 1.0)
    _check("drift", drift, -100.0, 100.0)
    dt = parse_rule(bar) / (365 * 86_400e9)  # years per bar
    if kappa * dt >= 1:
        raise ConfigError(f"synthetic market: kappa {kappa} reverts within one bar of {bar!r}; use shorter bars.")
    z = _normals(seed, "heston", length, 2)
    shock_v = (rho * z[:, 0] + math.sqrt(1 - rho**2) * z[:, 1]).tolist()
    variance, path, root = theta, [], math.sqrt(dt)
    for shock in shock_v:
        positive = max(variance, 0.0)
        path.append(positive)
        variance += kappa * (theta - positive) * dt + xi * math.sqrt(positive) * root * shock
    v = np.asarray(path)
    returns = (drift - v / 2) * dt + np.sqrt(v * dt) * z[:, 0]
    parameters = {"drift": drift, "kappa": kappa, "theta": theta, "xi": xi, "rho": rho}
    return _bars("heston", returns, parameters, seed, bar, 0.3 * math.sqrt(theta * dt))


def leak(*, seed: int, length: int = 5000, sigma: float = 0.01, bar: str = "1h") -> tuple[Bars, dict[str, Floats]]:
    """A random walk together with a column that reveals the future: {"next_log_return": [T]}.

    Truth: next_log_return[t] = ln(close[t+1] / close[t]), known for the last bar as well; following its sign earns
    sigma sqrt(2 / pi) per bar before costs. A learner that cannot find this finds nothing.
    """
    _check("sigma", sigma, 0.0, 1.0, open_low=True)
    _check_length(length)
    returns = sigma * _normals(seed, "leak", length + 1, 1)[:, 0]
    bars = _bars("leak", returns[:-1], {"sigma": sigma}, seed, bar, 0.3 * sigma)
    return bars, {"next_log_return": returns[1:]}


MARKETS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "sine": sine,
        "ar1": ar1,
        "random_walk": random_walk,
        "regime_switching": regime_switching,
        "jump_diffusion": jump_diffusion,
        "heston": heston,
        "leak": leak,
    }
)


def kinds() -> tuple[str, ...]:
    """Names of the markets that `make` draws."""
    return tuple(MARKETS)


def defaults(kind: str) -> dict[str, Any]:
    """Parameters of a market with their default values."""
    return dict(MARKETS[kind].__kwdefaults__ or {})


def make(kind: str, *, seed: int, **parameters: Any) -> tuple[Bars, dict[str, Floats]]:
    """Draw the market called `kind`; return its bars and extra columns for features (empty but for `leak`)."""
    if kind not in MARKETS:
        raise ConfigError(f"there is no synthetic market {kind!r}; there are {', '.join(kinds())}.")
    allowed = defaults(kind)
    unknown = [name for name in parameters if name not in allowed]
    if unknown:
        raise ConfigError(f"synthetic market {kind}: no parameter {unknown[0]!r}; there are {', '.join(allowed)}.")
    for name, value in parameters.items():
        typed(f"synthetic market {kind}: {name}", value, allowed[name])
        if name == "length" and not isinstance(value, int):
            raise ConfigError(f"synthetic market {kind}: length is {value!r}; a whole number of bars is needed.")
    drawn = MARKETS[kind](seed=seed, **parameters)
    return drawn if kind == "leak" else (drawn, {})


def typed(what: str, value: Any, default: Any) -> Any:
    """Check a parameter and convert it to the type of its default: text, a number, or as many numbers (of regimes)."""
    if isinstance(default, str):
        fits, needed = isinstance(value, str), f"a text like {default}"
    elif isinstance(default, tuple):
        same_length = isinstance(value, list | tuple) and len(value) == len(default)
        fits, needed = same_length and all(map(_is_number, value)), f"{len(default)} numbers, like {list(default)}"
    else:
        fits, needed = _is_number(value), f"a number, like {default}"
    if not fits:
        raise ConfigError(f"{what} is {value!r}; it must be {needed}.")
    if isinstance(default, str):
        return value
    return tuple(map(float, value)) if isinstance(default, tuple) else float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _check(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not low <= value <= high or (open_low and value == low):
        raise ConfigError(
            f"synthetic market: {name} is {value}; it must lie {'above' if open_low else 'from'} {low} to {high}."
        )


def _check_length(length: int) -> None:
    if not 2 <= length <= MOST_BARS:
        raise ConfigError(f"synthetic market: length is {length}; it must lie from 2 to {MOST_BARS:,} bars.")


def _normals(seed: int, name: str, length: int, draws: int) -> Floats:
    return Streams(seed).normals(f"market/{name}", update=0, environments=1, steps=length, draws=draws)[:, 0, :]


def _bars(kind: str, returns: Floats, parameters: dict[str, Any], seed: int, bar: str, wick: float) -> Bars:
    """Bars with the log-returns `returns` [T]; `wick` is the scale of what high and low add to the body, in logs."""
    length = len(returns)
    step = np.timedelta64(parse_rule(bar), "ns")
    if length > (_LAST_TIME - START_TIME) / step:
        raise ConfigError(f"synthetic market: {length} bars of {bar!r} end after the year 2200; use shorter bars.")
    path = np.concatenate([[0.0], np.cumsum(returns)])
    if np.abs(path).max() > 200:
        raise ConfigError(f"synthetic market {kind}: the log price leaves -200 to 200; use a smaller sigma or length.")
    price = START_PRICE * np.exp(path)
    opens, closes = price[:-1], price[1:]
    z = _normals(seed, f"{kind}/wicks", length, 3)
    time = START_TIME + np.arange(length) * step
    listed = ", ".join(f"{name}={value}" for name, value in parameters.items())
    return Bars(
        symbol=f"SYNTHETIC-{kind.upper().replace('_', '-')}",
        time=time,
        open=opens,
        high=np.maximum(opens, closes) * np.exp(wick * np.abs(z[:, 0])),
        low=np.minimum(opens, closes) * np.exp(-wick * np.abs(z[:, 1])),
        close=closes,
        volume=_VOLUME * np.exp(0.3 * z[:, 2]),
        label=f"synthetic: {kind}({listed}; seed={seed}, bar={bar})",
        source=f"tailwise.bars.synthetic.{kind}",
        frequency=infer_frequency(time, name=f"synthetic {kind}"),
    )

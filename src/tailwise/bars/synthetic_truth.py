"""What is known of a synthetic market by its law, in numbers, beside what its sample shows."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailwise.bars import synthetic
from tailwise.bars.bars import Bars
from tailwise.bars.resample import parse_rule

Floats: TypeAlias = NDArray[np.float64]
YEAR = 365 * 86_400e9  # ns


@dataclass(frozen=True)
class Truth:
    """One number of the law; `sample` is the same of these bars, None where it cannot be seen in them."""

    name: str
    law: float
    sample: float | None


def maker(kind: str) -> Any:
    """The function that makes the market, for its parameters and its words."""
    return getattr(synthetic, kind)


def meaning(kind: str) -> str:
    """The law in one line."""
    return (inspect.getdoc(maker(kind)) or "").partition("\n")[0]


def words(kind: str) -> str:
    """The truth in words, as the documentation of the market tells it."""
    text = inspect.getdoc(maker(kind)) or ""
    return " ".join(text.partition("Truth: ")[2].split())


def truths(kind: str, bars: Bars, p: dict[str, Any], *, seed: int) -> list[Truth]:
    """The numbers of the law with parameters `p` (all of them), per bar and before costs unless they say otherwise."""
    r = np.log(bars.close / bars.open)
    mean, deviation = Truth("mean log-return per bar", 0.0, float(r.mean())), float(r.std())
    oracle = float(np.abs(r[1:]).mean())  # earned by holding the right side of every bar
    if kind == "sine":
        whole = int(len(r) // p["period"] * p["period"])  # bars of complete periods
        earned = float(np.abs(r[:whole]).sum()) * p["period"] / whole if whole and not p["noise"] else None
        return [Truth("oracle's log-return per period, without noise", 4 * p["amplitude"], earned)]
    if kind == "ar1":
        followed = float((np.sign(p["phi"] * r[:-1]) * r[1:]).mean())
        return [
            mean,
            _deviation(p["sigma"], deviation),
            Truth("autocorrelation at lag 1", p["phi"], _autocorrelation(r)),
            Truth("log-return per bar of sign(phi r[t])", abs(p["phi"]) * p["sigma"] * _MEAN_ABSOLUTE, followed),
        ]
    if kind == "random_walk":
        return [
            Truth(mean.name, p["drift"], mean.sample),
            _deviation(p["sigma"], deviation),
            Truth("autocorrelation at lag 1", 0.0, _autocorrelation(r)),
        ]
    if kind == "regime_switching":
        return _regimes(p, r, seed)
    if kind == "jump_diffusion":
        m, s, jumps = p["jump_mean"], p["jump_sigma"], p["jumps"]
        variance = p["sigma"] ** 2 + jumps * (m**2 + s**2)
        fourth = jumps * (m**4 + 6 * m**2 * s**2 + 3 * s**4)
        return [
            Truth(mean.name, p["drift"] + jumps * m, mean.sample),
            _deviation(math.sqrt(variance), deviation),
            Truth("excess kurtosis", fourth / variance**2, float(((r - r.mean()) ** 4).mean() / deviation**4 - 3)),
        ]
    if kind == "heston":
        dt = parse_rule(p["bar"]) / YEAR
        return [
            Truth("long-run volatility per year", math.sqrt(p["theta"]), deviation / math.sqrt(dt)),
            Truth("share of a variance shock left after one bar", math.exp(-p["kappa"] * dt), None),
            Truth("correlation of price and variance", p["rho"], None),
        ]
    assert kind == "leak"
    return [
        _deviation(p["sigma"], deviation),
        Truth("log-return per bar of sign(next_log_return)", p["sigma"] * _MEAN_ABSOLUTE, oracle),
    ]


_MEAN_ABSOLUTE = math.sqrt(2 / math.pi)  # of a standard normal


def _deviation(law: float, sample: float) -> Truth:
    return Truth("standard deviation per bar", law, sample)


def _autocorrelation(r: Floats) -> float | None:
    centred = r - r.mean()
    return float((centred[1:] * centred[:-1]).mean() / r.var()) if r.var() else None


def _regimes(p: dict[str, Any], r: Floats, seed: int) -> list[Truth]:
    states = synthetic.regime_states(seed=seed, length=len(r), leave_calm=p["leave_calm"], leave_storm=p["leave_storm"])
    share = p["leave_calm"] / (p["leave_calm"] + p["leave_storm"])
    (calm_mean, storm_mean), (calm, storm) = p["drift"], p["sigma"]
    mean = (1 - share) * calm_mean + share * storm_mean
    variance = (1 - share) * (calm**2 + calm_mean**2) + share * (storm**2 + storm_mean**2) - mean**2
    storms = int(np.sum(np.diff(states, prepend=0) == 1))
    return [
        Truth("share of storm", share, float(states.mean())),
        Truth("bars per storm", 1 / p["leave_storm"], float(states.sum()) / storms if storms else None),
        Truth("mean log-return per bar", mean, float(r.mean())),
        _deviation(math.sqrt(variance), float(r.std())),
    ]

"""The decision of a policy at a close, and what it rests on, as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.run.forecast import Forecast

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Holding:
    """What an account of one asset really holds at the last close, instead of what a played one would.

    units    negative: sold; equity: account currency, cash and position at the close
    entry    average price of the position; peak: highest equity so far, at least `equity`
    held     bars since the position was opened
    """

    units: float
    equity: float
    entry: float | None = None
    peak: float | None = None
    held: int = 0


@dataclass(frozen=True)
class Verdict:
    """What the guards of the market say of a decision. low, high: exposures [A] that they leave, infinite where none is
    set; speaking: the guards that speak at this close; cut: whether the target lies outside."""

    low: Floats
    high: Floats
    speaking: tuple[str, ...]
    cut: bool


@dataclass(frozen=True)
class Drive:
    """What an entry of the observation did. effect: by how much the expected target [A] is larger than with the entry
    at its train mean; cvar: the same of the predicted CVaR, None without a law; flips: whether the decision changes."""

    name: str
    value: float
    effect: Floats
    cvar: float | None
    flips: bool


@dataclass(frozen=True)
class LiveDecision:
    """The decision at the last close.

    symbols        the A assets; time: open time of the last bar, UTC; close: [A], its closing prices
    action         as the environment takes it
    target         [A], exposures to hold from the next open on, as multiples of equity (guards, lots and margin may
                   still cut the order)
    exposure       [A], what the account holds now
    choices        target exposures [K] of a discrete choice, probabilities: [K]; None for numbers
    expected, spread   [A]: mean and standard deviation of the target under the policy
    forecast       law of the return that follows, one row
    verdict        of the guards
    drives         what drove the expected target, the largest effect first
    equity         of the account, account currency
    played         bars that the account was traded for; since: open time of the first of them, None: it begins now
    deterministic  whether the action is the most likely one
    """

    symbols: tuple[str, ...]
    time: np.datetime64
    close: Floats
    action: npt.NDArray[Any]
    target: Floats
    exposure: Floats
    choices: Floats | None
    probabilities: Floats | None
    expected: Floats
    spread: Floats
    forecast: Forecast
    verdict: Verdict
    drives: tuple[Drive, ...]
    equity: float
    played: int
    since: np.datetime64 | None
    deterministic: bool

    @property
    def hidden_state(self) -> str:
        """How the hidden state was obtained, as a sentence."""
        if self.since is None:
            return "The account and the hidden state begin at this close."
        return (
            f"The hidden state was played through {self.played:,} bars, from {show(self.since)} on, by an account that "
            "began flat at the close before."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinite bounds are null."""
        return {
            "symbols": list(self.symbols),
            "time": show(self.time),
            "close": self.close.tolist(),
            "action": self.action.tolist(),
            "target": self.target.tolist(),
            "exposure": self.exposure.tolist(),
            "choices": None if self.choices is None else self.choices.tolist(),
            "probabilities": None if self.probabilities is None else self.probabilities.tolist(),
            "expected": self.expected.tolist(),
            "spread": self.spread.tolist(),
            "forecast": self.forecast.to_json(),
            "guards": {
                "low": [_finite(one) for one in self.verdict.low],
                "high": [_finite(one) for one in self.verdict.high],
                "speaking": list(self.verdict.speaking),
                "cut": self.verdict.cut,
            },
            "drives": [
                {
                    "name": one.name,
                    "value": one.value,
                    "effect": one.effect.tolist(),
                    "cvar": one.cvar,
                    "flips": one.flips,
                }
                for one in self.drives
            ],
            "equity": self.equity,
            "played": self.played,
            "since": None if self.since is None else show(self.since),
            "hidden_state": self.hidden_state,
            "deterministic": self.deterministic,
        }


def show(time: np.datetime64) -> str:
    """2018-12-31 or 2018-12-31T14:30:00Z."""
    text = str(time.astype("datetime64[s]"))
    return text[:10] if text.endswith("T00:00:00") else f"{text}Z"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

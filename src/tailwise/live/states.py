"""The state of a live session: running, reduce-only, flat or stopped, each with its reasons and the way back.

The state is the gravest of the reasons that hold. A reason that a feed or a clock gives clears by itself; one that
somebody has to look at first stays until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError

Floats = npt.NDArray[np.float64]


class State(IntEnum):
    """What a decision may do, the mildest first."""

    RUNNING = 0  # what the policy wants
    REDUCE_ONLY = 1  # hold, or come closer to nothing
    FLAT = 2  # hold nothing
    STOPPED = 3  # no decision at all; the session ends

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True)
class Rule:
    """A reason that can hold. latched: it stays until it is acknowledged; resume: what brings trading back."""

    state: State
    latched: bool
    resume: str


_BY_ITSELF = "clears by itself with the next bar that is in order"
_ACKNOWLEDGE = "look at it, then start again with --acknowledge {name}"
RULES: dict[str, Rule] = {
    "stale_feed": Rule(State.REDUCE_ONLY, False, _BY_ITSELF),
    "gap": Rule(State.REDUCE_ONLY, False, _BY_ITSELF),
    "trading_hours": Rule(State.REDUCE_ONLY, False, "clears by itself within the hours"),
    "bad_lines": Rule(State.REDUCE_ONLY, False, "clears by itself with the second bar that is in order"),
    "absurd_price": Rule(State.REDUCE_ONLY, True, _ACKNOWLEDGE + ", which takes the next price as it is"),
    "unexplained_position": Rule(State.STOPPED, True, _ACKNOWLEDGE),
    "ruined": Rule(State.STOPPED, True, "begin a new session in another folder"),
    "kill_file": Rule(State.FLAT, False, "remove the file; a session that has ended is started again"),
}


@dataclass
class Machine:
    """The reasons that hold, by name, with a sentence each."""

    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> State:
        return max((RULES[name].state for name in self.reasons), default=State.RUNNING)

    def give(self, name: str, sentence: str) -> bool:
        """A reason holds; whether it is new."""
        new = name not in self.reasons
        self.reasons[name] = sentence
        return new

    def clear(self, *names: str) -> list[str]:
        """Reasons no longer hold, unless they wait for somebody; those that were cleared."""
        if not self.reasons:
            return []
        cleared = [name for name in names if name in self.reasons and not RULES[name].latched]
        for name in cleared:
            del self.reasons[name]
        return cleared

    def acknowledge(self, names: Iterable[str]) -> list[str]:
        """Somebody has looked at these."""
        done = []
        for name in names:
            if name not in RULES:
                raise ConfigError(f"--acknowledge {name}: there is no such reason; it is one of {', '.join(RULES)}.")
            if name == "ruined":
                raise ConfigError("a ruined account does not come back; begin a new session in another folder.")
            if self.reasons.pop(name, None) is not None:
                done.append(name)
        return done

    def sentences(self) -> list[str]:
        """Each reason with what it does and how trading resumes."""
        ends = {name: RULES[name].resume.format(name=name) for name in self.reasons}
        return [
            f"{name} ({RULES[name].state.word}): {text} {ends[name][0].upper()}{ends[name][1:]}."
            for name, text in self.reasons.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return dict(self.reasons)


def allowed(state: State, wanted: Floats, held: Floats) -> Floats:
    """The target [A] that a state leaves of what the policy wants, given what is held, all as multiples of equity."""
    if state is State.RUNNING:
        return wanted
    if state is State.REDUCE_ONLY:
        return np.clip(wanted, np.minimum(held, 0.0), np.maximum(held, 0.0))
    return np.zeros_like(wanted)

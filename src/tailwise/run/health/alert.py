"""What a rule has to say: an alert, as it is written into alerts.jsonl."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["info", "warn", "error"]
Action = Literal["warn", "shrink", "skip", "rollback", "stop"]
ACTIONS: tuple[Action, ...] = ("warn", "shrink", "skip", "rollback", "stop")  # from the mildest to the strongest


@dataclass(frozen=True)
class Alert:
    """One finding: which rule, how bad, the evidence in a sentence, and what to do.

    event: "raised" when the rule begins to fire, "cleared" when it has been quiet long enough, "acted" when something
    was done about it (the evidence then says what). signal and value: the number that the rule looked at.
    """

    update: int
    rule: str
    severity: str
    evidence: str
    advice: str
    event: str = "raised"
    action: str = "warn"
    signal: str | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A flat dictionary."""
        return asdict(self)

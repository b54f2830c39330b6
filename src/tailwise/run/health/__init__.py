"""Rules that watch a run, alerts with evidence and advice, and actions. docs/health.md has the whole picture."""

from __future__ import annotations

from tailwise.run.health.engine import RULES, Health
from tailwise.run.health.rule import Alert, Condition, Rule

__all__ = ["RULES", "Alert", "Condition", "Health", "Rule"]

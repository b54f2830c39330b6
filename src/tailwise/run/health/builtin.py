"""All built-in rules."""

from __future__ import annotations

from tailwise.run.health.rule import Rule
from tailwise.run.health.rules_data import DATA_RULES
from tailwise.run.health.rules_learning import LEARNING_RULES
from tailwise.run.health.rules_numbers import NUMBER_RULES

RULES: tuple[Rule, ...] = (*NUMBER_RULES, *LEARNING_RULES, *DATA_RULES)

"""Rules by YAML: names that exist, suggestions for those that do not, actions that replace the built-in ones."""

from __future__ import annotations

from typing import Any

import pytest

from tailwise.core.errors import ConfigError
from tailwise.run.config import parse_config
from tailwise.run.health import Health
from tests.support import small_trainer

OWN = {"name": "short_episodes", "signal": "episode/length", "below": 5.0}


def health(**section: Any) -> Any:
    return parse_config({"health": section}, source="run.yaml").health


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"disable": ["gradient_nrom"]}, "there is no rule 'gradient_nrom'; did you mean 'gradient_norm'"),
        ({"actions": {"kl_hihg": "stop"}}, "there is no rule 'kl_hihg'; did you mean 'kl_high'"),
        ({"actions": {"kl_high": "explode"}}, "'warn', 'shrink', 'skip', 'rollback' or 'stop'"),
        ({"rules": [{**OWN, "signal": "episode/lenght"}]}, "no metric 'episode/lenght'; did you mean 'episode/length'"),
        ({"rules": [{**OWN, "below": None}]}, "short_episodes has no limit; set above, below or both"),
        ({"rules": [{**OWN, "name": "kl_high"}]}, "the name kl_high belongs to a built-in rule"),
        ({"rules": [OWN, OWN]}, "two rules are called short_episodes"),
        ({"rules": [{**OWN, "statistic": "slope"}]}, "slope of rule short_episodes needs a window of at least 2"),
        ({"rules": [{**OWN, "statistc": "mean"}]}, "did you mean 'health.rules"),
    ],
)
def test_wrong_rules_are_refused_with_a_sentence(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        health(**section)
    assert sentence in str(error.value)


def test_disabled_rules_are_gone_and_actions_are_replaced() -> None:
    rules = {
        rule.name: rule for rule in health(disable=["kl_high"], actions={"gradient_norm": "stop"}).effective_rules()
    }
    assert "kl_high" not in rules
    assert rules["gradient_norm"].action == "stop" and rules["critic_loss"].action == "shrink"


def test_a_rule_of_ones_own_fires_in_a_real_run() -> None:
    """With its window, its severity and its advice."""
    own = {
        "name": "steps_seen",
        "signal": "policy/epochs",
        "above": 1.5,
        "statistic": "mean",
        "window": 2,
        "severity": "error",
        "advice": "look here",
    }
    trainer = small_trainer(health={"rules": [own], "disable": ["no_advantage_signal"]})
    trainer.train()
    (alert,) = [alert for alert in trainer.alerts if alert.rule == "steps_seen"]
    assert (alert.update, alert.severity, alert.advice) == (2, "error", "look here")
    assert alert.evidence == "policy/epochs is 2 epochs on average over 2 updates, above 1.5 epochs"


def test_a_rule_on_what_is_never_measured_stays_silent() -> None:
    assert Health(health(rules=[OWN]).effective_rules()).judge_row(1, {"policy/kl": 0.1}) == []

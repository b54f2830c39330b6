"""Whether a configuration really trains, and does not only parse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tailwise.core.config import apply_overrides
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config


def assert_trains(data: Mapping[str, Any], *, source: str) -> None:
    """Three updates for real: kept, with finite metrics, no error, and weights that move in every part of the model."""
    run = parse_config(dict(data), source=source).run
    per_update = run.environments * run.rollout_steps
    short = [f"run.total_steps={2 * per_update + 1}", "learner.epochs=2"]  # three updates, and a bearable time
    agent = PPO(config=parse_config(apply_overrides(dict(data), short), source=source))
    before = {name: tensor.detach().clone() for name, tensor in agent.model.named_parameters()}
    agent.learn()

    assert [row["update/committed"] for row in agent.history] == [1.0, 1.0, 1.0]
    broken = {k: v for row in agent.history for k, v in row.items() if not math.isfinite(v)}
    assert broken == {}
    assert [alert.rule for alert in agent.trainer.alerts if alert.severity == "error"] == []
    moved: dict[str, bool] = {}
    for parameter, tensor in agent.model.named_parameters():
        part = parameter.split(".")[0]
        moved[part] = moved.get(part, False) or not torch.equal(tensor, before[parameter])
    assert moved and all(moved.values()), moved
    agent.trainer.driver.close()

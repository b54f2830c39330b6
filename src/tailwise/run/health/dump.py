"""Everything about the moment at which a rule stopped a run, in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from tailwise.core.atomic import atomic_folder
from tailwise.learner.rollout import Rollout
from tailwise.run.health.alert import Alert

if TYPE_CHECKING:
    from tailwise.run.trainer import Trainer

FOLDER = "dumps"


def rollout_tensors(rollout: Rollout) -> dict[str, torch.Tensor]:
    """All tensors of a rollout by name."""
    parts = {field.name: getattr(rollout, field.name) for field in fields(rollout) if field.name != "critic"}
    parts |= {f"critic.{field.name}": getattr(rollout.critic, field.name) for field in fields(rollout.critic)}
    return {name: part.contiguous().clone() for name, part in parts.items() if isinstance(part, torch.Tensor)}


def write_dump(
    trainer: Trainer, rollout: Rollout, metrics: Mapping[str, float], alerts: Sequence[Alert]
) -> Path | None:
    """Write dumps/update-N: rollout.safetensors, metrics.json, alerts.json and a checkpoint; None without a folder."""
    if trainer.run_dir is None:
        return None
    folder = trainer.run_dir / FOLDER / f"update-{trainer.update:06d}"
    with atomic_folder(folder) as temporary:
        save_file(rollout_tensors(rollout), temporary / "rollout.safetensors")
        numbers = {
            name: value if value == value and abs(value) < float("inf") else None for name, value in metrics.items()
        }
        (temporary / "metrics.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
        told = [alert.to_json() for alert in alerts]
        (temporary / "alerts.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    trainer.write_checkpoint(folder / "checkpoint")
    return folder

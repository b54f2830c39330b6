"""Where a roll-back goes: the newest checkpoint from before the trouble, or a copy in memory without a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tailwise.core.errors import CheckpointError
from tailwise.run import checkpoint as ckpt
from tailwise.run.policy_files import load_policy_tensors, policy_tensors

if TYPE_CHECKING:
    from tailwise.run.trainer import Trainer

KEPT = 3  # copies in memory


@dataclass(frozen=True)
class GoodState:
    """What the learner was after an update: weights and normaliser, optimiser, controllers."""

    update: int
    policy: dict[str, torch.Tensor]
    tensors: dict[str, torch.Tensor]
    training: dict[str, Any]
    source: str


class GoodStates:
    """Copies of the newest good states, for a run that writes no checkpoints."""

    def __init__(self) -> None:
        self.copies: list[GoodState] = []

    def remember(self, trainer: Trainer) -> None:
        """Keep a copy of the learner as it is."""
        risk_tensors, risk_json = trainer.risk.state()
        tensors = {name: tensor.clone() for name, tensor in (trainer.backend.training_tensors() | risk_tensors).items()}
        training = {"kl_factor": trainer.kl_factor, "risk": risk_json}
        policy = policy_tensors(trainer.model)
        copy = GoodState(trainer.update, policy, tensors, training, f"the state after update {trainer.update}")
        self.copies = [*self.copies[-(KEPT - 1) :], copy]

    def before(self, update: int, run_dir: Path | None) -> GoodState | None:
        """The newest good state whose updates all lie before `update`."""
        if run_dir is None:
            return next((copy for copy in reversed(self.copies) if copy.update < update), None)
        for folder in ckpt.checkpoints_in(run_dir):
            try:
                policy, training = ckpt.read_policy(folder), ckpt.read_training(folder)
            except CheckpointError:
                continue  # a broken one is no good state; resuming tells what is wrong with it
            finite = all(bool(torch.isfinite(tensor).all()) for tensor in policy.tensors.values())
            if int(training.json["update"]) < update and finite:
                source = f"checkpoint {folder.name}"
                return GoodState(int(training.json["update"]), policy.tensors, training.tensors, training.json, source)
        return None


def go_back(trainer: Trainer, good: GoodState) -> None:
    """Weights, normaliser, return scale, optimiser and controllers of `good`; time and environments go on."""
    load_policy_tensors(trainer.model, good.policy, source=good.source)
    trainer.backend.load_training_tensors({k: v for k, v in good.tensors.items() if k.startswith("optimiser/")})
    trainer.kl_factor = float(good.training["kl_factor"])
    trainer.risk.load(good.tensors, good.training["risk"])
    if not bool(torch.isfinite(trainer.collector.state).all()):
        trainer.collector.state = trainer.model.initial_state(trainer.driver.num_envs)

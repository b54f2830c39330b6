"""Where a roll-back goes: the newest checkpoint from before the trouble, or a copy in memory without a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tailwise.core.errors import CheckpointError
from tailwise.run import checkpoint as ckpt
from tailwise.run.controllers import controllers_of
from tailwise.run.policy_files import load_policy_tensors

if TYPE_CHECKING:
    from tailwise.run.trainer import Trainer

KEPT = 3  # copies in memory


@dataclass(frozen=True)
class GoodCheckpoint:
    """A checkpoint that nothing is wrong with."""

    update: int
    policy: dict[str, torch.Tensor]
    tensors: dict[str, torch.Tensor]
    training: dict[str, Any]
    source: str

    def restore(self, trainer: Trainer) -> None:
        """Make the trainer's learner and controllers those of the checkpoint."""
        load_policy_tensors(trainer.model, self.policy, source=self.source)
        optimiser = {k: v for k, v in self.tensors.items() if k.startswith("optimiser/")}
        trainer.backend.optimiser.check(optimiser, fresh=True)
        trainer.backend.optimiser.load(optimiser)
        trainer.controllers.restore(controllers_of(self.training))


class GoodCopy:
    """The same in memory, around a snapshot of the learner."""

    def __init__(self, trainer: Trainer, snapshot: Any) -> None:
        self.update = trainer.update
        self.source = f"the state after update {trainer.update}"
        self.snapshot = snapshot
        self.controllers = trainer.controllers.to_json()

    def restore(self, trainer: Trainer) -> None:
        """Make the trainer's learner and controllers those of the copy."""
        trainer.backend.restore(self.snapshot)
        trainer.controllers.restore(self.controllers)


class GoodStates:
    """Copies of the newest good states, for a run that writes no checkpoints.

    What the learner is after an update is what it is before the next one, and that is copied anyway, to undo an update:
    so `expect` says that the present state is good, and `keep` gets it with that copy.
    """

    def __init__(self) -> None:
        self.copies: list[GoodCopy] = []
        self._good: int | None = None  # the update after which the learner was good

    def expect(self, trainer: Trainer) -> None:
        """The learner is good as it is."""
        self._good = trainer.update

    def keep(self, trainer: Trainer, snapshot: Any | None) -> None:
        """Before an update: keep the learner if it is good; snapshot: a copy of it, if there is one."""
        if self._good == trainer.update:
            taken = trainer.backend.snapshot() if snapshot is None else snapshot
            self.copies = [*self.copies[-(KEPT - 1) :], GoodCopy(trainer, taken)]
        self._good = None

    def before(self, update: int, run_dir: Path | None) -> GoodCheckpoint | GoodCopy | None:
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
                made = int(training.json["update"])
                return GoodCheckpoint(made, policy.tensors, training.tensors, training.json, source)
        return None


def go_back(trainer: Trainer, good: GoodCheckpoint | GoodCopy) -> None:
    """Weights, normaliser, return scale, optimiser and controllers of `good`; time, environments and windows go on."""
    good.restore(trainer)
    if not bool(torch.isfinite(trainer.collector.state).all()):
        trainer.collector.state = trainer.model.initial_state(trainer.driver.num_envs)

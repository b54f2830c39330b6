"""What a configuration names beside PPO's own losses (adversaries, demonstrations), and what that needs in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tailwise.core.errors import CheckpointError
from tailwise.core.streams import Streams
from tailwise.learner.config import Demonstrations, PriceBudget, SaPpo
from tailwise.learner.imitation import NAME as IMITATION
from tailwise.learner.imitation import Demos, ImitationLoss, clone
from tailwise.learner.losses import AuxiliaryLoss
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.config import Config
from tailwise.run.demonstrations import demonstrations
from tailwise.run.disturbed import adversary_losses
from tailwise.run.envs import Driver, EnvDriver
from tailwise.run.path_training import PathTraining
from tailwise.run.worlds import World

DEMONSTRATIONS = "imitation/digest"  # of a checkpoint: sha256 of the demonstrations


class ExtraLosses:
    """demos: the demonstrations, None without; losses: by name, for the seam `auxiliary`; cloned: whether behaviour
    cloning is behind the model; paths: the adversary on the bars, None without."""

    def __init__(self, config: Config, world: World, driver: Driver, model: ActorCritic) -> None:
        self.config, learner = config, config.learner
        self.demos: Demos | None = demonstrations(
            learner.imitation, world, driver, seed=config.seed, gamma=learner.gamma, squashed=model.law.squashed
        )
        self.cloned = False
        self.losses: list[tuple[str, AuxiliaryLoss]] = []
        adversary, moves = learner.adversary, None
        if isinstance(adversary, SaPpo):
            if isinstance(adversary.budget, PriceBudget):
                moves = world.moves_of_prices(adversary.budget.size)
            self.losses += adversary_losses(adversary, world.entries(driver), moves)
        if self.demos is not None and isinstance(learner.imitation, Demonstrations):
            self.losses.append((IMITATION, ImitationLoss(learner.imitation, self.demos)))
        shifting = world.path_adversary
        self.paths: PathTraining | None = None
        if shifting is not None:
            assert isinstance(driver, EnvDriver)  # the configuration refuses shards beside it
            self.paths = PathTraining(shifting, world.market(), driver, model)

    def renew(self, update: int) -> dict[str, float]:
        """Before the rollout of an update: what changes in the environments; metrics."""
        return {} if self.paths is None else self.paths.renew(update)

    def clone(self, model: ActorCritic, streams: Streams, tell: Callable[[str], None]) -> None:
        """Behaviour cloning before the first rollout, once, where learner.imitation asks for it."""
        imitation, learner = self.config.learner.imitation, self.config.learner
        if self.cloned or self.demos is None or not isinstance(imitation, Demonstrations) or not imitation.clone:
            return
        tell(f"cloning {len(self.demos):,} steps of demonstrations in {imitation.clone:,} steps")
        clone(model, self.demos, imitation, streams, learning_rate=learner.learning_rate)
        self.cloned = True

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        demos = {} if self.demos is None else {DEMONSTRATIONS: self.demos.digest()}
        return demos if self.paths is None else demos | self.paths.tensors()

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise when a checkpoint was made with other demonstrations, or with paths that do not fit."""
        if self.paths is not None:
            self.paths.check(tensors)
        stored = tensors.get(DEMONSTRATIONS)
        if stored is not None and (self.demos is None or not torch.equal(stored, self.demos.digest())):
            raise CheckpointError(
                "the demonstrations of learner.imitation are not those that the run began with; restore them, or train "
                "again into another folder"
            )

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what is beside the state of the environments, before that."""
        if self.paths is not None:
            self.paths.load(tensors)

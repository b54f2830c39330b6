"""The losses beside PPO's own that a configuration names (adversary, demonstrations), and what they need in a run."""

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
from tailwise.run.envs import Driver
from tailwise.run.worlds import World

DEMONSTRATIONS = "imitation/digest"  # of a checkpoint: sha256 of the demonstrations


class ExtraLosses:
    """demos: the demonstrations, None without; losses: by name, for the seam `auxiliary`; cloned: whether behaviour
    cloning is behind the model."""

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
        return {} if self.demos is None else {DEMONSTRATIONS: self.demos.digest()}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise when a checkpoint was made with other demonstrations."""
        stored = tensors.get(DEMONSTRATIONS)
        if stored is not None and (self.demos is None or not torch.equal(stored, self.demos.digest())):
            raise CheckpointError(
                "the demonstrations of learner.imitation are not those that the run began with; restore them, or train "
                "again into another folder"
            )

"""Training on the worst paths: some accounts live on train bars that are shifted against the newest policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.errors import CheckpointError
from tailwise.learner.config import PathAdversary
from tailwise.market.shifts import ShiftBudget, random_shifts
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.envs import EnvDriver
from tailwise.run.path_worlds import PathSearch, shifted_world
from tailwise.run.play import ModelPlayer
from tailwise.run.worlds import MarketWorld

PATH = "adversary/path/"  # of a checkpoint: the shifts of a symbol, by its place


class PathTraining:
    """Finds the paths and puts them into the training environments, whose last symbols they are.

    Each search begins at the bars themselves, a little moved by chance at the address of the update, so it is a
    function of the weights and the update alone: a resumed run finds the same paths.
    """

    def __init__(self, adversary: PathAdversary, world: MarketWorld, driver: EnvDriver, model: ActorCritic) -> None:
        self.adversary, self.world, self.driver = adversary, world, driver
        seed = world.config.seed
        self.search = PathSearch(
            world,
            "train",
            lambda: ModelPlayer(model, deterministic=True, seed=seed),
            ShiftBudget(adversary.size, adversary.size * adversary.largest),
            seed=seed,
            length=world.settings.episode_length,
        )
        self.shifts = self.search.unshifted()

    def renew(self, update: int) -> dict[str, float]:
        """Every so many updates find the worst paths of the policy as it is; metrics, none in between."""
        if update % self.adversary.every:
            return {}
        search, steps = self.search, self.adversary.steps
        start = [
            random_shifts(count, search.budget, seed=search.seed, draw=update, symbol=symbol) / steps
            for symbol, count in enumerate(search.counts)
        ]
        clean, worst = search.worst(steps=steps, start=start)
        self._place(worst.shifts)
        bars = sum(search.counts)
        return {
            "adversary/path_cost": float((clean.log_return - worst.log_return).sum()) / bars,
            "adversary/path_shift": float(sum(np.abs(one).sum() for one in worst.shifts)) / bars,
        }

    def _place(self, shifts: Sequence[npt.NDArray[np.float64]]) -> None:
        """Let the accounts on shifted bars go on with other shifts."""
        self.shifts = tuple(shifts)
        tables = shifted_world(self.world, "train", shifts).dataset.tables("train")
        venv = self.driver.venv
        first = len(venv.simulator.table.last_rows) - len(tables)  # type: ignore[attr-defined]
        marked = [replace(table, resampled=True) for table in tables]
        self.driver.show(*venv.replace_bars(first, marked))  # type: ignore[attr-defined]

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {f"{PATH}{place}": torch.from_numpy(one.copy()) for place, one in enumerate(self.shifts)}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise where a checkpoint has no such shifts, or some beyond the budget."""
        for place, count in enumerate(self.search.counts):
            stored = tensors.get(f"{PATH}{place}")
            if stored is None or tuple(stored.shape) != (count,) or stored.dtype != torch.float64:
                kind = "missing" if stored is None else f"{stored.dtype} {tuple(stored.shape)}"
                raise CheckpointError(
                    f"the stored shifts of {self.world.dataset.bars[place].symbol} are {kind}; this run needs "
                    f"torch.float64 ({count},): resume with the configuration that the run was started with"
                )
            if not self.search.within(stored.numpy()):
                raise CheckpointError(
                    f"the stored shifts of {self.world.dataset.bars[place].symbol} exceed learner.adversary.size "
                    f"{self.adversary.size:g}; use another checkpoint"
                )

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put stored paths into the environments, before their own state is restored."""
        self._place([tensors[f"{PATH}{place}"].numpy() for place in range(len(self.search.counts))])

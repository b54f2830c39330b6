"""A policy that acts: predict, play, trade, save. What is said here of one holds for several that decide together."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tailwise.bars.data_config import Purpose
from tailwise.core.errors import CheckpointError, DataError, ShapeError
from tailwise.core.streams import Streams
from tailwise.features.spec import FeatureSpec
from tailwise.market.path import AccountPath
from tailwise.model.actor_critic import ActorCritic, decide_padded
from tailwise.model.observation import ObservationSpec, as_mask, check_mask
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config
from tailwise.run.decide import Decider
from tailwise.run.forecast import Forecast, forecast_of
from tailwise.run.play import ModelPlayer, Played, Player
from tailwise.run.policy_files import PolicyFiles, policy_json, policy_tensors
from tailwise.run.worlds import MarketWorld, World, make_world, play_world, trade_window


class Trader(Decider):
    """Whatever decides and can be judged. config: of the run; features: what it observes of bars, None elsewhere."""

    config: Config
    features: FeatureSpec | None

    @abstractmethod
    def needs_mask(self) -> bool:
        """Whether its environment gave action masks in training, so that `predict` must have them too."""

    @abstractmethod
    def predict(
        self,
        obs: Any,
        *,
        state: torch.Tensor | None = None,
        episode_start: Any = None,
        mask: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, torch.Tensor]:
        """Actions for one observation or a batch of n, as the environment takes them, and the hidden state."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write a folder that `tailwise.load` reads, whole or not at all."""

    def world(self) -> World:
        """Where it was trained, built again by its configuration, with the features that it was trained on."""
        return make_world(self.config, features=self.features)

    def market(self) -> MarketWorld:
        """The market that it was trained for; its bars are read again at every call."""
        return self.world().market()

    def evaluate(self, *, episodes: int, deterministic: bool | None = None, seed: int | None = None) -> Played:
        """Play seeded episodes of the environment that it was trained in; none of them served its selection.

        On a market: its test window, whole, one episode per symbol, whatever `episodes` says.
        """
        player, seed = self._player(deterministic, seed)
        return play_world(player, self.world(), episodes=episodes, seed=seed)

    def trade(
        self,
        purpose: Purpose = "test",
        *,
        deterministic: bool | None = None,
        seed: int | None = None,
        market: MarketWorld | None = None,
    ) -> list[AccountPath]:
        """Trade a window of the market that it was trained for: one path per symbol.

        seed: of sampled actions, default the run's; market: what `market` gave, if it is at hand.
        """
        world = self.market() if market is None else market
        player, seed = self._player(deterministic, seed)
        return trade_window(player, world, purpose, seed=seed)

    def _player(self, deterministic: bool | None, seed: int | None) -> tuple[Player, int]:
        """What plays it, and its seed; None: as it is meant to be played, with the run's seed."""
        seed = self.config.seed if seed is None else seed
        deterministic = self.deterministic if deterministic is None else deterministic
        return self.player(deterministic=deterministic, seed=seed), seed


class Policy(Trader):
    """One model that acts and does not learn. What `tailwise.load` gives back."""

    def __init__(
        self, model: ActorCritic, config: Config, *, masked: bool = False, features: FeatureSpec | None = None
    ) -> None:
        self.model = model
        self.config = config
        self.features = features
        self._masked = masked
        self.calls = 0  # stochastic predictions made: the address of the next random draw

    @property
    def deterministic(self) -> bool:
        return self.config.plays_most_likely(discrete=self.model.law.discrete)

    def predict(
        self,
        obs: Any,
        *,
        state: torch.Tensor | None = None,
        episode_start: Any = None,
        mask: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, torch.Tensor]:
        """Actions for one observation or a batch of n, as the environment takes them, and the hidden state [n, S, H].

        state: what the previous call returned (None: an episode starts); episode_start [n] bool: which rows start one
        now; mask [n, K] bool: allowed actions. The rows of a batch do not influence one another.
        """
        spec = self.model.observation
        single, rows = batch_size(spec, obs)
        batch = spec.with_batch_axis(obs) if single else obs
        flat = torch.from_numpy(spec.flatten(batch, rows))
        if mask is None and spec.mask is not None:
            mask = spec.mask_from(batch)
        if not bool(torch.isfinite(flat).all()):
            bad = int((~torch.isfinite(flat)).sum())
            raise DataError(f"the observation has {bad} NaN or infinite entries; a policy cannot act on them")
        if state is None:
            state = self.model.initial_state(rows)
        if state.shape != (rows, *self.model.state_shape):
            raise ShapeError(
                f"state has shape {tuple(state.shape)}; expected {(rows, *self.model.state_shape)}: pass what the "
                "previous predict returned"
            )
        start = _row_flags(episode_start, rows)
        uniform = None
        if not deterministic:
            draws = Streams(self.config.seed).uniforms(
                "predict", update=0, environments=rows, steps=1, draws=self.model.law.noise, first_step=self.calls
            )
            uniform = torch.from_numpy(draws[0])
            self.calls += 1
        decision = decide_padded(
            self.model, flat.to(torch.get_default_dtype()), state, start, self._mask(mask, rows), uniform
        )
        action = self.model.action.to_env(decision.action.numpy(), squashed=self.model.law.squashed)
        return (action[0] if single else action), decision.state

    def law(self, obs: Any, *, state: torch.Tensor | None = None, episode_start: Any = None) -> Forecast:
        """The predicted law of the discounted return that follows one observation, or each of a batch of n, and its
        tail beside the limit; state and episode_start as in `predict`."""
        spec = self.model.observation
        single, rows = batch_size(spec, obs)
        flat = torch.from_numpy(spec.flatten(spec.with_batch_axis(obs) if single else obs, rows))
        state = self.model.initial_state(rows) if state is None else state
        start = _row_flags(episode_start, rows)
        decision = decide_padded(self.model, flat.to(torch.get_default_dtype()), state, start, None, None)
        return forecast_of(self.model, self.config, decision.features)

    @property
    def models(self) -> list[ActorCritic]:
        return [self.model]

    def needs_mask(self) -> bool:
        """Whether its environment gave action masks in training, so that `predict` must have them too."""
        return self._masked

    def player(
        self,
        *,
        deterministic: bool,
        seed: int,
        environments: npt.NDArray[np.int64] | None = None,
        stream: str = "play",
    ) -> ModelPlayer:
        return ModelPlayer(self.model, deterministic=deterministic, seed=seed, environments=environments, stream=stream)

    def save(self, path: str | Path) -> None:
        """Write the policy alone into a folder that `tailwise.load` reads, whole or not at all."""
        spec = policy_json(self.model, self.config, masked=self.needs_mask(), features=self.features)
        ckpt.write_policy(path, policy_tensors(self.model), spec)

    def _mask(self, mask: Any, rows: int) -> torch.Tensor | None:
        """The caller's mask [rows, K], checked as training checks it; demanded where training had one."""
        action = self.model.action
        if mask is None:
            if self.needs_mask():
                raise ShapeError(
                    f"this policy was trained with action masks; pass mask= with shape ({rows}, {action.logits}), "
                    "True where an action is allowed"
                )
            return None
        if np.size(mask) != rows * action.logits or action.kind == "box":
            raise ShapeError(
                f"mask has shape {np.shape(mask)}; expected ({rows}, {action.logits}), one entry per discrete choice"
            )
        checked = as_mask(np.asarray(mask).reshape(rows, action.logits))
        check_mask(checked, action.sizes)
        return torch.from_numpy(checked)


def policy_of(files: PolicyFiles) -> Policy:
    """The policy that was read from a checkpoint."""
    return Policy(files.model, files.config, masked=files.masked, features=files.features)


def choose_checkpoint(run_dir: str | Path) -> tuple[Path, list[ckpt.Rejected]]:
    """The checkpoint that speaks for a run (its best one if there is one, else its newest) and newer broken ones."""
    best = ckpt.checkpoint_path(run_dir, None)
    if best in ckpt.checkpoints_in(run_dir):
        return best, []
    newest, rejected = ckpt.latest_good(run_dir)
    if newest is None:
        why = "; ".join(item.reason for item in rejected) or "none was written yet"
        raise CheckpointError(f"{run_dir} has no usable checkpoint: {why}")
    return newest, rejected


def allowed_actions(policy: Policy, batch: Any, mask: Any, rows: int) -> np.ndarray | None:
    """Which choices bool [rows, K] an observed batch allows, by the caller's mask or its own; None without one."""
    spec = policy.model.observation
    if mask is None and spec.mask is not None:
        mask = spec.mask_from(batch)
    return None if mask is None else np.asarray(mask, dtype=bool).reshape(rows, -1)


def batch_size(spec: ObservationSpec, obs: Any) -> tuple[bool, int]:
    """Whether `obs` is one observation without batch axis, and how many rows it has."""
    leaf = spec.leaves[0]
    array = spec.arrays(obs)[leaf.name]
    single = array.ndim == len(leaf.shape)
    return single, 1 if single else int(array.shape[0])


def _row_flags(flags: Any, rows: int) -> torch.Tensor:
    if flags is None:
        return torch.zeros(rows, dtype=torch.bool)
    array = np.asarray(flags, dtype=bool).reshape(-1)
    if array.shape != (rows,):
        raise ShapeError(f"episode_start has {array.size} entries; expected {rows}, one per observation")
    return torch.from_numpy(array)

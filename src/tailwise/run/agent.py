"""The Python interface: `PPO(env, config)` with learn, predict, save, resume; and `load`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tailwise.core.config import differences
from tailwise.core.errors import CheckpointError, ConfigError, ConfigWarning, DataError, ShapeError
from tailwise.core.streams import Streams
from tailwise.features.spec import FeatureSpec
from tailwise.learner.losses import AuxiliaryLoss
from tailwise.market.path import AccountPath
from tailwise.model.action_spec import ActionSpec
from tailwise.model.actor_critic import ActorCritic, decide_padded
from tailwise.model.observation import ObservationSpec, as_mask, check_mask
from tailwise.run import checkpoint as ckpt
from tailwise.run.callbacks import Callback
from tailwise.run.checkpoint import match_tensors
from tailwise.run.config import Config, parse_config, warnings_of
from tailwise.run.controllers import Hyperparameters
from tailwise.run.health import Alert
from tailwise.run.lock import RunLock
from tailwise.run.metric_store import MetricStore, restore_metrics
from tailwise.run.play import ModelPlayer, Played
from tailwise.run.policy_files import PolicyFiles, check_code, load_policy, load_policy_tensors, policy_spec
from tailwise.run.run_folder import (
    append_alerts,
    create_run_folder,
    cut_back_alerts,
    read_manifest,
    refuse_existing,
    remove_unfinished,
    version_differences,
    write_config,
)
from tailwise.run.trainer import Trainer
from tailwise.run.trials import TrialBook
from tailwise.run.trust import Trust, code_named_by, open_config
from tailwise.run.worlds import Environment, MarketWorld, World, copies_of, make_world, play_world, trade_window


class Policy:
    """Acts; does not learn. What `tailwise.load` gives back."""

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
        """Whether the policy is meant to be played by its most likely action (evaluate.deterministic)."""
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
        single, rows = _batch_size(spec, obs)
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

    def needs_mask(self) -> bool:
        """Whether its environment gave action masks in training, so that `predict` must have them too."""
        return self._masked

    def world(self) -> World:
        """Where the policy was trained, built again by its configuration, with the features that it was trained on."""
        return make_world(self.config, features=self.features)

    def evaluate(self, *, episodes: int, deterministic: bool | None = None, seed: int | None = None) -> Played:
        """Play seeded episodes of the environment that the policy was trained in; none of them served its selection.

        On a market: its test window, whole, one episode per symbol, whatever `episodes` says.
        """
        player, seed = self._player(deterministic, seed)
        return play_world(player, self.world(), episodes=episodes, seed=seed)

    def _player(self, deterministic: bool | None, seed: int | None) -> tuple[ModelPlayer, int]:
        """What plays the policy, and its seed; None: as the policy is meant to be played, with the run's seed."""
        seed = self.config.seed if seed is None else seed
        deterministic = self.deterministic if deterministic is None else deterministic
        return ModelPlayer(self.model, deterministic=deterministic, seed=seed), seed

    def market(self) -> MarketWorld:
        """The market that the policy was trained for; its bars are read again at every call."""
        return self.world().market()

    def trade(
        self,
        purpose: Literal["train", "select", "test"] = "test",
        *,
        deterministic: bool | None = None,
        seed: int | None = None,
        market: MarketWorld | None = None,
    ) -> list[AccountPath]:
        """Trade a window of the market that the policy was trained for: one path per symbol.

        seed: of sampled actions, default the run's; market: what `market` gave, if it is at hand.
        """
        world = self.market() if market is None else market
        player, seed = self._player(deterministic, seed)
        return trade_window(player, world, purpose, seed=seed)

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


class PPO(Policy):
    """Recurrent distributional PPO on any Gymnasium environment.

    env: an id, a function that builds an environment, an environment, or a vector environment; None for the one that
    the configuration names, a market for instance. config: a `Config` or a nested dictionary of what differs from the
    defaults. run_dir: keep metrics and checkpoints there. trials: where a training on bars is written down; default:
    beside run_dir.
    """

    def __init__(
        self,
        env: Environment | None = None,
        config: Config | Mapping[str, Any] | None = None,
        *,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
        trials: TrialBook | None = None,
    ) -> None:
        full = config if isinstance(config, Config) else parse_config(dict(config or {}), source="config")
        full, env = _one_environment(full, env)
        copies = copies_of(env)
        if copies is not None:
            full = full.fitted(total_steps=full.run.total_steps, environments=copies)
        folder = None if run_dir is None else Path(run_dir)
        if folder is not None:
            refuse_existing(folder)
        world = make_world(full, env)
        full = world.config  # with what it measured on the train bars
        checked = world.check_before_training()
        trainer = Trainer(full, world, run_dir=folder, callbacks=callbacks, auxiliary=auxiliary)
        if folder is not None and trainer.lock is not None:
            with trainer.lock.held():
                self._create_folder(folder, trainer, checked)
        for sentence in (*warnings_of(full), *world.warnings()):
            warnings.warn(sentence, ConfigWarning, stacklevel=2)
        self._attach(trainer, trials)

    def _create_folder(self, folder: Path, trainer: Trainer, checked: Mapping[str, Any]) -> None:
        driver, config = trainer.driver, trainer.config
        unsigned = create_run_folder(
            folder,
            config,
            exact_resume=driver.exact_resume,
            exact_resume_reason=driver.exact_resume_reason,
            world={**trainer.world.facts(), **checked},
        )
        if unsigned is not None and code_named_by(config, training=True):
            advice = "Until that is mended, opening it needs trust=True (--trust), because it names code."
            warnings.warn(f"{unsigned} {advice}", stacklevel=3)

    def _refit(self, config: Config) -> None:
        """Begin again with another geometry, before the first update; the weights stay as they are."""
        old = self.trainer
        if config == old.configured:
            return
        if old.world.copies is None:
            old.driver.close()
        trainer = Trainer(
            config,
            old.world.with_config(config),
            run_dir=old.run_dir,
            callbacks=old.given_callbacks,
            auxiliary=old.given_auxiliary,
            lock=old.lock,
        )
        trainer.adopt(old.adopted)
        trainer.extra.cloned = old.extra.cloned
        load_policy_tensors(trainer.model, self.model.state_dict(), source="the policy")
        if trainer.run_dir is not None and trainer.lock is not None:
            with trainer.lock.held_once():
                write_config(trainer.run_dir, config)
        self._attach(trainer, self._trials)

    def _attach(self, trainer: Trainer, trials: TrialBook | None) -> None:
        self.trainer = trainer
        folder = trainer.run_dir
        self._trials = trials or (None if folder is None else TrialBook.beside(folder))
        super().__init__(trainer.model, trainer.config, features=trainer.world.features)

    def world(self) -> World:
        """Where it trains."""
        return self.trainer.world

    def needs_mask(self) -> bool:
        """Whether its environment gives action masks (known once it was reset)."""
        return self.trainer.driver.mask is not None

    @classmethod
    def resume(
        cls,
        run_dir: str | Path,
        *,
        env: Environment | None = None,
        callbacks: Sequence[Callback] = (),
        auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
        trials: TrialBook | None = None,
        trust: Trust = False,
    ) -> tuple[PPO, list[str]]:
        """Continue a run from its newest good checkpoint: (agent, sentences about what was rejected or is not exact).

        env: for a run whose environment was passed from Python, the same one built again. trust: execute the code that
        the run names although somebody else may have written it (docs/security.md). A run that was killed before its
        first checkpoint starts again from the beginning, which is the same.
        """
        folder = Path(run_dir)
        config = open_config(folder, training=True, trust=trust)
        if env is None and config.env.from_python:
            raise CheckpointError(
                f"{folder}: the environment of this run was passed from Python, so it cannot be rebuilt here; "
                f"build it and call tailwise.PPO.resume({str(folder)!r}, env=...)"
            )
        if env is not None and config.env.gym_id is not None:
            raise ConfigError(f"{folder}: this run's environment is {config.env.gym_id!r}; leave env out")
        agent = cls.__new__(cls)
        lock = RunLock(folder)
        with lock.held():
            remove_unfinished(folder)
            world, manifest = make_world(config, env), read_manifest(folder)
            world.check_same_bars(manifest, run=str(folder))
            world.check_before_training()
            trainer = Trainer(config, world, run_dir=folder, callbacks=callbacks, auxiliary=auxiliary, lock=lock)
            agent._attach(trainer, trials)
            notes = agent._continue_from_folder(folder)
            other = version_differences(manifest)
            if other:
                sentence = (
                    f"the run was made with {', '.join(other)}, so the continuation may differ in its last digits"
                )
                advice = "to continue bit for bit, resume with what the run was made with"
                append_alerts(folder, [Alert(trainer.update, "made_otherwise", "warn", sentence, advice)])
                notes.append(sentence)
            return agent, notes

    def _continue_from_folder(self, folder: Path) -> list[str]:
        path, rejected = ckpt.latest_good(folder)
        notes = [f"checkpoint {item.path.name} cannot be used: {item.reason}" for item in rejected]
        store = MetricStore(folder)
        if path is None and rejected:
            # Starting again would cut away the metrics of a run that somebody may still repair.
            raise CheckpointError(
                f"{folder}: none of its checkpoints can be used, and nothing was changed: {'; '.join(notes)} "
                "Restore one of them, or train again into another folder."
            )
        if path is None:
            notes.append("there is no usable checkpoint yet; the run starts from its beginning")
            store.cut_back(0)
            damaged = cut_back_alerts(folder, 0)
            return notes + ([] if damaged is None else [damaged])
        reason = self._load_all(path)
        store.cut_back(self.trainer.update)
        damaged = cut_back_alerts(folder, self.trainer.update)
        lost = restore_metrics(
            store, update=self.trainer.update, steps=self.trainer.steps, known=self.trainer.known_metrics()
        )
        advice = "look at the disk; the run went on from the newest good checkpoint"
        append_alerts(folder, [Alert(self.trainer.update, "checkpoint_rejected", "warn", n, advice) for n in notes])
        notes += [] if damaged is None else [damaged]
        if lost is not None:
            advice = "curves and reports of this run have a gap; restore the file from a copy and resume again"
            append_alerts(folder, [Alert(self.trainer.update, "metrics_lost", "warn", lost, advice)])
            notes.append(lost)
        if reason is not None:
            notes.append(f"the continuation is not exact: {reason}")
        return notes

    def _load_all(self, folder: Path) -> str | None:
        """Read and check both halves before anything of this agent is touched."""
        policy, training = ckpt.read_policy(folder), ckpt.read_training(folder)
        spec = policy_spec(policy.json, source=str(folder / ckpt.POLICY_JSON))
        stored = parse_config(spec.config, source=str(folder / ckpt.POLICY_JSON)).model_dump(mode="json")
        own = self.config.model_dump(mode="json")
        differing = [
            text
            for key in ("seed", "data", "features", "env", "costs", "model", "risk")
            for text in differences(stored[key], own[key], key)
        ]
        adopted = Hyperparameters.from_json(training.json.get("adopted", {}))
        started = own["learner"]["gamma"] if adopted.gamma is None else adopted.gamma
        differing += differences(stored["learner"]["gamma"], started, "learner.gamma")
        if differing:
            raise CheckpointError(
                f"{folder}: it was written with another configuration: {'; '.join(differing)}. Continue it with the "
                "one that it was written with (tailwise.load reads the policy alone)."
            )
        features = spec.features
        if features is not None and self.trainer.world.features is not None:
            # What this agent's own configuration names is executed already; a checkpoint may not add to it.
            check_code(folder, self.config, features, policy.origin, self.config)
            # The features were fitted again on the bars as they are now; other bars would give other statistics.
            self.trainer.world.features.check_same(FeatureSpec.from_json(features))
        action = ActionSpec.from_json(policy.json["action"])
        if replace(action, scaled=self.model.action.scaled) != self.model.action:
            raise CheckpointError(
                f"{folder}: its policy has other actions than this environment; use another checkpoint."
            )
        match_tensors(policy.tensors, self.model.state_dict(), source=str(folder))
        if self.trainer.update == 0:
            self._refit(self.config.with_geometry_of(parse_config(stored, source=str(folder))))
        self.trainer.check_training_state(training.tensors, training.json)
        load_policy_tensors(self.model, policy.tensors, source=str(folder))
        # Its units too: raw actions of an older checkpoint are the environment's own.
        self.model.set_action(action)
        reason = self.trainer.load_training_state(training.tensors, training.json)
        threads = differences(stored["run"]["threads"], own["run"]["threads"], "run.threads")
        return "; ".join([*([] if reason is None else [reason]), *threads]) or None

    def learn(self, steps: int | None = None) -> str:
        """Train for `steps` more environment steps (default: up to run.total_steps); why it ended, as a sentence.

        Where the configuration names no run.total_steps, the first call is the budget that the geometry is chosen for.
        """
        named = "total_steps" in self.config.run.model_fields_set
        if steps is not None and self.trainer.update == 0 and not named:
            self._refit(self.config.fitted(total_steps=steps, environments=self.world().copies))
        folder = self.trainer.run_dir
        data = None if self._trials is None or folder is None else self.world().data_hash()
        if self._trials is not None and folder is not None and data is not None:
            self._trials.begin(folder, self.config, data=data)
        return self.trainer.train(None if steps is None else self.trainer.steps + steps)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint folder: policy and training state, whole or not at all."""
        self.trainer.write_checkpoint(path)

    def restore(self, path: str | Path) -> str | None:
        """Continue from a folder that `save` wrote; returns why the continuation is not exact, None when it is."""
        return self._load_all(Path(path))

    @property
    def history(self) -> list[dict[str, float]]:
        """Metrics per update, oldest first, of an agent without run_dir."""
        return self.trainer.history


def load(path: str | Path, *, trust: Trust = False) -> Policy:
    """The policy of a checkpoint folder, or of a run folder (its best checkpoint if there is one, else its newest).

    trust: execute the code that it names although somebody else may have written it (docs/security.md).
    """
    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        folder, _ = choose_checkpoint(folder)
    return policy_of(load_policy(folder, trust=trust))


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


def _one_environment(config: Config, env: Environment | None) -> tuple[Config, Environment | None]:
    """The configuration with the id of an environment passed by it, and the environment if it was built in Python."""
    if config.env.market is not None:
        return config, env
    if isinstance(env, str):
        if config.env.gym_id not in (None, env):
            raise ConfigError(
                f"the environment is {env!r} and env.id in the configuration is {config.env.gym_id!r}; remove one of "
                "them"
            )
        return config.model_copy(update={"env": config.env.model_copy(update={"id": env})}), None
    if env is None:
        return config, None
    if config.env.gym_id is not None:
        raise ConfigError(
            f"env.id is {config.env.gym_id!r} and an environment was passed from Python too, which would be evaluated "
            "in another one; remove env.id from the configuration, or pass the id instead of the environment"
        )
    if config.evaluate.every is not None:
        raise ConfigError(
            "evaluate.every rebuilds the environment by its id, and an environment passed from Python has none; "
            "register it with gymnasium and pass the id, or set evaluate.every to null"
        )
    return config, env


def _batch_size(spec: ObservationSpec, obs: Any) -> tuple[bool, int]:
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

"""The Python interface: `PPO(env, config)` with learn, predict, save, resume; and `load`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailwise.core.config import differences
from tailwise.core.errors import CheckpointError, ConfigError, ConfigWarning
from tailwise.features.spec import FeatureSpec
from tailwise.learner.losses import AuxiliaryLoss
from tailwise.model.action_spec import ActionSpec
from tailwise.run import checkpoint as ckpt
from tailwise.run.callbacks import Callback
from tailwise.run.checkpoint import match_tensors
from tailwise.run.config import GEOMETRY, Config, ConfigLike, effective_config, parse_config, warnings_of
from tailwise.run.controllers import Hyperparameters
from tailwise.run.ensemble import SAVED, Ensemble, load_ensemble
from tailwise.run.habits import callbacks_of, check_order, one_of, refuse_keywords
from tailwise.run.health import Alert
from tailwise.run.lock import RunLock
from tailwise.run.metric_store import MetricStore, restore_metrics
from tailwise.run.policy import Policy, Trader, choose_checkpoint, policy_of
from tailwise.run.policy_files import check_code, load_policy, load_policy_tensors, policy_spec
from tailwise.run.progress import PlainProgress, labels_of, to_standard_error
from tailwise.run.run_folder import (
    CONFIG,
    append_alerts,
    create_run_folder,
    cut_back_alerts,
    read_config,
    read_manifest,
    refuse_existing,
    remove_unfinished,
    version_differences,
    write_config,
)
from tailwise.run.seeds import members_of, several
from tailwise.run.trainer import Trainer
from tailwise.run.trials import TrialBook, bars_sketch
from tailwise.run.trust import Trust, code_named_by, open_config
from tailwise.run.worlds import Environment, World, builder_of, copies_of, make_world


class PPO(Policy):
    """Recurrent distributional PPO on any Gymnasium environment.

    env: an id, a function that builds an environment, an environment, or a vector environment; None for the one that
    the configuration names, a market for instance. config: a `Config`, a nested dictionary of what differs from the
    defaults, the path of a YAML file or the name of a preset. run_dir: keep metrics and checkpoints there. trials:
    where a training on bars is written down; default: beside run_dir. Keywords of other libraries are refused with the
    key of the configuration that is meant.
    """

    def __init__(
        self,
        env: Environment | None = None,
        config: ConfigLike | None = None,
        *,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
        trials: TrialBook | None = None,
        **unknown: Any,
    ) -> None:
        refuse_keywords(unknown)
        check_order(env, config)
        full = effective_config(config or {}).config
        if several(full):
            raise ConfigError(
                f"run.seeds is {full.run.seeds}, and tailwise.PPO trains one policy; call tailwise.train(config), "
                "which trains all of them, or set run.seeds to 1."
            )
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
        if several(config):
            raise ConfigError(
                f"{folder}: run.seeds is {config.run.seeds}, and tailwise.PPO trains one policy; call "
                f"tailwise.resume({str(folder)!r}), which goes on with all of them, or resume a folder inside."
            )
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
        adopted = Hyperparameters.from_json(training.json.get("adopted", {}))
        own = adopted.applied_to(self.trainer.configured).model_dump(mode="json")
        differing = [
            text
            for key in ("seed", "data", "features", "env", "costs", "model", "risk")
            for text in differences(stored[key], own[key], key)
        ]
        differing += differences(stored["learner"]["gamma"], own["learner"]["gamma"], "learner.gamma")
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

    def learn(
        self,
        steps: int | None = None,
        *,
        total_timesteps: int | None = None,
        callback: Callback | Sequence[Callback] | None = None,
        progress: bool | None = None,
        progress_bar: bool | None = None,
    ) -> str:
        """Train for `steps` more environment steps (default: up to run.total_steps); why it ended, as a sentence.

        callback: for this call, beside those that the agent was built with. progress: lines on standard error
        (default: where the agent has no callbacks of its own). Where the configuration names no run.total_steps, the
        first call is the budget that the geometry is chosen for. total_timesteps and progress_bar are other names of
        steps and progress.
        """
        steps = one_of(steps=steps, total_timesteps=total_timesteps)
        shown = one_of(progress=progress, progress_bar=progress_bar)
        extra = callbacks_of(callback)
        if shown or (shown is None and not self.trainer.given_callbacks and not extra):
            extra.insert(0, PlainProgress(labels_of(self.config), to_standard_error))
        named = "total_steps" in self.config.run.model_fields_set
        if steps is not None and self.trainer.update == 0 and not named:
            self._refit(self.config.fitted(total_steps=steps, environments=self.world().copies))
        folder = self.trainer.run_dir
        data = None if self._trials is None or folder is None else self.world().data_hash()
        if self._trials is not None and folder is not None and data is not None:
            self._trials.begin(folder, self.config, data=data, sketch=bars_sketch(self.world().all_bars()))
        trainer = self.trainer
        kept = list(trainer.callbacks)
        trainer.callbacks += extra
        try:
            return trainer.train(None if steps is None else trainer.steps + steps)
        finally:
            trainer.callbacks = kept

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Environment | None = None,
        *,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        trust: Trust = False,
    ) -> PPO:
        """An agent that learns on from a checkpoint or a run folder; `tailwise.load` gives the policy alone.

        Without env it goes on exactly where the checkpoint was written. env: another environment with the same spaces;
        the weights and what the model knows of observations are taken over, and training begins anew.
        """
        folder = Path(path)
        if (folder / "checkpoints").is_dir():
            folder, _ = choose_checkpoint(folder)
        files = load_policy(folder, trust=trust)
        if env is None:
            agent = cls(None, files.config, run_dir=run_dir, callbacks=callbacks)
            agent.restore(folder)
            return agent
        optimiser = files.config.learner.optimiser
        if optimiser.anchored:
            raise ConfigError(
                f"learner.optimiser.kind {optimiser.kind} is drawn to the weights that a run began with, which would "
                "be random ones here, not those that are loaded; load without env, or train with another optimiser."
            )
        agent = cls(env, _for_another(files.config, env), run_dir=run_dir, callbacks=callbacks)
        if agent.model.action != files.model.action:
            raise CheckpointError(f"{folder}: its policy has other actions than this environment; train a new one.")
        match_tensors(files.model.state_dict(), agent.model.state_dict(), source=str(folder))
        load_policy_tensors(agent.model, files.model.state_dict(), source=str(folder))
        return agent

    def set_env(self, env: Environment) -> None:
        """Refuse: an agent keeps its environment, whose state is a part of every checkpoint."""
        raise ConfigError(
            "an agent keeps its environment, because its state belongs to every checkpoint; save the agent and write "
            "agent = tailwise.PPO.load(path, env=the_other_environment)."
        )

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


def load(path: str | Path, *, trust: Trust = False) -> Trader:
    """The policy of a checkpoint folder, of what `save` wrote, or of a run folder: of its best checkpoint if there is
    one, else of its newest. The policies of a run with several seeds decide together, as an `Ensemble`.

    trust: execute the code that it names although somebody else may have written it (docs/security.md).
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; give that of a run, of a checkpoint, or what `save` wrote.")
    if (folder / SAVED).is_file():
        return load_ensemble(folder, trust=trust)
    if (folder / "checkpoints").is_dir():
        folder, _ = choose_checkpoint(folder)
    elif (folder / CONFIG).is_file():
        config = read_config(folder)
        if several(config):
            members = [choose_checkpoint(one)[0] for one in members_of(folder, config)]
            return Ensemble([policy_of(load_policy(one, trust=trust)) for one in members], config=config)
    return policy_of(load_policy(folder, trust=trust))


def _for_another(config: Config, env: Environment) -> Config:
    """The configuration for another environment; one that is built already brings its number, and a geometry for it."""
    data = config.model_dump(mode="json", by_alias=True)
    if config.env.market is None:
        data["env"]["id"] = env if isinstance(env, str) else None
    if copies_of(env) is not None:
        for section, keys in GEOMETRY.items():
            data[section] = {key: value for key, value in data[section].items() if key not in keys}
    return parse_config(data, source="config")


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
    if config.evaluate.every is not None and builder_of(env) is None:
        raise ConfigError(
            "evaluate.every needs environments of its own, and nothing tells how to build another one like that which "
            "was passed; pass a function that builds it, or set evaluate.every to null"
        )
    return config, env

"""The loop: collect, update, audit, evaluate, write down, checkpoint. All of its state is in the checkpoint."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.streams import Streams
from tailwise.learner.backend import Knobs
from tailwise.learner.constraint import Constraint
from tailwise.learner.credit import history_length
from tailwise.learner.losses import AuxiliaryLoss
from tailwise.learner.prior import prior_law
from tailwise.learner.rollout import Rollout
from tailwise.learner.variance_scaling import noise_metrics
from tailwise.model.actor_critic import ActorCritic
from tailwise.run import checkpoint as ckpt
from tailwise.run.backends import make_backend
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.collector import PAST_REWARD
from tailwise.run.config import Config
from tailwise.run.controllers import Controllers, Hyperparameters, RiskWatch, controllers_of, narrowing
from tailwise.run.extra_losses import ExtraLosses
from tailwise.run.health import Alert
from tailwise.run.health.actions import Intervention, LearnerCopy, write_dump
from tailwise.run.health.watch import HealthWatch
from tailwise.run.lock import RunLock
from tailwise.run.notify import notifiers_of
from tailwise.run.policy_files import policy_json, policy_tensors
from tailwise.run.ranks import group_for
from tailwise.run.run_files import check_state, stored_by_this_version
from tailwise.run.run_folder import RunWriter
from tailwise.run.selection import Selection
from tailwise.run.sharded import learn, make_collector, training_driver
from tailwise.run.worlds import World

EPISODE_WINDOW = 100  # finished episodes over which return and length are averaged


class Trainer:
    """Trains one model in one environment; `run_dir` None keeps everything in memory (`history`).

    lock: of `run_dir`, if it was taken before this trainer was built.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        *,
        run_dir: Path | None = None,
        callbacks: Sequence[Callback] = (),
        auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
        lock: RunLock | None = None,
    ) -> None:
        self.configured = config  # as the run was started
        self.config = config  # with what was adopted since
        self.world = world
        self.group = group_for(config.run.shards)
        self.driver = driver = training_driver(world, self.group)
        self.run_dir = run_dir
        self.given_callbacks = tuple(callbacks)
        self.given_auxiliary = tuple(auxiliary)
        self.lock = RunLock(run_dir) if lock is None and run_dir is not None else lock
        self.callbacks = [*callbacks, *notifiers_of(config.notify, run_dir)]
        self.streams = Streams(config.seed)
        self.model = ActorCritic(
            config.model,
            driver.spaces.observation,
            driver.spaces.action,
            init_seed=self.streams.integer("init"),
        )
        if self.model.law.discrete and config.learner.exploration.kind == "narrow":
            raise ConfigError(
                "learner.exploration narrows the width of Box actions and the action space is "
                f"{self.model.action.kind}; remove the key"
            )
        self.narrowing = None if self.model.law.discrete else config.narrowing
        self.prior = config.prior
        if self.prior is not None:
            self.model.prior = prior_law(self.prior, self.model, world.base_action())
            self.model.start_at(self.model.prior)
        self.extra = ExtraLosses(config, world, driver, self.model)
        self.backend, self.backend_choice = make_backend(
            config.backend,
            self.model,
            config.learner,
            self.streams,
            threads=config.run.threads,
            device=config.run.device,
            tail_alpha=config.tail_alpha,
            risk=config.risk_settings,
            auxiliary=(*auxiliary, *self.extra.losses),
            shards=self.group,
        )
        history = 0 if config.acting_risk is None else history_length(config.learner.gamma)
        self.collector = make_collector(
            driver, self.backend, self.streams, self.group, steps=config.run.rollout_steps, history=history
        )
        self.health = HealthWatch(config, self.model, run_dir)
        acting = config.acting_risk
        self.controllers = Controllers(constraint=None if acting is None else Constraint(acting))
        self.risk = self._risk_watch(config.learner.gamma)
        self.adopted = Hyperparameters()  # what replaced the configuration's values since the start
        self.update = self.steps = 0
        self.moments_since = 0  # update after which the optimiser began anew
        self.total_steps = config.run.total_steps
        self.episodes: deque[tuple[float, int]] = deque(maxlen=EPISODE_WINDOW)
        self.best_return: float | None = None
        self.evaluations_without_gain = 0
        self.history: list[dict[str, float]] = []
        self.alerts: list[Alert] = []  # that were raised
        self.stopped_by_rule: str | None = None  # why, a sentence
        self.writer = None if run_dir is None else RunWriter(run_dir, config.run, self.lock)
        self.selection = Selection(world)
        self._fresh = True  # whether the environments still have to be reset

    # ---------------------------------------------------------------- loop

    def train(self, total_steps: int | None = None) -> str:
        """Run until `total_steps`; returns the sentence that says why it ended.

        Default: the end that was set before, if it is still ahead (a resumed run goes on to it), else the configured.
        """
        with nullcontext() if self.lock is None else self.lock.held():
            return self._train(total_steps)

    def _train(self, total_steps: int | None) -> str:
        self.use_threads()
        self.begin()
        if total_steps is None:
            total_steps = self.total_steps if self.steps < self.total_steps else self.config.run.total_steps
        if total_steps != self.total_steps:
            # The schedule and the end of the run depend on it, so a resumed run has to know.
            self.total_steps = total_steps
            self._save()
        self.backend.warm_up(self._tell, self.driver.venv)
        self.health.warm_up()
        try:
            reason = self._until_it_ends(self.total_steps)
        except BaseException as error:
            for callback in self.callbacks:
                callback.on_failure(error)
            raise
        if self.writer is not None:
            self.writer.close(compact=self.update > 0)
        for callback in self.callbacks:
            callback.on_end(reason)
        return reason

    def use_threads(self) -> None:
        """Let torch use `run.threads`; the fused backend has workers of its own, and torch's would get in their way."""
        torch.set_num_threads(1 if self.backend_choice.startswith("fused") else self.config.run.threads)

    def _until_it_ends(self, total: int) -> str:
        """All updates up to `total` steps; why they ended."""
        started, self.selection.seconds = time.perf_counter(), 0.0
        for callback in self.callbacks:
            callback.on_start(self.update, self.steps, total)
        while self.steps < total:
            metrics, alerts = self._one_update(total, started)
            stop = self._stop_reason()
            unwritten = self._record(metrics, alerts, last=stop is not None or self.steps >= total)
            stop = stop or unwritten
            loud = tuple(alert for alert in alerts if alert.event != "cleared" and alert.severity != "info")
            progress = Progress(self.update, self.steps, total, metrics, loud)
            answers = [callback.on_update(progress) for callback in self.callbacks]
            if stop is None and any(answer is False for answer in answers):
                stop = "a callback ended the run"
                self._save()
            if stop is not None:
                return stop
        return f"all {total:,} steps are done"

    def _tell(self, sentence: str) -> None:
        for callback in self.callbacks:
            callback.on_note(sentence)

    def begin(self) -> None:
        """Reset the environments, unless they run already; also where a rollout was broken off in the middle."""
        if self._fresh:
            self.extra.clone(self.model, self.streams, self._tell)
        if self._fresh or self.collector.broken_off:
            self.driver.reset()
            self._fresh = self.collector.broken_off = False

    def _one_update(self, total: int, started: float) -> tuple[dict[str, float], list[Alert]]:
        clock = time.perf_counter()
        found = self.extra.renew(self.update)
        rollout, anomalies = self.collector.collect(self.update)
        collected = time.perf_counter()
        knobs = self.controllers.knobs(
            self.config.learner,
            self.narrowing,
            self.prior,
            update=self.update,
            steps=self.steps,
            total_steps=total,
            measure_terms=self.update % self.config.health.gradients_every == 0,
        )
        controllers = self.health.before(self.update, self.controllers)
        report = learn(self.group, self.backend, rollout, knobs)
        updated = time.perf_counter()
        before = self.health.updated(self.update, self.backend, report, controllers)
        self.update += 1
        taken = int(np.count_nonzero(rollout.valid.numpy()))
        self.steps += taken
        narrowed = narrowing(self.narrowing, self.config.initial_log_std, self.steps, total, self.controllers.narrowed)
        self.model.widen(narrowed - self.controllers.narrowed)
        self.controllers.narrowed = narrowed
        self.controllers.adapt(
            self.config.learner, report, update=self.update, noise=self.model.law.noise, prior=self.prior
        )
        # A return that is not finite is counted in env/anomalies; kept here it would spoil the mean and the checkpoint.
        self.episodes.extend((r, n) for r, n in self.driver.pop_episodes() if np.isfinite(r))
        metrics = found | dict(report.metrics) | self.risk.after(self.update, rollout, report)
        metrics |= self._step_metrics(knobs, anomalies, rollout.valid.numel() - taken)
        metrics |= {
            f"grad/term/{term}/{group}": norm
            for term, row in report.term_gradients.items()
            for group, norm in row.items()
        }
        metrics["update/committed"] = float(report.committed)
        metrics |= {
            "time/elapsed": updated - started,
            "time/rollout": collected - clock,
            "time/update": updated - collected,
            "time/steps_per_second": taken / (updated - clock),
        }
        metrics |= self.health.measure(
            rollout,
            self.collector.facts,
            metrics,
            kl_factor=self.controllers.kl_factor,
            target_kl=self.config.learner.target_kl,
            observed=report.observed,
        )
        factor = self.controllers.health_factor
        alerts, intervention = self.health.judge(self.update, metrics, report, health_factor=factor)
        if intervention is not None:
            with self.health.timed:
                self._carry_out(intervention, rollout, metrics, alerts, before)
        acted, totals = self.health.finish(self.update, intervention)
        alerts += acted
        metrics |= totals
        metrics |= self._evaluate(alerts)
        metrics["time/select_share"] = self.selection.seconds / (time.perf_counter() - started)
        return metrics, alerts

    def _carry_out(
        self,
        intervention: Intervention,
        rollout: Rollout,
        metrics: dict[str, float],
        alerts: Sequence[Alert],
        before: LearnerCopy | None,
    ) -> None:
        """Do what a health rule wants about an update; before: the learner before it. `metrics` are corrected.

        A roll-back leaves time, environments and windows as they are.
        """
        if intervention.dump is not None:
            write_dump(intervention.dump, rollout, metrics, alerts)
            self.write_checkpoint(intervention.dump / "checkpoint")
        if intervention.stop is not None:
            self.stopped_by_rule = intervention.stop
        if intervention.undo:
            assert before is not None
            before.restore(self.backend, self.controllers)
            if self.controllers.constraint is not None:
                metrics |= self.controllers.constraint.metrics()  # of the next update, which are the old ones
            metrics["update/committed"] = 0.0
        if intervention.state is not None:
            intervention.state.restore(self.backend, self.controllers)
            if not self.collector.state_is_finite:
                self.collector.forget()
        self.controllers.health_factor *= intervention.shrink

    def _step_metrics(self, knobs: Knobs, anomalies: int, invalid: int) -> dict[str, float]:
        step_size = knobs.step_size
        metrics = {
            "step/learning_rate": step_size.value,
            "step/schedule": step_size.schedule,
            "step/kl_factor": step_size.kl_factor,
            "step/health_factor": step_size.health_factor,
            "step/entropy_weight": knobs.entropy_weight,
            **({} if self.prior is None else {"step/prior_weight": knobs.prior_weight}),
            "env/anomalies": float(anomalies),
            "env/reset_rows": float(invalid),
            **noise_metrics(step_size.noise_factor, self.controllers.gradient_noise),
        }
        return metrics | self._episode_metrics()

    def _episode_metrics(self) -> dict[str, float]:
        if not self.episodes:
            return {}
        returns, lengths = zip(*self.episodes, strict=True)
        return {"episode/return": float(np.mean(returns)), "episode/length": float(np.mean(lengths))}

    def known_metrics(self) -> dict[str, float]:
        """Metrics of the newest update that follow from the training state alone, for a line that was lost."""
        best = {} if self.best_return is None else {"evaluate/best": self.best_return}
        return self._episode_metrics() | best | self.risk.known()

    def adopt(self, changes: Hyperparameters) -> None:
        """Go on with other hyperparameters; the next update uses them, and checkpoints keep them."""
        self._use(Hyperparameters(**(self.adopted.given | changes.given)))

    def _use(self, adopted: Hyperparameters) -> None:
        """Make the configuration what the run was started with, but for `adopted`."""
        config = adopted.applied_to(self.configured)
        learner = config.learner
        if learner.gamma != self.config.learner.gamma:
            if self.config.acting_risk is not None:
                raise ConfigError(
                    f"learner.gamma cannot become {learner.gamma:g} while risk acts on the policy: a limit or a "
                    f"penalty speaks of returns discounted by {self.config.learner.gamma:g}; start a new run"
                )
            # Returns mean something else now: what was predicted or remembered of them says nothing any more.
            self.risk = self._risk_watch(learner.gamma)
            self.health.signals.forget_returns()
        self.adopted, self.config, self.prior = adopted, config, config.prior
        self.backend.config = learner
        if self.controllers.constraint is not None and config.acting_risk is not None:
            self.controllers.constraint.config = config.acting_risk

    def forget_moments(self) -> None:
        """Begin with a fresh optimiser: the moments of the gradients so far are forgotten, the weights stay."""
        self.backend.optimiser.load({})
        self.moments_since = self.update

    def _risk_watch(self, gamma: float) -> RiskWatch:
        constraint, environments = self.controllers.constraint, self.driver.num_envs
        return RiskWatch(self.config, self.streams, constraint, gamma=gamma, environments=environments)

    # ---------------------------------------------------------------- evaluation and stopping

    def _evaluate(self, alerts: list[Alert]) -> dict[str, float]:
        """Play the selection episodes when they are due; a broken environment is an alert, not the end of training."""
        settings = self.config.evaluate
        if settings.every is None or self.update % settings.every:
            return {}
        try:
            played = self.selection.play(self.backend, self.config)
        except DataError as error:
            advice = "fix the environment, or lower learner.learning_rate where the policy itself is broken"
            alerts.append(Alert(self.update, "evaluation_broken", "error", str(error), advice))
            self.evaluations_without_gain += 1
            return {}
        metrics = {"evaluate/return": played.mean, "evaluate/return_std": played.std}
        metrics |= self.health.evaluation(played.observation)
        if not self.risk.selectable:
            # Chosen by return alone, the best would be a policy from before the limit acted, or one that breaks it.
            return metrics | ({} if self.best_return is None else {"evaluate/best": self.best_return})
        better = self.best_return is None or played.mean > self.best_return + settings.min_delta
        self.evaluations_without_gain = 0 if better else self.evaluations_without_gain + 1
        if better:
            self.best_return = played.mean
        assert self.best_return is not None
        return metrics | {"evaluate/best": self.best_return}

    def finished(self) -> str | None:
        """Why there is nothing left to train, as a sentence; None while there is."""
        total = max(self.total_steps, self.config.run.total_steps)
        if self.steps >= total:
            return f"all {total:,} steps are done"
        return self._patience_is_over()

    @property
    def saved(self) -> bool:
        """Whether the newest checkpoint that was due could be written."""
        return self.writer is None or self.writer.saved

    @property
    def failed(self) -> bool:
        """Whether a rule, too many refused updates in a row or a disk that took no checkpoint ended the run."""
        refused = self.health.rules.refused_in_a_row >= self.config.run.max_refused
        return refused or self.stopped_by_rule is not None or not self.saved

    def _stop_reason(self) -> str | None:
        refused = self.health.rules.refused_in_a_row
        if self.stopped_by_rule is not None:
            return self.stopped_by_rule
        if refused >= self.config.run.max_refused:
            return f"{refused} updates in a row were refused or rolled back; see the alerts"
        return self._patience_is_over()

    def _patience_is_over(self) -> str | None:
        patience = self.config.evaluate.patience
        if patience is None or self.evaluations_without_gain < patience:
            return None
        best = "none was completed" if self.best_return is None else f"best mean return {self.best_return:g}"
        return f"the evaluation did not improve {patience} times in a row ({best})"

    # ---------------------------------------------------------------- files

    def _record(self, metrics: dict[str, float], alerts: list[Alert], *, last: bool) -> str | None:
        """Write an update down, or keep it in memory; a sentence when the files of the run cannot be written."""
        unwritten = None
        if self.writer is None:
            self.history.append({"update": self.update, "steps": self.steps, **metrics})
        else:
            best = "evaluate/return" in metrics and self.risk.selectable and self.evaluations_without_gain == 0
            write = self.write_checkpoint
            unwritten = self.writer.record(self.update, self.steps, metrics, alerts, best=best, last=last, write=write)
        self.alerts.extend(alert for alert in alerts if alert.event == "raised")
        return unwritten

    def _save(self) -> None:
        if self.writer is not None:
            self.writer.save(self.update, self.alerts, self.write_checkpoint)

    def write_checkpoint(self, folder: str | Path) -> None:
        """Write policy and training state into a checkpoint folder, whole or not at all."""
        tensors, training = self.training_state()
        ckpt.write_checkpoint(
            folder,
            policy_tensors=policy_tensors(self.model),
            policy_json=policy_json(
                self.model, self.config, masked=self.driver.mask is not None, features=self.world.features
            ),
            training_tensors=tensors,
            training_json=training,
        )

    def training_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that a resumed run needs beside the policy: (tensors, JSON)."""
        self.begin()
        env_tensors, env_json = ckpt.split_state(self.driver.get_state())
        tensors = {**self.backend.optimiser.tensors(), **self.collector.tensors()}
        risk_tensors, calibration = self.risk.state()
        controllers = self.controllers.to_json()
        risk = {"calibration": calibration, "constraint": controllers.pop("constraint")}
        health_tensors, health_json = self.health.state()
        tensors |= risk_tensors | health_tensors
        tensors |= self.extra.tensors()
        tensors |= {f"environment/{name}": tensor for name, tensor in env_tensors.items()}
        return tensors, {
            "update": self.update,
            "steps": self.steps,
            "total_steps": self.total_steps,
            **controllers,
            "adopted": self.adopted.given,
            "moments_since": self.moments_since,
            "episodes": [list(episode) for episode in self.episodes],
            "best_return": self.best_return,
            "evaluations_without_gain": self.evaluations_without_gain,
            "health": health_json,
            "risk": risk,
            "environment": env_json,
        }

    def check_training_state(self, tensors: dict[str, torch.Tensor], data: dict[str, Any]) -> None:
        """Raise before anything is touched when a training state does not fit this trainer."""
        check_state(data)
        self.collector.check(tensors)
        self.extra.check(tensors)
        optimiser = {k: v for k, v in tensors.items() if k.startswith("optimiser/")}
        # An optimiser that never stepped has no moments, also after updates that were all refused.
        refused = int(data["health"]["rules"]["refused_in_a_row"])
        taken = int(data["update"]) - int(data.get("moments_since", 0))
        self.backend.optimiser.check(optimiser, fresh=refused >= taken)

    def load_training_state(self, tensors: dict[str, torch.Tensor], data: dict[str, Any]) -> str | None:
        """Continue from `training_state`; returns why the continuation is not exact, None when it is."""
        self.check_training_state(tensors, data)
        self._use(Hyperparameters.from_json(data.get("adopted", {})))
        self.backend.optimiser.load({k: v for k, v in tensors.items() if k.startswith("optimiser/")})
        self.collector.load(tensors)
        prefix = "environment/"
        arrays = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
        self.extra.load(tensors)
        with stored_by_this_version("environment"):
            restored = self.driver.set_state(ckpt.join_state(arrays, data["environment"]))
        self._fresh = self.collector.broken_off = False
        if not restored.exact:
            self.collector.forget()
        self.update, self.steps, self.total_steps = int(data["update"]), int(data["steps"]), int(data["total_steps"])
        self.moments_since = int(data.get("moments_since", 0))
        self.episodes = deque(((float(r), int(n)) for r, n in data["episodes"]), maxlen=EPISODE_WINDOW)
        self.best_return = data["best_return"]
        self.evaluations_without_gain = int(data["evaluations_without_gain"])
        with stored_by_this_version("health and risk"):
            self.health.load(tensors, data["health"])
            self.risk.load(tensors, data["risk"])
            self.controllers.load(controllers_of(data))
        if restored.exact and self.collector.past is not None and PAST_REWARD not in tensors:
            return (
                "the checkpoint comes from a version that kept no rewards of running episodes; the risk of the next "
                "update is credited as if they had just begun"
            )
        return None if restored.exact else restored.reason

"""Failures that are injected into real small runs: which alert has to come, how soon, and how the run has to end."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fault_world import ENVIRONMENTS, STEPS, Dialled, Dials, Patient, patient, with_log_probs
from tailwise.core.streams import Streams
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.config import EvaluateConfig
from tailwise.run.health.rule import Alert
from tailwise.run.make_env import make_driver
from tailwise.run.run_folder import read_alerts

WARMUP = 12  # sound updates before most faults


@dataclass(frozen=True)
class Fault:
    """run: makes the run and breaks it; rule: the alert that has to come within so many updates; ends: the state that
    `sound` has to find at the end."""

    name: str
    rule: str
    within: int
    ends: str
    run: Callable[[Path], Patient]
    sound: Callable[[Patient], bool]


def goes_on(case: Patient) -> bool:
    """The run reached its end, its newest update was kept, all weights are finite."""
    newest = case.trainer.history[-1] if case.trainer.history else {"update/committed": 1.0}
    return not case.trainer.failed and newest["update/committed"] == 1.0 and case.weights_finite()


def stopped(case: Patient) -> bool:
    """The run was stopped and its weights are finite."""
    return case.trainer.failed and case.weights_finite()


def rolled_back(case: Patient) -> bool:
    """It went back at least once, with a smaller step, and went on."""
    return (
        goes_on(case)
        and case.trainer.health.actions.counts["rollback"] >= 1
        and case.trainer.controllers.health_factor < 1
    )


def shrunk(case: Patient) -> bool:
    """The step is smaller, and no more often than allowed."""
    actions = case.trainer.health.actions
    return (
        goes_on(case)
        and 1 <= actions.counts["shrink"] <= actions.budget["shrink"]
        and case.trainer.controllers.health_factor < 1
    )


def _dial(updates: int, *, warmup: int = WARMUP, config: dict[str, Any] | None = None, **values: Any) -> Any:
    """A run whose environment gets these dials after the warm-up."""

    def run(folder: Path) -> Patient:
        case = patient(**(config or {})).go(warmup)
        case.inject()
        for name, value in values.items():
            setattr(case.dials, name, value)
        return case.go(updates)

    return run


def _once(updates: int, **values: Any) -> Any:
    """Dials for one update only."""

    def run(folder: Path) -> Patient:
        case = patient().go(WARMUP)
        case.inject()
        before = {name: getattr(case.dials, name) for name in values}
        for name, value in values.items():
            setattr(case.dials, name, value)
        case.go(1)
        for name, value in before.items():
            setattr(case.dials, name, value)
        return case.go(updates)

    return run


def _from_start(updates: int, dials: Dials | None = None, **config: Any) -> Any:
    """A configuration or environment that is wrong from the start."""
    return lambda folder: patient(dials=dataclasses.replace(dials) if dials else None, **config).go(updates)


def _model(updates: int, change: Callable[[Patient], None], **config: Any) -> Any:
    """Something is done to the learner after the warm-up."""

    def run(folder: Path) -> Patient:
        case = patient(**config).go(WARMUP)
        case.inject()
        with torch.no_grad():
            change(case)
        return case.go(updates)

    return run


def _scale_gradient(factor: float) -> Callable[[Patient], None]:
    def change(case: Patient) -> None:
        for parameter in case.trainer.model.critic_heads()[1].parameters():
            parameter.register_hook(lambda gradient: gradient * factor)

    return change


def _bias(size: float) -> Callable[[Patient], None]:
    def change(case: Patient) -> None:
        case.trainer.model.actor.head.bias.copy_(torch.tensor([size, 0.0, 0.0]))

    return change


def _saturate(case: Patient) -> None:
    case.trainer.model.encoder[0].bias.fill_(1e3)  # type: ignore[index]


def _nan_weight(case: Patient) -> None:
    next(case.trainer.model.actor.parameters()).fill_(float("nan"))


def _wrong_normaliser(case: Patient) -> None:
    case.trainer.model.normaliser.variance.mul_(1e-6)


def _learning_rate(factor: float) -> Callable[[Patient], None]:
    def change(case: Patient) -> None:
        learner = case.trainer.config.learner
        faster = learner.model_copy(update={"learning_rate": learner.learning_rate * factor})
        case.trainer.config = case.trainer.config.model_copy(update={"learner": faster})

    return change


def _stuck_sampler(case: Patient) -> None:
    begin = case.trainer.backend.begin

    def stuck(*arguments: Any) -> Any:
        decisions = begin(*arguments)
        decisions.noise = np.full_like(decisions.noise, 1e-9)
        return decisions

    case.trainer.backend.begin = stuck  # type: ignore[method-assign]


def _drop_risk(case: Patient) -> None:
    case.trainer.backend.mix_advantages = lambda mean, risk, multiplier: mean


def _rollouts(updates: int, change: Any, only: int | None = None, **config: Any) -> Any:
    def run(folder: Path) -> Patient:
        case = patient(**config).go(WARMUP)
        case.inject()
        case.on_rollouts(change, None if only is None else range(WARMUP, WARMUP + only))
        return case.go(updates)

    return run


def _detached(folder: Path) -> Patient:
    """An auxiliary loss that nothing connects with the model."""
    return patient(auxiliary=[("lost", lambda model, view: view.params.detach().square().mean())]).go(6)


def _one_huge_reward(rollout: Any) -> Any:
    reward = rollout.reward.clone()
    reward[3, 2] = 1e4
    return dataclasses.replace(rollout, reward=reward)


def _swinging_values(rollout: Any) -> Any:
    """The critics predict 5 standard deviations too much and too little, in turn."""
    swing = torch.where(torch.arange(rollout.critic.mean.shape[0]) % 2 == 0, 5.0, -5.0)
    mean = rollout.critic.mean + swing[:, None, None]
    return dataclasses.replace(rollout, critic=dataclasses.replace(rollout.critic, mean=mean))


def _values_of_nothing(folder: Path) -> Patient:
    """The rule waits for 30 updates, in which critics learn."""
    case = patient().go(30)
    case.inject()
    case.on_rollouts(_swinging_values)
    return case.go(20)


def _crash(rollout: Any) -> Any:
    """All accounts lose 30% in one bar; log-probabilities are stale besides."""
    reward = rollout.reward.clone()
    reward[5] = float(np.log(0.7))
    return dataclasses.replace(rollout, reward=reward, log_prob=rollout.log_prob - 0.5)


def _crash_chain(folder: Path) -> Patient:
    """Quiet bars with returns of .2%, then the crash."""
    case = patient(dials=Dials(reward_scale=0.002)).go(WARMUP)
    case.inject()
    case.on_rollouts(_crash, [WARMUP])
    return case.go(15)


def _flip_chain(folder: Path) -> Patient:
    """The best action pays always and is learnt to certainty; then another one is the best."""
    learner = {"learning_rate": 0.003, "gamma": 0.5, "epochs": 4}
    case = patient(dials=Dials(sure=True), learner=learner).go(40)
    case.inject()
    case.dials.best = 2
    return case.go(160)  # from an entropy of .003 the new action was found after 100 updates


def _flip_recovered(case: Patient) -> bool:
    """004-C2: the return falls at the flip and comes back; its optimum is 1 / (1 - gamma) = 2."""
    means = [row["return/mean"] for row in case.trainer.history]
    return goes_on(case) and min(means[case.injected_at :]) < 0.5 and float(np.mean(means[-3:])) > 1.7


def _evaluation_elsewhere(folder: Path) -> Patient:
    """From some moment on the evaluation shows what training never did."""
    case, elsewhere = patient(), Dials()
    evaluated = EvaluateConfig(every=2, episodes=4)
    case.trainer.config = case.trainer.config.model_copy(update={"evaluate": evaluated})
    case.trainer.world.eval_env = lambda purpose, *, episodes, seed, report=False: make_driver(  # type: ignore[method-assign]
        lambda: Dialled(elsewhere), num_envs=episodes, streams=Streams(seed), purpose=purpose
    )
    case.go(WARMUP)
    case.inject()
    elsewhere.shift = 50.0
    return case.go(4)


def _disk_full(folder: Path) -> Patient:
    """For some updates no file may grow beyond 100 kB: lines fit, checkpoints do not; then there is space again."""
    wide = {"encoder": {"hidden": [128, 128]}}
    case = patient(run_dir=folder / "run", run={"checkpoint_every": 2}, model=wide).go(4)
    case.injected_at = case.trainer.update - 1  # the first write is tried before the next update
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        case.agent.learn(3 * ENVIRONMENTS * STEPS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    case.reason = case.agent.learn(3 * ENVIRONMENTS * STEPS)
    return case


def _disk_sound(case: Patient) -> bool:
    newest, rejected = ckpt.latest_good(case.trainer.run_dir or "")
    return goes_on(case) and newest is not None and not rejected and case.trainer.saved


def _killed_writer(folder: Path) -> Patient:
    """A process that trains is killed with -9; its newest checkpoint and its last line of metrics are torn."""
    run_dir = folder / "run"
    child = os.fork()
    if child == 0:
        try:
            patient(run_dir=run_dir, run={"checkpoint_every": 1}).go(400)
        finally:
            os._exit(0)
    until = time.monotonic() + 60
    while len(ckpt.checkpoints_in(run_dir)) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    newest = ckpt.checkpoints_in(run_dir)[0] / ckpt.TRAINING_TENSORS
    newest.write_bytes(newest.read_bytes()[:100])
    with open(run_dir / "metrics.jsonl", "ab") as file:
        file.write(b'{"update": 9')
    dials = Dials()
    agent, _ = PPO.resume(run_dir, env=lambda: Dialled(dials))
    case = Patient(agent, dials)
    case.trainer.alerts.extend(
        Alert(a["update"], a["rule"], a["severity"], a["evidence"], a["advice"]) for a in read_alerts(run_dir)
    )
    case.injected_at = case.trainer.update - 1
    return case.go(3)


def _slower(folder: Path) -> Patient:
    """Steps of the environment take so long that updates take eleven times as long as before."""
    case = patient().go(30)
    seconds = [row["time/rollout"] + row["time/update"] for row in case.trainer.history[-20:]]
    case.inject()
    case.dials.sleep = 10 * float(np.median(seconds)) / (ENVIRONMENTS * STEPS)
    return case.go(6)


def _stop_rule(folder: Path) -> Patient:
    case = patient(run_dir=folder / "run", health={"actions": {"reward_jump": "stop"}}).go(WARMUP)
    case.inject()
    case.dials.reward_scale = 1000.0
    return case.go(5)


def _stop_sound(case: Patient) -> bool:
    folder = Path(case.trainer.run_dir or "") / "dumps" / f"update-{case.trainer.update:06d}"
    files = [folder / name for name in ("rollout.safetensors", "metrics.json", "alerts.json")]
    ckpt.verify(folder / "checkpoint")
    return stopped(case) and all(file.exists() for file in files) and "reward_jump" in case.reason


def _thousandfold(folder: Path) -> Patient:
    """004-C3: rewards that the observation explains well; then they are paid in another unit."""
    learner = {"learning_rate": 0.003, "gamma": 0.3, "epochs": 4}
    case = patient(dials=Dials(noise=0.0), learner=learner).go(40)
    case.inject()
    case.dials.reward_scale = 1000.0
    return case.go(40)


def _recovered_value(case: Patient) -> bool:
    """004-C3: after rewards x 1000 the normalised value loss stays O(1) and values are explained again."""
    rows = case.trainer.history
    largest = max(row["critic/loss"] for row in rows[case.injected_at :])
    explained = [row["critic/explained_variance"] for row in rows[-5:]]
    return goes_on(case) and largest < 100 and float(np.mean(explained)) > 0.5


LIMIT = {"mode": "constraint", "alpha": 0.25, "limit": 1000.0, "max_multiplier": 1.0}
NOW = {"warmup": {"updates": 0, "longest": 0}}
PENALTY = {"mode": "penalty", "weight": 1.0, "alpha": 0.25}
LSTM: dict[str, Any] = {"model": {"core": {"kind": "lstm", "hidden": 8}, "actor": {"gain": 1.0}}}
NAN = float("nan")

FAULTS: tuple[Fault, ...] = (
    Fault("NaN reward, one update", "update_refused", 1, "goes on", _once(4, reward_value=NAN), goes_on),
    Fault("NaN reward, for good", "update_refused", 1, "stopped", _dial(8, reward_value=NAN), stopped),
    Fault("infinite reward", "environment_anomaly", 1, "goes on", _once(4, reward_value=float("inf")), goes_on),
    Fault("NaN observation", "update_refused", 1, "goes on", _once(4, broken_observation=True), goes_on),
    Fault("infinite cost in info", "environment_anomaly", 1, "goes on", _dial(3, cost=float("inf")), goes_on),
    Fault("NaN in the weights", "refused_repeatedly", 3, "rolled back", _model(8, _nan_weight), rolled_back),
    Fault("critic 2 frozen", "critic_vanishing", 1, "goes on", _model(3, _scale_gradient(0.0)), goes_on),
    Fault("critic 2 hardly trained", "critic_imbalance", 1, "goes on", _model(3, _scale_gradient(1e-4)), goes_on),
    Fault("rewards x 1000", "reward_jump", 1, "values explained again", _thousandfold, _recovered_value),
    Fault("rewards x 1000, scale", "return_scale", 10, "goes on", _dial(10, reward_scale=1000.0), goes_on),
    Fault(
        "rewards x 1000 without PopArt",
        "critic_loss",
        2,
        "smaller step",
        _dial(8, reward_scale=1000.0, config={"model": {"returns": {"kind": "none"}}}),
        shrunk,
    ),
    Fault(
        "log-probs stale by 1e4, one update",
        "log_ratio_clamped",
        1,
        "undone, goes on",
        _rollouts(4, with_log_probs(1e4), only=1),
        goes_on,
    ),
    Fault(
        "log-probs stale by 1e4, for good",
        "log_ratio_clamped",
        1,
        "stopped",
        _rollouts(8, with_log_probs(-1e4)),
        stopped,
    ),
    Fault("log-probs stale by .1", "first_log_ratio", 1, "goes on", _rollouts(3, with_log_probs(0.1)), goes_on),
    Fault(
        "hidden state of another time",
        "first_log_ratio",
        1,
        "goes on",
        _rollouts(2, lambda r: dataclasses.replace(r, state=r.state + 1.0), **LSTM),
        goes_on,
    ),
    Fault("-30% crash bar, stale data", "reward_jump", 1, "goes on", _crash_chain, goes_on),
    Fault("the best action changes", "certain_and_worse", 5, "recovers", _flip_chain, _flip_recovered),
    Fault("one reward of 10,000", "return_outlier", 1, "goes on", _rollouts(6, _one_huge_reward, only=1), goes_on),
    Fault("values that swing by 5 standard deviations", "value_useless", 15, "goes on", _values_of_nothing, goes_on),
    Fault("one-hot logits", "entropy_collapse", 1, "rolled back", _model(12, _bias(50.0)), rolled_back),
    Fault("logits x 1000", "logit_norm", 3, "goes on", _model(6, _bias(1000.0)), lambda c: c.weights_finite()),
    Fault("learning rate x 100", "kl_high", 8, "smaller step", _model(25, _learning_rate(100.0)), shrunk),
    Fault("observations + 50", "observation_shift", 1, "goes on", _dial(6, shift=50.0), goes_on),
    Fault("observations x 1000", "observation_outlier", 1, "goes on", _dial(6, spread=1000.0), goes_on),
    Fault("observations frozen", "observation_spread", 3, "goes on", _dial(6, spread=0.0), goes_on),
    Fault(
        "another law of observations", "observation_psi", 15, "goes on", _dial(14, two_points=True, warmup=27), goes_on
    ),
    Fault("evaluation elsewhere", "evaluation_shift", 3, "goes on", _evaluation_elsewhere, goes_on),
    Fault("wrong normaliser", "observation_outlier", 1, "goes on", _model(4, _wrong_normaliser), goes_on),
    Fault(
        "constant rewards",
        "reward_without_information",
        25,
        "goes on",
        _dial(28, reward_value=1.0),
        goes_on,
    ),
    Fault("no rewards at all", "no_advantage_signal", 3, "goes on", _from_start(5, Dials(reward_value=0.0)), goes_on),
    Fault("detached loss", "loss_without_gradient", 1, "goes on", _detached, goes_on),
    Fault(
        "risk that reaches nobody", "loss_without_gradient", 6, "goes on", _model(8, _drop_risk, risk=PENALTY), goes_on
    ),
    Fault("saturated units", "dead_units", 6, "goes on", _model(8, _saturate), goes_on),
    Fault("sampler stuck", "actions_not_sampled", 2, "goes on", _model(4, _stuck_sampler), goes_on),
    Fault(
        "one action always",
        "one_action",
        25,
        "goes on",
        _model(24, _bias(12.0), health={"disable": ["entropy_collapse"]}),
        goes_on,
    ),
    Fault(
        "shaping larger than the return", "shaping_dominates", 6, "goes on", _from_start(7, Dials(shaping=5.0)), goes_on
    ),
    Fault("equity x 10 in one step", "equity_jump", 1, "goes on", _from_start(3, Dials(equity_factor=10.0)), goes_on),
    Fault("limit out of reach", "limit_out_of_reach", 24, "goes on", _from_start(25, risk=LIMIT | NOW), goes_on),
    Fault(
        "constraint without calibration",
        "constraint_uncalibrated",
        2,
        "goes on",
        _from_start(3, risk=LIMIT | NOW),
        goes_on,
    ),
    Fault(
        "support too narrow",
        "out_of_support",
        12,
        "goes on",
        _from_start(12, model={"critic": {"kind": "categorical", "span": 1.0}}),
        goes_on,
    ),
    Fault(
        "value clip far too narrow",
        "value_clip_always",
        25,
        "goes on",
        _from_start(25, model={"critic": {"clip": {"kind": "per_quantile", "range": 1e-4}}}),
        goes_on,
    ),
    Fault(
        "KL target unreachable",
        "step_at_lower_bound",
        20,
        "goes on",
        _from_start(20, learner={"target_kl": 1e-7, "kl_factor": {"kind": "on", "low": 0.5}}),
        goes_on,
    ),
    Fault("environment slows down", "throughput_drop", 12, "goes on", _slower, goes_on),
    Fault("memory leak", "memory_growth", 12, "goes on", _dial(8, leak_mb=1, warmup=22), goes_on),
    Fault("disk full", "checkpoint_failed", 3, "older checkpoint whole, then saved", _disk_full, _disk_sound),
    Fault("writer killed", "checkpoint_rejected", 1, "resumes from the one before", _killed_writer, goes_on),
    Fault("a rule that stops", "reward_jump", 1, "stopped with a dump", _stop_rule, _stop_sound),
)

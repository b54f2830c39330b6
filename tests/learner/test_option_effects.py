"""H3: every option of the configuration changes a measured output. An option that is not in the table fails the test.

The table names, for each leaf of the configuration tree, a change and what must differ because of it; for each kind of
a choice (`path[kind]`), a configuration that selects it. The old systems had options that were read and then ignored.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from benchmarks.toy_envs import DICT_REACH, RECALL_MASKED
from tailwise.core.errors import ConfigError, NotBuiltError
from tailwise.learner.ppo import TorchBackend
from tailwise.model.networks import register_encoder
from tailwise.run.agent import PPO
from tailwise.run.config import Config
from tailwise.run.metric_store import compared_part
from tailwise.run.trainer import Trainer
from tests.support import SMALL_RUN, merged, small_run

# ------------------------------------------------------------------ walk the tree


def leaves(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every leaf as `a.b`, every kind of a choice as `a.b[kind]`, and the leaves of that kind below it."""
    for name, info in section.model_fields.items():
        key = f"{path}.{info.alias or name}".lstrip(".")
        options = [a for a in (typing.get_args(info.annotation) or (info.annotation,)) if isinstance(a, type)]
        sections = [a for a in options if issubclass(a, BaseModel)]
        tag = info.discriminator
        if isinstance(tag, str):
            for member in sections:
                for kind in typing.get_args(member.model_fields[tag].annotation):
                    yield f"{key}[{kind}]"
                    yield from (leaf for leaf in leaves(member, f"{key}[{kind}]") if leaf != f"{key}[{kind}].{tag}")
        elif sections:
            assert len(sections) == 1, key
            union = typing.get_origin(info.annotation) in (typing.Union, types.UnionType)
            if union and set(typing.get_args(info.annotation)) - {sections[0], type(None)}:
                yield key  # a plain value in place of the section
            yield from leaves(sections[0], key)
        else:
            yield key


# ------------------------------------------------------------------ outputs that are measured


class Factor(nn.Module):
    """An encoder for the custom kind: the observation times a factor."""

    def __init__(self, in_features: int, factor: float = 1.0) -> None:
        super().__init__()
        self.out_features, self.factor = in_features, factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Shift(Factor):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1.0


for _name, _factory in (("factor", Factor), ("shift", Shift)):
    register_encoder(f"option_{_name}", _factory)


@dataclass(frozen=True)
class Done:
    """A finished small run."""

    trainer: Trainer
    reason: str
    folder: Path | None
    auxiliary_calls: int


Output = Callable[[Done], Any]


def weights(done: Done) -> Any:
    return tuple(p.detach().numpy().tobytes() for p in done.trainer.model.parameters())


def shapes(done: Done) -> Any:
    return {name: tuple(t.shape) for name, t in done.trainer.model.state_dict().items()}


def metric(name: str) -> Output:
    """The values of one metric over the run."""

    def output(done: Done) -> Any:
        found = [row.get(name) for row in done.trainer.history]
        return [None if v is None or math.isnan(v) else v for v in found]

    return output


def updates(done: Done) -> Any:
    return done.trainer.update


def reason(done: Done) -> Any:
    return done.reason


def alerts(done: Done) -> Any:
    return [(a.update, a.rule, a.severity, a.advice, a.action, a.signal) for a in done.trainer.alerts]


def firing(done: Done) -> Any:
    return done.trainer.health.rules.firing


def planted(**changes: Any) -> dict[str, Any]:
    """A rule that holds in the first of three updates: the schedule of the step begins at 1 and falls."""
    return {"health": {"rules": [{"name": "planted", "signal": "step/schedule", "above": 0.9, **changes}]}}


def files(done: Done) -> Any:
    assert done.folder is not None
    return sorted(
        p.relative_to(done.folder).as_posix().split(".tfevents")[0] for p in done.folder.glob("**/*") if p.is_dir()
    )


@dataclass(frozen=True)
class Effect:
    """`change` on top of `base` must change `output`; or the configuration must be refused with `refused`."""

    output: Output | None
    change: dict[str, Any]
    base: dict[str, Any] = field(default_factory=dict)
    env: str = "CartPole-v1"
    on_disk: bool = False
    refused: str | None = None


def learner(**values: Any) -> dict[str, Any]:
    return {"learner": values}


def model(**values: Any) -> dict[str, Any]:
    return {"model": values}


LOUD = {"learning_rate": 0.02, "target_kl": None, "max_kl": 100.0, "epochs": 4}  # steps large enough for every clip
QUANTILE = {"kind": "quantile", "hidden": [8], "quantiles": 8, "minibatch_particles": 4}
CATEGORICAL = {"kind": "categorical", "hidden": [8], "atoms": 11, "particles": 8, "minibatch_particles": 4}
SCALAR = {"kind": "scalar", "hidden": [8]}
CRITICS = {"quantile": QUANTILE, "categorical": CATEGORICAL, "scalar": SCALAR}


def critic(kind: str, **values: Any) -> dict[str, Any]:
    risk = {"risk": {"mode": "off"}} if kind == "scalar" or values.get("target") == "scalar" else {}
    return {"model": {"critic": {**CRITICS[kind], **values}}, **risk}


def loud_critic(kind: str, **values: Any) -> dict[str, Any]:
    return {**critic(kind, **values), "learner": LOUD}


def critic_effects(kind: str) -> dict[str, Effect]:
    """What all three kinds of critic share, and their clips."""
    at = f"model.critic[{kind}]"
    base = critic(kind)
    other = "scalar" if kind == "quantile" else "quantile"
    found = {
        at: Effect(shapes, critic(kind), {**critic(other), "risk": {"mode": "off"}}),
        f"{at}.hidden": Effect(shapes, critic(kind, hidden=[8, 8]), base),
        f"{at}.twin": Effect(shapes, critic(kind, twin=False), base),
        f"{at}.combine": Effect(metric("advantage/mean"), critic(kind, combine="average"), base),
        f"{at}.clip[disable]": Effect(
            metric("critic/clip_fraction"),
            loud_critic(kind, clip={"kind": "disable"}),
            loud_critic(kind, clip={"kind": "mean_only", "range": 0.05}),
        ),
    }
    values: dict[str, dict[str, Any]] = {
        "mean_only": {"range": 0.05},
        "mean_and_variance": {"range": 0.05, "factor": 1.0},
        "per_quantile": {"range": 0.05},
    }
    for clip, settings in values.items():
        clipped = f"{at}.clip[{clip}]"
        narrow = loud_critic(kind, clip={"kind": clip, **settings})
        if (kind, clip) in (
            ("scalar", "mean_and_variance"),
            ("scalar", "per_quantile"),
            ("categorical", "per_quantile"),
        ):
            words = "needs a distribution" if kind == "scalar" else "no meaning for atoms"
            for name in ("", *(f".{key}" for key in settings)):
                found[clipped + name] = Effect(None, narrow, refused=words)
            continue
        found[clipped] = Effect(metric("critic/clip_fraction"), narrow, loud_critic(kind))
        found[f"{clipped}.range"] = Effect(
            metric("critic/clip_fraction"), loud_critic(kind, clip={"kind": clip, **settings, "range": 0.5}), narrow
        )
    if kind != "scalar":
        wide = {"kind": "mean_and_variance", "range": 100.0, "factor": 1.0}
        found[f"{at}.clip[mean_and_variance].factor"] = Effect(
            metric("critic/clip_fraction"),
            loud_critic(kind, clip={**wide, "factor": 1.5}),
            loud_critic(kind, clip=wide),
        )
        found[f"{at}.lambda"] = Effect(metric("loss/law_0"), critic(kind, **{"lambda": 0.3}), base)
        found[f"{at}.minibatch_particles"] = Effect(metric("loss/law_0"), critic(kind, minibatch_particles=8), base)
        found[f"{at}.particles"] = Effect(metric("risk/cvar_return"), critic(kind, particles=16), base)
    return found


PLATEAU = {"kind": "plateau", "weight": 0.02, "floor": 0.01, "window": 3, "tolerance": 10, "decay": 1}
KL_ON = {"kind": "on", "ratio": 1.5, "low": 0.5, "high": 1.6}
AWR_ON = {"kind": "on", "weight": 1.0, "beta": 1.0, "max_weight": 20.0}
REFUSING = {"learner": {**LOUD, "max_kl": 1e-9}}
EVALUATED = {"evaluate": {"every": 1, "episodes": 2}}


def plateau(**values: Any) -> dict[str, Any]:
    return {"learner": {"entropy": {**PLATEAU, **values}}, "run": {"total_steps": 192}}


def kl_factor(**values: Any) -> dict[str, Any]:
    return learner(kl_factor={**KL_ON, **values}, learning_rate=1e-5)


UNIFORM = {"kind": "uniform", "weight": 0.1}


def narrowing(**values: Any) -> dict[str, Any]:
    return learner(exploration={"kind": "narrow", **values})


def outside(weight: float) -> dict[str, Any]:
    """A policy whose means lie beyond the bounds now and then."""
    return {"model": {"actor": {"gain": 10.0}}, **narrowing(bounds_weight=weight)}


def awr(**values: Any) -> dict[str, Any]:
    return learner(awr={**AWR_ON, **values})


SOURCE = {"kind": "rule", "rule": "benchmarks.robust_rules:lean_and_turn", "steps": 400}


def shown(**values: Any) -> dict[str, Any]:
    return learner(imitation={"kind": "demonstrations", "source": SOURCE, "rows": 32, **values})


def sa_ppo(**values: Any) -> dict[str, Any]:
    return {**learner(adversary={"kind": "sa_ppo", "ramp": 0.0, **values}), "model": {"actor": {"gain": 1.0}}}


def penalty(**values: Any) -> dict[str, Any]:
    return {"risk": {"mode": "penalty", "alpha": 0.25, "weight": 2.0, **values}}


def constraint(**values: Any) -> dict[str, Any]:
    """A limit that CartPole's returns break at once."""
    return {
        "risk": {"mode": "constraint", "alpha": 0.25, "limit": 50.0, "warmup": {"updates": 0, "longest": 0}, **values}
    }


def patient(tolerance: float) -> dict[str, Any]:
    """Long enough for windows of the return to be complete, with a warm-up that only calibration ends."""
    warmup = {"updates": 0, "longest": 1000, "tolerance": tolerance}
    return {**constraint(warmup=warmup), "run": {"total_steps": 1600}, "learner": {"gamma": 0.5}}


def measure_effects(mode: str, settings: Callable[..., dict[str, Any]]) -> dict[str, Effect]:
    at, wang = f"risk[{mode}].measure", {"kind": "wang", "eta": 1.5}
    return {
        f"{at}[cvar]": Effect(metric("risk/measure"), settings(), settings(measure={"kind": "mean"})),
        f"{at}[mean]": Effect(metric("risk/measure"), settings(measure={"kind": "mean"}), settings()),
        f"{at}[wang]": Effect(metric("risk/measure"), settings(measure={"kind": "wang"}), settings()),
        f"{at}[wang].eta": Effect(metric("risk/measure"), settings(measure=wang), settings(measure={"kind": "wang"})),
    }


def optimiser(kind: str, **values: Any) -> dict[str, Any]:
    return learner(optimiser={"kind": kind, **values})


def optimiser_effects(kind: str, *, protective: bool, decaying: bool) -> dict[str, Effect]:
    """What several optimisers share, in bits of the weights."""
    at, base = f"learner.optimiser[{kind}]", optimiser(kind)
    effects = {
        at: Effect(weights, base),
        f"{at}.shrink_perturb": Effect(weights, optimiser(kind, shrink_perturb=1e-3), base),
    }
    if decaying:
        strong = optimiser(kind, weight_decay=5.0)
        effects[f"{at}.weight_decay"] = Effect(weights, strong, base)
        effects[f"{at}.decay_to"] = Effect(weights, optimiser(kind, weight_decay=5.0, decay_to="initial"), strong)
    if protective:
        effects[f"{at}.utility_beta"] = Effect(weights, optimiser(kind, utility_beta=0.5), base)
        effects[f"{at}.noise"] = Effect(weights, optimiser(kind, noise=0.1), base)
    return effects


def microbatched(**values: Any) -> dict[str, Any]:
    return learner(microbatches=2, **values)


def scaling(**values: Any) -> dict[str, Any]:
    return microbatched(variance_scaling={"kind": "on", "low": 0.01, **values})


EFFECTS: dict[str, Effect] = {
    "seed": Effect(weights, {"seed": 1}),
    "backend": Effect(lambda done: type(done.trainer.backend).__name__, {"backend": "fused"}, {"backend": "torch"}),
    "env[gym].id": Effect(shapes, {"env": {"id": "Acrobot-v1"}}),
    "env[gym].kwargs": Effect(
        metric("episode/return"), {"env": {"kwargs": {"delay": 1}}}, {"env": {"kwargs": {"delay": 2}}},
        env=RECALL_MASKED,
    ),
    "env[gym].hide": Effect(shapes, {"env": {"hide": [1, 3]}}),
    "env[gym].processes": Effect(lambda done: type(done.trainer.driver.venv).__name__, {"env": {"processes": 2}}),
    "env[gym].time_limit": Effect(metric("episode/length"), {"env": {"time_limit": 3}}),
    # model
    "model.observations[running]": Effect(weights, {}, model(observations={"kind": "none"})),
    "model.observations[none]": Effect(weights, model(observations={"kind": "none"})),
    "model.observations[running].clip": Effect(weights, model(observations={"clip": 0.01})),
    "model.returns[popart]": Effect(metric("return/sigma"), {}, model(returns={"kind": "none"})),
    "model.returns[none]": Effect(metric("return/sigma"), model(returns={"kind": "none"})),
    "model.returns[popart].rate": Effect(metric("return/sigma"), model(returns={"rate": 1.0})),
    "model.returns[popart].floor": Effect(
        metric("return/sigma"), model(returns={"rate": 1.0, "floor": 1.0}), model(returns={"rate": 1.0})
    ),
    "model.norm": Effect(shapes, model(norm="layer")),
    "model.encoder[mlp]": Effect(shapes, {}, model(encoder={"kind": "custom", "name": "option_factor"})),
    "model.encoder[mlp].hidden": Effect(shapes, model(encoder={"hidden": [8, 4]})),
    "model.encoder[mlp].activation": Effect(weights, model(encoder={"activation": "relu"})),
    "model.encoder[custom]": Effect(shapes, model(encoder={"kind": "custom", "name": "option_factor"})),
    "model.encoder[custom].name": Effect(
        weights, model(encoder={"kind": "custom", "name": "option_shift"}),
        model(encoder={"kind": "custom", "name": "option_factor"}),
    ),
    "model.encoder[custom].options": Effect(
        weights, model(encoder={"kind": "custom", "name": "option_factor", "options": {"factor": 2.0}}),
        model(encoder={"kind": "custom", "name": "option_factor"}),
    ),
    "model.core[none]": Effect(shapes, {}, model(core={"kind": "lstm"})),
    **{f"model.core[{kind}]": Effect(shapes, model(core={"kind": kind})) for kind in ("lstm", "gru")},
    **{
        f"model.core[{kind}].{key}": Effect(shapes, model(core={"kind": kind, key: 2}), model(core={"kind": kind}))
        for kind in ("lstm", "gru")
        for key in ("hidden", "layers")
    },
    "model.actor.hidden": Effect(shapes, model(actor={"hidden": [4]})),
    "model.actor.gain": Effect(metric("policy/entropy_min"), model(actor={"gain": 1.0})),
    "model.actor.box": Effect(metric("policy/entropy"), model(actor={"box": "squashed"}), env=DICT_REACH),
    "model.actor.log_std": Effect(metric("policy/entropy"), model(actor={"log_std": -1.0}), env=DICT_REACH),
    **critic_effects("quantile"),
    **critic_effects("categorical"),
    **critic_effects("scalar"),
    "model.critic[quantile].quantiles": Effect(shapes, critic("quantile", quantiles=16)),
    "model.critic[quantile].kappa": Effect(metric("loss/law_0"), critic("quantile", kappa=1.0)),
    "model.critic[quantile].target": Effect(
        metric("loss/law_0"), critic("quantile", target="scalar"), {"risk": {"mode": "off"}}
    ),
    "model.critic[quantile].mean": Effect(shapes, critic("quantile", mean="quantiles")),
    "model.critic[categorical].atoms": Effect(shapes, critic("categorical", atoms=21), critic("categorical")),
    "model.critic[categorical].span": Effect(
        metric("critic/out_of_support"), critic("categorical", span=0.5), critic("categorical")
    ),
    # learner
    "learner.gamma": Effect(metric("return/mean"), learner(gamma=0.5)),
    "learner.lambda": Effect(metric("advantage/std"), learner(**{"lambda": 0.1})),
    "learner.epochs": Effect(metric("policy/epochs"), learner(epochs=3)),
    "learner.minibatches": Effect(weights, learner(minibatches=4)),
    "learner.microbatches": Effect(lambda done: done.auxiliary_calls, learner(microbatches=2)),
    "learner.learning_rate": Effect(metric("step/learning_rate"), learner(learning_rate=1e-3)),
    "learner.schedule[constant]": Effect(metric("step/learning_rate"), learner(schedule={"kind": "constant"})),
    "learner.schedule[linear]": Effect(metric("step/learning_rate"), {}, learner(schedule={"kind": "cosine"})),
    "learner.schedule[cosine]": Effect(metric("step/learning_rate"), learner(schedule={"kind": "cosine"})),
    "learner.schedule[linear].end": Effect(metric("step/schedule"), learner(schedule={"end": 0.5})),
    "learner.schedule[cosine].end": Effect(
        metric("step/schedule"), learner(schedule={"kind": "cosine", "end": 0.5}), learner(schedule={"kind": "cosine"})
    ),
    "learner.clip": Effect(metric("policy/clip_fraction"), learner(**LOUD, clip=0.01), learner(**LOUD)),
    "learner.dual_clip": Effect(
        metric("policy/dual_clip_fraction"), learner(**LOUD, dual_clip=1.21), learner(**LOUD, dual_clip=None)
    ),
    "learner.advantages": Effect(metric("advantage/largest_normalised"), learner(advantages="per_env")),
    "learner.entropy[constant]": Effect(metric("step/entropy_weight"), {}, plateau()),
    "learner.entropy[constant].weight": Effect(metric("loss/entropy"), learner(entropy={"weight": 0.1})),
    "learner.entropy[plateau]": Effect(metric("step/entropy_weight"), plateau()),
    "learner.entropy[plateau].weight": Effect(metric("step/entropy_weight"), plateau(weight=0.03), plateau()),
    "learner.entropy[plateau].floor": Effect(metric("step/entropy_weight"), plateau(floor=0.0), plateau()),
    "learner.entropy[plateau].window": Effect(metric("step/entropy_weight"), plateau(window=4), plateau()),
    "learner.entropy[plateau].tolerance": Effect(metric("step/entropy_weight"), plateau(tolerance=0.0), plateau()),
    "learner.entropy[plateau].decay": Effect(metric("step/entropy_weight"), plateau(decay=9), plateau()),
    "learner.value_weight": Effect(metric("loss/mean_0"), learner(value_weight=1.0)),
    "learner.optimiser[adam]": Effect(weights, {}, optimiser("adamw")),
    "learner.optimiser[adamw]": Effect(weights, optimiser("adamw")),
    "learner.optimiser[adamw].beta1": Effect(weights, optimiser("adamw", beta1=0.5), optimiser("adamw")),
    "learner.optimiser[adamw].beta2": Effect(weights, optimiser("adamw", beta2=0.5), optimiser("adamw")),
    **optimiser_effects("adamw", protective=False, decaying=True),
    **optimiser_effects("upgd", protective=True, decaying=False),
    **optimiser_effects("upgd_w", protective=True, decaying=True),
    "learner.optimiser[ada_upgd].beta1": Effect(weights, optimiser("ada_upgd", beta1=0.5), optimiser("ada_upgd")),
    "learner.optimiser[ada_upgd].beta2": Effect(weights, optimiser("ada_upgd", beta2=0.5), optimiser("ada_upgd")),
    **optimiser_effects("ada_upgd", protective=True, decaying=True),
    "learner.variance_scaling[off]": Effect(weights, microbatched(), scaling()),
    "learner.variance_scaling[on]": Effect(weights, scaling(), microbatched()),
    "learner.variance_scaling[on].strength": Effect(weights, scaling(strength=0.1), scaling()),
    "learner.variance_scaling[on].low": Effect(weights, scaling(strength=100.0, low=0.5), scaling(strength=100.0)),
    "learner.variance_scaling[on].rate": Effect(weights, scaling(rate=0.9), scaling()),
    "learner.max_grad_norm": Effect(metric("grad/norm_after"), learner(max_grad_norm=0.001)),
    "learner.target_kl": Effect(
        metric("policy/stopped_early"), learner(**{**LOUD, "target_kl": 1e-6}), learner(**LOUD)
    ),
    "learner.prior[auto]": Effect(weights, {}, learner(prior=UNIFORM)),
    "learner.prior[off]": Effect(weights, learner(prior={"kind": "off"}), learner(prior=UNIFORM)),
    "learner.prior[uniform]": Effect(weights, learner(prior=UNIFORM)),
    "learner.prior[uniform].weight": Effect(weights, learner(prior={**UNIFORM, "weight": 0.5}), learner(prior=UNIFORM)),
    "learner.prior[uniform].target": Effect(
        metric("step/prior_weight"), learner(prior={**UNIFORM, "target": 0.001}), learner(prior=UNIFORM)
    ),
    "learner.exploration[auto]": Effect(metric("policy/entropy"), {}, narrowing(), env=DICT_REACH),
    "learner.exploration[learnt]": Effect(
        metric("policy/entropy"), learner(exploration={"kind": "learnt"}), narrowing(), env=DICT_REACH
    ),
    "learner.exploration[narrow]": Effect(metric("policy/entropy"), narrowing(), env=DICT_REACH),
    "learner.exploration[narrow].end_std": Effect(
        metric("policy/entropy"), narrowing(end_std=0.5), narrowing(), env=DICT_REACH
    ),
    "learner.exploration[narrow].bounds_weight": Effect(
        metric("loss/bounds"), outside(2.0), outside(1.0), env=DICT_REACH
    ),
    "learner.kl_factor[off]": Effect(metric("step/kl_factor"), {}, kl_factor()),
    "learner.kl_factor[on]": Effect(metric("step/kl_factor"), kl_factor()),
    "learner.kl_factor[on].ratio": Effect(metric("step/kl_factor"), kl_factor(ratio=1.2), kl_factor()),
    "learner.kl_factor[on].low": Effect(
        metric("step/kl_factor"),
        learner(kl_factor={**KL_ON, "low": 0.9}, learning_rate=0.02, target_kl=1e-6),
        learner(kl_factor=KL_ON, learning_rate=0.02, target_kl=1e-6),
    ),
    "learner.kl_factor[on].high": Effect(metric("step/kl_factor"), kl_factor(high=1.1), kl_factor()),
    "learner.max_kl": Effect(metric("update/committed"), learner(**{**LOUD, "max_kl": 1e-9}), learner(**LOUD)),
    "learner.awr[off]": Effect(metric("loss/awr"), {}, awr()),
    "learner.awr[on]": Effect(metric("loss/awr"), awr()),
    "learner.awr[on].weight": Effect(metric("loss/awr_share"), awr(weight=0.1), awr()),
    "learner.awr[on].beta": Effect(metric("loss/awr"), awr(beta=0.2), awr()),
    "learner.awr[on].max_weight": Effect(metric("loss/awr"), awr(max_weight=1.0), awr()),
    "learner.imitation[none]": Effect(metric("loss/imitation"), {}, shown()),
    "learner.imitation[demonstrations]": Effect(metric("loss/imitation"), shown()),
    "learner.imitation[demonstrations].source[rule]": Effect(metric("loss/imitation"), shown()),
    "learner.imitation[demonstrations].source[rule].rule": Effect(
        weights, shown(source={**SOURCE, "rule": "benchmarks.robust_rules:lean"}), shown()
    ),
    "learner.imitation[demonstrations].source[rule].steps": Effect(
        weights, shown(source={**SOURCE, "steps": 100}), shown()
    ),
    "learner.imitation[demonstrations].weight": Effect(metric("loss/imitation_share"), shown(weight=2.0), shown()),
    "learner.imitation[demonstrations].until": Effect(metric("loss/imitation"), shown(until=1.0), shown()),
    "learner.imitation[demonstrations].beta": Effect(metric("imitation/weight"), shown(beta=None), shown()),
    "learner.imitation[demonstrations].max_weight": Effect(metric("imitation/weight"), shown(max_weight=1.0), shown()),
    "learner.imitation[demonstrations].rows": Effect(metric("loss/imitation"), shown(rows=64), shown()),
    "learner.imitation[demonstrations].clone": Effect(weights, shown(clone=3), shown()),
    "learner.adversary[none]": Effect(metric("loss/adversary"), {}, sa_ppo()),
    "learner.adversary[sa_ppo]": Effect(metric("loss/adversary"), sa_ppo()),
    "learner.adversary[sa_ppo].weight": Effect(metric("loss/adversary"), sa_ppo(weight=2.0), sa_ppo()),
    "learner.adversary[sa_ppo].budget[std]": Effect(metric("adversary/epsilon"), sa_ppo(budget={"kind": "std"})),
    "learner.adversary[sa_ppo].budget[std].size": Effect(
        metric("adversary/epsilon"), sa_ppo(budget={"size": 0.1}), sa_ppo()
    ),
    "learner.adversary[sa_ppo].budget[std].entries": Effect(
        metric("adversary/epsilon"), sa_ppo(budget={"entries": {"observation.0": 0.3}}), sa_ppo()
    ),
    "learner.adversary[sa_ppo].method": Effect(metric("policy/adversary_kl"), sa_ppo(method="sgld"), sa_ppo()),
    "learner.adversary[sa_ppo].steps": Effect(metric("policy/adversary_kl"), sa_ppo(steps=3), sa_ppo()),
    "learner.adversary[sa_ppo].ramp": Effect(metric("adversary/epsilon"), sa_ppo(ramp=1.0), sa_ppo()),
    # risk
    "risk[off]": Effect(metric("risk/cvar_return"), {"risk": {"mode": "off"}}),
    "risk[report]": Effect(metric("risk/cvar_return"), {}, {"risk": {"mode": "off"}}),
    "risk[report].alpha": Effect(metric("risk/cvar_return"), {"risk": {"alpha": 0.5}}),
    "risk[penalty]": Effect(weights, penalty()),
    "risk[penalty].alpha": Effect(metric("risk/measure"), penalty(alpha=0.5), penalty()),
    "risk[penalty].weight": Effect(weights, penalty(weight=0.2), penalty()),
    **measure_effects("penalty", penalty),
    "risk[constraint]": Effect(weights, constraint()),
    "risk[constraint].alpha": Effect(metric("risk/measure"), constraint(alpha=0.5), constraint()),
    "risk[constraint].limit": Effect(metric("risk/multiplier"), constraint(limit=80.0), constraint()),
    **measure_effects("constraint", constraint),
    **{
        f"risk[constraint].pid.{key}": Effect(metric("risk/multiplier"), constraint(pid={key: 0.3}), constraint())
        for key in ("kp", "smoothing")
    },
    "risk[constraint].pid.ki": Effect(
        metric("risk/integral"), constraint(pid={"ki": 0.3}), constraint(), env="Pendulum-v1"
    ),
    "risk[constraint].pid.integral_clip": Effect(
        metric("risk/integral"), constraint(pid={"integral_clip": 0.01}), constraint(), env="Pendulum-v1"
    ),
    "risk[constraint].pid.kd": Effect(
        metric("risk/multiplier"),
        constraint(pid={"kp": 0.0, "kd": 500.0}, limit=-1e4),
        constraint(pid={"kp": 0.0, "kd": 0.0}, limit=-1e4),
        env="Pendulum-v1",
    ),
    "risk[constraint].max_multiplier": Effect(
        metric("risk/multiplier"), constraint(max_multiplier=0.1), constraint()
    ),
    "risk[constraint].warmup.updates": Effect(
        metric("risk/active"), constraint(warmup={"updates": 2, "longest": 2}), constraint()
    ),
    "risk[constraint].warmup.longest": Effect(
        metric("risk/active"), constraint(warmup={"updates": 0, "longest": 2}), constraint()
    ),
    "risk[constraint].warmup.tolerance": Effect(
        metric("risk/active"),
        patient(1e-9),
        patient(100.0),
    ),
    # run
    "run.total_steps": Effect(updates, {"run": {"total_steps": 64}}),
    "run.environments": Effect(updates, {"run": {"environments": 8}}),
    "run.rollout_steps": Effect(updates, {"run": {"rollout_steps": 16}}),
    "run.checkpoint_every": Effect(files, {"run": {"checkpoint_every": 1}}, on_disk=True),
    "run.keep": Effect(
        files, {"run": {"checkpoint_every": 1, "keep": 1}}, {"run": {"checkpoint_every": 1}}, on_disk=True
    ),
    "run.shards": Effect(metric("loss/policy"), {"run": {"shards": 2}}),
    "run.threads": Effect(lambda done: torch.get_num_threads(), {"run": {"threads": 2}}),
    "run.tensorboard": Effect(files, {"run": {"tensorboard": True}}, on_disk=True),
    "run.max_refused": Effect(reason, {"run": {"max_refused": 2}, **REFUSING}, REFUSING),
    # health
    "health.gradients_every": Effect(metric("grad/term/policy/actor"), {"health": {"gradients_every": 1}}),
    "health.signals_every": Effect(metric("model/dead_units"), {"health": {"signals_every": 1}}),
    "health.rules.name": Effect(alerts, planted(name="other"), planted()),
    "health.rules.signal": Effect(alerts, planted(signal="policy/epochs"), planted()),
    "health.rules.above": Effect(alerts, planted(above=2.0), planted()),
    "health.rules.below": Effect(alerts, planted(above=None, below=0.5), planted()),
    "health.rules.statistic": Effect(
        alerts, planted(window=2, statistic="min"), planted(window=2, statistic="max")
    ),
    "health.rules.window": Effect(alerts, planted(window=3, statistic="max"), planted(window=2, statistic="max")),
    "health.rules.raise_after": Effect(alerts, planted(raise_after=2), planted()),
    "health.rules.clear_after": Effect(firing, planted(clear_after=1), planted()),
    "health.rules.not_before": Effect(alerts, planted(not_before=1), planted()),
    "health.rules.severity": Effect(alerts, planted(severity="info"), planted()),
    "health.rules.action": Effect(metric("step/health_factor"), planted(action="shrink"), planted()),
    "health.rules.advice": Effect(alerts, planted(advice="look elsewhere"), planted()),
    "health.disable": Effect(alerts, merged(planted(), {"health": {"disable": ["planted"]}}), planted()),
    "health.actions": Effect(
        metric("step/health_factor"), merged(planted(), {"health": {"actions": {"planted": "shrink"}}}), planted()
    ),
    "health.shrink": Effect(
        metric("step/health_factor"),
        merged(planted(action="shrink"), {"health": {"shrink": 0.1}}),
        planted(action="shrink"),
    ),
    "health.max_shrinks": Effect(
        metric("step/health_factor"),
        merged(planted(action="shrink"), {"health": {"max_shrinks": 0}}),
        planted(action="shrink"),
    ),
    "health.max_skips": Effect(
        metric("update/committed"), merged(planted(action="skip"), {"health": {"max_skips": 0}}), planted(action="skip")
    ),
    "health.max_rollbacks": Effect(
        reason,
        merged(planted(action="rollback"), {"health": {"max_rollbacks": 0}}),
        planted(action="rollback"),
    ),
    "health.cooldown": Effect(
        metric("step/health_factor"),
        merged(planted(action="shrink", above=0.0), {"health": {"cooldown": 1}}),
        planted(action="shrink", above=0.0),
    ),
    # evaluate
    "evaluate.every": Effect(metric("evaluate/return"), EVALUATED),
    "evaluate.episodes": Effect(metric("evaluate/return"), {"evaluate": {"every": 1, "episodes": 3}}, EVALUATED),
    "evaluate.deterministic": Effect(
        metric("evaluate/return"), merged(EVALUATED, {"evaluate": {"deterministic": False}}), EVALUATED
    ),
    "evaluate.patience": Effect(
        reason,
        merged(EVALUATED, {"evaluate": {"patience": 1, "min_delta": 1e6}}),
        merged(EVALUATED, {"evaluate": {"min_delta": 1e6}}),
    ),
    "evaluate.min_delta": Effect(
        metric("evaluate/best"),
        merged(EVALUATED, {"evaluate": {"min_delta": 1e6}, "run": {"total_steps": 320}, "learner": LOUD}),
        merged(EVALUATED, {"run": {"total_steps": 320}, "learner": LOUD}),
    ),
}  # fmt: skip


def frozen(value: Any) -> Any:
    """A hashable copy of nested dictionaries and lists."""
    if isinstance(value, dict):
        return tuple((key, frozen(part)) for key, part in sorted(value.items()))
    return ("list", *map(frozen, value)) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    if isinstance(value, tuple) and value[:1] == ("list",):
        return [thawed(part) for part in value[1:]]
    return {key: thawed(part) for key, part in value} if isinstance(value, tuple) else value


@cache
def finished(env: str, changes: Any, folder: Path | None) -> Done:
    """A run of three updates with the given changes; the same run is made once."""
    config = small_run(**merged({"env": {"id": env}}, thawed(changes)))
    agent = PPO(config.env.id or env, config, run_dir=folder)
    calls = 0

    def count(model: Any, view: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.zeros(())

    backend: TorchBackend = agent.trainer.backend
    backend.auxiliary = (*backend.auxiliary, ("count", count)) if folder is None else backend.auxiliary
    ended = agent.learn()
    return Done(agent.trainer, ended, folder, calls)


def test_table_has_every_option_of_the_configuration_and_no_other() -> None:
    """A field that somebody adds without an effect is named here."""
    # test_market_option_effects.py, test_notify.py, test_geometry.py, test_demonstrations.py, test_seeds.py,
    # test_device.py
    on_markets = (
        "data",
        "features",
        "costs",
        "env[market]",
        "learner.prior[base]",
        "risk[constraint].limit.",
        "learner.adversary[sa_ppo].budget[bps]",
        "learner.adversary[path]",
    )
    files = tuple(f"learner.imitation[demonstrations].source[{kind}]" for kind in ("files", "minari"))
    elsewhere = (*on_markets, *files, "notify", "run.device", "run.geometry", "run.seeds")
    tree = {key for key in leaves(Config) if not key.startswith(elsewhere)} - {"env[gym]"}  # all of them run on it
    assert len(tree) > 100
    assert sorted(tree - EFFECTS.keys()) == []
    assert sorted(EFFECTS.keys() - tree) == []


@pytest.mark.parametrize("option", list(EFFECTS))
def test_option_changes_a_measured_output(option: str, tmp_path: Path) -> None:
    effect = EFFECTS[option]
    if effect.refused is not None:
        with pytest.raises((ConfigError, NotBuiltError), match=effect.refused):
            small_run(**effect.change)
        return
    assert effect.output is not None
    assert effect.change != effect.base
    measured = []
    for name, changes in (("base", effect.base), ("changed", effect.change)):
        done = finished(effect.env, frozen(changes), tmp_path / name if effect.on_disk else None)
        measured.append(effect.output(done))
        torch.set_num_threads(1)
    assert measured[0] != measured[1], (option, measured)


def test_option_that_is_ignored_would_be_noticed() -> None:
    """The wrong implementation: a trainer that does not read learner.clip."""
    effect = EFFECTS["learner.clip"]
    assert effect.output is not None
    ignored = merged(effect.change, {"learner": {"clip": 0.2}})
    assert effect.output(finished(effect.env, frozen(effect.base), None)) == effect.output(
        finished(effect.env, frozen(ignored), None)
    )


def test_two_runs_of_the_same_configuration_are_equal() -> None:
    """Without this, any output would "change"."""
    config = small_run(**SMALL_RUN)
    first, second = PPO("CartPole-v1", config), PPO("CartPole-v1", config)
    for agent in (first, second):
        agent.learn()
    assert weights(Done(first.trainer, "", None, 0)) == weights(Done(second.trainer, "", None, 0))
    assert [compared_part(row) for row in first.history] == [compared_part(row) for row in second.history]

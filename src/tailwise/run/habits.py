"""Habits from other libraries: what is written here instead, as a sentence.

Who comes from Stable-Baselines3 writes the policy's name first, hyperparameters as keywords and schedules as functions.
None of that is guessed at; the answer says which line to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailwise.core.errors import ConfigError
from tailwise.run.callbacks import Callback
from tailwise.run.config import Config

LSTM = '{"model": {"core": {"kind": "lstm", "hidden": 64}}}'
# Names of policies in Stable-Baselines3 and sb3-contrib -> what is written in the configuration for them.
POLICIES: Mapping[str, str] = {
    "MlpPolicy": "leave it out: two layers of 64 are the default",
    "MultiInputPolicy": "leave it out: observations that are dictionaries are read as they are",
    "MlpLstmPolicy": f"leave it out and write {LSTM}",
    "MultiInputLstmPolicy": f"leave it out and write {LSTM}",
    "CnnPolicy": "images are not supported; flatten them to numbers first",
    "CnnLstmPolicy": "images are not supported; flatten them to numbers first",
}
# Keywords of Stable-Baselines3's PPO -> key of the configuration.
KEYS: Mapping[str, str] = {
    "learning_rate": "learner.learning_rate",
    "n_steps": "run.rollout_steps",
    "n_epochs": "learner.epochs",
    "gamma": "learner.gamma",
    "gae_lambda": "learner.lambda",
    "clip_range": "learner.clip",
    "vf_coef": "learner.value_weight",
    "max_grad_norm": "learner.max_grad_norm",
    "target_kl": "learner.target_kl",
    "seed": "seed",
    "n_envs": "run.environments",
    "total_timesteps": "run.total_steps",
}
# The others -> a sentence.
SENTENCES: Mapping[str, str] = {
    "batch_size": "minibatches are counted: learner.minibatches is environments x rollout_steps / batch_size",
    "ent_coef": 'write {"learner": {"entropy": {"kind": "constant", "weight": 0.01}}}',
    "clip_range_vf": 'write {"model": {"critic": {"clip": {"kind": "mean_only"}}}}; off is the default',
    "normalize_advantage": "advantages are always standardised, once per rollout; leave it out",
    "use_sde": "state-dependent exploration is not built; learner.exploration narrows the noise of Box actions",
    "sde_sample_freq": "state-dependent exploration is not built; leave it out",
    "policy_kwargs": 'networks are a part of the configuration: {"model": {"encoder": {"hidden": [64, 64]}}}',
    "tensorboard_log": "give run_dir=: TensorBoard files and metrics are written there",
    "stats_window_size": "means are over the last 100 episodes; leave it out",
    "verbose": "progress is shown by learn(); learn(progress=False) is silent",
    "device": 'write {"run": {"device": "cuda"}}; on the CPU, the default, there are {"run": {"threads": 1}} threads',
    "_init_setup_model": "the model is always built; leave it out",
    "policy": 'the environment comes first: PPO(env, {"model": ...})',
    "environment": "it is called env",
}
OWN = ("env", "config", "run_dir", "callbacks", "auxiliary", "trials")


def refuse_keywords(given: Mapping[str, Any]) -> None:
    """Raise, if any keyword was given that `PPO` does not have, with what to write instead."""
    if given:
        raise ConfigError(" ".join(_keyword_sentence(name, value) for name, value in given.items()))


def _keyword_sentence(name: str, value: Any) -> str:
    if name in KEYS:
        shown = "a number" if callable(value) else repr(value)
        nested = shown
        for part in reversed(KEYS[name].split(".")):
            nested = f"{{{part!r}: {nested}}}"
        schedule = ""
        if callable(value):
            schedule = "; the step size falls linearly to 0 by default, see learner.schedule" if "rate" in name else ""
        return f"PPO has no keyword {name}; write PPO(env, {nested.replace(chr(39), chr(34))}){schedule}."
    if name in SENTENCES:
        return f"PPO has no keyword {name}: {SENTENCES[name]}."
    near = difflib.get_close_matches(name, OWN, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(OWN)}."
    return f"PPO has no keyword {name}; {hint} Settings are keys of config (tailwise config explain KEY)."


def check_order(env: Any, config: Any) -> None:
    """Raise when the arguments of `PPO` stand in the order of Stable-Baselines3: a policy, then the environment."""
    if isinstance(env, str) and (env in POLICIES or env.endswith("Policy")):
        shown = repr(config) if isinstance(config, str) else "env"
        advice = POLICIES.get(env, "leave it out; networks are a part of the configuration")
        raise ConfigError(
            f"PPO takes the environment first, and {env!r} is the name of a policy; {advice}: tailwise.PPO({shown})."
        )
    if config is not None and not isinstance(config, Mapping | str | Path | Config):
        raise ConfigError(
            f"the configuration is a {type(config).__name__}; give a dictionary such as {LSTM}, a tailwise.Config, the "
            "path of a YAML file or the name of a preset."
        )
    if isinstance(config, Mapping):
        _refuse_functions(config, "")


def _refuse_functions(section: Mapping[Any, Any], place: str) -> None:
    for key, value in section.items():
        name = f"{place}{key}"
        if isinstance(value, Mapping):
            _refuse_functions(value, f"{name}.")
        elif callable(value):
            raise ConfigError(
                f"{name} is a function, which a run could not save or resume; write a number. The step size follows "
                "learner.schedule (linear, to 0, by default), the entropy weight learner.entropy."
            )


def one_of(**named: Any) -> Any:
    """The value that was given under one of two names, or None; raise where both were."""
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are the same; give one of them.")
    return next(iter(given.values()), None)


def callbacks_of(callback: Any) -> list[Callback]:
    """The callbacks of one call of `learn`: None, one, or a sequence of them; raise on anything else."""
    if callback is None:
        return []
    given = list(callback) if isinstance(callback, Sequence) else [callback]
    for one in given:
        if not isinstance(one, Callback):
            kind = "function" if callable(one) else type(one).__name__
            raise ConfigError(
                f"the callback is a {kind}; derive from tailwise.Callback and override on_update(progress), whose "
                "progress.metrics are the metrics of the update; return False to end the run. Checkpoints and "
                "evaluations need no callback: set run.checkpoint_every and evaluate.every."
            )
    return given


# Names that other libraries export -> what is written here.
NAMES: Mapping[str, str] = {
    "A2C": "there is one learner, tailwise.PPO",
    "DQN": "there is one learner, tailwise.PPO",
    "SAC": "there is one learner, tailwise.PPO",
    "RecurrentPPO": f"write tailwise.PPO(env, {LSTM})",
    "MaskablePPO": "write tailwise.PPO(env): masks are read from the observation or from info",
    "QRDQN": "there is one learner, tailwise.PPO; its critics are distributional by default",
    "BaseCallback": "derive from tailwise.Callback",
    "CheckpointCallback": 'write {"run": {"checkpoint_every": 10}} (updates) and give run_dir=',
    "EvalCallback": 'write {"evaluate": {"every": 10}} (updates); the best checkpoint is kept in run_dir',
    "StopTrainingOnRewardThreshold": "derive from tailwise.Callback and return False from on_update",
    "ProgressBarCallback": "learn() shows progress by itself",
    "make_vec_env": 'pass the id and write {"run": {"environments": 8}}, or pass gymnasium.make_vec(...)',
    "DummyVecEnv": 'pass the id or a function that builds one, and write {"run": {"environments": 8}}',
    "SubprocVecEnv": 'pass the id and write {"env": {"processes": 2}, "run": {"environments": 8}}',
    "VecNormalize": "observations and returns are normalised inside the model; leave it out",
    "VecFrameStack": f"use memory instead: {LSTM}",
    "Monitor": "returns of episodes are counted by the learner; leave it out",
    "Strategy": "a rule is a function: of the bars so far, an exposure (tailwise.backtest)",
}


def unknown_name(name: str) -> str | None:
    """What to write instead of a name that other libraries export; None for names that are just wrong."""
    return f"tailwise has no {name}; {NAMES[name]}." if name in NAMES else None

"""`tailwise evaluate`: a policy over fixed, seeded episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.cli.output import note, number, print_json, print_table
from tailwise.core.atomic import write_json
from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.evaluate.ensemble import Ensemble, Trader, as_how
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import Policy, choose_checkpoint, policy_of
from tailwise.run.config import GymEnv
from tailwise.run.play import Played
from tailwise.run.policy_files import load_policy
from tailwise.run.run_folder import read_config

EVALUATIONS, ENSEMBLE = "evaluations", "ensemble"


def evaluate_run(
    runs: Sequence[Path],
    *,
    ensemble: str | None,
    episodes: int | None,
    stochastic: bool,
    seed: int | None,
    checkpoint: str | None,
    stressed: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Play, print and keep the result in RUN/evaluations/<checkpoint>-<n>.json; several runs decide together, and the
    result is kept in the first of them as ensemble-<n>."""
    run = runs[0]
    if len(runs) > 1 and ensemble is None:
        raise ConfigError(
            f"{len(runs)} runs are given; let them decide together with --ensemble vote or average, or give one."
        )
    loaded: list[Policy] = []
    members: list[str] = []
    behind: list[ckpt.Training] = []
    name = ENSEMBLE
    for one in runs:
        read_config(one)  # says so when this is not the folder of a run
        folder = find_checkpoint(one, checkpoint)
        loaded.append(policy_of(load_policy(folder, trust=trust)))
        members.append(f"{one}/{folder.name}")
        behind.append(ckpt.training_behind(folder))
        name = ENSEMBLE if ensemble is not None else folder.name
    policy: Trader = loaded[0] if ensemble is None else Ensemble(loaded, as_how(ensemble))
    told = () if ensemble is None else (ensemble, *members)
    config = policy.config
    if not isinstance(config.env, GymEnv):
        if episodes is not None:
            raise ConfigError(
                f"{run} was trained on a market: its test window is played whole, once; leave out --episodes."
            )
        evaluate_market(
            run,
            name,
            policy,
            stochastic=stochastic,
            seed=seed,
            stressed=stressed,
            as_json=as_json,
            members=told,
            trained=ckpt.least_trained(behind),
            others=runs[1:],
        )
        return
    count = config.evaluate.episodes if episodes is None else episodes
    deterministic = policy.deterministic and not stochastic
    used_seed = config.seed if seed is None else seed
    played = policy.evaluate(episodes=count, deterministic=deterministic, seed=used_seed)
    result = {
        "run_dir": str(run),
        "checkpoint": name,
        **({} if not told else {"members": list(told)}),
        "environment": config.env.id,
        "seed": used_seed,
        "deterministic": deterministic,
        **statistics(played),
        "returns": played.returns.tolist(),
        "lengths": played.lengths.tolist(),
    }
    path = first_free(run / EVALUATIONS, name)
    write_json(path, result)
    if as_json:
        print_json({**result, "file": str(path)})
        return
    how = "the most likely action" if deterministic else "sampled actions"
    rows = [(label, number(result[key])) for key, label in LABELS]
    print_table(f"{run.resolve().name}, checkpoint {name}: {how}, seed {used_seed}", ("", "value"), rows)
    print(f"written to {path}")


def evaluate_market(
    run: Path,
    checkpoint: str,
    policy: Trader,
    *,
    stochastic: bool,
    seed: int | None,
    stressed: bool,
    as_json: bool,
    members: Sequence[str] = (),
    trained: ckpt.Training,
    others: Sequence[Path] = (),
) -> None:
    """Trade the test window, compare with the baselines, keep paths and page in RUN/evaluations/<checkpoint>-<n>."""
    from tailwise.evaluate.judge import PAGE, Playing, judge_and_keep, print_findings

    config = policy.config
    deterministic = policy.deterministic and not stochastic
    played = Playing(checkpoint, deterministic, config.seed if seed is None else seed, tuple(members), trained)
    kept = first_free(run / EVALUATIONS, checkpoint, "")
    name = f"{run.resolve().name}, checkpoint {checkpoint}"
    findings = judge_and_keep(policy, played, kept, run=run, name=name, stressed=stressed, others=others)
    if as_json:
        print_json(
            {
                "run_dir": str(run),
                **asdict(played),
                "symbols": [found.to_json() for found in findings],
                "folder": str(kept),
            }
        )
        return
    print(f"{run.resolve().name}, {played.sentence}")
    for found in findings:
        print_findings(found)
    print(f"page: {kept / PAGE}")


LABELS = (
    ("episodes", "episodes"),
    ("mean_return", "mean return"),
    ("standard_error", "standard error of the mean"),
    ("std_return", "standard deviation between episodes"),
    ("min_return", "lowest return"),
    ("median_return", "median return"),
    ("max_return", "highest return"),
    ("mean_length", "mean length, steps"),
)


def statistics(played: Played) -> dict[str, Any]:
    """Numbers of a set of episodes; what is undefined is None."""
    returns = played.returns
    return {
        "episodes": len(returns),
        "mean_return": played.mean,
        "standard_error": played.standard_error,
        "std_return": played.std,
        "min_return": float(returns.min()),
        "median_return": float(np.median(returns)),
        "max_return": float(returns.max()),
        "mean_length": float(played.lengths.mean()),
    }


def find_checkpoint(run: Path, name: str | None) -> Path:
    """The checkpoint of that name, or the one that speaks for the run; broken ones that were passed over are told."""
    if name is None:
        folder, rejected = choose_checkpoint(run)
        for item in rejected:
            note(f"note: checkpoint {item.path.name} cannot be used: {item.reason}")
        return folder
    known = {path.name: path for path in ckpt.checkpoints_in(run)}
    if name not in known:
        raise CheckpointError(f"{run} has no checkpoint '{name}'; it has {', '.join(known) or 'none yet'}.")
    return known[name]


def open_market_policy(run: Path, checkpoint: str | None, *, otherwise: str, trust: bool) -> tuple[Policy, Path]:
    """The policy of a run on a market, and its checkpoint; `otherwise` ends the sentence about any other run."""
    config = read_config(run)  # says so when this is not the folder of a run
    if isinstance(config.env, GymEnv):
        raise ConfigError(f"{run} was trained on {config.env.id}{otherwise}")
    folder = find_checkpoint(run, checkpoint)
    return policy_of(load_policy(folder, trust=trust)), folder


def first_free(folder: Path, name: str, ending: str = ".json") -> Path:
    """folder/<name>-<n><ending> with the first n that is not taken."""
    folder.mkdir(exist_ok=True)
    number = 1
    while (path := folder / f"{name}-{number}{ending}").exists():
        number += 1
    return path

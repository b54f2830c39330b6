"""Trained runs opened to be judged: one policy or several that decide together, and their seeded episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.core.atomic import write_json
from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.evaluate.run_view import EVALUATIONS
from tailwise.run import checkpoint as ckpt
from tailwise.run.ensemble import Ensemble, ensemble_method
from tailwise.run.policy import Policy, Trader, choose_checkpoint, policy_of
from tailwise.run.policy_files import load_policy
from tailwise.run.run_folder import read_config
from tailwise.run.seeds import members_of, several

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class OpenedRun:
    """The policy that speaks for a run; of a run with several seeds all of them, deciding together.

    run           folder of the run
    policies      of the seeds, in their order
    checkpoints   folders that they were read from
    policy        what decides
    trained       the training behind it, of several seeds the least
    notes         sentences about newer checkpoints that cannot be used
    """

    run: Path
    policies: tuple[Policy, ...]
    checkpoints: tuple[Path, ...]
    policy: Trader
    trained: ckpt.Training
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its evaluations: that of the checkpoint, or "ensemble"."""
        return self.checkpoints[0].name if len(self.checkpoints) == 1 else ENSEMBLE

    def single(self, verb: str) -> Policy:
        """The policy of a run with one seed; ConfigError for several. verb: what can be done with one alone."""
        if len(self.policies) > 1:
            members = ", ".join(str(one) for one in members_of(self.run, self.policy.config))
            raise ConfigError(
                f"{self.run} has {len(self.policies)} seeds that decide together, and only one policy can be {verb}; "
                f"name one of {members}."
            )
        return self.policies[0]

    @property
    def sentence(self) -> str:
        """Which checkpoints, and of which seeds."""
        config = self.policy.config
        if len(self.policies) == 1:
            return f"checkpoint {self.name}, seed {config.seed}"
        names = ", ".join(dict.fromkeys(one.name for one in self.checkpoints))
        return f"{len(self.policies)} seeds from {config.seed} on deciding together, checkpoints {names}"


def open_run(run: str | Path, checkpoint: str | None = None, *, trust: bool = False) -> OpenedRun:
    """Read the policy of a run: of the checkpoint of that name, else of its best, else of its newest.

    trust: execute the code that the run names although somebody else may have written it (docs/security.md).
    """
    place = Path(run)
    config = read_config(place)  # says so when this is not the folder of a run
    members = members_of(place, config)
    waiting = [one.name for one in members if several(config) and not ckpt.checkpoints_in(one)]
    if waiting:
        raise CheckpointError(
            f"{place}: {', '.join(waiting)} of {len(members)} seeds have no checkpoint yet, and all of them decide "
            f"together; go on with: tailwise resume {place}"
        )
    chosen = [_find_checkpoint(one, checkpoint) for one in members]
    folders = tuple(folder for folder, _ in chosen)
    policies = tuple(policy_of(load_policy(folder, trust=trust)) for folder in folders)
    return OpenedRun(
        run=place,
        policies=policies,
        checkpoints=folders,
        policy=Ensemble(policies, config=config) if several(config) else policies[0],
        trained=ckpt.least_trained([ckpt.training_behind(folder) for folder in folders]),
        notes=tuple(sentence for _, notes in chosen for sentence in notes),
    )


def require_market(run: str | Path, otherwise: str) -> None:
    """Raise ConfigError unless a run was trained on a market; `otherwise` ends the sentence."""
    env = read_config(Path(run)).env
    if env.market is None:
        raise ConfigError(f"{run} was trained on {env.gym_id}{otherwise}")


def _find_checkpoint(run: Path, name: str | None) -> tuple[Path, tuple[str, ...]]:
    if name is None:
        folder, rejected = choose_checkpoint(run)
        return folder, tuple(f"checkpoint {item.path.name} cannot be used: {item.reason}" for item in rejected)
    checkpoints = {path.name: path for path in ckpt.checkpoints_in(run)}
    if name not in checkpoints:
        raise CheckpointError(f"{run} has no checkpoint '{name}'; it has {', '.join(checkpoints) or 'none yet'}.")
    return checkpoints[name], ()


@dataclass(frozen=True)
class Team:
    """One run, or several that decide together.

    trader   what plays
    name     of the evaluation: that of the checkpoint, or "ensemble"
    how      members decide: vote or average; None for one policy alone
    """

    runs: tuple[OpenedRun, ...]
    trader: Trader
    name: str
    how: str | None

    @property
    def run(self) -> Path:
        """Folder of the first run, in which the evaluation is kept."""
        return self.runs[0].run

    @property
    def members(self) -> tuple[str, ...]:
        """Of an ensemble: how they decide together, then run/checkpoint of each; else empty."""
        if self.how is None:
            return ()
        places = (place for one in self.runs for place in one.checkpoints)
        return (self.how, *(f"{place.parent.parent}/{place.name}" for place in places))

    @property
    def policies(self) -> dict[str, Policy]:
        """What decides together, by names for people; empty for one policy alone."""
        if self.how is None:
            return {}
        if len(self.runs) == 1:
            return {f"seed {one.config.seed}": one for one in self.runs[0].policies}
        places = [place.parent.parent for one in self.runs for place in one.checkpoints]
        every = [policy for one in self.runs for policy in one.policies]
        return {str(place): policy for place, policy in zip(places, every, strict=True)}

    @property
    def trained(self) -> ckpt.Training:
        """The training behind it; of an ensemble that of its least trained member."""
        return ckpt.least_trained([one.trained for one in self.runs])

    @property
    def notes(self) -> list[str]:
        return [sentence for one in self.runs for sentence in one.notes]


def open_team(
    runs: Sequence[str | Path], *, checkpoint: str | None = None, ensemble: str | None = None, trust: bool = False
) -> Team:
    """Open one run, or with `ensemble` ("vote", "average") all of them to decide together."""
    if not runs:
        raise ConfigError("no run is given; name the folder of one.")
    if len(runs) > 1 and ensemble is None:
        raise ConfigError(
            f"{len(runs)} runs are given; let them decide together with --ensemble vote or average, or give one."
        )
    opened = tuple(open_run(run, checkpoint, trust=trust) for run in runs)
    if ensemble is None:
        (one,) = opened
        return Team(opened, one.policy, one.name, one.policy.how if isinstance(one.policy, Ensemble) else None)
    config = opened[0].policy.config if len(opened) == 1 else None
    members = [policy for one in opened for policy in one.policies]
    together = Ensemble(members, ensemble_method(ensemble), config=config)
    return Team(opened, together, ENSEMBLE, together.how)


def first_free(run: Path, name: str, ending: str = "") -> Path:
    """Return RUN/evaluations/<name>-<n><ending> with the first n that is free."""
    folder = run / EVALUATIONS
    folder.mkdir(exist_ok=True)
    number = 1
    while (path := folder / f"{name}-{number}{ending}").exists():
        number += 1
    return path


@dataclass(frozen=True)
class EpisodesPlayed:
    """The results of a set of episodes; returns are sums of rewards.

    run_dir, checkpoint   what was played; members: of an ensemble, how they decide together, then run/checkpoint of
                          each
    environment           its id
    seed                  of the episodes
    deterministic         whether the most likely action was played
    standard_error        of the mean return; None with one episode
    std_return            between episodes; None with one
    mean_length           steps
    returns, lengths      of each episode
    """

    run_dir: str
    checkpoint: str
    members: tuple[str, ...]
    environment: str | None
    seed: int
    deterministic: bool
    episodes: int
    mean_return: float
    standard_error: float | None
    std_return: float | None
    min_return: float
    median_return: float
    max_return: float
    mean_length: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        parts = asdict(self)
        if not self.members:
            parts.pop("members")
        return parts


def play_and_keep(
    team: Team, *, episodes: int | None = None, stochastic: bool = False, seed: int | None = None
) -> tuple[EpisodesPlayed, Path]:
    """Play seeded test episodes; return the result and its file RUN/evaluations/<checkpoint>-<n>.json.

    episodes: default evaluate.episodes; stochastic: sample actions; seed: default that of the run.
    """
    config, trader = team.trader.config, team.trader
    deterministic = trader.deterministic and not stochastic
    seed = config.seed if seed is None else seed
    count = config.evaluate.episodes if episodes is None else episodes
    played = trader.evaluate(episodes=count, deterministic=deterministic, seed=seed)
    returns = played.returns
    result = EpisodesPlayed(
        run_dir=str(team.run),
        checkpoint=team.name,
        members=team.members,
        environment=config.env.gym_id,
        seed=seed,
        deterministic=deterministic,
        episodes=len(returns),
        mean_return=played.mean,
        standard_error=played.standard_error,
        std_return=played.std,
        min_return=float(returns.min()),
        median_return=float(np.median(returns)),
        max_return=float(returns.max()),
        mean_length=float(played.lengths.mean()),
        returns=tuple(returns.tolist()),
        lengths=tuple(played.lengths.tolist()),
    )
    path = first_free(team.run, team.name, ".json")
    write_json(path, result.to_json())
    return result, path

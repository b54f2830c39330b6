"""A trained policy over fixed, seeded episodes of an environment that is not a market."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.core.atomic import write_json
from tailwise.evaluate.opened_run import Team, first_free


@dataclass(frozen=True)
class EpisodesPlayed:
    """What came of a set of episodes; returns are sums of rewards.

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
    """Play seeded test episodes; the result, and its file RUN/evaluations/<checkpoint>-<n>.json.

    episodes: default evaluate.episodes; stochastic: sample actions; seed: default that of the run.
    """
    config, trader = team.trader.config, team.trader
    deterministic = trader.deterministic and not stochastic
    used_seed = config.seed if seed is None else seed
    count = config.evaluate.episodes if episodes is None else episodes
    played = trader.evaluate(episodes=count, deterministic=deterministic, seed=used_seed)
    returns = played.returns
    result = EpisodesPlayed(
        run_dir=str(team.run),
        checkpoint=team.name,
        members=team.members,
        environment=config.env.gym_id,
        seed=used_seed,
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

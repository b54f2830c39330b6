"""One run of a frontier: its limit and seed, whose folder it is, how it is scored out of sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tailwise.core.config import differences
from tailwise.core.errors import CheckpointError, ConfigError, DataError, EnvironmentContractError
from tailwise.evaluate.frontier_result import MOST_LIKELY, SAMPLED, Cell, Result, Score
from tailwise.evaluate.judgement import POLICY, judge_policy
from tailwise.evaluate.judgement import SAMPLED as SAMPLED_POLICY
from tailwise.evaluate.statistics import forward_returns, window_returns
from tailwise.evaluate.tails import empirical_cvar, known_forward_returns
from tailwise.learner.risk_config import CvarMeasure, RiskConstraint, RiskOff, RiskPenalty, RiskReport
from tailwise.market.path import AccountPath
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import Policy, policy_of
from tailwise.run.config import Config, parse_config
from tailwise.run.play import LONGEST_EPISODE, ModelPlayer, played_by
from tailwise.run.policy_files import load_policy
from tailwise.run.run_folder import CONFIG, read_config
from tailwise.run.worlds import World

Floats = npt.NDArray[np.float64]
EPISODES = 400  # played on an environment that is not a market: 20 of one step each lie in a tail of 5%
NO_POINT = "flat"  # earns and risks nothing: no point to compare with


# ---------------------------------------------------------------- what is trained


def plan(limits: Sequence[float], *, seeds: Sequence[int], unconstrained: bool) -> list[Cell]:
    """Every run: seed by seed, so that whole comparisons are there early; unconstrained first, then looser limits."""
    found: list[float | None] = [*([None] if unconstrained else []), *sorted(limits)]
    return [Cell(limit, seed) for seed in seeds for limit in found]


def check_base(base: Config) -> None:
    """Raise when runs of this configuration have no tail that a limit could speak of."""
    missing = base.model.critic.no_tail
    if missing is not None:
        raise ConfigError(
            f"{missing.setting}, and a limit on CVaR needs the law of the return: {missing.because}; {missing.use}."
        )
    if isinstance(base.risk, RiskConstraint | RiskPenalty) and not isinstance(base.risk.measure, CvarMeasure):
        raise ConfigError(
            f"risk.measure.kind is {base.risk.measure.kind}, and a frontier compares limits with the realised CVaR; "
            "use risk.measure.kind cvar."
        )


def cell_config(base: Config, cell: Cell) -> Config:
    """The configuration of one run: its seed, its limit, and of the section `risk` whatever fits."""
    alpha = {} if isinstance(base.risk, RiskOff) else {"alpha": base.risk.alpha}
    risk: RiskReport | RiskConstraint
    if cell.limit is None:
        risk = RiskReport(**alpha)
    elif isinstance(base.risk, RiskConstraint):
        risk = base.risk.model_copy(update={"limit": cell.limit})
    else:
        risk = RiskConstraint(mode="constraint", limit=cell.limit, **alpha)
    data = base.model_dump(mode="json") | {"seed": cell.seed, "risk": risk.model_dump(mode="json")}
    return parse_config(data, source=cell.label)


def check_folder(folder: Path, base: Config) -> None:
    """Raise unless every run that lies in `folder` already belongs to a frontier of this configuration."""
    if (folder / CONFIG).exists():
        raise DataError(f"{folder} is the folder of one run; choose another folder for the frontier.")
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; choose another folder for the frontier.")
    for path in sorted(folder.glob(f"*/{CONFIG}")):
        stored = read_config(path.parent)
        limit = stored.risk.limit if isinstance(stored.risk, RiskConstraint) else None
        own = cell_config(base, Cell(limit, stored.seed))
        differing = differences(stored.model_dump(mode="json"), own.model_dump(mode="json"))
        if differing:
            raise DataError(
                f"{path.parent} was trained with another configuration: {'; '.join(differing)}. Call the command with "
                "that configuration, or choose another folder with --out."
            )


# ---------------------------------------------------------------- how it is judged


@dataclass(frozen=True)
class Episode:
    """Rewards float64 [n] of one episode; over: nothing can follow, because it terminated and was not cut."""

    rewards: Floats
    over: bool


def judge_run(
    cell: Cell, folder: Path, world: World, *, episodes: int, steps: int, ended: str, refused: bool
) -> Result:
    """Play the newest checkpoint out of sample, with sampled and with the most likely actions.

    The newest one and not `best`: all runs are then judged after the same number of steps.
    """
    newest, rejected = ckpt.latest_good(folder)
    if newest is None:
        why = "; ".join(item.reason for item in rejected) or "none was written yet"
        raise CheckpointError(f"{folder} has no usable checkpoint: {why}")
    policy = policy_of(load_policy(newest, trust=world.config))
    torch.set_num_threads(policy.config.run.threads)
    references: dict[str, Score] = {}
    if world.config.env.judged_whole:
        market, alpha, gamma = world.market(), alpha_of(policy.config), policy.config.learner.gamma
        judged = judge_policy(policy, deterministic=True, market=market)
        paths = {name: [one.paths[name] for one in judged] for name in judged[0].paths}
        found = {name: market_score(accounts, alpha=alpha, gamma=gamma) for name, accounts in paths.items()}
        likely = found.pop(POLICY)
        sampled = found.pop(SAMPLED_POLICY, None)  # judge plays it too where there is a limit
        if sampled is None:
            sampled = market_score(policy.trade(deterministic=False, market=market), alpha=alpha, gamma=gamma)
        references = {name: score for name, score in found.items() if name != NO_POINT}
    else:
        sampled, likely = (
            episode_score(policy, world, episodes=episodes, deterministic=choice) for choice in (False, True)
        )
    scores = {SAMPLED: sampled, MOST_LIKELY: likely}
    behind = ckpt.training_behind(newest)
    return Result(
        cell=cell,
        folder=str(folder),
        checkpoint=newest.name,
        steps=steps,
        ended=ended,
        refused=refused,
        updates=behind.updates,
        limit_acted=behind.limit_acted,
        scores=scores,
        references=references,
    )


def market_score(paths: Sequence[AccountPath], *, alpha: float, gamma: float) -> Score:
    """Of the accounts of one policy, one path each."""
    yearly = [float(path.log_returns.sum()) * path.periods_per_year / path.planned for path in paths]
    forward = np.concatenate([forward_returns(path, gamma) for path in paths])
    bars = np.concatenate([window_returns(path) for path in paths])
    return _score(float(np.mean(yearly)), forward, bars, alpha)


def episode_score(policy: Policy, world: World, *, episodes: int, deterministic: bool) -> Score:
    """Of seeded test episodes of an environment that is not a market."""
    config = policy.config
    driver = world.eval_env("test", episodes=episodes, seed=config.seed)
    try:
        played = play_rewards(
            policy, driver, episodes=world.episodes(episodes), deterministic=deterministic, seed=config.seed
        )
    finally:
        driver.close()
    gamma = config.learner.gamma
    starts = [float(one.rewards @ gamma ** np.arange(len(one.rewards))) for one in played]
    forward = np.concatenate([known_forward_returns(one.rewards, gamma, over=one.over) for one in played])
    steps = np.concatenate([one.rewards for one in played])
    return _score(float(np.mean(starts)), forward, steps, alpha_of(config))


def _score(mean_return: float, forward: Floats, single: Floats, alpha: float) -> Score:
    cvar = empirical_cvar(forward, alpha) if len(forward) else None
    return Score(mean_return, cvar, empirical_cvar(single, alpha))


def alpha_of(config: Config) -> float:
    """Tail probability of a run."""
    assert config.tail_alpha is not None  # a frontier trains no run without a tail
    return config.tail_alpha


def play_rewards(policy: Policy, driver: Any, *, episodes: int, deterministic: bool, seed: int) -> list[Episode]:
    """The rewards of `episodes` episodes, fixed before the first step: environment i plays i, i + B, i + 2B, ..."""
    envs = driver.num_envs
    quota = [len(range(i, episodes, envs)) for i in range(envs)]
    running: list[list[float]] = [[] for _ in range(envs)]
    found: list[list[Episode]] = [[] for _ in range(envs)]
    for result in played_by(ModelPlayer(policy.model, deterministic=deterministic, seed=seed), driver):
        for i in range(envs):
            if len(found[i]) == quota[i] or not result.valid[i]:
                continue
            running[i].append(float(result.reward[i]))
            if result.terminated[i] or result.truncated[i]:
                found[i].append(Episode(np.array(running[i]), bool(result.terminated[i])))
                running[i] = []
        if sum(map(len, found)) == episodes:
            break
        if max(map(len, running)) >= LONGEST_EPISODE:
            raise EnvironmentContractError(
                f"an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; set env.time_limit, so that the "
                "set of episodes to evaluate is finite"
            )
    return [found[i % envs][i // envs] for i in range(episodes)]

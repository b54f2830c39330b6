"""The efficient frontier: the same seeds at several limits, return against the tail that was realised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tailwise.core.atomic import write_json
from tailwise.core.config import differences
from tailwise.core.errors import CheckpointError, ConfigError, DataError, EnvironmentContractError
from tailwise.core.numerics import known_forward_returns, tail_horizon
from tailwise.evaluate.frontier_result import MOST_LIKELY, SAMPLED, Cell, Frontier, Result, Score
from tailwise.evaluate.judgement import POLICY, judge_policy
from tailwise.evaluate.judgement import SAMPLED as SAMPLED_POLICY
from tailwise.evaluate.statistics import empirical_cvar, forward_returns, window_returns
from tailwise.evaluate.study import Study, StudyJob, leak_verdict_of, named_seeds, training_facts
from tailwise.learner.risk_config import CvarMeasure, RiskConstraint, RiskOff, RiskPenalty, RiskReport
from tailwise.market.path import AccountPath
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config, Effective, parse_config, require_environment, warnings_of
from tailwise.run.limits import units_of, with_numbers_of
from tailwise.run.play import LONGEST_EPISODE, ModelPlayer, played_by
from tailwise.run.policy import Policy, policy_of
from tailwise.run.policy_files import load_policy
from tailwise.run.run_folder import CONFIG, read_config
from tailwise.run.seeds import alone
from tailwise.run.training_job import Trained, TrainingJob
from tailwise.run.trials import TrialBook
from tailwise.run.worlds import MarketWorld, World, make_world

SUMMARY = "frontier.json"
Floats = npt.NDArray[np.float64]
EPISODES = 400  # played on an environment that is not a market: 20 of one step each lie in a tail of 5%
NO_POINT = "flat"  # earns and risks nothing: no point to compare with


def plan_frontier(
    effective: Effective,
    limits: Sequence[float],
    *,
    seeds: int | Sequence[int],
    unconstrained: bool,
    episodes: int | None,
) -> FrontierStudy:
    """Check what is to be trained and what it will be judged on, before hours are spent on training."""
    if episodes is not None and episodes < 1:
        raise ConfigError(f"episodes is {episodes}; at least 1 is needed.")
    try:
        limits = [float(limit) for limit in limits]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"limits are {limits!r}; give a list of numbers, for example [-0.02, -0.05].") from error
    _check_limits(limits)
    require_environment(effective)
    base = alone(effective.config)
    check_base(base)
    seeds = named_seeds(seeds, first=base.seed)
    cells = cells_of(limits, seeds=seeds, unconstrained=unconstrained)
    configs = [cell_config(base, cell) for cell in cells]
    if episodes is not None and base.env.judged_whole:
        raise ConfigError(
            f"{effective.label} is a market: its test window is played whole, once; leave out --episodes."
        )
    played = episodes or max(base.evaluate.episodes, EPISODES)
    world = _checked_world(base, played)
    of_configs = dict.fromkeys(sentence for one in configs for sentence in warnings_of(one))
    warned = (*of_configs, *world.warnings(), *_about_limits(limits, base))
    leaks = leak_verdict_of(world, warned)
    return FrontierStudy(
        name=effective.name,
        base=base,
        seeds=seeds,
        facts=(*(world.describe() or [f"environment {world.name}"]), *training_facts(base, leaks)),
        warnings=warned,
        leak_check=leaks,
        cells=tuple(cells),
        configs=tuple(configs),
        episodes=played,
        world=world,
    )


@dataclass(frozen=True, eq=False)
class FrontierStudy(Study[Result, Frontier]):
    """Every limit with every seed. episodes: played per run, outside the market; world: that runs are judged on."""

    cells: tuple[Cell, ...]
    configs: tuple[Config, ...]
    episodes: int
    world: World

    kind = "frontier"

    def claim(self, folder: Path) -> None:
        check_folder(folder, self.base)
        folder.mkdir(parents=True, exist_ok=True)

    def jobs(self, folder: Path) -> list[LimitJob]:
        book = TrialBook.beside(folder)
        return [
            LimitJob(TrainingJob(cell.label, config, folder / cell.folder, trials=book), cell, self.episodes)
            for cell, config in zip(self.cells, self.configs, strict=True)
        ]

    def combine(self, folder: Path, results: Sequence[Result]) -> Frontier:
        env = self.base.env
        result = Frontier(
            name=f"{self.name}: return against realised CVaR",
            environment=self.world.name,
            label=self.world.label(),
            market=env.words.percent,
            alpha=alpha_of(self.configs[0]),
            gamma=self.base.learner.gamma,
            horizon=tail_horizon(self.base.learner.gamma),
            episodes=None if env.judged_whole else self.episodes,
            facts=self.facts,
            results=tuple(results),
            folder=folder,
        )
        write_json(folder / SUMMARY, result.to_json())
        return result


@dataclass(frozen=True)
class LimitJob(StudyJob[Result]):
    """One limit and seed."""

    cell: Cell
    episodes: int

    def judge(self, run: Trained) -> Result:
        """Play the newest checkpoint out of sample, with sampled and with the most likely actions.

        The newest one and not `best`: all runs are then judged after the same number of steps.
        """
        folder, world = self.training.folder, run.agent.world()
        newest, rejected = ckpt.latest_good(folder)
        if newest is None:
            why = "; ".join(item.reason for item in rejected) or "none was written yet"
            raise CheckpointError(f"{folder} has no usable checkpoint: {why}")
        policy = policy_of(load_policy(newest, trust=world.config))
        torch.set_num_threads(policy.config.run.threads)
        references: dict[str, Score] = {}
        if world.config.env.judged_whole:
            sampled, likely, references = _market_scores(policy, world.market())
        else:
            sampled, likely = (
                episode_score(policy, world, episodes=self.episodes, deterministic=choice) for choice in (False, True)
            )
        behind = ckpt.training_behind(newest)
        return Result(
            cell=self.cell,
            folder=str(folder),
            checkpoint=newest.name,
            steps=run.agent.trainer.steps,
            ended=run.ended,
            refused=run.agent.trainer.failed,
            updates=behind.updates,
            limit_acted=behind.limit_acted,
            scores={SAMPLED: sampled, MOST_LIKELY: likely},
            references=references,
        )


def _check_limits(limits: Sequence[float]) -> None:
    if not limits:
        raise ConfigError("there are no limits; write for example --limits -0.02,-0.05,-0.1.")
    for at, limit in enumerate(limits):
        if not math.isfinite(limit):
            raise ConfigError(f"the limit '{limit}' is not finite; write for example --limits -0.02,-0.05,-0.1.")
        if limit in limits[:at]:
            raise ConfigError(f"the limit {limit!r} is given twice; give each limit once.")


def _checked_world(base: Config, episodes: int) -> World:
    """Build what the runs will be judged on; raise when it cannot judge them."""
    world = make_world(base)
    world.eval_env("test", episodes=episodes, seed=base.seed).close()
    world.check_tail(tail_horizon(base.learner.gamma))
    return world


def _about_limits(limits: Sequence[float], base: Config) -> list[str]:
    if not base.env.words.percent:  # of rewards, more than 0 may be the rule
        return []
    return [
        f"the limit {limit!r} is not below 0: it demands a gain, or at least no loss, even in the worst cases; losses "
        "are negative"
        for limit in limits
        if limit >= 0
    ]


# ---------------------------------------------------------------- what is trained


def cells_of(limits: Sequence[float], *, seeds: Sequence[int], unconstrained: bool) -> list[Cell]:
    """List the runs, seed by seed, so that whole comparisons are there early: unconstrained, then looser limits."""
    ordered: list[float | None] = [*([None] if unconstrained else []), *sorted(limits)]
    return [Cell(limit, seed) for seed in seeds for limit in ordered]


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
    """Build the configuration of one run: its seed, its limit, and of the section `risk` whatever fits."""
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
        limit = stored.risk.level if isinstance(stored.risk, RiskConstraint) else None
        own = with_numbers_of(cell_config(base, Cell(limit, stored.seed)), stored)
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


def _market_scores(policy: Policy, market: MarketWorld) -> tuple[Score, Score, dict[str, Score]]:
    """Scores with sampled actions, with the most likely ones, and of the simple rules on the same bars."""
    alpha, gamma = alpha_of(policy.config), policy.config.learner.gamma
    judged = judge_policy(policy, deterministic=True, market=market)
    paths = {name: [one.paths[name] for one in judged] for name in judged[0].paths}
    if SAMPLED_POLICY not in paths:  # it is played too where there is a limit
        paths[SAMPLED_POLICY] = policy.trade(deterministic=False, market=market)
    units = {symbol: one.unit for symbol, one in units_of(market.config).items()}
    scores = {name: market_score(accounts, alpha=alpha, gamma=gamma, units=units) for name, accounts in paths.items()}
    likely, sampled = scores.pop(POLICY), scores.pop(SAMPLED_POLICY)
    return sampled, likely, {name: score for name, score in scores.items() if name != NO_POINT}


def market_score(
    paths: Sequence[AccountPath], *, alpha: float, gamma: float, units: Mapping[str, float] | None = None
) -> Score:
    """Score the accounts of one policy, one path each. units: what the discounted returns of a symbol are divided by
    before they are pooled (data.pool.tails), because its limit is that multiple of risk.limit."""
    own = {} if units is None else units
    yearly = [float(path.log_returns.sum()) * path.periods_per_year / path.planned for path in paths]
    forward = np.concatenate([forward_returns(path, gamma) / own.get(path.symbol, 1.0) for path in paths])
    bars = np.concatenate([window_returns(path) for path in paths])
    return _score(float(np.mean(yearly)), forward, bars, alpha)


def episode_score(policy: Policy, world: World, *, episodes: int, deterministic: bool) -> Score:
    """Score seeded test episodes of an environment that is not a market."""
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
    """Play `episodes` episodes, fixed before the first step: environment i plays i, i + B, i + 2B, ..."""
    envs = driver.num_envs
    quota = [len(range(i, episodes, envs)) for i in range(envs)]
    running: list[list[float]] = [[] for _ in range(envs)]
    finished: list[list[Episode]] = [[] for _ in range(envs)]
    for result in played_by(ModelPlayer(policy.model, deterministic=deterministic, seed=seed), driver):
        for i in range(envs):
            if len(finished[i]) == quota[i] or not result.valid[i]:
                continue
            running[i].append(float(result.reward[i]))
            if result.terminated[i] or result.truncated[i]:
                finished[i].append(Episode(np.array(running[i]), bool(result.terminated[i])))
                running[i] = []
        if sum(map(len, finished)) == episodes:
            break
        if max(map(len, running)) >= LONGEST_EPISODE:
            raise EnvironmentContractError(
                f"an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; set env.time_limit, so that the "
                "set of episodes to evaluate is finite"
            )
    return [finished[i % envs][i // envs] for i in range(episodes)]

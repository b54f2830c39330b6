"""The efficient frontier: the same seeds at several limits, return against the tail that was realised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tailwise.core.config import differences
from tailwise.core.errors import CheckpointError, ConfigError, DataError, EnvironmentContractError
from tailwise.evaluate.judgement import POLICY, judge
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
SAMPLED, MOST_LIKELY = "sampled", "most likely"  # how actions are chosen; the limit speaks of sampled ones
EPISODES = 400  # played on an environment that is not a market: 20 of one step each lie in a tail of 5%
CONFIDENCE = 0.95  # of the bands
NO_POINT = "flat"  # earns and risks nothing: no point to compare with


# ---------------------------------------------------------------- what is trained


@dataclass(frozen=True)
class Cell:
    """One run of a frontier; limit None is the unconstrained one."""

    limit: float | None
    seed: int

    @property
    def label(self) -> str:
        return f"{'unconstrained' if self.limit is None else f'limit {self.limit!r}'}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"{'unconstrained' if self.limit is None else f'limit_{self.limit!r}'}_seed_{self.seed}"


def plan(limits: Sequence[float], *, first_seed: int, seeds: int, unconstrained: bool) -> list[Cell]:
    """Every run: seed by seed, so that whole comparisons are there early; unconstrained first, then looser limits."""
    found: list[float | None] = [*([None] if unconstrained else []), *sorted(limits)]
    return [Cell(limit, seed) for seed in range(first_seed, first_seed + seeds) for limit in found]


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
class Score:
    """What one way of playing gave out of sample.

    mean_return  on a market log-return per year, mean over the accounts; elsewhere the mean discounted return of an
                 episode from its start, reward units
    cvar_return  CVaR of discounted returns over the horizon from every bar or step, all accounts and episodes pooled;
                 None when nothing is as long as the horizon
    cvar_bar     CVaR of log-returns per bar, or of rewards per step, pooled as well
    """

    mean_return: float
    cvar_return: float | None
    cvar_bar: float


@dataclass(frozen=True)
class Result:
    """One finished run, judged."""

    cell: Cell
    folder: str
    checkpoint: str
    steps: int
    ended: str  # why training ended, a sentence
    refused: bool  # it ended because too many updates in a row were refused
    updates: int
    limit_acted: bool | None  # whether the limit acted in any update; None without one
    scores: Mapping[str, Score]  # by how actions were chosen
    references: Mapping[str, Score]  # simple rules on the same bars; empty outside the market


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
        judged = judge(policy, deterministic=True, market=market)
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
    driver = world.judging("test", episodes=episodes, seed=config.seed)
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


# ---------------------------------------------------------------- what it comes to


@dataclass(frozen=True)
class Band:
    """Mean over seeds and half the width of its t interval (None with one seed); None of both when undefined."""

    mean: float | None
    half: float | None


@dataclass(frozen=True)
class Row:
    """One limit and one way of playing, over all seeds.

    kept: whether the mean of the realised tails is above the limit; seeds_kept: how many seeds kept it alone;
    seeds_acted: in how many of them the limit acted in training at all. None without a limit
    """

    limit: float | None
    played: str
    seeds: int
    mean_return: Band
    cvar_return: Band
    cvar_bar: Band
    kept: bool | None
    seeds_kept: int | None
    seeds_acted: int | None


def band(values: Sequence[float | None]) -> Band:
    """Mean of values, one per seed, with the half width of its 95% t interval."""
    known = np.array([value for value in values if value is not None])
    if len(known) < len(values):
        return Band(None, None)
    mean = float(known.mean())
    if len(known) == 1:
        return Band(mean, None)
    from scipy.stats import t

    error = float(known.std(ddof=1)) / len(known) ** 0.5
    return Band(mean, float(t.ppf(0.5 + CONFIDENCE / 2, len(known) - 1)) * error)


def summarise(results: Sequence[Result]) -> list[Row]:
    """Two rows per limit, unconstrained first and then from the loosest limit to the tightest."""
    limits = sorted({one.cell.limit for one in results}, key=lambda x: float("-inf") if x is None else x)
    return [_row(limit, played, results) for limit in limits for played in (SAMPLED, MOST_LIKELY)]


def _row(limit: float | None, played: str, results: Sequence[Result]) -> Row:
    chosen = [one for one in results if one.cell.limit == limit]
    scores = [one.scores[played] for one in chosen]
    tail = band([score.cvar_return for score in scores])
    kept, seeds_kept = None, None
    if limit is not None and tail.mean is not None:
        kept = tail.mean >= limit
        seeds_kept = sum(score.cvar_return is not None and score.cvar_return >= limit for score in scores)
    return Row(
        limit,
        played,
        len(scores),
        band([score.mean_return for score in scores]),
        tail,
        band([score.cvar_bar for score in scores]),
        kept,
        seeds_kept,
        None if limit is None else sum(one.limit_acted is True for one in chosen),
    )


@dataclass(frozen=True)
class Frontier:
    """All that is printed, drawn and kept."""

    name: str
    environment: str
    label: str  # "real", or what synthetic bars are; empty outside the market
    market: bool
    alpha: float
    gamma: float
    horizon: int  # bars or steps
    episodes: int | None  # played per run; None on a market, whose test window is played whole
    facts: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def rows(self) -> list[Row]:
        return summarise(self.results)

    @property
    def references(self) -> Mapping[str, Score]:
        return self.results[0].references

    @property
    def seeds(self) -> list[int]:
        return sorted({one.cell.seed for one in self.results})

    def to_json(self) -> dict[str, Any]:
        parts = asdict(self)
        runs = parts.pop("results")
        for run in runs:
            run |= run.pop("cell")
            run.pop("references")
        return {
            "format": 1,
            **parts,
            "confidence": CONFIDENCE,
            "seeds": self.seeds,
            "rows": [asdict(row) for row in self.rows],
            "references": {name: asdict(score) for name, score in self.references.items()},
            "runs": runs,
        }

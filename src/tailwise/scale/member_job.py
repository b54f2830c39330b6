"""The training of one member for one generation, as a job: begin, train, score on what selects, write the score down.

The score is kept in the run's folder, so that a search that was killed between two members repeats none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from tailwise.core.atomic import write_json
from tailwise.core.errors import CheckpointError, DataError
from tailwise.core.numerics import known_forward_returns
from tailwise.evaluate.bootstrap import long_run_variance
from tailwise.evaluate.frontier import play_rewards
from tailwise.evaluate.statistics import forward_returns
from tailwise.evaluate.study import StudyJob
from tailwise.learner.risk import utility_at
from tailwise.learner.risk_config import CvarMeasure, RiskConstraint
from tailwise.market.path import AccountPath
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.config import Config
from tailwise.run.limits import units_of
from tailwise.run.play import ModelPlayer
from tailwise.run.run_files import read_stored
from tailwise.run.training_job import Trained as TrainedRun
from tailwise.run.worlds import World, trade_window
from tailwise.scale.population import Measured, Member

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MemberJob(StudyJob[Measured]):
    """One member, one generation. score_seed: of the episodes that score, the same for all members."""

    member: Member
    score_seed: int

    judging: ClassVar[str] = "scored on what selects now"

    @property
    def file(self) -> Path:
        """Where its score is kept."""
        return self.training.folder / f"score-{self.member.generation:03d}.json"

    def finished(self) -> Measured | None:
        return read_stored(self.file, Measured, root=self.training.folder) if self.file.exists() else None

    def judge(self, run: TrainedRun) -> Measured:
        measured = self._measured(run)
        write_json(self.file, measured.model_dump(mode="json"))
        return measured

    def _measured(self, run: TrainedRun) -> Measured:
        steps = run.agent.trainer.steps
        if run.agent.trainer.failed:
            return Measured(steps=steps, value=None, tail=None, failed=run.ended)
        newest, rejected = ckpt.latest_good(self.training.folder)
        if newest is None:
            why = "; ".join(item.reason for item in rejected) or "none was written yet"
            raise CheckpointError(f"{self.training.folder} has no usable checkpoint: {why}")
        try:
            score = score_of(run.agent, seed=self.score_seed)
        except DataError as error:  # a policy that drives the environment to numbers that are none
            return Measured(steps=steps, value=None, tail=None, failed=str(error))
        return Measured(
            steps=steps,
            value=score.value,
            tail=score.tail,
            error=score.error,
            freedom=score.freedom,
            weights=digest_of(newest),
            checkpoint=newest.name,
        )


@dataclass(frozen=True)
class Score:
    """value: what is maximised; tail: what a limit speaks of, None where it could not be measured; error: standard
    error of value, freedom: its degrees of freedom, both None where it has none."""

    value: float
    tail: float | None
    error: float | None
    freedom: int | None


def score_of(agent: PPO, *, seed: int) -> Score:
    """Play what selects: the select window of a market, whole; else evaluate.episodes seeded episodes, none of a test.

    Actions are chosen as the policy is meant to be played, sampled ones under a limit on discrete actions.
    """
    config, world = agent.trainer.config, agent.world()
    torch.set_num_threads(config.run.threads)
    player = ModelPlayer(agent.model, deterministic=agent.deterministic, seed=seed)
    if world.config.env.judged_whole:
        paths = trade_window(player, world.market(), "select", seed=seed)
        # In units of each symbol's own tail where they are pooled so, as in training and selection.
        own = {symbol: one.unit for symbol, one in units_of(world.market().config).items()}
        units = [own.get(path.symbol, 1.0) for path in paths]
        yearly = [float(path.log_returns.sum()) * path.periods_per_year / path.planned for path in paths]
        forward = [forward_returns(path, config.learner.gamma) for path in paths]
        errors, freedom = zip(*map(_yearly_error, paths), strict=True)
        return Score(
            float(np.mean([value / unit for value, unit in zip(yearly, units, strict=True)])),
            tail_of(config, [values / unit for values, unit in zip(forward, units, strict=True)]),
            # Accounts live through the same time: as if they moved together, which is never too little.
            float(np.mean([error / unit for error, unit in zip(errors, units, strict=True)])),
            min(freedom),
        )
    return _episodes(agent, world, config, seed=seed)


def _episodes(agent: PPO, world: World, config: Config, *, seed: int) -> Score:
    episodes = config.evaluate.episodes
    driver = world.eval_env("select", episodes=episodes, seed=seed)
    try:
        played = play_rewards(
            agent, driver, episodes=world.episodes(episodes), deterministic=agent.deterministic, seed=seed
        )
    finally:
        driver.close()
    forward = [known_forward_returns(one.rewards, config.learner.gamma, over=one.over) for one in played]
    returns = np.array([one.rewards.sum() for one in played])
    error = float(returns.std(ddof=1)) / len(returns) ** 0.5 if len(returns) > 1 else None
    freedom = None if error is None else len(returns) - 1
    return Score(float(returns.mean()), tail_of(config, forward), error, freedom)


def _yearly_error(path: AccountPath) -> tuple[float, int]:
    """Standard error of the log-return per year of a path, which allows for dependence between its bars, and its
    degrees of freedom."""
    returns = path.log_returns
    variance, freedom = long_run_variance(returns - returns.mean())
    return float(np.sqrt(variance / len(returns))) * len(returns) * path.periods_per_year / path.planned, freedom


def tail_of(config: Config, forward: Sequence[Floats]) -> float | None:
    """The measure of the limit, or CVaR, of discounted returns pooled over accounts or episodes."""
    pooled = np.concatenate(forward)
    if config.tail_alpha is None or not len(pooled):
        return None
    measure = config.risk.measure if isinstance(config.risk, RiskConstraint) else CvarMeasure()
    return utility_at(measure, torch.from_numpy(pooled), config.tail_alpha).value


def digest_of(checkpoint: Path) -> str:
    """sha256 (hex) of the tensors of a policy, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(ckpt.read_policy(checkpoint).tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()

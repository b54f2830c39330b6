"""The efficient frontier: the same seeds at several limits, return against the tail that was realised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.core.atomic import write_json
from tailwise.core.errors import ConfigError
from tailwise.core.numerics import tail_horizon
from tailwise.evaluate.frontier_result import Cell, Frontier, Result
from tailwise.evaluate.frontier_runs import EPISODES, alpha_of, cell_config, check_base, check_folder, judge_run, plan
from tailwise.evaluate.study import Study, StudyJob, leak_verdict_of, named_seeds, training_fact
from tailwise.market.leaks.features import LeakVerdict
from tailwise.run.config import Config, warnings_of
from tailwise.run.effective_config import Effective, require_environment
from tailwise.run.training_job import Trained, TrainingJob
from tailwise.run.trials import TrialBook
from tailwise.run.worlds import World, make_world

SUMMARY = "frontier.json"


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
    base = effective.config
    check_base(base)
    chosen = named_seeds(seeds, first=base.seed)
    cells = plan(limits, seeds=chosen, unconstrained=unconstrained)
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
        seeds=chosen,
        facts=tuple(_facts(base, world, leaks)),
        warnings=warned,
        leak_check=leaks,
        cells=tuple(cells),
        configs=tuple(configs),
        episodes=played,
        world=world,
    )


@dataclass(frozen=True, eq=False)
class FrontierStudy(Study[Result, Frontier]):
    """Every limit with every seed.

    cells, configs   of each run
    episodes         played per run, outside the market
    world            that runs are judged on
    """

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
        trainer = run.agent.trainer
        return judge_run(
            self.cell,
            self.training.folder,
            run.agent.world(),
            episodes=self.episodes,
            steps=trainer.steps,
            ended=run.ended,
            refused=trainer.failed,
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
    driver = world.judging("test", episodes=episodes, seed=base.seed)
    driver.close()
    horizon = tail_horizon(base.learner.gamma)
    world.check_tail(horizon)
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


def _facts(base: Config, world: World, verdict: LeakVerdict | None) -> list[str]:
    """What is trained, a sentence each."""
    facts = world.describe() or [f"environment {world.name}"]
    if verdict is not None and verdict.features:
        facts.append(f"leak-check: {verdict.sentence}")
    return [*facts, training_fact(base)]

"""`tailwise frontier`: the same seeds at several limits, trained, judged out of sample, drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.cli.configuring import read_effective
from tailwise.cli.main import CHECK_FAILED, DONE, INTERRUPTED
from tailwise.cli.output import note, print_json, print_table, say_leak_check
from tailwise.run.jobs import do_all, trained
from tailwise.cli.training import require_environment, run_folder
from tailwise.core.atomic import write_json
from tailwise.core.discount import tail_horizon
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.frontier import (
    EPISODES,
    MOST_LIKELY,
    SAMPLED,
    Cell,
    Frontier,
    Result,
    alpha_of,
    cell_config,
    check_base,
    check_folder,
    judge_run,
    plan,
)
from tailwise.evaluate.frontier_page import HOW, headings, legend, table_rows, warnings_about, write_frontier_page
from tailwise.run.config import Config, GymEnv, warnings_of
from tailwise.run.trials import TrialBook
from tailwise.run.worlds import MarketWorld, World, make_world

SUMMARY, PAGE = "frontier.json", "frontier.html"


@dataclass(frozen=True)
class FrontierJob:
    """One run that a process works on."""

    cell: Cell
    config: Config
    folder: Path
    episodes: int
    silent: bool
    trials: TrialBook

    @property
    def label(self) -> str:
        return self.cell.label

    def do(self, asked: Callable[[], bool]) -> Result | None:
        """Train to the end what is not there yet and judge it; None when it was asked to stop before."""
        with trained(self.config, self.folder, asked, label=self.label, silent=self.silent, trials=self.trials) as run:
            if run is None:
                return None
            trainer = run.agent.trainer
            return judge_run(
                self.cell,
                self.folder,
                run.agent.world(),
                episodes=self.episodes,
                steps=trainer.steps,
                ended=run.ended,
                refused=trainer.failed,
            )


def run_frontier(
    config: str,
    overrides: list[str],
    *,
    limits: str | None,
    seeds: int,
    unconstrained: bool,
    episodes: int | None,
    out: Path | None,
    jobs: int,
    as_json: bool,
) -> int:
    """Train what is not trained yet, judge everything, print and keep it; returns the exit code."""
    wanted = read_limits(limits)
    source, base = read_effective(config, overrides)
    require_environment(base, source.label)
    check_base(base)
    cells = plan(wanted, first_seed=base.seed, seeds=seeds, unconstrained=unconstrained)
    configs = [cell_config(base, cell) for cell in cells]
    if episodes is not None and not isinstance(base.env, GymEnv):
        raise ConfigError(f"{source.label} is a market: its test window is played whole, once; leave out --episodes.")
    played = episodes or max(base.evaluate.episodes, EPISODES)
    world = check_world(base, played)
    warned = dict.fromkeys(sentence for one in configs for sentence in warnings_of(one))
    for sentence in [*warned, *world.warnings(), *_about_limits(wanted, base)]:
        note(f"warning: {sentence}")
    if isinstance(world, MarketWorld):
        say_leak_check(world.leak_verdict())  # which refuses features that look ahead, before hours are spent on them
    with run_folder(out, "frontier") as folder:
        check_folder(folder, base)
        folder.mkdir(parents=True, exist_ok=True)
    facts = _facts(base, world)
    if not as_json:
        for sentence in facts:
            print(sentence)
        names = ", ".join(str(seed) for seed in range(base.seed, base.seed + seeds))
        numbered = f"seed{'' if seeds == 1 else 's'} {names}"
        print(f"{_runs(len(cells))} of {base.run.total_steps:,} steps, {numbered}, in {folder}", flush=True)
    book = TrialBook.beside(folder)
    work = [
        FrontierJob(cell, full, folder / cell.folder, played, as_json, book)
        for cell, full in zip(cells, configs, strict=True)
    ]
    results = do_all(work, jobs=jobs)
    if results is None:
        note(f"interrupted; continue with the same command and --out {folder}")
        return INTERRUPTED
    frontier = Frontier(
        name=f"{source.name}: return against realised CVaR",
        environment=world.name,
        label=world.dataset.label if isinstance(world, MarketWorld) else "",
        market=isinstance(world, MarketWorld),
        alpha=alpha_of(configs[0]),
        gamma=base.learner.gamma,
        horizon=tail_horizon(base.learner.gamma),
        episodes=None if isinstance(world, MarketWorld) else played,
        facts=tuple(facts),
        results=tuple(results),
    )
    write_json(folder / SUMMARY, frontier.to_json())
    write_frontier_page(folder / PAGE, frontier)
    if as_json:
        print_json({"folder": str(folder), **frontier.to_json()})
    else:
        print_frontier(frontier, folder)
    return CHECK_FAILED if any(one.refused for one in results) else DONE


def read_limits(text: str | None) -> list[float]:
    """The limits of "-0.02,-0.05"; every mistake is a sentence."""
    example = "write for example --limits -0.02,-0.05,-0.1"
    if text is None or not text.strip():
        raise ConfigError(f"there are no limits; {example}.")
    found: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError as error:
            raise ConfigError(f"the limit '{part.strip()}' is not a number; {example} (-0.02 for -2%).") from error
        if not math.isfinite(value):
            raise ConfigError(f"the limit '{part.strip()}' is not finite; {example}.")
        if value in found:
            raise ConfigError(f"the limit {value!r} is given twice; give each limit once.")
        found.append(value)
    return found


def check_world(base: Config, episodes: int) -> World:
    """Build what the runs will be judged on before hours are spent on training; raise when it cannot judge them."""
    world = make_world(base)
    driver = world.judging("test", episodes=episodes, seed=base.seed)
    driver.close()
    horizon = tail_horizon(base.learner.gamma)
    if isinstance(world, MarketWorld):
        tables = world.dataset.tables("test", together=world.portfolio)
        longest = max(len(table.close) - 1 - table.first_valid for table in tables)
        if longest < horizon:
            raise DataError(
                f"the test window has {longest} bars, and the tail of learner.gamma {base.learner.gamma:g} looks "
                f"{horizon} bars ahead, so the realised CVaR could not be measured; widen the test window or lower "
                "learner.gamma."
            )
    return world


def _about_limits(limits: Sequence[float], base: Config) -> list[str]:
    if isinstance(base.env, GymEnv):
        return []
    return [
        f"the limit {limit!r} is not below 0: it demands a gain, or at least no loss, even in the worst cases; losses "
        "are negative"
        for limit in limits
        if limit >= 0
    ]


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _facts(base: Config, world: World) -> list[str]:
    """What is trained, a sentence each."""
    found = [f"environment {world.name}"]
    if isinstance(world, MarketWorld):
        found, verdict = world.dataset.describe(), world.leak_verdict()
        if verdict.features:
            found.append(f"leak-check: {verdict.sentence}")
    return [
        *found,
        f"core {base.model.core.kind}, {base.model.critic.kind} critic, gamma {base.learner.gamma:g}, "
        f"{base.run.total_steps:,} steps a run",
    ]


def print_frontier(frontier: Frontier, folder: Path) -> None:
    """The table, what its numbers mean, and where the page is."""
    for played in (SAMPLED, MOST_LIKELY):
        print_table(f"{frontier.environment}: {HOW[played]}", headings(frontier), table_rows(frontier, played))
    for sentence in legend(frontier):
        print(sentence)
    for sentence in warnings_about(frontier):
        print(f"warning: {sentence}")
    print(f"page: {folder / PAGE}")

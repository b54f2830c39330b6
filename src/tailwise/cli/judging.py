"""Evaluation on bars for `tailwise evaluate` and `tailwise demo`: play, print, keep the paths and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tailwise.cli.output import print_table
from tailwise.core.atomic import atomic_folder, write_json
from tailwise.evaluate.calibration_panel import newest_calibration
from tailwise.evaluate.ensemble import Trader
from tailwise.evaluate.judgement import Judgement, judge
from tailwise.evaluate.page import write_page
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.words import columns, ruins
from tailwise.run.config import Config
from tailwise.run.worlds import MarketWorld

PAGE, SUMMARY = "report.html", "summary.json"
CAVEAT = "One policy of one seed on one path of history: it shows that everything works, not that it earns."


@dataclass(frozen=True)
class Playing:
    """How a policy was played."""

    checkpoint: str
    deterministic: bool
    seed: int
    members: tuple[str, ...] = ()  # of an ensemble: how they decide together, then run/checkpoint of each

    @property
    def sentence(self) -> str:
        how = "the most likely action" if self.deterministic else f"sampled actions, seed {self.seed}"
        if self.members:
            return f"{len(self.members) - 1} policies together ({self.members[0]}): {how}"
        return f"checkpoint {self.checkpoint}: {how}"


def print_judgement(judged: Judgement) -> None:
    """One column per policy or rule, one row per number."""
    time = judged.time
    span = f"{str(time[0])[:10]} to {str(time[-1])[:10]}, {len(time):,} bars"
    heads = columns(next(iter(judged.statistics.values())))
    rows = [(name, *(show(numbers) for numbers in judged.statistics.values())) for name, show in heads]
    print_table(f"{judged.symbol} ({judged.label}), {span}", ("after all costs", *judged.statistics), rows)
    for sentence in (*ruins(judged.paths), *judged.limit_sentences()):
        print(sentence)


def judge_and_keep(policy: Trader, played: Playing, folder: Path, *, run: Path, name: str) -> list[Judgement]:
    """Play the test window as `played` says and keep what came of it in a new folder; `run` is the policy's own."""
    world = policy.market()
    judgements = judge(policy, deterministic=played.deterministic, seed=played.seed, market=world)
    _keep(folder, judgements, policy.config, world, played, run=run, name=name)
    return judgements


def _keep(
    folder: Path,
    judgements: Sequence[Judgement],
    config: Config,
    world: MarketWorld,
    played: Playing,
    *,
    run: Path,
    name: str,
) -> None:
    """Write summary.json, the paths as Parquet and report.html into a new folder, whole or not at all."""
    facts = [
        *world.dataset.describe(),
        f"core {config.model.core.kind}, {config.model.critic.kind} critic, seed {config.seed}, "
        f"{config.run.total_steps:,} steps; fills: {world.settings.fill.replace('_', ' ')}; "
        f"costs of an order: {world.costs.taker_rate * 1e4:g} bps and impact. Played: {played.sentence}.",
        CAVEAT,
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as draft:
        calibration = newest_calibration(run)
        symbols = [judged.to_json() for judged in judgements]
        write_json(draft / SUMMARY, {"name": name, **asdict(played), "calibration": calibration, "symbols": symbols})
        save_paths(draft, {judged.symbol: judged.paths for judged in judgements})
        write_page(
            draft / PAGE, judgements, title=name, facts=facts, gamma=config.learner.gamma, calibration=calibration
        )

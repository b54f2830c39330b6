"""Evaluation on bars for `tailwise evaluate` and `tailwise demo`: play, print, keep the paths and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tailwise.cli.output import print_table, say_leak_check
from tailwise.core.atomic import atomic_folder, write_json
from tailwise.core.config import dump_yaml
from tailwise.evaluate.calibration_panel import newest_calibration
from tailwise.evaluate.ensemble import Trader
from tailwise.evaluate.findings import Findings, Trials, stress_policy, weigh
from tailwise.evaluate.judgement import POLICY, Judgement, judge
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.report import write_report
from tailwise.evaluate.report_training import Background
from tailwise.evaluate.report_verdict import CAVEAT, headline_of
from tailwise.evaluate.stress import StressResult
from tailwise.evaluate.words import columns, costly_impact, ruins
from tailwise.market.own_features import LeakVerdict
from tailwise.run.checkpoint import Training
from tailwise.run.config import Config
from tailwise.run.leak_verdict import read_leak_verdict, worst_verdict
from tailwise.run.metric_store import read
from tailwise.run.run_folder import read_alerts, read_manifest
from tailwise.run.trials import count_trials
from tailwise.run.worlds import MarketWorld

PAGE, SUMMARY = "report.html", "summary.json"
MOST_STRESSED = 3  # symbols; each is some thirty replays


@dataclass(frozen=True)
class Playing:
    """How a policy was played."""

    checkpoint: str
    deterministic: bool
    seed: int
    members: tuple[str, ...] = ()  # of an ensemble: how they decide together, then run/checkpoint of each
    trained: Training | None = None  # of an ensemble: its least trained member

    @property
    def sentence(self) -> str:
        how = "the most likely action" if self.deterministic else f"sampled actions, seed {self.seed}"
        if self.members:
            return f"{len(self.members) - 1} policies together ({self.members[0]}): {how}"
        return f"checkpoint {self.checkpoint}: {how}"


def print_findings(found: Findings) -> None:
    """The table, whether it is more than noise, and the limit."""
    print_judgement(found.judged, found.leak_check)
    print(headline_of(found)[0])
    say_leak_check(found.leak_check)


def print_judgement(judged: Judgement, leak_check: LeakVerdict | None = None) -> None:
    """One column per policy or rule, one row per number, and one for the check of the policy's own features."""
    time = judged.time
    span = f"{str(time[0])[:10]} to {str(time[-1])[:10]}, {len(time):,} bars"
    heads = columns(next(iter(judged.statistics.values())))
    rows = [(name, *(show(numbers) for numbers in judged.statistics.values())) for name, show in heads]
    if leak_check is not None:
        rows.append(
            ("leak-check", *(leak_check.status if name.startswith(POLICY) else "-" for name in judged.statistics))
        )
    print_table(f"{judged.symbol} ({judged.label}), {span}", ("after all costs", *judged.statistics), rows)
    for sentence in (*ruins(judged.paths), *costly_impact(judged.paths[POLICY]), *judged.limit_sentences()):
        print(sentence)


def judge_and_keep(
    policy: Trader,
    played: Playing,
    folder: Path,
    *,
    run: Path,
    name: str,
    stressed: bool = True,
    others: Sequence[Path] = (),
) -> list[Findings]:
    """Play the test window as `played` says and keep what came of it in a new folder.

    run: the policy's own; others: the runs that decide with it in an ensemble.
    """
    world = policy.market()
    findings = find(policy, played, world, run=run, stressed=stressed, others=others)
    _keep(folder, findings, policy.config, world, played, run=run, name=name)
    return findings


def find(
    policy: Trader,
    played: Playing,
    world: MarketWorld,
    *,
    run: Path,
    stressed: bool,
    others: Sequence[Path] = (),
) -> list[Findings]:
    """Judge every account of the test window, and weigh what was found; the first few are put to stress tests."""
    found = []
    trials = known_trials(run)
    leaks = worst_verdict(read_leak_verdict(one, world.features) for one in (run, *others))
    for number, judged in enumerate(judge(policy, deterministic=played.deterministic, seed=played.seed, market=world)):
        results: dict[str, list[StressResult]] = {}
        reason = None
        if stressed and number < MOST_STRESSED:
            results, reason = stress_policy(
                policy, judged, number, world=world, deterministic=played.deterministic, seed=played.seed
            )
        elif stressed:
            reason = f"only the first {MOST_STRESSED} symbols are, to save time."
        rhythm = world.dataset.bars[number].frequency.sentence
        found.append(
            weigh(
                judged,
                trials=trials,
                stressed=results,
                not_stressed=reason,
                rhythm=rhythm,
                trained=played.trained,
                leak_check=leaks,
            )
        )
    return found


def known_trials(run: Path) -> Trials:
    """The trials on the bars of a run, itself included, as they were written down."""
    found = count_trials(run)
    return Trials(found.counted, found.sharpes, found.file.name)


def background_of(config: Config, world: MarketWorld, played: Playing, run: Path) -> Background:
    """Where a policy comes from: what its run wrote down."""
    facts = [
        *world.dataset.describe(),
        f"Core {config.model.core.kind}, {config.model.critic.kind} critic, seed {config.seed}, "
        f"{config.run.total_steps:,} steps; fills: {world.settings.fill.replace('_', ' ')}; "
        f"costs of an order: {world.costs.taker_rate * 1e4:g} bps and impact. Played: {played.sentence}.",
        CAVEAT,
    ]
    return Background(
        facts=facts,
        metrics=read(run),
        calibration=newest_calibration(run),
        alerts=read_alerts(run),
        configuration=dump_yaml(config),
        hashes={str(purpose): codes for purpose, codes in world.dataset.hashes().items()},
        versions=read_manifest(run)["versions"],
    )


def how_played(config: Config, played: Playing) -> str:
    """Who decided, and how, as a sentence for the verdict."""
    how = "its most likely action" if played.deterministic else f"sampled actions, seed {played.seed}"
    if played.members:
        return f"{len(played.members) - 1} policies decide together ({played.members[0]}), by {how}."
    return f"Policy: checkpoint {played.checkpoint} of the run with seed {config.seed}, by {how}."


def _keep(
    folder: Path,
    findings: Sequence[Findings],
    config: Config,
    world: MarketWorld,
    played: Playing,
    *,
    run: Path,
    name: str,
) -> None:
    """Write summary.json, the paths as Parquet and report.html into a new folder, whole or not at all."""
    background = background_of(config, world, played, run)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as draft:
        symbols = [found.to_json() for found in findings]
        summary = {"name": name, **asdict(played), "calibration": background.calibration, "symbols": symbols}
        write_json(draft / SUMMARY, summary)
        save_paths(draft, {found.judged.symbol: found.judged.paths for found in findings})
        how = how_played(config, played)
        write_report(draft / PAGE, findings, title=name, how=how, gamma=config.learner.gamma, background=background)

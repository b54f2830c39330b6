"""A trained run judged on the bars of its test window: evidence against simple rules, stress tests, paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailwise.core.atomic import write_json
from tailwise.evaluate.background import Playing
from tailwise.evaluate.ensemble import Trader
from tailwise.evaluate.findings import Findings, Trials, stress_policy, weigh
from tailwise.evaluate.judgement import judge_policy
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.stress import StressResult
from tailwise.run.leak_check import read_leak_verdict, worst_verdict
from tailwise.run.trials import count_trials
from tailwise.run.worlds import MarketWorld

SUMMARY = "summary.json"
MOST_STRESSED = 3  # symbols; each is some thirty replays


@dataclass(frozen=True)
class RunJudgement:
    """A run on the bars of its test window.

    run        its folder; of an ensemble that of the first
    played     which checkpoint, and how
    accounts   what was found of each account: numbers, evidence, odds, stress tests
    folder     with summary.json, the paths as Parquet and report.html
    notes      sentences about checkpoints that cannot be used
    """

    run: Path
    played: Playing
    accounts: tuple[Findings, ...]
    folder: Path
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "run_dir": str(self.run),
            **asdict(self.played),
            "symbols": [found.to_json() for found in self.accounts],
            "folder": str(self.folder),
        }


def findings_of(
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
    for number, judged in enumerate(
        judge_policy(policy, deterministic=played.deterministic, seed=played.seed, market=world)
    ):
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


def save_judgement(
    folder: Path, judgement: RunJudgement, *, name: str, calibration: Mapping[str, float] | None
) -> None:
    """Write summary.json and the paths of all accounts as Parquet into `folder`.

    name: title of the report; calibration: the newest of the run's training.
    """
    symbols = [found.to_json() for found in judgement.accounts]
    summary = {"name": name, **asdict(judgement.played), "calibration": calibration, "symbols": symbols}
    write_json(folder / SUMMARY, summary)
    save_paths(folder, {found.judged.symbol: found.judged.paths for found in judgement.accounts})

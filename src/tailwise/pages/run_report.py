"""The report of a run, made anew from its checkpoint, or of the folds of a walk-forward, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailwise.core.errors import ConfigError
from tailwise.evaluate.background import Playing, background_of, how_played
from tailwise.evaluate.judge import findings_of
from tailwise.evaluate.opened_run import open_market_run
from tailwise.evaluate.verdict_words import headline_of
from tailwise.evaluate.walk_forward_result import SUMMARY, read_walk_forward
from tailwise.pages.report import write_report
from tailwise.pages.walk_forward import write_folds_report


@dataclass(frozen=True)
class WrittenReport:
    """A page that was written. verdict: what it says first; notes: about checkpoints that cannot be used."""

    file: Path
    verdict: tuple[str, ...]
    notes: tuple[str, ...] = ()


def write_run_report(
    run: Path,
    file: Path,
    *,
    stochastic: bool = False,
    checkpoint: str | None = None,
    stress: bool = True,
    trust: bool = False,
) -> WrittenReport:
    """Write the report of a run on a market, or of a walk-forward, into `file`.

    The options are those of `tailwise.judge`; a walk-forward, whose folds have been played, has none of them.
    """
    if (run / SUMMARY).exists():
        if stochastic or checkpoint is not None:
            raise ConfigError(
                f"{run} is the folder of a walk-forward, whose folds have been played; leave out --stochastic and "
                "--checkpoint, or give the folder of one of its runs."
            )
        folds = read_walk_forward(run)
        write_folds_report(file, folds, run)
        return WrittenReport(file, folds.verdict)
    otherwise = f", and a report is about trading; use: tailwise evaluate {run}"
    opened = open_market_run(run, checkpoint, otherwise=otherwise, trust=trust)
    policy, config = opened.policy, opened.policy.config
    deterministic = policy.deterministic and not stochastic
    played = Playing(opened.checkpoint.name, deterministic, config.seed, trained=opened.trained)
    world = policy.market()
    findings = findings_of(policy, played, world, run=run, stressed=stress)
    write_report(
        file,
        findings,
        title=f"{run.resolve().name}: {world.name.removeprefix('market ')}, out of sample",
        how=how_played(config, played),
        gamma=config.learner.gamma,
        background=background_of(config, world, played, run),
    )
    verdict = tuple(f"{account.judged.symbol}: {headline_of(account)[0]}" for account in findings)
    return WrittenReport(file, verdict, opened.notes)

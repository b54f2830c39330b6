"""`tailwise report`: the report of a run, made anew from its checkpoint, or of the folds of a walk-forward."""

from __future__ import annotations

from pathlib import Path

from tailwise.cli.evaluating import open_market_policy
from tailwise.evaluate.judge import PAGE, Playing, background_of, find, how_played
from tailwise.cli.output import print_json
from tailwise.core.errors import ConfigError
from tailwise.evaluate.report import write_report
from tailwise.evaluate.report_folds import FOLDS, read_folds, write_folds_report
from tailwise.evaluate.report_verdict import headline_of
from tailwise.run import checkpoint as ckpt


def report_run(
    run: Path,
    *,
    out: Path | None,
    stochastic: bool,
    checkpoint: str | None,
    stressed: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Write RUN/report.html (or `out`) and say what it says first."""
    file = run / PAGE if out is None else out
    if (run / FOLDS).exists():
        sentence = _report_folds(run, file, stochastic=stochastic, checkpoint=checkpoint)
    else:
        sentence = _report_policy(
            run, file, stochastic=stochastic, checkpoint=checkpoint, stressed=stressed, trust=trust
        )
    if as_json:
        print_json({"run_dir": str(run), "verdict": sentence, "file": str(file)})
        return
    for one in sentence:
        print(one)
    print(f"page: {file}")


def _report_folds(run: Path, file: Path, *, stochastic: bool, checkpoint: str | None) -> list[str]:
    if stochastic or checkpoint is not None:
        raise ConfigError(
            f"{run} is the folder of a walk-forward, whose folds have been played; leave out --stochastic and "
            "--checkpoint, or give the folder of one of its runs."
        )
    folds = read_folds(run)
    write_folds_report(file, folds, run)
    return list(folds["verdict"])


def _report_policy(
    run: Path, file: Path, *, stochastic: bool, checkpoint: str | None, stressed: bool, trust: bool
) -> list[str]:
    otherwise = f", and a report is about trading; use: tailwise evaluate {run}"
    policy, folder = open_market_policy(run, checkpoint, otherwise=otherwise, trust=trust)
    config = policy.config
    trained = ckpt.training_behind(folder)
    played = Playing(folder.name, policy.deterministic and not stochastic, config.seed, trained=trained)
    world = policy.market()
    findings = find(policy, played, world, run=run, stressed=stressed)
    write_report(
        file,
        findings,
        title=f"{run.resolve().name}: {world.name.removeprefix('market ')}, out of sample",
        how=how_played(config, played),
        gamma=config.learner.gamma,
        background=background_of(config, world, played, run),
    )
    told = []
    for found in findings:
        told.append(f"{found.judged.symbol}: {headline_of(found)[0]}")
    return told

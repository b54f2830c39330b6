"""A trained run judged on the bars of its test window: evidence against simple rules, stress tests, paths, page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailwise.core.atomic import atomic_folder, write_json
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.background import Playing, background_of, how_played
from tailwise.evaluate.ensemble import Trader
from tailwise.evaluate.findings import Findings, Trials, stress_policy, weigh
from tailwise.evaluate.judgement import judge_policy
from tailwise.evaluate.opened_run import Team, first_free, open_team
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.report import write_report
from tailwise.evaluate.stress import StressResult
from tailwise.run.config import Config
from tailwise.run.leak_verdict import read_leak_verdict, worst_verdict
from tailwise.run.trials import count_trials
from tailwise.run.worlds import MarketWorld

PAGE, SUMMARY = "report.html", "summary.json"
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


def judge(
    run: str | Path | Sequence[str | Path],
    *,
    checkpoint: str | None = None,
    ensemble: str | None = None,
    stochastic: bool = False,
    seed: int | None = None,
    stress: bool = True,
    out: str | Path | None = None,
    trust: bool = False,
) -> RunJudgement:
    """Play the test window of a run, whole, beside simple rules, and weigh what came of it.

    run          folder of a run on a market; several with `ensemble`
    checkpoint   its name; None: the best one, else the newest
    ensemble     "vote" or "average": the policies of all runs decide together
    stochastic   sample actions instead of the most likely
    seed         of sampled actions; None: that of the run
    stress       also replay dearer, later and worse markets
    out          a new folder for what is kept; None: RUN/evaluations/<checkpoint>-<n>
    trust        execute the code that the run names although somebody else may have written it (docs/security.md)

        judged = tailwise.judge("runs/sp500-1")
        for account in judged.accounts:
            print(account.judged.statistics["policy"].sharpe, account.evidence.verdict)
    """
    runs = [run] if isinstance(run, str | Path) else list(run)
    team = open_team(runs, checkpoint=checkpoint, ensemble=ensemble, trust=trust)
    return judge_team(team, stochastic=stochastic, seed=seed, stress=stress, out=out)


def judge_team(
    team: Team,
    *,
    stochastic: bool = False,
    seed: int | None = None,
    stress: bool = True,
    out: str | Path | None = None,
    name: str | None = None,
) -> RunJudgement:
    """`judge` of runs that are opened already; name: title of the page."""
    config = team.trader.config
    if config.env.market is None:
        raise ConfigError(
            f"{team.run} was trained on {config.env.gym_id}, which is no market; use tailwise.load and evaluate."
        )
    deterministic = team.trader.deterministic and not stochastic
    played = Playing(team.name, deterministic, config.seed if seed is None else seed, team.members, team.trained)
    folder = first_free(team.run, team.name) if out is None else _new_folder(Path(out))
    title = f"{team.run.resolve().name}, checkpoint {team.name}" if name is None else name
    others = [one.run for one in team.runs[1:]]
    accounts = judge_and_keep(team.trader, played, folder, run=team.run, name=title, stressed=stress, others=others)
    return RunJudgement(team.run, played, tuple(accounts), folder, tuple(team.notes))


def _new_folder(path: Path) -> Path:
    """The folder that is to be written; raises where something lies there, which would be replaced."""
    if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
        raise DataError(f"{path} exists; an evaluation is kept in a folder of its own, so name one that does not.")
    return path


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
    findings = findings_of(policy, played, world, run=run, stressed=stressed, others=others)
    _keep(folder, findings, policy.config, world, played, run=run, name=name)
    return findings


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

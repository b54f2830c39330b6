"""`tailwise.judge`: a trained run on the bars of its test window, kept with its report; reports of runs made anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.core.atomic import atomic_folder
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.combinatorial import SUMMARY as COMBINATORIAL_SUMMARY
from tailwise.evaluate.combinatorial import read_combinatorial
from tailwise.evaluate.findings import Findings, headline_of
from tailwise.evaluate.judge import Background, Playing, RunJudgement, background_of, findings_of, save_judgement
from tailwise.evaluate.judgement import POLICY
from tailwise.evaluate.opened_run import Team, first_free, open_team, require_market
from tailwise.evaluate.outside import check_judge, outside_sentences
from tailwise.evaluate.walk_forward_result import SUMMARY, read_walk_forward
from tailwise.pages.combinatorial import write_combinatorial_report
from tailwise.pages.report import write_report
from tailwise.pages.walk_forward import write_folds_report
from tailwise.run.worlds import MarketWorld

PAGE = "report.html"


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
    """Do what `judge` does for runs that are opened already; name: title of the page."""
    env = team.trader.config.env
    if env.market is None:
        raise ConfigError(
            f"{team.run} was trained on {env.gym_id}, which is no market; use tailwise.load and evaluate."
        )
    folder = first_free(team.run, team.name) if out is None else _new_folder(Path(out))
    title = f"{team.run.resolve().name}, checkpoint {team.name}" if name is None else name
    weighed = _weigh(team, team.trader.market(), stochastic=stochastic, seed=seed, stress=stress)
    played, background = weighed.played, weighed.background
    judgement = RunJudgement(team.run, played, tuple(weighed.accounts), folder, tuple(team.notes), weighed.portfolio)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as draft:  # whole or not at all
        save_judgement(draft, judgement, name=title, calibration=background.calibration)
        _write(draft / PAGE, team, weighed, title=title)
    return judgement


@dataclass(frozen=True)
class _Weighed:
    """How a test window was played, the evidence for each account and for all together, where the policy comes from."""

    played: Playing
    accounts: list[Findings]
    portfolio: Findings | None
    background: Background

    @property
    def speaks(self) -> Findings:
        """What the verdict is on: the portfolio, or the one account."""
        return self.accounts[0] if self.portfolio is None else self.portfolio


def _weigh(team: Team, world: MarketWorld, *, stochastic: bool, seed: int | None, stress: bool) -> _Weighed:
    """Play the test window."""
    config = team.trader.config
    deterministic = team.trader.deterministic and not stochastic
    played = Playing(team.name, deterministic, config.seed if seed is None else seed, team.members, team.trained)
    accounts, portfolio = findings_of(team, played, world, stressed=stress)
    return _Weighed(played, accounts, portfolio, background_of(config, world, played, team.run))


def _write(file: Path, team: Team, weighed: _Weighed, *, title: str, outside: Sequence[str] = ()) -> None:
    config = team.trader.config
    write_report(
        file,
        weighed.accounts,
        title=title,
        how=weighed.played.policy_sentence(config),
        gamma=config.learner.gamma,
        background=weighed.background,
        portfolio=weighed.portfolio,
        outside=outside,
    )


def _new_folder(path: Path) -> Path:
    """Return `path`; raise where something lies there, which would be replaced."""
    if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
        raise DataError(f"{path} exists; an evaluation is kept in a folder of its own, so name one that does not.")
    return path


@dataclass(frozen=True)
class WrittenReport:
    """A page that was written. verdict: what it says first; notes: about checkpoints that cannot be used; outside: what
    another judge says."""

    file: Path
    verdict: tuple[str, ...]
    notes: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


def write_run_report(
    run: Path,
    file: Path,
    *,
    stochastic: bool = False,
    checkpoint: str | None = None,
    stress: bool = True,
    trust: bool = False,
    judge: str | None = None,
) -> WrittenReport:
    """Write the report of a run on a market, or of a walk-forward, into `file`.

    The options are those of `tailwise.judge`; a walk-forward, whose folds have been played, has none of them. judge:
    who else is asked for a verdict (see `outside_sentences`).
    """
    if judge is not None:
        check_judge(judge)
    if (run / SUMMARY).exists() or (run / COMBINATORIAL_SUMMARY).exists():
        if stochastic or checkpoint is not None or judge is not None:
            raise ConfigError(
                f"{run} is the folder of a walk-forward, whose folds have been played; leave out --stochastic, "
                "--checkpoint and --judge, or give the folder of one of its runs."
            )
        if (run / COMBINATORIAL_SUMMARY).exists():
            paths = read_combinatorial(run)
            write_combinatorial_report(file, paths, run)
            return WrittenReport(file, paths.verdict)
        folds = read_walk_forward(run)
        write_folds_report(file, folds, run)
        return WrittenReport(file, folds.verdict)
    require_market(run, f", and a report is about trading; use: tailwise evaluate {run}")
    team = open_team([run], checkpoint=checkpoint, trust=trust)
    world = team.trader.market()
    weighed = _weigh(team, world, stochastic=stochastic, seed=None, stress=stress)
    speaks = weighed.speaks
    outside = () if judge is None else outside_sentences(judge, speaks.judged.paths[POLICY], speaks.trials.counted)
    title = f"{run.resolve().name}: {world.name.removeprefix('market ')}, out of sample"
    _write(file, team, weighed, title=title, outside=outside)
    return WrittenReport(
        file, (f"{speaks.judged.symbol}: {headline_of(speaks)[0]}",), tuple(team.notes), tuple(outside)
    )

"""`tailwise evaluate` and `tailwise report`: a policy on what it was never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailwise.cli.output import note, print_json, print_table, say_leak_check
from tailwise.core.errors import ConfigError
from tailwise.core.texts import number
from tailwise.evaluate.episodes import play_and_keep
from tailwise.evaluate.findings import Findings
from tailwise.evaluate.judgement import POLICY, Judgement
from tailwise.evaluate.opened_run import Team, open_team
from tailwise.evaluate.verdict_words import headline_of
from tailwise.evaluate.words import columns, costly_impact, ruins
from tailwise.market.leaks.own_features import LeakVerdict
from tailwise.pages.judge import PAGE, judge_team
from tailwise.pages.run_report import write_run_report

LABELS = (
    ("episodes", "episodes"),
    ("mean_return", "mean return"),
    ("standard_error", "standard error of the mean"),
    ("std_return", "standard deviation between episodes"),
    ("min_return", "lowest return"),
    ("median_return", "median return"),
    ("max_return", "highest return"),
    ("mean_length", "mean length, steps"),
)


def evaluate_run(
    runs: Sequence[Path],
    *,
    ensemble: str | None,
    episodes: int | None,
    stochastic: bool,
    seed: int | None,
    checkpoint: str | None,
    stressed: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Play, print and keep the result in RUN/evaluations; several runs decide together and are kept in the first."""
    team = open_team(runs, checkpoint=checkpoint, ensemble=ensemble, trust=trust)
    for sentence in team.notes:
        note(f"note: {sentence}")
    if not team.trader.config.env.judged_whole:
        _evaluate_episodes(team, episodes=episodes, stochastic=stochastic, seed=seed, as_json=as_json)
        return
    if episodes is not None:
        raise ConfigError(
            f"{team.run} was trained on a market: its test window is played whole, once; leave out --episodes."
        )
    judged = judge_team(team, stochastic=stochastic, seed=seed, stress=stressed)
    if as_json:
        print_json(judged.to_json())
        return
    print(f"{team.run.resolve().name}, {judged.played.sentence}")
    for found in judged.accounts:
        print_findings(found)
    print(f"page: {judged.folder / PAGE}")


def _evaluate_episodes(team: Team, *, episodes: int | None, stochastic: bool, seed: int | None, as_json: bool) -> None:
    played, path = play_and_keep(team, episodes=episodes, stochastic=stochastic, seed=seed)
    if as_json:
        print_json({**played.to_json(), "file": str(path)})
        return
    how = "the most likely action" if played.deterministic else "sampled actions"
    rows = [(label, number(getattr(played, key))) for key, label in LABELS]
    title = f"{team.run.resolve().name}, checkpoint {team.name}: {how}, seed {played.seed}"
    print_table(title, ("", "value"), rows)
    print(f"written to {path}")


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
    """Write RUN/report.html (or `out`) and print what it says first."""
    file = run / PAGE if out is None else out
    written = write_run_report(run, file, stochastic=stochastic, checkpoint=checkpoint, stress=stressed, trust=trust)
    for sentence in written.notes:
        note(f"note: {sentence}")
    if as_json:
        print_json({"run_dir": str(run), "verdict": written.verdict, "file": str(file)})
        return
    for sentence in written.verdict:
        print(sentence)
    print(f"page: {file}")


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

"""`tailwise evaluate`, `report` and `compare`: policies on data that they were not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.cli.output import note, print_json, print_table, say_leak_check
from tailwise.core.errors import ConfigError, number
from tailwise.evaluate.compare import PAIR_HEADS, Compared, pair_rows
from tailwise.evaluate.findings import SYMBOL_HEADS, Findings, alpha_of, headline_of, symbol_row, symbols_beyond_noise
from tailwise.evaluate.judgement import POLICY, Judgement
from tailwise.evaluate.opened_run import Team, open_team, play_and_keep
from tailwise.evaluate.words import columns, costly_impact, ruins
from tailwise.market.leaks.features import LeakVerdict
from tailwise.pages.compare import PAGE as COMPARE_PAGE
from tailwise.pages.compare import compare
from tailwise.pages.judge import PAGE, judge_team, write_run_report

MOST_SYMBOLS = 20  # rows of the table of symbols on the terminal
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


@dataclass(frozen=True)
class Playing:
    """How a policy is played.

    episodes     number of episodes; None: evaluate.episodes. Not for a market, whose test window is played whole
    stochastic   sample actions instead of the most likely one
    seed         of the episodes; None: the run's
    stressed     also play harder markets
    """

    episodes: int | None
    stochastic: bool
    seed: int | None
    stressed: bool


def evaluate_run(
    runs: Sequence[Path], how: Playing, *, ensemble: str | None, checkpoint: str | None, trust: bool, as_json: bool
) -> None:
    """Play, print and save the result in RUN/evaluations; several runs decide together and are saved in the first."""
    team = open_team(runs, checkpoint=checkpoint, ensemble=ensemble, trust=trust)
    for sentence in team.notes:
        note(f"note: {sentence}")
    if not team.trader.config.env.judged_whole:
        _evaluate_episodes(team, how, as_json=as_json)
        return
    if how.episodes is not None:
        raise ConfigError(
            f"{team.run} was trained on a market: its test window is played whole, once; leave out --episodes."
        )
    judged = judge_team(team, stochastic=how.stochastic, seed=how.seed, stress=how.stressed)
    if as_json:
        print_json(judged.to_json())
        return
    print(f"{team.run.resolve().name}, {judged.played.sentence}")
    if judged.portfolio is None:
        print_findings(judged.accounts[0])
    else:
        print_findings(judged.portfolio)
        print_symbols(judged.accounts)
    print(f"page: {judged.folder / PAGE}")


def _evaluate_episodes(team: Team, how: Playing, *, as_json: bool) -> None:
    played, path = play_and_keep(team, episodes=how.episodes, stochastic=how.stochastic, seed=how.seed)
    if as_json:
        print_json({**played.to_json(), "file": str(path)})
        return
    actions = "the most likely action" if played.deterministic else "sampled actions"
    rows = [(label, number(getattr(played, key))) for key, label in LABELS]
    title = f"{team.run.resolve().name}, checkpoint {team.name}: {actions}, seed {played.seed}"
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
    judge: str | None,
    as_json: bool,
) -> None:
    """Write RUN/report.html (or `out`) and print its verdict, and that of another judge where one is named."""
    file = run / PAGE if out is None else out
    written = write_run_report(
        run, file, stochastic=stochastic, checkpoint=checkpoint, stress=stressed, trust=trust, judge=judge
    )
    for sentence in written.notes:
        note(f"note: {sentence}")
    if as_json:
        print_json(
            {"run_dir": str(run), "verdict": written.verdict, "outside": written.outside or None, "file": str(file)}
        )
        return
    for sentence in (*written.verdict, *written.outside):
        print(sentence)
    print(f"page: {file}")


def print_findings(findings: Findings) -> None:
    """Print the table, whether the result is more than noise, and the limit."""
    print_judgement(findings.judged, findings.leak_check)
    if findings.windows is not None and len(findings.windows.statistics) > 1:
        print_table(
            "the policy in each window", ("after all costs", *findings.windows.statistics), findings.windows.rows()
        )
        for sentence in findings.windows.sentences():
            print(sentence)
    if findings.members is not None:
        print_table("each seed by itself", findings.members.heads, findings.members.rows())
        print(findings.members.sentence)
    beyond = [one.sentence for one in findings.beyond.values()]
    for sentence in (*beyond, *(one.sentence for one in findings.judged.draws.values())):
        print(sentence)
    print(headline_of(findings)[0])
    say_leak_check(findings.leak_check)


def print_symbols(accounts: Sequence[Findings]) -> None:
    """Print one row for each symbol, the MOST_SYMBOLS with the largest and the smallest alpha of many."""
    above, below, chance = symbols_beyond_noise(accounts)
    rows = sorted(accounts, key=alpha_of, reverse=True)
    left_out = len(rows) - MOST_SYMBOLS
    if left_out > 0:
        rows = [*rows[: MOST_SYMBOLS // 2], *rows[-(MOST_SYMBOLS // 2) :]]
    title = "symbol by symbol" if left_out <= 0 else f"symbol by symbol; {left_out} between these are on the page"
    print_table(title, SYMBOL_HEADS, [symbol_row(one) for one in rows])
    print(
        f"beyond noise {above} of {len(accounts)} symbols earned beyond their exposure and {below} lost; chance alone "
        f"shows {chance:.1f} of each"
    )


def print_judgement(judged: Judgement, leak_check: LeakVerdict | None = None) -> None:
    """Print one column per policy or rule, one row per number, and one for the leak-check of own features."""
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


def compare_runs(runs: list[Path], *, out: Path | None, trust: bool, as_json: bool) -> None:
    """Compare runs pair by pair on the same test bars, write the page, print."""
    compared = compare(runs, page=COMPARE_PAGE if out is None else out, trust=trust)
    for sentence in compared.notes:
        note(f"note: {sentence}")
    if as_json:
        print_json(compared.to_json())
        return
    for account in compared.accounts:
        _print_compared(account, compared.leak_check)
    for verdict in compared.leak_check.values():
        say_leak_check(verdict)
    print(f"page: {compared.file}")


def _print_compared(compared: Compared, leaks: Mapping[str, LeakVerdict | None]) -> None:
    heads = columns(next(iter(compared.statistics.values())))
    rows = [(name, *(show(numbers) for numbers in compared.statistics.values())) for name, show in heads]
    statuses = {name: verdict.status for name, verdict in leaks.items() if verdict is not None}
    if statuses:
        rows.append(("leak-check", *(statuses.get(name, "-") for name in compared.statistics)))
    print_table(compared.symbol, ("after all costs", *compared.statistics), rows)
    print_table("pair by pair", PAIR_HEADS, pair_rows(compared))
    for sentence in compared.sentences():
        print(sentence)

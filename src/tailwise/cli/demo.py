"""`tailwise demo`: the S&P 500 with a limit on the tail, without one, and bought and held, on later years."""

from __future__ import annotations

from pathlib import Path

from tailwise.cli.output import DONE, print_table
from tailwise.cli.training import Started, begin, learn
from tailwise.evaluate.findings import headline_of
from tailwise.evaluate.judge import CAVEAT
from tailwise.evaluate.judgement import POLICY, always_in, judge_limit, judge_policy
from tailwise.evaluate.opened_run import open_team
from tailwise.evaluate.run_view import EVALUATIONS
from tailwise.evaluate.words import columns
from tailwise.learner.risk_config import RiskReport
from tailwise.pages.judge import PAGE, judge_team
from tailwise.run.config import Config, effective_config
from tailwise.run.risk_words import limit_sentences

PRESET = "sp500"
WITHOUT = "-no-limit"  # what the folder of the second run is called besides
SHOWN = ("per year", "volatility", "Sharpe", "worst drawdown", "CVaR", "turnover/year", "net exposure")


def run_demo(*, out: Path | None, steps: int | None, quiet: bool) -> int:
    """Train twice, judge, print, write the page. The exit code says whether it ran, not whether the policy earned."""
    config = effective_config(PRESET, [] if steps is None else [f"run.total_steps={steps}"]).config
    limited = begin(config, out, "demo", silent=quiet)
    for sentence in limited.agent.world().describe():
        print(sentence)
    print(limit_sentences(limited.agent.config, bars_per_day=None, bars_per_year=None)[0])
    code = _train("with the limit", limited)
    if code != DONE:
        return code
    free = begin(
        without_limit(limited.agent.config),
        limited.folder.with_name(limited.folder.name + WITHOUT),
        "demo",
        silent=quiet,
    )
    code = _train("without it", free)
    return code if code != DONE else _judge(limited, free)


def without_limit(config: Config) -> Config:
    """The same in everything but the limit, the scale of the base rule included: the tail is only measured."""
    alpha = config.tail_alpha
    assert alpha is not None
    return config.model_copy(update={"risk": RiskReport(mode="report", alpha=alpha)})


def _train(how: str, started: Started) -> int:
    print(f"training {how}: {started.folder}", flush=True)
    return learn(started).code


def _judge(limited: Started, free: Started) -> int:
    place = limited.folder / EVALUATIONS / "demo"
    teams = [open_team([one.folder]) for one in (limited, free)]  # the checkpoints of the selection window
    findings = judge_team(teams[0], out=place, name="Tailwise demo: S&P 500, out of sample").accounts[0]
    other = judge_policy(teams[1].trader)[0]
    numbers, held = findings.judged.statistics, always_in(findings.judged.statistics)
    shown = {
        "with the limit": numbers[POLICY],
        "without it": other.statistics[POLICY],
        held: numbers[held],
    }
    rows = [
        (name, *(show(one) for one in shown.values()))
        for name, show in columns(numbers[POLICY])
        if name.startswith(SHOWN)
    ]
    time = findings.judged.time
    print_table(f"out of sample, {str(time[0])[:10]} to {str(time[-1])[:10]}", ("after all costs", *shown), rows)
    trained = teams[0].trader.trade("train")[0]
    kept = judge_limit(trained, teams[0].trader.config)
    if kept is not None:
        print(kept.sentence("on the train bars"))
    for verdict in findings.judged.limit_sentences()[:1]:
        print(verdict)
    print(headline_of(findings)[0])
    print(f"open {place / PAGE}; more with: tailwise evaluate {limited.folder}")
    print(CAVEAT)
    return DONE

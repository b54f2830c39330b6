"""`tailwise demo`: the S&P 500 with a limit on the tail, without one, and bought and held, on later years."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tailwise.cli.inspecting import require_watch
from tailwise.cli.output import DONE, print_table
from tailwise.cli.training import Started, begin, learn
from tailwise.core.numerics import tail_horizon
from tailwise.evaluate.findings import Findings, headline_of, meaning_of, verdict_sentences
from tailwise.evaluate.judge import CAVEAT
from tailwise.evaluate.judgement import POLICY, Judgement, always_in, judge_limit, judge_policy
from tailwise.evaluate.opened_run import Team, open_team
from tailwise.evaluate.regression import regress
from tailwise.evaluate.run_view import EVALUATIONS
from tailwise.evaluate.words import columns, percent, plain, signed_percent, small_percent
from tailwise.learner.risk_config import RiskConstraint, RiskReport
from tailwise.market.path import AccountPath
from tailwise.pages.judge import PAGE, judge_team
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config, effective_config

PRESET = "sp500"
WITHOUT = "-no-limit"  # what the folder of the second run is called besides
SHOWN = ("per year", "Sharpe", "worst drawdown", "net exposure", "turnover/year")
_FEW = 100  # resamples: only the estimates of alpha and beta are printed here, the page has the intervals


class OneBar(Callback):
    """One bar for the trainings one after the other; where there is no terminal, a line when each of them is done."""

    def __init__(self, names: list[str], steps: int, *, silent: bool) -> None:
        self.names, self.steps, self.silent = names, steps, silent
        self.done = 0  # trainings
        live = sys.stdout.isatty() and not silent
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
        self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(), expand=True, disable=not live)
        self._task = self._bar.add_task("training", total=steps * len(names))

    def __enter__(self) -> OneBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_note(self, sentence: str) -> None:
        if not self.silent and not self._bar.disable:
            self._bar.update(self._task, description=sentence.partition(",")[0])
        elif not self.silent:
            print(sentence, flush=True)

    def on_update(self, progress: Progress) -> bool | None:
        completed = self.done * self.steps + min(progress.steps, self.steps)
        self._bar.update(self._task, completed=completed, description=f"training {self.names[self.done]}")
        return None

    def next(self) -> None:
        """A training is over."""
        if self._bar.disable and not self.silent:
            print(f"trained {self.names[self.done]}, {self.steps:,} steps", flush=True)
        self.done += 1


def run_demo(*, out: Path | None, steps: int | None, explain: bool, watched: bool, quiet: bool) -> int:
    """Train twice, judge, print, write the page. The exit code says whether it ran, not whether the policy earned.

    explain: print everything that the verdict rests on; watched: serve the live page meanwhile.
    """
    if watched:
        require_watch()  # before a run folder is made
    config = effective_config(PRESET, [] if steps is None else [f"run.total_steps={steps}"]).config
    bar = OneBar(["with the limit", "without it"], config.run.total_steps, silent=quiet)
    limited = begin(config, out, "demo", silent=quiet, display=[bar])
    print(data_sentence(limited))
    print(limit_sentence(limited.agent.config), flush=True)
    with live_page(limited.folder) if watched else nullcontext(), bar:
        code = learn(limited).code
        bar.next()
        if code != DONE:
            return code
        place = limited.folder.with_name(limited.folder.name + WITHOUT)
        free = begin(without_limit(limited.agent.config), place, "demo", silent=quiet, display=[bar])
        code = learn(free).code
        bar.next()
    return code if code != DONE else _judge(limited, free, explain=explain)


@contextmanager
def live_page(run: Path) -> Iterator[None]:
    """Serve the live page on a run from a process of its own, and print its address."""
    require_watch()
    command = [sys.executable, "-m", "tailwise", "watch", str(run), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline(), server.stdout.readline()]
            address = lines[1].partition(" ")[2].partition(" (")[0].strip()
            print(f"live page, while it trains: {address}" if address else "the live page did not start", flush=True)
            yield
        finally:
            server.terminate()


def without_limit(config: Config) -> Config:
    """The same in everything but the limit, the scale of the base rule included: the tail is only measured."""
    alpha = config.tail_alpha
    assert alpha is not None
    return config.model_copy(update={"risk": RiskReport(mode="report", alpha=alpha)})


def data_sentence(started: Started) -> str:
    """Which bars train and which test."""
    dataset = started.agent.world().market().dataset
    (bars,) = dataset.bars
    spans = []
    windows = {"trained on": dataset.window("train"), "tested on": dataset.window("test")}
    for word, (window,) in windows.items():
        years = f"{str(bars.time[window.first])[:4]} to {str(bars.time[window.end - 1])[:4]}"
        spans.append(f"{word} {years} ({window.end - window.first:,} days)")
    return f"data: S&P 500, {bars.label}, {', '.join(spans)}, after all costs"


def limit_sentence(config: Config) -> str:
    """The limit in plain words."""
    risk, horizon = config.risk, tail_horizon(config.learner.gamma)
    assert isinstance(risk, RiskConstraint)
    lost = percent(-math.expm1(risk.level))
    return (
        f"limit: of all stretches of {horizon} days, the worst {100 * risk.alpha:g}% may lose {lost} "
        "on average (later days count less), half of what buy and hold lost in the years of training"
    )


def _judge(limited: Started, free: Started, *, explain: bool) -> int:
    place = limited.folder / EVALUATIONS / "demo"
    teams = [open_team([one.folder]) for one in (limited, free)]  # the checkpoints of the selection window
    findings = judge_team(teams[0], out=place, name="Tailwise demo: S&P 500, out of sample").accounts[0]
    other = judge_policy(teams[1].trader)[0]
    time = findings.judged.time
    title = f"out of sample, {str(time[0])[:10]} to {str(time[-1])[:10]}"
    heads, rows = table(findings.judged, other)
    print_table(title, heads, rows)
    print(kept_sentence(teams[0], findings))
    print(f"verdict: {headline_of(findings)[0]}")
    print(CAVEAT)
    for sentence in [*meaning_of(findings), *verdict_sentences(findings)] if explain else []:
        print(f"- {sentence}")
    print(f"open {place / PAGE}")
    run = limited.folder
    print(f"next: tailwise evaluate {run}, its live page: tailwise watch {run}, your own bars: tailwise init BARS.csv")
    return DONE


def table(limited: Judgement, free: Judgement) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows: the policy with its limit, without one, and buy and hold."""
    held = always_in(limited.statistics)
    shown = {
        "with the limit": limited.statistics[POLICY],
        "without it": free.statistics[POLICY],
        held: limited.statistics[held],
    }
    example = limited.statistics[POLICY]
    rows = [
        (name, *(show(one) for one in shown.values()))
        for name, show in columns(example)
        if name.startswith(SHOWN) or name.endswith(f"{example.horizon} bars")
    ]
    alphas, betas = zip(*(_beyond(one.paths, held) for one in (limited, free)), strict=True)
    rows += [("alpha, beyond its exposure", *alphas, "-"), (f"beta, exposure to {held}", *betas, "1.00")]
    return ("after all costs", *shown), rows


def _beyond(paths: Mapping[str, AccountPath], held: str) -> tuple[str, str]:
    """Alpha a year and beta as cells; dashes where the market never moved."""
    found = regress(paths[POLICY], paths[held], against=held, repetitions=_FEW)
    return ("-", "-") if found is None else (signed_percent(found.alpha.estimate), plain(found.beta.estimate))


def kept_sentence(team: Team, findings: Findings) -> str:
    """Whether the deployed policy kept its limit, on the bars of the training and out of sample."""
    trained = judge_limit(team.trader.trade("train")[0], team.trader.config)
    tested = findings.judged.limits[POLICY]
    rule = findings.judged.limits[findings.judged.reference]
    words = [
        f"{one.short or 'not judged'} {where}"
        for one, where in ((trained, "in the years of training"), (tested, "out of sample"))
        if one is not None
    ]
    beside = "" if rule.short is None else f"; {findings.judged.reference} {rule.short} out of sample"
    return f"limit {small_percent(tested.limit)}: {', '.join(words)}{beside}"

"""`tailwise demo`: train on twenty years of real bars, judge the policy on years that it never saw, write a page."""

from __future__ import annotations

from pathlib import Path

from tailwise.cli.evaluating import print_findings
from tailwise.cli.output import note
from tailwise.cli.training import begin, print_facts, train
from tailwise.evaluate.background import CAVEAT
from tailwise.evaluate.opened_run import open_team
from tailwise.evaluate.run_view import EVALUATIONS
from tailwise.pages.judge import PAGE, judge_team
from tailwise.run.config import warnings_of
from tailwise.run.effective_config import effective_config

PRESET = "sp500"


def run_demo(*, out: Path | None, steps: int | None, quiet: bool) -> int:
    """Train, judge, print, write the page. The exit code says whether it ran, not whether the policy earned money."""
    config = effective_config(PRESET, [] if steps is None else [f"run.total_steps={steps}"]).config
    started = begin(config, out, "demo", silent=quiet)
    for sentence in warnings_of(config):
        note(f"warning: {sentence}")
    if not quiet:
        print_facts(started)
    code = train(started, as_json=False)
    if code:
        return code
    team = open_team([started.folder])  # the checkpoint of the selection window, as `tailwise evaluate` would take
    out = started.folder / EVALUATIONS / "demo"
    judged = judge_team(team, out=out, name="Tailwise demo: S&P 500, out of sample")
    for found in judged.accounts:
        print_findings(found)
    print(f"page: {out / PAGE}")
    print(CAVEAT)
    return 0

"""`tailwise demo`: train on twenty years of real bars, judge the policy on years that it never saw, write a page."""

from __future__ import annotations

from pathlib import Path

from tailwise.cli.configuring import read_effective
from tailwise.cli.evaluating import EVALUATIONS
from tailwise.evaluate.judge import PAGE, Playing, judge_and_keep, print_findings
from tailwise.cli.output import note
from tailwise.cli.training import Recorder, make_display, print_facts, run_folder, train
from tailwise.evaluate.report_verdict import CAVEAT
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO, choose_checkpoint, load
from tailwise.run.config import warnings_of

PRESET = "sp500"


def run_demo(*, out: Path | None, steps: int | None, quiet: bool) -> int:
    """Train, judge, print, write the page. The exit code says whether it ran, not whether the policy earned money."""
    overrides = [] if steps is None else [f"run.total_steps={steps}"]
    _, config = read_effective(PRESET, overrides)
    recorder, display = Recorder(), make_display(config, silent=quiet)
    with run_folder(out, "demo") as folder:
        agent = PPO(config=config, run_dir=folder, callbacks=[recorder, *display])
    for sentence in warnings_of(config):
        note(f"warning: {sentence}")
    if not quiet:
        print_facts(agent, folder)
    code = train(agent, recorder, display, folder, as_json=False)
    if code:
        return code
    checkpoint, _ = choose_checkpoint(folder)  # that of the selection window, as `tailwise evaluate` would take
    policy = load(checkpoint)
    trained = ckpt.training_behind(checkpoint)
    played = Playing(checkpoint.name, deterministic=policy.deterministic, seed=config.seed, trained=trained)
    kept = folder / EVALUATIONS / "demo"
    for found in judge_and_keep(policy, played, kept, run=folder, name="Tailwise demo: S&P 500, out of sample"):
        print_findings(found)
    print(f"page: {kept / PAGE}")
    print(CAVEAT)
    return 0

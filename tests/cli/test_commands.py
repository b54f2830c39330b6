"""The commands as a person uses them: train, evaluate, resume, presets, config; for real, on a small run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tailwise.run.presets import preset_names
from tailwise.run.run_folder import read_config
from tests.cli.terminal import SMALL, Terminal

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def test_train_evaluate_resume(tailwise: Terminal) -> None:
    assert tailwise("train", "cartpole", *SMALL) == 0
    for part in (
        f"configuration  {Path('runs/cartpole-1/config.yaml')}",
        "CartPole-v1 x 4",
        "twin quantile critics",
        "bit for bit",
        "update 3, 192/192 steps",
        "CVaR 5% over 300 steps ",
        "explained variance",
        "all 192 steps are done: 192 steps in 3 updates",
        "tailwise evaluate runs/cartpole-1",
    ):
        assert part in tailwise.out
    saved = yaml.safe_load(Path("runs/cartpole-1/config.yaml").read_text())
    assert saved["run"]["environments"] == 4
    assert saved["learner"]["max_kl"] == 1.0  # a default that nobody wrote: the file is complete

    assert tailwise("evaluate", "runs/cartpole-1", "--episodes", "5") == 0
    assert "mean return" in tailwise.out
    assert "checkpoint update-000003: the most likely action, seed 0" in tailwise.out
    kept = json.loads(Path("runs/cartpole-1/evaluations/update-000003-1.json").read_text())
    assert kept["episodes"] == 5 == len(kept["returns"])
    assert kept["mean_return"] == pytest.approx(sum(kept["returns"]) / 5)
    assert kept["min_return"] <= kept["median_return"] <= kept["max_return"]

    assert tailwise("resume", "runs/cartpole-1") == 0
    assert "runs/cartpole-1 is finished: all 192 steps are done." in tailwise.out


def test_evaluation_is_seeded_and_says_what_it_did(tailwise: Terminal) -> None:
    tailwise.json("train", "cartpole", *SMALL, "--out", "r")
    first = tailwise.json("evaluate", "r", "--episodes", "3")
    again = tailwise.json("evaluate", "r", "--episodes", "3")
    assert first["returns"] == again["returns"]
    assert [Path(result["file"]).name for result in (first, again)] == ["update-000003-1.json", "update-000003-2.json"]
    other = tailwise.json(
        "evaluate", "r", "--episodes", "3", "--seed", "9", "--stochastic", "--checkpoint", "update-000001"
    )
    assert other["returns"] != first["returns"]
    assert (other["seed"], other["deterministic"], other["checkpoint"]) == (9, False, "update-000001")
    single = tailwise.json("evaluate", "r", "--episodes", "1")
    assert single["standard_error"] is None  # undefined is null, never 0 or NaN


def test_json_is_one_object_and_nothing_else(tailwise: Terminal) -> None:
    result = tailwise.json("train", "cartpole", *SMALL)
    assert result["run_dir"] == "runs/cartpole-1"
    assert result["reason"] == "all 192 steps are done"
    assert (result["steps"], result["updates"]) == (192, 3)
    assert result["seconds"] > 0
    assert result["alerts"] == 0
    last = json.loads(Path("runs/cartpole-1/metrics.jsonl").read_text().splitlines()[-1])
    assert result["metrics"] == {k: v for k, v in last.items() if k not in ("update", "steps")}
    finished = tailwise.json("resume", "runs/cartpole-1")
    assert finished["reason"] == "the run was finished before: all 192 steps are done"
    assert finished["steps"] == 192


def test_a_stopped_run_goes_on_and_equals_one_that_was_not_stopped(tailwise: Terminal) -> None:
    """The folder after update 1 is what a killed process leaves; rejects a resume that starts from the beginning."""
    import shutil

    tailwise.json("train", "cartpole", *SMALL, "--out", "whole")
    shutil.copytree("whole", "cut")
    for name in ("update-000002", "update-000003"):
        shutil.rmtree(Path("cut/checkpoints") / name)
    assert tailwise("resume", "cut") == 0
    assert "goes on after update 1, 64 of 192 steps" in tailwise.out
    weights = "checkpoints/update-000003/policy/weights.safetensors"
    assert Path("cut", weights).read_bytes() == Path("whole", weights).read_bytes()


def test_a_broken_newest_checkpoint_is_told_and_the_one_before_is_used(tailwise: Terminal) -> None:
    tailwise.json("train", "cartpole", *SMALL, "--out", "r")
    (Path("r/checkpoints/update-000003/policy/weights.safetensors")).write_bytes(b"torn")
    assert tailwise("evaluate", "r", "--episodes", "2") == 0
    assert "note: checkpoint update-000003 cannot be used" in tailwise.error
    assert "checkpoint update-000002" in tailwise.out
    assert tailwise("evaluate", "r", "--checkpoint", "update-000003") == 2
    assert "weights.safetensors: has 4 bytes" in tailwise.error
    assert "The previous good checkpoint is r/checkpoints/update-000002" in tailwise.error
    assert tailwise("resume", "r", "--quiet") == 0
    assert "note: checkpoint update-000003 cannot be used" in tailwise.error
    assert "all 192 steps are done" in tailwise.out


def test_runs_get_the_first_free_number(tailwise: Terminal) -> None:
    Path("runs/cartpole-1").mkdir(parents=True)
    assert tailwise.json("train", "cartpole", *SMALL)["run_dir"] == "runs/cartpole-2"


def test_warnings_are_told_and_quiet_keeps_the_result(tailwise: Terminal) -> None:
    assert tailwise("train", "cartpole", *SMALL, "-s", "run.total_steps=10", "--quiet") == 0
    assert "warning: run.total_steps 10 is less than one rollout (4 x 16 = 64)" in tailwise.error
    assert "update 1," not in tailwise.out
    assert "all 10 steps are done" in tailwise.out


def test_presets_lists_and_prints(tailwise: Terminal) -> None:
    assert tailwise("presets") == 0
    assert "cartpole-memory    CartPole-v1 without its velocities" in tailwise.out
    assert len(tailwise.out.splitlines()) == len(preset_names()) >= 14
    assert tailwise("presets", "scalar") == 0
    assert yaml.safe_load(tailwise.out)["model"]["critic"]["kind"] == "scalar"


def test_config_show_is_complete_and_reads_back_the_same(tailwise: Terminal) -> None:
    assert tailwise("config", "show", "cartpole", "-s", "learner.clip=0.1", "-s", "model.core.kind=gru") == 0
    shown = tailwise.out
    tree = yaml.safe_load(shown)
    assert (tree["learner"]["clip"], tree["model"]["core"]) == (0.1, {"kind": "gru", "hidden": 64, "layers": 1})
    sections = ["seed", "backend", "data", "features", "env", "costs"]
    assert list(tree) == [*sections, "model", "learner", "risk", "run", "health", "evaluate", "notify"]
    Path("again.yaml").write_text(shown)
    assert tailwise("config", "show", "again.yaml") == 0
    assert tailwise.out == shown


def test_config_check_says_ok_or_everything_that_is_wrong(tailwise: Terminal) -> None:
    assert tailwise("config", "check", "cartpole") == 0
    assert tailwise.out == "cartpole: ok\n"
    Path("bad.yaml").write_text("learner: {clp: 0.1, epochs: many}\n")
    assert tailwise("config", "check", "bad.yaml") == 2
    assert tailwise.out == ""
    assert "error: bad.yaml: key 'learner.clp' is unknown; did you mean 'learner.clip'?" in tailwise.error
    assert "error: bad.yaml: key 'learner.epochs' is 'many'" in tailwise.error


def test_config_explain(tailwise: Terminal) -> None:
    assert tailwise("config", "explain", "learner.clip") == 0
    assert tailwise.out == "learner.clip\n  PPO ratio clip\n  default 0.2; allowed: number > 0 and < 1\n"
    assert tailwise("config", "explain", "model.core.hidden") == 0
    assert tailwise.out.startswith("model.core.hidden  (where model.core.kind is lstm or gru)\n")
    assert tailwise("config", "explain", "model.core") == 0
    assert "default none; allowed: none, lstm, gru" in tailwise.out
    assert tailwise("config", "explain", "risk.limit") == 0
    assert tailwise.out.startswith("risk.limit  (where risk.mode is constraint)\n")
    assert "\n  required; allowed: number or a section\nrisk.limit.of  " in tailwise.out
    assert tailwise("config", "explain", "epochs") == 2
    assert tailwise.error == "error: key 'epochs' is unknown; did you mean 'learner.epochs'?\n"


def test_help_is_light() -> None:
    """Under half a CPU-second, without torch; rejects one heavy import at the top of a command's module."""
    import resource

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    code = (
        "import sys; from tailwise.cli.main import main; code = main(['--help']);"
        "heavy = {'torch', 'numpy', 'gymnasium', 'pandas', 'plotly', 'pydantic'} & set(sys.modules);"
        "sys.exit(f'heavy imports: {heavy}' if heavy else code)"
    )
    before = cpu()
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert cpu() - before < 0.5
    for command in ("train", "resume", "evaluate", "presets", "demo", "config"):
        assert command in done.stdout


def test_ctrl_c_keeps_the_update_and_says_how_to_go_on(tmp_path: Path) -> None:
    """Rejects a traceback, exit code 1 and work that is lost; `python -m tailwise` is the way in here."""
    arguments = [*SMALL, "-s", "run.total_steps=100_000_000", "-s", "run.checkpoint_every=1000", "--out", "r"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tailwise", "train", "cartpole", *arguments],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()  # does nothing to a process that has ended
    assert process.returncode == 130, error
    assert "Traceback" not in error
    last = json.loads(metrics.read_text().splitlines()[-1])["update"]
    assert f"continue from update-{last:06d} with: tailwise resume r" in out
    assert (tmp_path / "r" / "checkpoints" / f"update-{last:06d}").is_dir()


def test_demo_trains_judges_out_of_sample_and_writes_a_page(tailwise: Terminal) -> None:
    assert tailwise("demo", "--steps", "16384", "--out", "d", "--explain") == 0
    explained = [line for line in tailwise.out.splitlines() if line.startswith("- ")]
    assert len(explained) >= 5 and any("95% interval" in line for line in explained)
    lines = [line for line in tailwise.out.splitlines() if line not in explained]
    assert lines[0] == (
        "data: S&P 500, real, trained on 1999 to 2009 (2,767 days), tested on 2013 to 2018 (1,510 days), "
        "after all costs"
    )
    assert lines[1].startswith("limit: of all stretches of 100 days, the worst 5% may lose 6.2% on average")
    for shown in ("with the limit", "without it", "buy and hold", "CVaR 5%, 100 bars", "net exposure", "alpha, beyond"):
        assert shown in tailwise.out
    said = [line for line in lines if not re.match("[┏┃┡│└]", line) and "compil" not in line]
    assert len(said) <= 12, said  # a stranger reads a dozen lines and a table
    assert "in the years of training" in tailwise.out and "verdict: No evidence" in tailwise.out
    assert said[-2] == "open d/evaluations/demo/report.html" and "tailwise evaluate d" in said[-1]
    assert "tailwise watch d," in said[-1]
    assert read_config(Path("d-no-limit")).risk.mode == "report"
    assert read_config(Path("d")).env.base == read_config(Path("d-no-limit")).env.base, "only the limit differs"
    page = Path("d/evaluations/demo/report.html").read_text()
    for name in ("policy", "buy and hold", "flat", "momentum", "random, same turnover"):
        assert page.count(f'"name":"{name}"') >= 2, name  # in the picture: equity and drawdown
    assert "Plotly.newPlot" in page
    assert 1_500_000 < len(page) < 3_000_000  # the script is inside: the page opens without a network
    assert 'src="http' not in page
    summary = json.loads(Path("d/evaluations/demo/summary.json").read_text())["symbols"][0]
    assert summary["label"] == "real" and summary["first_bar"].startswith("2013-01-02")
    # Buy and hold over the window, from the closing levels of the index itself, but for the first open and one order.
    held = summary["statistics"]["buy and hold"]["total_return"]
    assert held == pytest.approx(2506.85 / 1426.19 - 1, rel=0.02)
    assert summary["statistics"]["flat"]["total_return"] == 0.0

"""decide, export and paper as a person calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailwise.bars.bars import save_bars
from tailwise.bars.synthetic import ar1
from tests.cli.terminal import SMALL, Terminal

MARKET = [*SMALL, "-s", "model.encoder.hidden=[16]", "-s", "model.actor.gain=10"]


@pytest.fixture
def run(tailwise: Terminal) -> str:
    """A run on a file of bars, in the folder of the test."""
    bars = ar1(seed=3, length=400)
    save_bars(bars, "AR.csv")
    Path("c.yaml").write_text(
        "data: {kind: files, paths: [AR.csv]}\nfeatures: {include: [return_1, volatility_20]}\n"
        "env: {kind: market, episode_length: 64}\n",
        encoding="utf-8",
    )
    assert tailwise("train", "c.yaml", *MARKET, "--out", "r", "--quiet") == 0
    return "r"


def test_decide_says_what_to_hold_and_paper_ends_there(tailwise: Terminal, run: str) -> None:
    assert tailwise("decide", run, "--bars", "AR.csv", "--out", "d.html") == 0
    for words in ("for the next open: hold AR:", "Probabilities:", "Predicted discounted log-return", "Guards: none"):
        assert words in tailwise.out
    assert "panel-law" in Path("d.html").read_text(encoding="utf-8")
    said = tailwise.json("decide", run)["decisions"][0]
    assert said["symbols"] == ["AR"] and sum(said["probabilities"]) == pytest.approx(1)
    paper = tailwise.json("paper", run, "--feed", "AR.csv", "--since", said["since"], "--out", "p")
    assert paper["state"] == "running" and paper["accounts"][0]["equity"] == said["equity"]
    assert paper["ticks"] == said["played"] + 1 and "trained on" not in tailwise.error
    assert tailwise("paper", run, "--feed", "AR.csv", "--out", "early") == 0
    assert "begins on bars that the policy was trained on" in tailwise.error
    assert tailwise("decide", run, "--bars", "X=AR.csv") == 0
    assert "trained on AR, not on X; what it says of X is a guess" in tailwise.error
    last = json.loads(Path("p/journal.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["desks"][0]["target"] == said["target"]
    assert tailwise("paper", run, "--feed", "AR.csv", "--out", "p") == 0  # nothing new came
    assert "continued after" in tailwise.out
    assert tailwise.json("decide", run, "--units", "0", "--equity", "5000")["decisions"][0]["equity"] == 5000
    assert tailwise("decide", run, "--units", "3") == 2 and "--units and --equity belong together" in tailwise.error
    assert tailwise("decide", run, "--bars", "nowhere.csv") == 2
    assert tailwise("paper", run) == 2 and "--feed is missing" in tailwise.error
    assert tailwise("paper", run, "--feed", "AR.csv", "--out", "p", "--acknowledge", "rain") == 2
    assert tailwise("export", run) == 2 and "--onnx" in tailwise.error


def test_a_killed_command_goes_on_where_it_was(tailwise: Terminal, run: str) -> None:
    """JSON lines on standard input of a real process, which is killed with the journal half way; the next one is given
    everything again. Its journal is that of a command that was left alone."""
    bars = ar1(seed=3, length=400)
    columns = zip(bars.time, bars.open, bars.high, bars.low, bars.close, bars.volume, strict=True)
    names = ("time", "open", "high", "low", "close", "volume")
    rows = [
        json.dumps({n: f"{v}Z" if n == "time" else float(v) for n, v in zip(names, row, strict=True)})
        for row in columns
    ]
    command = [sys.executable, "-m", "tailwise", "paper", run, "--feed", "-", "--json", "--out", "killed"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None
        process.stdin.write("\n".join(rows[:200]) + "\n")
        process.stdin.flush()
        journal = Path("killed/journal.jsonl")
        for _ in range(1200):
            if journal.exists() and journal.read_bytes().count(b'"tick"') >= 100:
                break
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(
        command, input="\n".join(rows) + "\n", capture_output=True, text=True, timeout=300, check=True
    )
    assert json.loads(done.stdout)["state"] == "running"
    Path("rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert tailwise("paper", run, "--feed", "rows.jsonl", "--out", "alone", "--quiet") == 0
    ticks = []
    for folder in ("killed", "alone"):
        lines = [json.loads(line) for line in Path(folder, "journal.jsonl").read_text(encoding="utf-8").splitlines()]
        ticks.append([{k: v for k, v in line.items() if k != "wall"} for line in lines if line["kind"] == "tick"])
    assert len(ticks[1]) > 300 and ticks[0] == ticks[1]

"""Train, evaluate and resume on a market, as a person does."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.terminal import SMALL, Terminal

MARKET = [*SMALL, "-s", "data.parameters={length: 900, noise: 0.002}", "-s", "model.encoder.hidden=[16]"]


def test_train_evaluate_and_resume_on_a_market(tailwise: Terminal) -> None:
    assert tailwise("train", "sine", *MARKET, "--out", "r") == 0
    assert "data           SYNTHETIC-SINE (synthetic: sine(" in tailwise.out
    assert "environment    market SYNTHETIC-SINE x 4, 10 observed numbers, discrete actions" in tailwise.out
    result = tailwise.json("evaluate", "r")
    numbers = result["symbols"][0]["statistics"]
    assert set(numbers) == {
        "policy",
        "buy and hold",
        "flat",
        "volatility target 10%",
        "momentum",
        "random, same turnover",
    }
    assert result["symbols"][0]["label"].startswith("synthetic: sine(")
    assert numbers["policy"]["bars"] == 225 and numbers["flat"]["sharpe"] is None
    kept = Path(result["folder"])
    assert "synthetic: sine(" in (kept / "report.html").read_text()
    assert (kept / "equity.parquet").stat().st_size > 0
    again = tailwise.json("evaluate", "r")
    assert again["symbols"] == result["symbols"] and again["folder"] != result["folder"]
    assert json.loads((kept / "summary.json").read_text())["symbols"] == result["symbols"]
    assert tailwise("resume", "r") == 0
    assert "is finished" in tailwise.out


def test_episodes_do_not_apply_to_a_market(tailwise: Terminal) -> None:
    assert tailwise("train", "sine", *MARKET, "--out", "r", "--quiet") == 0
    assert tailwise("evaluate", "r", "--episodes", "3") == 2
    assert "its test window is played whole" in tailwise.error


def test_data_hash_and_label_are_in_the_manifest(tailwise: Terminal) -> None:
    assert tailwise("train", "sine", *MARKET, "--out", "r", "--quiet") == 0
    manifest = json.loads(Path("r/manifest.json").read_text())
    assert len(manifest["data"]["train"]["SYNTHETIC-SINE"]) == 64
    assert manifest["label"].startswith("synthetic: sine(")


def test_the_market_environment_is_not_named_by_its_id(tailwise: Terminal) -> None:
    assert tailwise("train", "cartpole", "-s", "env.id=tailwise/Market-v0") == 2
    assert "env.kind" in tailwise.error and "market" in tailwise.error

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


LIMIT = ["-s", "risk={mode: constraint, limit: -0.05, warmup: {updates: 1, longest: 1}}"]


def test_a_limit_is_explained_watched_and_judged(tailwise: Terminal) -> None:
    """Rejects a limit that is set and never heard of again: start, progress, end of training, evaluation, files."""
    assert tailwise("train", "sine", *MARKET, *LIMIT, "-s", "learner.gamma=0.99", "--out", "r") == 0
    for part in (
        "limit          CVaR 5% (mean of the worst 5%) of the discounted log-return",
        "at or above -0.05 (a log-return of -5%, -4.88% of equity)",
        "limit          translated, not enforced: ",
        "limit          it acts from the second update on",
        " (limit -5%), multiplier ",
        "on the training data: CVaR 5% over 300 bars was ",
    ):
        assert part in tailwise.out, part
    assert tailwise("evaluate", "r") == 0
    assert "not judged out of sample: the window is shorter than the 300 bars" in tailwise.out  # it has 225
    told = tailwise.json("train", "sine", *MARKET, *LIMIT, "-s", "learner.gamma=0.9", "--out", "s")
    assert told["limit"].startswith("limit ")
    result = tailwise.json("evaluate", "s")["symbols"][0]
    assert set(result["limits"]) == set(result["statistics"]) > {"policy", "policy, most likely", "buy and hold"}
    for name, verdict in result["limits"].items():
        assert verdict["realised"] == result["statistics"][name]["cvar_return"]
        assert verdict["kept"] == (verdict["realised"] >= -0.05)
    word = "kept" if result["limits"]["policy"]["kept"] else "missed"
    assert result["verdict"][0].startswith(f"limit {word} out of sample")
    assert tailwise("evaluate", "s") == 0
    assert all(sentence in tailwise.out for sentence in result["verdict"])


def test_a_limit_out_of_reach_is_said_at_the_end(tailwise: Terminal) -> None:
    """Rejects a run that only says by how much it missed a limit that no policy could keep."""
    beyond = ["-s", "risk={mode: constraint, limit: 5.0, max_multiplier: 0.5, warmup: {updates: 1, longest: 1}}"]
    assert tailwise("train", "sine", *MARKET, *beyond, "-s", "run.total_steps=1792", "--out", "r") == 0
    last = tailwise.out.split("all 1,792 steps are done")[1]
    assert "limit out of reach: the multiplier sits at its cap 0.5 for " in last and "best achieved: " in last
    assert "this limit demands a gain" in tailwise.out


def test_a_run_without_a_limit_speaks_of_none(tailwise: Terminal) -> None:
    assert tailwise("train", "sine", *MARKET, "--out", "r") == 0
    assert "limit" not in tailwise.out
    result = tailwise.json("evaluate", "r")["symbols"][0]
    assert result["limits"] == {} and result["verdict"] == [] and "policy, sampled" not in result["statistics"]

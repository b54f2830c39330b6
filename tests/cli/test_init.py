"""`tailwise init BARS` as a person uses it: a configuration that fits the bars, is valid, and trains from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from tailwise.core.numerics import tail_horizon
from tailwise.features.config import DEFAULT_COLUMNS
from tests.cli.terminal import Terminal

SMALL = [
    *("-s", "run.environments=4", "-s", "run.rollout_steps=16", "-s", "run.total_steps=128"),
    *("-s", "run.tensorboard=false", "-s", "learner.epochs=1", "-s", "evaluate.every=2", "-s", "run.seeds=1"),
]


def write_bars(path: str, rows: int = 700, *, every: str = "B", traded: float = 1.0, seed: int = 0) -> None:
    """A random walk from 2020 on; every: "B" for weekdays, "h" for all hours; traded: share of bars with volume."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, rows)))
    opened = np.concatenate([[100.0], close[:-1]])
    bars = {
        "time": pd.date_range("2020-01-01", periods=rows, freq=every),
        "open": opened,
        "high": np.maximum(opened, close) * 1.002,
        "low": np.minimum(opened, close) * 0.998,
        "close": close,
        "volume": np.where(np.arange(rows) < traded * rows, rng.uniform(1e5, 2e5, rows), 0.0),
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(bars).to_csv(path, index=False)


def read(path: str) -> dict[str, Any]:
    """The YAML as it is written; what `config show` makes of it is the product's business."""
    value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def test_what_is_written_is_valid_and_says_what_comes_next(tailwise: Terminal) -> None:
    write_bars("btc.csv")
    assert tailwise("init", "btc.csv") == 0
    assert "Bars of 1 day, exchange calendar" in tailwise.out
    assert tailwise.out.endswith("written to tailwise.yaml; train with: tailwise train tailwise.yaml\n")
    assert tailwise.error == ""
    assert tailwise("config", "check", "tailwise.yaml") == 0
    assert tailwise.out == "tailwise.yaml: ok\n"
    assert tailwise.error == "", "no warning either"
    text = Path("tailwise.yaml").read_text()
    for comment in (
        "# btc: Bars of 1 day, exchange calendar",
        "  #   train 2020-01-01 to 2021-06-22 (385 bars)\n",
        "  #   select 2021-08-11 to 2021-11-16 (70 bars)\n",
        "  #   test 2022-01-05 to 2022-09-06 (175 bars)\n",
        "costs: # Guesses for a liquid market that closes at night; put in your own.",
    ):
        assert comment in text


def test_trains_from_another_folder(tailwise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects paths that are written as they were typed: they hold in the folder of the command and nowhere else."""
    write_bars("data/btc.csv")
    Path("configs").mkdir()
    assert tailwise("init", "data/btc.csv", "--out", "configs/btc.yaml") == 0
    assert read("configs/btc.yaml")["data"]["paths"] == ["../data/btc.csv"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert tailwise("train", "../configs/btc.yaml", *SMALL, "--out", "run") == 0, tailwise.error
    assert "all 128 steps are done: 128 steps in 2 updates" in tailwise.out
    monkeypatch.chdir(tmp_path)
    assert tailwise("evaluate", "elsewhere/run", "--json") == 0, tailwise.error
    assert isinstance(json.loads(tailwise.out), dict)


def test_a_full_path_stays_a_full_path(tailwise: Terminal, tmp_path: Path) -> None:
    write_bars("btc.csv")
    Path("deep/er").mkdir(parents=True)
    full = str(tmp_path / "btc.csv")
    assert tailwise("init", full, "--out", "deep/er/x.yaml") == 0
    assert read("deep/er/x.yaml")["data"]["paths"] == [full]
    Path("deep").rename("moved")
    assert tailwise("data", "leak-check", "moved/er/x.yaml", "--cuts", "1") == 0, tailwise.error


def test_daily_bars_of_an_exchange_and_hours_of_a_market_that_never_closes(tailwise: Terminal) -> None:
    """Rejects one template for all bars: horizon, episodes and costs follow from the bars."""
    write_bars("stock.csv")
    write_bars("coin.csv", every="h")
    assert tailwise("init", "stock.csv", "--out", "stock.yaml") == 0
    assert tailwise("init", "coin.csv", "--out", "coin.yaml") == 0
    stock, coin = read("stock.yaml"), read("coin.yaml")
    assert (stock["env"]["episode_length"], coin["env"]["episode_length"]) == (252, 512)
    assert (stock["learner"]["gamma"], coin["learner"]["gamma"]) == (0.97, 0.97)
    assert coin["costs"]["taker_fee_bps"] > stock["costs"]["taker_fee_bps"]
    assert coin["costs"]["borrow_rate"] > stock["costs"]["borrow_rate"]
    # The same number as in the tables of evaluate: rejects 1 / (1 - gamma), which called 300 bars a horizon of 100.
    for name, gamma, words in (("stock", 0.97, "100 bars (100 trading days)"), ("coin", 0.97, "100 bars (4.17 days)")):
        assert f"the horizon of tails in all tables is {words}" in Path(f"{name}.yaml").read_text()
        assert words.startswith(f"{tail_horizon(gamma)} bars")
    assert stock["features"] == coin["features"] == {"include": list(DEFAULT_COLUMNS)}
    for name in ("stock.yaml", "coin.yaml"):
        assert tailwise("config", "check", name) == 0


@pytest.mark.parametrize("traded", [0.0, 0.3])
def test_without_volume_nothing_is_made_of_it(traded: float, tailwise: Terminal) -> None:
    """Rejects a constant column, and impact: a bar without volume counts as if the order were all of it."""
    write_bars("index.csv", traded=traded)
    assert tailwise("init", "index.csv") == 0
    found = read("tailwise.yaml")
    assert found["features"]["include"] == [name for name in DEFAULT_COLUMNS if "volume" not in name]
    assert found["costs"]["impact_bps"] == 0
    assert "volume is mostly missing" in Path("tailwise.yaml").read_text()
    assert tailwise("train", "tailwise.yaml", *SMALL, "--out", "run") == 0, tailwise.error


def test_ticks_and_constant_columns_are_recognised_and_said(tailwise: Terminal) -> None:
    """Rejects impact on volumes that are no units, gold as a stock, and a constant column kept without a word."""
    write_bars("XAUUSD.csv", every="h")
    frame = pd.read_csv("XAUUSD.csv")
    frame.assign(volume=7.0).to_csv("XAUUSD.csv", index=False)
    assert tailwise("init", "XAUUSD.csv") == 0
    told = "XAUUSD is gold against USD, which has no common tape: its volumes are ticks or lots, not units."
    assert f"costs.impact_bps is 0: {told}\n" in tailwise.out
    assert "left out, constant in the train bars: volume_ratio_20\n" in tailwise.out
    found, text = read("tailwise.yaml"), Path("tailwise.yaml").read_text()
    assert found["costs"]["impact_bps"] == 0 and f"impact_bps: 0 # off: {told}\n" in text
    assert "costs: # Guesses for gold against USD at a broker; put in your own." in text and "stock" not in text
    assert found["features"]["include"] == [name for name in DEFAULT_COLUMNS if name != "volume_ratio_20"]
    assert "lists all; left out, constant in the train bars: volume_ratio_20\n" in text
    small = frame.assign(volume=frame["volume"] / 1e5)
    small.to_csv("cfd.csv", index=False)
    assert tailwise("init", "cfd.csv", "--out", "cfd.yaml") == 0
    assert "costs.impact_bps is 0: cfd trades 1" in tailwise.out and "against an account of 100,000" in tailwise.out
    assert read("cfd.yaml")["costs"]["impact_bps"] == 0


def test_training_warns_of_impact_and_of_constant_columns(tailwise: Terminal) -> None:
    """Rejects a training that says nothing, and one that says it twice."""
    write_bars("cfd.csv", every="h")
    pd.read_csv("cfd.csv").assign(volume=7.0).to_csv("cfd.csv", index=False)
    Path("own.yaml").write_text("data: {kind: files, paths: [cfd.csv]}\nenv: {kind: market, episode_length: 64}\n")
    assert tailwise("train", "own.yaml", *SMALL, "--out", "run") == 0, tailwise.error
    lines = tailwise.error.splitlines()
    assert [line[:46] for line in lines if "impact" in line] == ["warning: cfd: impact is the largest cost: an o"]
    constant = "warning: feature 'volume_ratio_20' is constant in the train rows: a policy can learn nothing from it; "
    assert lines.count(constant + "leave it out.") == 1
    assert "UserWarning" not in tailwise.error and "ConfigWarning" not in tailwise.error


def test_several_symbols(tailwise: Terminal) -> None:
    write_bars("a.csv", seed=1)
    write_bars("b.csv", rows=600, traded=0.1, seed=2)
    assert tailwise("init", "a.csv", "b.csv") == 0
    found = read("tailwise.yaml")
    assert found["data"]["paths"] == ["a.csv", "b.csv"]
    assert "volume_ratio_20" not in found["features"]["include"], "one symbol without volume is enough"
    text = Path("tailwise.yaml").read_text()
    assert "# a: Bars of 1 day" in text and "# b: Bars of 1 day" in text
    assert tailwise("config", "check", "tailwise.yaml") == 0
    write_bars("coin.csv", every="h")
    assert "252 and 8760 bars per year" in tailwise.refuses("init", "a.csv", "coin.csv", "--out", "c.yaml")
    assert "the symbol a occurs more than once" in tailwise.refuses("init", "a.csv", "a.csv", "--out", "c.yaml")
    assert not Path("c.yaml").exists(), "what cannot be used is not written"


def test_several_symbols_share_one_pooled_policy(tailwise: Terminal) -> None:
    """A symbol that ended before the windows that judge only trains, by itself; one symbol has no pool."""
    for name, seed in (("a", 1), ("b", 2), ("old", 3)):
        write_bars(f"{name}.csv", seed=seed, rows=500 if name == "old" else 1000)
    assert tailwise("init", "a.csv", "--out", "one.yaml") == 0
    assert "pool" not in read("one.yaml")["data"] and "scales" not in read("one.yaml")["features"]
    assert tailwise("init", "a.csv", "b.csv", "--out", "two.yaml") == 0
    assert (
        read("two.yaml")["data"]["pool"] == {"tails": "symbol"} and read("two.yaml")["features"]["scales"] == "symbol"
    )
    assert tailwise("init", "old.csv", "a.csv", "b.csv", "--out", "three.yaml") == 0
    assert read("three.yaml")["data"]["pool"] == {"tails": "symbol", "train_only": ["old"]}
    assert "only trains: old" in tailwise.error + tailwise.out
    spans = [
        [line for line in Path(f"{name}.yaml").read_text().splitlines() if line.startswith("  #   ")]
        for name in ("two", "three")
    ]
    assert spans[0] == spans[1] and len(spans[0]) == 3
    assert tailwise("train", "three.yaml", *SMALL, "--out", "run") == 0, tailwise.error
    assert tailwise("evaluate", "run") == 0, tailwise.error
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["train_only"] == ["old"] and set(manifest["data"]["test"]) == {"a", "b"}
    units = read("run/config.yaml")["data"]["pool"]["units"]
    assert set(units) == {"a", "b", "old"}, "the numbers stand in the run's configuration"


def test_a_symbol_that_begins_too_late_to_be_trained_is_left_out_and_named(tailwise: Terminal) -> None:
    """274 train bars are too few and 275 enough, whether or not a tail can be measured on them; `young` has none.

    The windows of the others are as without it. Rejects a limit that is measured on a handful of bars, and an error
    about the tail of a rule.
    """
    for name, seed in (("a", 1), ("b", 2), ("whole", 3)):
        write_bars(f"{name}.csv", seed=seed, rows=2000)
    assert tailwise("init", "a.csv", "b.csv", "--out", "two.yaml") == 0
    end = next(line for line in Path("two.yaml").read_text().splitlines() if line.startswith("  #   train")).split()[4]
    lines = Path("whole.csv").read_text().splitlines()
    trained = next(row for row, line in enumerate(lines) if line.startswith(end))  # the last train bar
    for name, rows in (("late", 274), ("enough", 275), ("young", -300)):
        Path(f"{name}.csv").write_text("\n".join(lines[:1] + lines[trained + 1 - rows :]) + "\n")
    assert tailwise("init", "late.csv", "a.csv", "young.csv", "b.csv", "--out", "four.yaml") == 0, tailwise.error
    told = [line for line in tailwise.out.splitlines() if line.startswith("left out: ")]
    assert [line.partition(",")[0] for line in told] == [
        "left out: young has 0 bars in the train window",
        "left out: late has 274 bars in the train window",
    ]
    assert read("four.yaml")["data"] == read("two.yaml")["data"] and read("four.yaml")["data"]["paths"] == [
        "a.csv",
        "b.csv",
    ]
    assert all(f"# left out: {name} has" in Path("four.yaml").read_text() for name in ("late", "young"))
    assert tailwise("init", "enough.csv", "a.csv", "--out", "enough.yaml") == 0
    assert read("enough.yaml")["data"]["paths"] == ["enough.csv", "a.csv"]
    assert tailwise("train", "enough.yaml", *SMALL, "--out", "run") == 0, tailwise.error


def test_closes_alone_are_read_as_asked_and_every_artefact_says_so(tailwise: Terminal) -> None:
    write_bars("gold.csv", rows=900)
    pd.read_csv("gold.csv")[["time", "close"]].to_csv("gold.csv", index=False)
    assert "--close-only" in tailwise.refuses("init", "gold.csv")
    assert tailwise("init", "gold.csv", "--close-only", "previous_close") == 0, tailwise.error
    label = "real, closes only (open = the close before)"
    assert label in tailwise.error + tailwise.out
    assert read("tailwise.yaml")["data"]["close_only"] == "previous_close"
    assert tailwise("train", "tailwise.yaml", *SMALL, "--out", "run") == 0, tailwise.error
    assert "orders are filled at the price they were decided at" in tailwise.error
    assert json.loads(Path("run/manifest.json").read_text())["label"] == label
    assert tailwise("evaluate", "run") == 0, tailwise.error
    assert label in tailwise.out
    assert tailwise("report", "run") == 0, tailwise.error
    page = next(Path("run").rglob("*.html")).read_text()
    assert f"Not whole bars: {label}." in page


@pytest.mark.parametrize("name", ["my bars/BTC: USD.csv", "it's/# 1, [x] {y}.csv", 'é &*/- "q".csv', "12.csv"])
def test_any_name_of_a_file_survives_the_yaml(name: str, tailwise: Terminal) -> None:
    """Rejects paths pasted into YAML without quotes."""
    write_bars(name)
    Path("out: here #1").mkdir()
    out = "out: here #1/my config: 1.yaml"
    assert tailwise("init", name, "--out", out) == 0, tailwise.error
    assert tailwise.out.endswith(f"train with: tailwise train '{out}'\n"), "can be pasted into a shell"
    assert read(out)["data"]["paths"] == [f"../{name}"]
    assert tailwise("config", "check", out) == 0
    assert tailwise("data", "leak-check", out, "--cuts", "1") == 0, tailwise.error


def test_how_the_bars_were_read_is_written_down(tailwise: Terminal) -> None:
    """Rejects a configuration that reads the bars in another way than the command did."""
    write_bars("btc.csv")
    lines = Path("btc.csv").read_text().splitlines()
    lines[300] = lines[300].split(",")[0] + ",100,90,99,100,10"  # high below low
    Path("btc.csv").write_text("\n".join(lines) + "\n")
    assert "row 300 (line 301): high 90.0 < low 99.0" in tailwise.refuses("init", "btc.csv")
    assert tailwise("init", "btc.csv", "--repair", "drop", "--adjust-all", "--periods-per-year", "250") == 0
    found = read("tailwise.yaml")["data"]
    assert (found["repair"], found["adjust"], found["periods_per_year"]) == ("drop", "all", 250)
    assert "symbols" not in found and "time_unit" not in found, "defaults need no line"
    assert tailwise("train", "tailwise.yaml", *SMALL, "--out", "run") == 0, tailwise.error


def test_too_few_bars_is_a_sentence(tailwise: Terminal) -> None:
    write_bars("btc.csv", rows=499)
    assert tailwise.refuses("init", "btc.csv") == (
        "error: btc.csv has 499 bars; at least 500 are needed to train, select and test."
    )
    assert not Path("tailwise.yaml").exists()
    write_bars("btc.csv", rows=500, every="h")
    assert tailwise("init", "btc.csv") == 0
    assert tailwise("train", "tailwise.yaml", *SMALL, "--out", "run") == 0, "the fewest bars are enough to train on"


def test_an_existing_file_is_refused_without_force(tailwise: Terminal) -> None:
    write_bars("btc.csv")
    Path("tailwise.yaml").write_text("mine: 1\n")
    assert tailwise.refuses("init", "btc.csv") == (
        "error: tailwise.yaml exists; choose another name with --out, or replace it with --force."
    )
    assert Path("tailwise.yaml").read_text() == "mine: 1\n"
    assert tailwise("init", "btc.csv", "--force") == 0
    assert read("tailwise.yaml")["data"]["paths"] == ["btc.csv"]


def test_the_bars_are_never_overwritten(tailwise: Terminal) -> None:
    """Rejects a --force that replaces the data by their configuration."""
    write_bars("btc.csv")
    before = Path("btc.csv").read_bytes()
    assert "btc.csv is one of the files with bars" in tailwise.refuses(
        "init", "btc.csv", "--out", "./btc.csv", "--force"
    )
    assert Path("btc.csv").read_bytes() == before


def test_a_target_that_cannot_be_written_is_a_sentence(tailwise: Terminal) -> None:
    write_bars("btc.csv")
    assert tailwise.refuses("init", "btc.csv", "--out", "no/such.yaml") == (
        "error: no/such.yaml: there is no folder no; make it first."
    )
    Path("folder").mkdir()
    assert "folder is a folder" in tailwise.refuses("init", "btc.csv", "--out", "folder", "--force")
    assert "nope.csv: the file cannot be read" in tailwise.refuses("init", "nope.csv")
    assert "repair is 'mend'; it must be one of" in tailwise.refuses("init", "btc.csv", "--repair", "mend")
    assert sorted(path.name for path in Path().iterdir()) == ["btc.csv", "folder"]

"""`tailwise data check|synth|sets` as a person uses them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tailwise.bars import synthetic
from tailwise.bars.bars import Bars, load_bars
from tailwise.bars.frequency import find_gaps
from tests.cli.terminal import Terminal

ROOT = Path(__file__).parents[2]


def write_bars(path: str, rows: int = 20, *, changes: dict[int, str] | None = None, skip: tuple[int, ...] = ()) -> None:
    """Hourly bars of 2024-01-01 on; `changes` are whole lines by row number, from 1."""
    lines = ["time,open,high,low,close,volume"]
    for i in range(1, rows + 1):
        stamp = np.datetime64("2024-01-01T00:00") + np.timedelta64(i - 1, "h")
        if i not in skip:
            lines.append((changes or {}).get(i, f"{stamp},100,102,99,{100 + i % 2},{0 if i == 5 else 10}"))
    Path(path).write_text("\n".join(lines) + "\n")


JUMP = {50: "2024-01-03T01:00,100,110,99,109,10", 51: "2024-01-03T02:00,109,110,99,105,10"}
BAD = {7: "2024-01-01T06:00,100,90,99,100,10"}


def test_check_says_what_was_understood(data: Terminal) -> None:
    write_bars("btc.csv", rows=200, skip=(11, 12, 13), changes=JUMP)
    assert data("check", "btc.csv") == 0
    for part in (
        "symbol       btc\n",
        "label        real\n",
        "197 from 2024-01-01 to 2024-01-09T07:00:00 (open times, UTC)",
        "Bars of 1 hour, 24/7 calendar",
        "8760 bars, calendar 24/7",
        "gaps         1; largest: 4 h after 2024-01-01T09:00:00, 3 missing",
        "zero volume  1 of 197 bars",
        "moves        largest: +7.92% on 2024-01-03T01:00:00, ",
        "understood   times have no zone and are taken as UTC",
        f"data hash    {load_bars('btc.csv').data_hash()}",
    ):
        assert part in data.out
    assert data.error == ""


def test_check_json(data: Terminal) -> None:
    write_bars("btc.csv", rows=200, skip=(11, 12, 13), changes=JUMP)
    told = data.json("check", "btc.csv", "--symbol", "BTC")
    assert told["usable"] is True
    (file,) = told["files"]
    assert file["symbol"] == "BTC"
    assert (file["bars"], file["gaps"], file["zero_volume"]) == (197, 1, 1)
    assert file["largest_gaps"] == [
        {"after": "2024-01-01T09:00:00", "before": "2024-01-01T13:00:00", "hours": 4.0, "missing": 3}
    ]
    assert file["largest_moves"][0] == {"time": "2024-01-03T01:00:00", "change": pytest.approx(109 / 101 - 1)}
    assert file["data_hash"] == load_bars("btc.csv", symbol="BTC").data_hash()
    stated = data.json("check", "btc.csv", "--periods-per-year", "1000")
    assert stated["files"][0]["periods_per_year"] == 1000


@pytest.mark.parametrize("repair", ["drop", "clip"])
def test_a_repair_is_told_and_saved(repair: str, data: Terminal) -> None:
    write_bars("btc.csv", changes=BAD)
    assert data("check", "btc.csv") == 2
    assert data.error == "error: btc.csv row 7 (line 8): high 90.0 < low 99.0; fix the row or pass --repair drop.\n"
    assert data.out == ""
    original = Path("btc.csv").read_bytes()
    told = data.json("check", "btc.csv", "--repair", repair, "--out", "clean.parquet")["files"][0]
    assert len(told["repairs"]) == 1
    assert told["repairs"][0].startswith(f"repair {repair}: ")
    clean = load_bars("clean.parquet")
    assert len(clean) == (19 if repair == "drop" else 20)
    assert told["saved"] == {"file": "clean.parquet", "symbol": "clean", "data_hash": clean.data_hash()}
    assert Path("btc.csv").read_bytes() == original, "the file that is checked is never touched"
    assert data("check", "clean.parquet") == 0


def test_adjust_all_scales_what_was_refused(data: Terminal) -> None:
    """Rejects an option that is read and not passed on, and one that wins over another in silence."""
    bars = synthetic.random_walk(seed=2, length=400).to_frame()
    bars.loc[bars.index[:200], ["open", "high", "low"]] *= 2  # a split that only the closes know of
    bars.to_csv("ibm.csv")
    assert data("check", "ibm.csv", "--repair", "drop") == 2
    assert "error: ibm.csv: the closes are adjusted for dividends or splits" in data.error
    told = data.json("check", "ibm.csv", "--adjust-all")["files"][0]
    assert any("from 0.5 " in note and "in 1 steps" in note for note in told["notes"])
    assert told == data.json("check", "ibm.csv", "--adjust", "all")["files"][0]
    assert data("check", "ibm.csv", "--adjust", "ignore", "--adjust-all") == 2
    assert data.error == "error: --adjust ignore and --adjust-all are both given; leave one of them out.\n"


def test_a_file_is_never_replaced_unasked(data: Terminal) -> None:
    write_bars("btc.csv")
    write_bars("other.csv", rows=5)
    content = Path("other.csv").read_bytes()
    for arguments in (
        ("check", "btc.csv", "--out", "other.csv"),
        ("synth", "sine", "--out", "other.csv"),
        ("sets", "sp500", "--out", "other.csv"),
    ):
        assert data(*arguments) == 2
        assert data.error == "error: other.csv: the file exists; remove it, choose another name or pass --force.\n"
        assert Path("other.csv").read_bytes() == content
    assert data("check", "btc.csv", "--out", "./btc.csv", "--force") == 2
    assert "is the file that is read" in data.error
    assert data("check", "btc.csv", "--out", "other.csv", "--force") == 0
    assert len(load_bars("other.csv")) == 20


def test_several_files_are_one_table_and_a_bad_one_hides_no_good_one(data: Terminal) -> None:
    write_bars("a.csv")
    write_bars("b.csv", rows=30)
    assert data("check", "a.csv", "b.csv") == 0
    assert data.out.count("━┓") == 1
    assert "a.csv: a, real" in data.out
    write_bars("bad.csv", changes=BAD)
    told = data.json("check", "a.csv", "bad.csv", "none.csv", "b.csv", code=2)
    assert told["usable"] is False
    assert [file["file"] for file in told["files"]] == ["a.csv", "b.csv"]
    assert [problem["file"] for problem in told["errors"]] == ["bad.csv", "none.csv"]
    assert data.error.startswith("error: bad.csv row 7 (line 8): high 90.0 < low 99.0")
    assert "error: none.csv: the file cannot be read: No such file or directory." in data.error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("check", "a.csv", "--repair", "mend"), "repair is 'mend'; it must be one of none, drop, clip."),
        (("check", "a.csv", "--adjust", "yes"), "adjust is 'yes'; it must be one of refuse, consistent, ignore, all."),
        (("check", "a.csv", "--time-unit", "h"), "time unit is 'h'; it must be one of s, ms, us, ns."),
        (("check", "a.csv", "--periods-per-year", "-3"), "periods per year is -3.0; it must be positive."),
        (("check", "a.csv", "a.csv", "--out", "c.csv"), "--out c.csv: is for one file and 2 are given"),
        (("check", "a.csv", "--out", "c.txt"), "c.txt: the ending '.txt' is neither .csv nor .parquet"),
        (("check", "a.csv", "--out", "no/c.csv"), "no/c.csv: there is no folder no; make it first."),
        (
            ("synth", "sinus", "--out", "s.csv"),
            "there is no synthetic market 'sinus'; there are sine, ar1, ",
        ),
        (("synth", "ar1", "--out", "s.csv", "-s", "ph=1"), "market ar1: no parameter 'ph'; there are phi, sigma, bar."),
        (("synth", "ar1", "--out", "s.csv", "-s", "phi=2"), "phi is 2.0; it must lie from -0.999 to 0.999."),
        (("synth", "ar1", "--out", "s.csv", "-s", "phi=high"), "phi is 'high'; it must be a number, like 0.3."),
        (("synth", "ar1", "--out", "s.csv", "-s", "phi=.nan"), "phi is nan; it must be a number, like 0.3."),
        (("synth", "ar1", "--out", "s.csv", "-s", "phi"), "override 'phi' is not key=value"),
        (("synth", "ar1", "--out", "s.csv", "-s", "bar=1"), "bar is 1; it must be a text like 1h."),
        (("synth", "ar1", "--out", "s.csv", "-s", "seed=1"), "synthetic market ar1: set seed with --seed."),
        (("synth", "ar1", "--out", "s.csv", "-s", "length=9"), "synthetic market ar1: set length with --bars."),
        (("synth", "regime_switching", "--out", "s.csv", "-s", "sigma=1"), "it must be 2 numbers, like [0.005, 0.02]."),
        (("sets", "sp50"), "there is no data set 'sp50'; there are sp500, nasdaq, "),
        (("sets", "ar1"), "ar1 is a synthetic market; make it with: tailwise data synth ar1 --out FILE."),
        (("sets", "--out", "s.csv"), "which set? Write: tailwise data sets NAME --out s.csv."),
    ],
)
def test_bad_input_is_a_sentence(arguments: tuple[str, ...], sentence: str, data: Terminal) -> None:
    write_bars("a.csv")
    if "--time-unit" in arguments:  # asked for only where times are counts
        Path("a.csv").write_text("time,open,high,low,close,volume\n1,1,1,1,1,1\n2,1,1,1,1,1\n")
    assert data(*arguments) == 2
    assert data.error.startswith("error: ")
    assert sentence in data.error
    assert "Traceback" not in data.out + data.error
    assert {path.name for path in Path().iterdir()} == {"a.csv"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("kind", synthetic.kinds())
def test_a_synthetic_market_says_what_it_is(kind: str, ending: str, data: Terminal) -> None:
    """Rejects a file that could pass for real data: its label comes back with the bars."""
    told = data.json("synth", kind, "--out", f"m.{ending}", "--bars", "20000", "--seed", "5")
    bars = load_bars(f"m.{ending}")
    assert bars.label == told["label"]
    assert bars.label.startswith(f"synthetic: {kind}(")
    assert "seed=5" in bars.label
    assert (len(bars), bars.data_hash()) == (20000, told["data_hash"])
    expected = synthetic.make(kind, seed=5, length=20000)[0]
    assert np.array_equal(bars.close, expected.close)
    assert told["truth"]
    assert told["numbers"]
    error = 4 / math.sqrt(len(bars))  # four standard errors of a mean of unit deviation
    deviation = float(np.log(bars.close / bars.open).std())
    for each in told["numbers"]:
        if each["sample"] is not None:
            chance = error * (deviation if each["name"].startswith("mean") else 1.0 if "auto" in each["name"] else 0.0)
            assert each["sample"] == pytest.approx(each["law"], rel=0.25, abs=chance), each
    shown = data.json("check", f"m.{ending}")["files"][0]
    assert shown["label"] == bars.label


def test_the_truth_is_that_of_the_parameters(data: Terminal) -> None:
    """Rejects a table that tells the defaults: the law's numbers follow what was set."""
    arguments = ("synth", "ar1", "--out", "m.csv", "--bars", "4000", "-s", "phi=-0.6", "-s", "sigma=0.02")
    assert data(*arguments) == 0
    assert "synthetic: ar1(phi=-0.6, sigma=0.02; seed=0, bar=1h)" in data.out
    assert "Truth: standard deviation sigma, autocorrelation phi**k at lag k" in data.out
    told = data.json(*arguments, "--force")
    numbers = {each["name"]: each for each in told["numbers"]}
    assert numbers["autocorrelation at lag 1"]["law"] == -0.6
    assert numbers["autocorrelation at lag 1"]["sample"] == pytest.approx(-0.6, abs=0.05)
    earned = numbers["log-return per bar of sign(phi r[t])"]
    assert earned["law"] == pytest.approx(0.6 * 0.02 * math.sqrt(2 / math.pi))
    assert earned["sample"] == pytest.approx(earned["law"], rel=0.1)
    assert told["parameters"] == {"phi": -0.6, "sigma": 0.02, "bar": "1h"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_leak_holds_the_column_that_leaks(ending: str, data: Terminal) -> None:
    path = f"m.{ending}"
    assert data.json("synth", "leak", "--out", path, "--bars", "300")["columns"] == ["next_log_return"]
    bars = load_bars(path)
    frame = pd.read_csv(path, comment="#", float_precision="round_trip") if ending == "csv" else pd.read_parquet(path)
    future = frame["next_log_return"].to_numpy()
    assert np.array_equal(future, synthetic.make("leak", seed=0, length=300)[1]["next_log_return"])
    assert future[:-1] == pytest.approx(np.log(bars.close[1:] / bars.close[:-1]))
    assert bars.label.startswith("synthetic: leak(")


def test_sets_lists_and_saves(data: Terminal) -> None:
    assert data("sets") == 0
    for name in ("sp500", "nasdaq", "googl", "eurusd", "skfolio-sp500", *synthetic.kinds()):
        assert f"  {name} " in data.out
    listed = {each["name"]: each for each in data.json("sets")["sets"]}
    assert listed["sp500"]["installed"] is True
    assert listed["skfolio-sp500"]["bars"] is False
    told = data.json("sets", "sp500", "--out", "sp500.csv")
    assert (told["bars"], told["first"], told["last"]) == (5031, "1999-01-04", "2018-12-31")
    assert told["largest_gaps"][0]["after"] == "2001-09-10"
    saved = load_bars("sp500.csv")
    assert len(saved) == 5031
    assert saved.data_hash() == told["saved"]["data_hash"]


@pytest.mark.skipif(find_spec("gym_anytrading") is None, reason="the package gym-anytrading is not installed")
def test_sets_of_gym_anytrading(data: Terminal) -> None:
    googl = data.json("sets", "googl")
    assert (googl["symbol"], googl["bars"], googl["first"], googl["last"]) == (
        "GOOGL",
        2335,
        "2009-05-22",
        "2018-08-29",
    )
    assert googl["gaps"] == 0, "weekends and holidays are no gaps"
    euro = data.json("sets", "eurusd", "--out", "eurusd.parquet")
    assert (euro["bars"], euro["periods_per_year"], euro["calendar"]) == (6225, 6048, "exchange")
    assert len(load_bars("eurusd.parquet")) == 6225


def test_a_set_that_is_not_installed_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['skfolio'] = sys.modules['gym_anytrading'] = None;"
        "from tailwise.cli.main import main; print(main(['data', 'sets'])); print(main(['data', 'sets', 'googl']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "[not installed; install extra: pip install 'tailwise[bench]']" in done.stdout
    assert "[not installed; install extra: pip install 'tailwise[portfolio]']" in done.stdout
    assert done.stdout.splitlines()[-1] == "2"
    assert done.stderr == (
        "error: googl comes with the package gym_anytrading, which is not installed; "
        "install extra: pip install 'tailwise[bench]'.\n"
    )


def minutes_of_days(sessions: list[tuple[str, int, int]]) -> Bars:
    """Minute bars: (day, first minute, last minute) each."""
    times = [
        np.datetime64(day, "ns") + np.timedelta64(minute, "m")
        for day, first, last in sessions
        for minute in range(first, last + 1)
    ]
    price = np.full(len(times), 100.0)
    frame = pd.DataFrame(
        dict.fromkeys(["open", "high", "low", "close", "volume"], price), index=pd.DatetimeIndex(times)
    )
    return load_bars(frame)


def gaps_of(bars: Bars) -> np.ndarray:
    return find_gaps(bars.time.astype(np.int64), int(bars.frequency.bar.astype(np.int64)), bars.frequency.calendar)


def test_nights_weekends_and_lunch_are_no_gaps_but_holes_are() -> None:
    """Rejects counting every step longer than a bar: an exchange would have a gap each night."""
    days = [str(day) for day in np.arange("2024-01-08", "2024-01-20", dtype="datetime64[D]") if np.is_busday(day)]
    lunch = [part for day in days for part in ((day, 570, 690), (day, 780, 900))]
    assert len(gaps_of(minutes_of_days(lunch))) == 0
    holed = [(day, 570, 600) if (day, first) == (days[3], 570) else (day, first, last) for day, first, last in lunch]
    (at,) = gaps_of(minutes_of_days(holed))
    assert str(minutes_of_days(holed).time[at])[:16] == f"{days[3]}T10:00"


def test_help_names_the_commands(data: Terminal) -> None:
    assert data("--help") == 0
    for command in ("check", "synth", "sets", "fetch"):
        assert f" {command} " in data.out

"""The newest evaluation on the page: equity and drawdown, numbers of episodes, and files that are broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailwise.watch.evaluation import MOST_BARS, MOST_POINTS, EvaluationReader
from tailwise.watch.files import to_json
from tailwise.watch.runs import RunEntry
from tests.watch.watched_runs import write_run


def write_equity(folder: Path, equity: np.ndarray) -> None:
    """equity.parquet as an evaluation keeps it: one row per bar, from an equity of 100."""
    folder.mkdir(parents=True)
    time = pd.date_range("2020-01-01", periods=len(equity), freq="D", tz="UTC", name="time")
    before = np.concatenate([[100.0], equity[:-1]])
    table = {"symbol": "A", "policy": "policy", "equity_before": before, "equity": equity}
    pd.DataFrame(table, index=time).to_parquet(folder / "equity.parquet")


def reader_of(run: Path) -> EvaluationReader:
    return EvaluationReader(RunEntry("id", "a", run.resolve()))


def test_equity_and_drawdown_are_thinned_without_losing_the_deepest_point(tmp_path: Path) -> None:
    """Rejects plain every-k-th thinning: the one bar of the crash would most likely be lost."""
    run = write_run(tmp_path / "a")
    equity = np.full(10_000, 200.0)
    equity[7_777] = 50.0
    write_equity(run / "evaluations" / "best-1", equity)
    statistics = {"policy": {"total_return": 1.0, "sharpe": None, "max_drawdown": 0.75}}
    summary = {"symbols": [{"symbol": "A", "statistics": statistics}]}
    (run / "evaluations" / "best-1" / "summary.json").write_text(json.dumps(summary))
    reader = reader_of(run)
    told = reader.poll()
    assert told is not None and told["kind"] == "market"
    (path,) = told["paths"]
    assert len(path["time"]) == len(path["wealth"]) == len(path["drawdown"]) <= MOST_POINTS
    assert min(path["drawdown"]) == pytest.approx(-0.75)
    assert (path["wealth"][0], path["wealth"][-1]) == (1.0, 2.0)
    assert path["time"][-1] == str(np.datetime64("2020-01-01") + 9_999) + "T00:00:00"
    assert told["statistics"][0]["max_drawdown"] == 0.75
    assert every_kth_loses_it(equity)
    assert reader.poll() is None  # read once


def every_kth_loses_it(equity: np.ndarray) -> bool:
    """Whether the obvious thinning of the same equity would miss the crash."""
    return bool(equity[:: len(equity) // MOST_POINTS].min() > 50.0)


def test_the_newest_evaluation_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_equity(run / "evaluations" / "best-1", np.array([101.0, 102.0]))
    old = (run / "evaluations" / "best-1" / "equity.parquet").stat().st_mtime
    numbers = run / "evaluations" / "best-2.json"
    numbers.write_text(json.dumps({"episodes": 5, "mean_return": 12.5, "min_return": None}))
    os.utime(numbers, (old + 10, old + 10))
    attacked = run / "evaluations" / "attack-1.json"  # the newest file, and no evaluation
    attacked.write_text(json.dumps({"kind": "path"}))
    os.utime(attacked, (old + 20, old + 20))
    told = reader_of(run).poll()
    assert told is not None
    assert (told["kind"], told["name"], told["mean_return"], told["min_return"]) == ("episodes", "best-2", 12.5, None)


@pytest.mark.parametrize("kind", ["garbage", "empty", "link", "columns"])
def test_files_that_are_not_ours_leave_the_page_without_them(tmp_path: Path, kind: str) -> None:
    run = write_run(tmp_path / "a")
    folder = run / "evaluations" / "best-1"
    write_equity(tmp_path / "elsewhere", np.array([101.0, 102.0]))
    folder.mkdir(parents=True)
    path = folder / "equity.parquet"
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere" / "equity.parquet")
    elif kind == "columns":
        pd.DataFrame({"x": [1.0]}).to_parquet(path)
    else:
        path.write_bytes(b"PAR1 not a table PAR1" if kind == "garbage" else b"")
    assert reader_of(run).poll() is None


def hostile_tables() -> dict[str, pa.Table]:
    """Tables with the names of our columns whose content would end, fill or stall a reader that trusts them."""
    time = pa.array(pd.date_range("2020-01-01", periods=3, freq="D", tz="UTC"))
    name, money = pa.array(["A"] * 3), pa.array([100.0, 101.0, 102.0])
    honest = {"time": time, "symbol": name, "policy": name, "equity_before": money, "equity": money}
    far = pa.array([-(2**62)] * 3, pa.timestamp("ms", tz="UTC"))
    rows = MOST_BARS + 1
    many = {key: pa.repeat(values[0], rows) for key, values in honest.items()}
    return {
        "lists for names": pa.table({**honest, "symbol": pa.array([["A"]] * 3)}),
        "numbers for names": pa.table({**honest, "policy": pa.array([1, 2, 3])}),
        "times beyond nanoseconds": pa.table({**honest, "time": far}),
        "dates for times": pa.table({**honest, "time": pa.array([1, 2, 3])}),
        "texts for money": pa.table({**honest, "equity": name}),
        "twice the same column": pa.Table.from_arrays([*honest.values(), money], names=[*honest, "equity"]),
        "more bars than anybody has": pa.table(many),
        "nothing": pa.table({key: values[:0] for key, values in honest.items()}),
        "no names": pa.table({**honest, "symbol": pa.array([None] * 3, pa.string())}),
        "no start": pa.table({**honest, "equity_before": pa.array([None, 1.0, 1.0])}),
    }


@pytest.mark.parametrize("name", hostile_tables())
def test_a_table_that_only_looks_like_ours_is_left_out(tmp_path: Path, name: str) -> None:
    """Rejects reading first and asking for types, rows and times afterwards."""
    run = write_run(tmp_path / "a")
    (run / "evaluations" / "x").mkdir(parents=True)
    file = run / "evaluations" / "x" / "equity.parquet"
    pq.write_table(hostile_tables()[name], file)
    assert file.stat().st_size < 2**20
    told = reader_of(run).poll()
    assert told is None or told["paths"] == []


def test_wild_equity_and_long_names_are_drawn_within_limits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    folder = run / "evaluations" / "x"
    folder.mkdir(parents=True)
    wild = [1e308, float("nan"), float("inf"), -1.0, 0.0, 1e-308]
    table = {
        "time": pa.array(pd.date_range("2020-01-01", periods=6, freq="D", tz="UTC")),
        "symbol": pa.array(["x" * 2**20] * 6),
        "policy": pa.array(["policy"] * 6),
        "equity_before": pa.array([1e-300] * 6),
        "equity": pa.array(wild),
    }
    pq.write_table(pa.table(table), folder / "equity.parquet")
    told = reader_of(run).poll()
    assert told is not None
    assert len(to_json(told)) < 2000  # and it is JSON: no NaN
    assert told["paths"][0]["symbol"] == "x" * 200

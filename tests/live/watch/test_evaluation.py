"""The newest evaluation on the page: equity and drawdown, numbers of episodes, and files that are broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tailwise.live.watch.evaluation import MOST_POINTS, EvaluationReader
from tailwise.live.watch.run_table import RunEntry
from tests.live.watch.watched_runs import write_run


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

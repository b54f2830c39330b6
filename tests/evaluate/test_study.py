"""Studies and what is exported beside them, as a Python user calls them: no command line anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tailwise
from tailwise.core.errors import ConfigError, ConfigWarning, DataError
from tailwise.evaluate.judgement import judge_policy
from tailwise.evaluate.study import StudyStopped, named_seeds, open_study, run_study
from tailwise.evaluate.walk_forward import plan_walk_forward
from tailwise.evaluate.walk_forward_folds import Settings
from tailwise.evaluate.walk_forward_result import FoldRow, WalkForward, read_walk_forward
from tailwise.run.config import effective_config
from tailwise.run.jobs import Job, Line, OneByOne, Result, Say, Stop, local_executor, never, silent
from tests.support import merged

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "sine", "parameters": {"length": 700, "noise": 0.002}},
    "features": {"include": ["return_1", "return_5", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 64},
    "costs": {"impact_bps": 0},
    "model": {"encoder": {"hidden": [8]}},
    "learner": {"gamma": 0.9, "epochs": 1},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "checkpoint_every": 1, "tensorboard": False},
}

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds, trained."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        tailwise.PPO(config=merged(MARKET, {"seed": seed}), run_dir=folder / f"seed-{seed}").learn()
    return [folder / "seed-0", folder / "seed-1"]


def test_a_walk_forward_is_stopped_continued_and_read_again(tmp_path: Path) -> None:
    """Rejects a study that loses what it has when it is stopped, a result that is not what its file holds, and lines
    without the name of their run."""
    out, lines = tmp_path / "folds", list[Line]()
    answers = iter([False])  # the first run may begin; it is stopped after its first update
    with pytest.raises(StudyStopped, match="run it again with this folder") as stopped:
        tailwise.walk_forward(MARKET, folds=2, seeds=2, out=out, stop=lambda: next(answers, True))
    assert stopped.value.folder == out and not (out / "walk_forward.json").exists()
    assert [path.name for path in sorted(out.glob("fold_*"))] == ["fold_1_seed_0"]
    result = tailwise.walk_forward(MARKET, folds=2, seeds=[0, 1], out=out, say=lines.append)
    assert Line("fold 1, seed 0", "goes on after update 1") in lines
    assert isinstance(result, WalkForward) and result.folder == out and result.seeds == (0, 1)
    assert [(row.fold, row.seed) for row in result.rows] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, None), (2, None)]
    row = result.rows[0]
    assert row.folder is not None and row.checkpoint is not None
    known = judge_policy(tailwise.load(out / row.folder / "checkpoints" / row.checkpoint))[0]
    assert (
        row.statistics["policy"] == known.statistics["policy"]
        and row.cvar_return == row.statistics["policy"].cvar_return
    )
    (headline,) = result.headlines
    assert headline.seed is None and headline.bars == 350 == result.rows[0].windows.test.bars * 2
    wealth = np.prod([1 + row.statistics["policy"].total_return for row in result.rows if row.seed is None])
    assert 1 + headline.statistics["policy"].total_return == pytest.approx(wealth)
    assert json.loads((out / "walk_forward.json").read_text()) == json.loads(json.dumps(result.to_json()))
    assert read_walk_forward(out) == result
    assert all(field.description for name, field in FoldRow.model_fields.items() if name != "windows")


def test_any_executor_runs_a_study(tmp_path: Path) -> None:
    """The seam for other machines: whatever has `run` is given the jobs. Rejects a study with processes of its own."""

    class Counting:
        def __init__(self) -> None:
            self.labels: list[str] = []

        def run(self, jobs: Sequence[Job[Result]], *, stop: Stop = never, say: Say = silent) -> list[Result] | None:
            self.labels += [job.label for job in jobs]
            return OneByOne().run(jobs, stop=stop, say=say)

    study = plan_walk_forward(effective_config(MARKET), Settings(folds=2), seeds=1)
    assert study.facts[0].startswith("SYNTHETIC-SINE (synthetic: sine(") and not (tmp_path / "w").exists()
    executor = Counting()
    result = run_study(study, open_study(study, tmp_path / "w"), executor=executor)
    assert executor.labels == ["fold 1, seed 0", "fold 2, seed 0"]
    assert result.ensemble is None and result.headline.seed == 0 and len(result.rows) == 2


def test_a_frontier_returns_its_rows(tmp_path: Path) -> None:
    result = tailwise.frontier(MARKET, [-1], seeds=1, out=tmp_path / "f")
    assert [(one.cell.limit, one.cell.seed) for one in result.results] == [(None, 0), (-1.0, 0)]
    assert (tmp_path / "f/limit_-1.0_seed_0/config.yaml").exists() and result.folder == tmp_path / "f"
    kept = next(row for row in result.rows if row.limit == -1.0 and row.played == "sampled")
    # Nothing loses 63% of its discounted log-return over 30 bars of this wave.
    assert kept.kept is True and kept.seeds == 1 and kept.cvar_return.mean is not None and kept.cvar_return.mean > -1
    assert json.loads((tmp_path / "f/frontier.json").read_text()) == json.loads(json.dumps(result.to_json()))
    for limits, sentence in (([], "there are no limits"), ([-1, -1.0], "given twice"), ([np.nan], "is not finite")):
        with pytest.raises(ConfigError, match=sentence):
            tailwise.frontier(MARKET, limits, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_study_warns_its_caller(tmp_path: Path) -> None:
    """Rejects warnings that are lost because the runs give them, and warnings once per run."""
    with pytest.warns(ConfigWarning, match="it demands a gain") as warned, pytest.raises(StudyStopped):
        tailwise.frontier(MARKET, [0.01], seeds=2, out=tmp_path / "f", stop=lambda: True)
    assert sum("demands a gain" in str(one.message) for one in warned) == 1
    assert all(Path(one.filename) == Path(__file__) for one in warned if "demands a gain" in str(one.message))


def test_seeds_are_counted_or_named() -> None:
    assert [type(seed) for seed in named_seeds(list(np.arange(2)), first=0)] == [int, int]
    assert named_seeds(3, first=5) == (5, 6, 7) and named_seeds([4, 1], first=5) == (4, 1)
    for wrong in (0, 1001, [], [1, 1], [-1]):
        with pytest.raises(ConfigError, match="seeds"):
            named_seeds(wrong, first=0)


@pytest.mark.parametrize("seeds", [True, "3", [1.5], [np.float64(2)], [-1], [2, 2], []])
def test_seeds_that_are_none_are_refused_before_anything_is_trained(seeds: Any) -> None:
    with pytest.raises(ConfigError, match="seeds "):
        named_seeds(seeds, first=0)


def test_an_evaluation_replaces_nothing(runs: list[Path], tmp_path: Path) -> None:
    """Rejects an `out` that is taken as it is: the folder of the run itself would be replaced by its evaluation."""
    (tmp_path / "thesis.txt").write_text("five years")
    for taken in (tmp_path, runs[0], tmp_path / "thesis.txt"):
        with pytest.raises(DataError, match="exists; an evaluation is kept in a folder of its own"):
            tailwise.judge(runs[0], out=taken, stress=False)
    assert (tmp_path / "thesis.txt").read_text() == "five years" and (runs[0] / "checkpoints").is_dir()


def test_calls_that_name_too_little_are_sentences(runs: list[Path]) -> None:
    for call, sentence in (
        (lambda: tailwise.compare(str(runs[0])), "one run was given"),
        (lambda: tailwise.compare([]), "no runs were given"),
        (lambda: tailwise.judge([]), "no run is given"),
        (lambda: tailwise.frontier(MARKET, "-0.05"), "limits are '-0.05'"),  # type: ignore[arg-type]
        (lambda: tailwise.frontier(MARKET, [-0.05], episodes=0), "episodes is 0"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            call()
    with pytest.raises(ConfigError, match="jobs is 0"):
        local_executor(0)


def test_a_run_is_judged(runs: list[Path], tmp_path: Path) -> None:
    """Rejects another policy, other bars or other costs than the policy is played with."""
    judged = tailwise.judge(runs[0], stress=False)
    (account,) = judged.accounts
    policy = tailwise.load(runs[0])
    assert account.judged.statistics == judge_policy(policy)[0].statistics
    assert judged.run == runs[0] and judged.folder == runs[0] / "evaluations" / "update-000002-1"
    assert judged.played.trained is not None and judged.played.trained.updates == 2
    summary = json.loads((judged.folder / "summary.json").read_text())
    assert summary["symbols"][0]["statistics"]["policy"]["sharpe"] == account.judged.statistics["policy"].sharpe
    both = tailwise.judge(runs, ensemble="vote", stress=False, out=tmp_path / "both")
    assert both.played.members == ("vote", f"{runs[0]}/update-000002", f"{runs[1]}/update-000002")
    assert (tmp_path / "both/report.html").exists()
    with pytest.raises(ConfigError, match="2 runs are given"):
        tailwise.judge(runs)


def test_runs_are_compared(runs: list[Path], tmp_path: Path) -> None:
    compared = tailwise.compare(runs, page=tmp_path / "compare.html")
    (account,) = compared.accounts
    assert list(account.statistics) == ["seed-0", "seed-1", "buy and hold"]
    difference = account.pairs["seed-0", "seed-1"].mean_return.estimate
    per_year = {name: path.log_returns.mean() * path.periods_per_year for name, path in account.paths.items()}
    assert difference == pytest.approx(per_year["seed-0"] - per_year["seed-1"])
    assert compared.runs == tuple(runs) and compared.file == tmp_path / "compare.html" and compared.file.exists()
    assert tailwise.compare(runs).file is None
    with pytest.raises(ConfigError, match="needs at least two"):
        tailwise.compare(runs[:1])


def test_a_leak_is_found_and_its_absence_too(tmp_path: Path) -> None:
    clean = tailwise.leak_check(MARKET, cuts=2)
    assert clean.passed and clean.sentences()[-1] == "environment: no leak found"
    module = tmp_path / "ahead.py"
    module.write_text(
        "import numpy as np\n"
        "from tailwise.features import batch_feature\n\n\n"
        "@batch_feature('ahead', warm_up=0, unit='log-return', meaning='that of the next bar')\n"
        "def ahead(frame):\n"
        "    return np.log(frame['close']).diff().shift(-1).fillna(0.0)\n"
    )
    features = ["return_1", "ahead"]
    found = tailwise.leak_check(merged(MARKET, {"features": {"modules": [str(module)], "include": features}}), cuts=2)
    assert not found.passed and found.reports[0].findings[0].name == "feature 'ahead'"
    with pytest.raises(ConfigError, match=r"env\.kind is gym"):
        tailwise.leak_check("cartpole")


def test_bars_are_checked(tmp_path: Path) -> None:
    """Hours with a hole of two and one large fall; then a row that is no bar."""
    time = pd.date_range("2024-01-01", periods=300, freq="h", tz="UTC").delete([100, 101])
    close = np.where(np.arange(298) < 200, 100.0, 80.0)
    frame = pd.DataFrame(
        {"open": close, "high": close + 1, "low": close - 1, "close": close, "volume": 5.0}, index=time
    )
    frame.loc[time[7], "volume"] = 0.0
    facts = tailwise.check_bars(frame, symbol="X")
    assert (facts.symbol, facts.bars, facts.bar, facts.calendar, facts.zero_volume) == ("X", 298, "1 hour", "24/7", 1)
    (gap,) = facts.largest_gaps
    assert facts.gaps == 1 and (gap.hours, gap.missing) == (3.0, 2)
    (move,) = facts.largest_moves
    assert move.change == pytest.approx(-0.2) and move.time == "2024-01-09T10:00:00"
    assert facts.to_json()["largest_gaps"][0]["missing"] == 2
    frame.loc[time[5], "high"] = 90.0
    frame.to_csv(tmp_path / "x.csv", index_label="time")
    with pytest.raises(DataError, match="repair drop"):
        tailwise.check_bars(tmp_path / "x.csv")
    repaired = tailwise.check_bars(tmp_path / "x.csv", repair="drop")
    assert repaired.bars == 297 and len(repaired.repairs) == 1

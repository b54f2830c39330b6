"""`tailwise walk-forward` as a person uses it: tiny runs, real ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tailwise as tw
from tailwise.bars.bars import save_bars
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import DataError
from tailwise.evaluate.combinatorial import read_combinatorial
from tailwise.evaluate.judgement import judge_policy
from tailwise.evaluate.path_files import read_paths
from tailwise.evaluate.statistics import path_statistics
from tailwise.evaluate.walk_forward_folds import finished
from tailwise.evaluate.walk_forward_result import FORMAT, RESULT
from tailwise.market.dataset import load_data
from tailwise.run.config import parse_config
from tailwise.run.metric_store import differences_without_time
from tailwise.run.trials import count_trials, read_lines
from tests.cli.terminal import SMALL, Terminal

MARKET = [*SMALL, "-s", "data.parameters={length: 700, noise: 0.002}", "-s", "model.encoder.hidden=[8]"]
COMMAND = ["walk-forward", "sine", *MARKET, "-s", "evaluate.every=1", "--folds", "2"]


def files(folder: str) -> dict[Path, tuple[int, bytes]]:
    """Every file of all runs and evaluations, with the time of its last change."""
    found = Path(folder).glob("fold_*/**/*")
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found if path.is_file()}


def test_folds_and_seeds_are_trained_tested_stitched_and_continued(tailwise: Terminal) -> None:
    """The whole command; then a kill in the middle of the last run. Rejects a finished fold that is repeated, and a
    killed one that starts over or goes on from another state."""
    assert tailwise(*COMMAND, "--seeds", "2", "--out", "w") == 0
    assert "4 runs of 192 steps, seeds 0, 1, in w" in tailwise.out
    for text in (
        "fold 2, seed 1: update 3",
        "all folds, ensemble",
        "2 seeds averaged",
        "2 trials on these bars are counted",
        "buy and hold: Sharpe / return",
        "CVaR 5%, 30 bars",
    ):
        assert text in tailwise.out
    assert "momentum and random positions" in tailwise.out and "UserWarning" not in tailwise.error
    told = json.loads(Path("w/walk_forward.json").read_text())
    assert told["verdict"][0].startswith("Tested on 350 bars (synthetic: sine(")
    # A policy after three updates is not praised, and it is said why.
    assert "updates only, which leaves it close to its start" in told["verdict"][1].replace("1 update ", "1 updates ")
    assert [(row["fold"], row["seed"]) for row in told["rows"]] == [
        *((1, 0), (2, 0), (1, 1), (2, 1)),
        *((1, None), (2, None)),
    ]
    for row in told["rows"][:4]:
        policy = tw.load(Path("w", row["folder"], "checkpoints", row["checkpoint"]))
        assert row["checkpoint"] == "best" and policy.config.seed == row["seed"]
        known = judge_policy(policy)[0]
        assert row["statistics"]["policy"]["sharpe"] == known.statistics["policy"].sharpe
        assert row["cvar_return"] == known.statistics["policy"].cvar_return
        assert row["windows"]["test"]["bars"] == 175 == len(known.paths["policy"]) and row["updates"] in (1, 2, 3)
        assert row["windows"]["test"]["first_bar"] == f"{str(known.paths['policy'].time[0])[:19]}Z"
        assert row["windows"]["test"]["last_bar"] == f"{str(known.paths['policy'].time[-1])[:19]}Z"
    # The stitched path: its log-return is the sum of those of the folds.
    for one in told["stitched"]:
        parts = [row for row in told["rows"] if row["seed"] == one["seed"]]
        total = np.prod([1 + row["statistics"]["policy"]["total_return"] for row in parts])
        assert 1 + one["statistics"]["policy"]["total_return"] == pytest.approx(total)
        path = read_paths(Path("w", one["evaluation"]))[one["account"]]["policy"]
        again = path_statistics(path, alpha=told["alpha"], gamma=told["gamma"])
        assert one["statistics"]["policy"]["sharpe"] == pytest.approx(again.sharpe)
        rules = {"buy and hold", "flat", "volatility target 10%", "momentum", "random, same turnover"}
        assert set(one["against"]) == (rules if one["seed"] is None else set())
        assert one["evidence"]["deflated"]["trials"] == 2 == told["trials"]["counted"]
    assert told["headline"] == {"account": "SYNTHETIC-SINE", "seed": None}
    assert told["overfitting"]["trials"] == 2 and told["across_seeds"]["sharpe"]["tasks"] == 2
    assert len([line for line in read_lines(Path("trials.jsonl")) if line["kind"] == "training"]) == 4
    assert count_trials(Path("w/fold_1_seed_0")).counted == 2

    # Killed in the second update of the last run: no result, the newest checkpoint is that of the first update.
    shutil.copytree("w", "whole")
    last = Path("w/fold_2_seed_1")
    (last / "fold_result.json").unlink()
    shutil.rmtree(last / "evaluations")
    for name in ("update-000002", "update-000003"):
        shutil.rmtree(last / "checkpoints" / name)
    Path("w/walk_forward.json").unlink()
    before = {path: made for path, made in files("w").items() if last not in path.parents}
    assert tailwise(*COMMAND, "--seeds", "2", "--out", "w") == 0
    assert "3 of them finished before" in tailwise.out and "fold 2, seed 1: goes on after update" in tailwise.out
    assert {path: made for path, made in files("w").items() if last not in path.parents} == before
    assert differences_without_time(last / "metrics.jsonl", Path("whole/fold_2_seed_1/metrics.jsonl")) == []
    ours = json.loads(Path("w/walk_forward.json").read_text())
    assert ours["rows"] == told["rows"] and ours["stitched"] == told["stitched"]
    assert len([line for line in read_lines(Path("trials.jsonl")) if line["kind"] == "training"]) == 4

    # Another configuration, other folds, other bars: refused with a sentence, nothing is touched.
    kept = files("w")
    again = [*COMMAND, "--seeds", "2", "--out", "w"]
    assert "learner.clip 0.2, here 0.1" in tailwise.refuses(*again, "-s", "learner.clip=0.1")
    assert "folds 2, here 3" in tailwise.refuses(*again, "--folds", "3")
    assert "on other bars" in tailwise.refuses(*again, "-s", "data.parameters={length: 700, noise: 0.003}")
    assert files("w") == kept


def test_a_wrong_annualisation_is_said_first(tailwise: Terminal) -> None:
    """The planted mistake: hourly bars that the configuration calls daily. Every Sharpe ratio would be off."""
    save_bars(replace(random_walk(seed=1, length=1600), symbol="X"), "X.csv")
    changes = ["-s", "data={kind: files, paths: [X.csv], periods_per_year: 252}", "-s", "run.total_steps=64"]
    one = tailwise.json(*COMMAND, *changes, "--seeds", "1", "--out", "wrong")
    assert one["verdict"][0].startswith("X: annual numbers assume 252 bars per year, but its 800 bars")
    assert one["ensemble"] is None and one["overfitting_reason"] == "a single trial was not chosen among others"
    assert one["headline"]["seed"] == 0


@pytest.mark.slow
def test_processes_side_by_side_give_the_same(tailwise: Terminal) -> None:
    alone = tailwise.json(*COMMAND, "--seeds", "1", "--out", "one/w")
    both = tailwise.json(*COMMAND, "--seeds", "1", "--out", "two/w", "--jobs", "2")
    assert both["rows"] == alone["rows"] and both["stitched"] == alone["stitched"] and len(both["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cartpole"], "walk-forward cuts bars into folds, and env.kind is gym"),
        (["sine", "--kind", "sideways"], "the kind of walk-forward is 'sideways'; choose anchored or rolling"),
        (["sine", "--purge", "few"], "--purge is 'few'; write auto or a number of bars"),
        (["sine", "--purge", "3"], "its purge of 3 bars is shorter than the label horizon 1 or the look-back 20"),
        (["sine", "--seeds", "a"], "the seeds 'a' are not whole numbers"),
        (["sine", "--seeds", "1,1"], "name one of them twice"),
        (["sine", "--seeds", "0"], "name none, too many or a negative one"),
        (["sine", "--select", "0.1"], "evaluate.every is null, so nothing would be selected"),
        (["sine", "--folds", "190", "-s", "data.parameters={length: 300}"], "are too few for 190 folds"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_no_folder(tailwise: Terminal, arguments: list[str], sentence: str) -> None:
    assert sentence in tailwise.refuses("walk-forward", *arguments)
    assert not list(Path.cwd().iterdir())


def test_a_result_of_another_layout_is_tested_again(tmp_path: Path) -> None:
    """Rejects rows of an older version, which lack what the words are made from, and a result lost for no reason."""
    (tmp_path / RESULT).write_text(json.dumps({"format": FORMAT - 1, "rows": [{"fold": 1}]}))
    assert finished(tmp_path) is None
    (tmp_path / RESULT).write_text(json.dumps({"format": FORMAT, "rows": [{"fold": 1}]}))
    with pytest.raises(DataError, match=r"key 'rows\[0\]\.seed' is required"):
        finished(tmp_path)


def test_a_folder_of_something_else_is_refused(tailwise: Terminal) -> None:
    Path("full").mkdir()
    Path("full/letter.txt").write_text("mine")
    assert "is not empty and holds no walk-forward" in tailwise.refuses(*COMMAND, "--out", "full")
    assert [path.name for path in Path("full").iterdir()] == ["letter.txt"]


RELATIVE = [
    *("-s", "env.base={kind: volatility_target, target: 0.1}", "-s", "env.action={kind: exposure, low: 0, high: 2}"),
    *("-s", "risk={mode: constraint, alpha: 0.1, limit: {of: buy_and_hold, share: 0.5}}"),
]


@pytest.mark.parametrize("splits", [[], ["--splits", "combinatorial", "--folds", "3", "--test-folds", "2"]])
def test_a_relative_limit_is_a_number_of_each_fold_and_their_mean_on_a_path(
    tailwise: Terminal, splits: list[str]
) -> None:
    """Rejects a limit that is asked for where no bars were seen, and that of one fold for the whole path."""
    # Prices that fall and rise: nowhere does buy and hold gain in its tail.
    data = ["-s", "data.parameters={length: 900, noise: 0.02}"]
    command = [*COMMAND, *data, *RELATIVE, *splits, "--seeds", "1", "--out", "w"]
    assert tailwise(*command) == 0, tailwise.error
    name = "combinatorial" if splits else "walk_forward"
    told = json.loads(Path(f"w/{name}.json").read_text())
    levels = [row["limit"]["limit"] for row in told["rows"]]
    assert all(level < 0 for level in levels) and len(set(levels)) > 1
    for path in told["paths" if splits else "stitched"]:
        rows = told["rows"] if not splits else [row for row in told["rows"] if path["limit"] is not None]
        low, high = min(row["limit"]["limit"] for row in rows), max(row["limit"]["limit"] for row in rows)
        assert low <= path["limit"]["limit"] <= high
    if not splits:
        bars = [row["windows"]["test"]["bars"] for row in told["rows"]]
        assert told["stitched"][0]["limit"]["limit"] == pytest.approx(np.average(levels, weights=bars))
    kept = files("w")
    assert tailwise(*command) == 0 and files("w") == kept  # nothing is trained again, and nothing is refused


CHOICES = ["walk-forward", "sine", *MARKET, "-s", "evaluate.every=1", "--splits", "combinatorial", "--folds", "3"]


def test_combinatorial_folds_are_trained_tested_put_together_and_continued(tailwise: Terminal) -> None:
    """The whole command with two seeds; then a kill in the middle of the last run. Rejects paths with a bar twice or
    never, a finished fold that is repeated, and a killed one that starts over."""
    assert tailwise(*CHOICES, "--test-folds", "2", "--seeds", "2", "--out", "w") == 0
    assert "6 runs of 192 steps, seeds 0, 1, in w" in tailwise.out and "path 2" in tailwise.out
    assert "Sharpe ratio per year over the paths" in tailwise.out and "each 2 times: 3 combinatorial" in tailwise.out
    result = read_combinatorial("w")
    assert [(row.fold, row.seed) for row in result.rows[::2]] == [
        *((fold, seed) for seed in (0, 1) for fold in (1, 2, 3)),
        *((fold, None) for fold in (1, 2, 3)),
    ]
    assert [(one.seed, one.path) for one in result.paths] == [(s, p) for s in (0, 1, None) for p in (1, 2)]
    times = load_data(parse_config(result.config, source="w").data)[0].bars.time
    for one in result.paths:
        path = read_paths(Path("w", one.evaluation))[one.account]["policy"]
        # Every bar once and in order, but for those that the features of the first group need to warm up.
        assert np.array_equal(path.time, times[21:]) and one.bars == 679 == len(path)
        again = path_statistics(path, alpha=result.alpha, gamma=result.gamma)
        assert one.statistics["policy"].sharpe == pytest.approx(again.sharpe)
    for one in result.sharpe:
        ratios = [path.statistics["policy"].sharpe for path in result.paths_of(one.account, one.seed)]
        assert (one.paths, one.lowest, one.highest) == (2, min(ratios), max(ratios))
        assert one.mean == pytest.approx(np.mean(ratios)) and one.deviation == pytest.approx(np.std(ratios, ddof=1))
        assert one.above_zero == sum(ratio > 0 for ratio in ratios)
    assert result.headline.seed is None and f"median {result.headlines[0].median:.2f}" in result.verdict[1]
    assert count_trials(Path("w/fold_1_seed_0")).counted == 2

    # Killed in the second update of the last run: no result, the newest checkpoint is that of the first update.
    shutil.copytree("w", "whole")
    last = Path("w/fold_3_seed_1")
    (last / "fold_result.json").unlink()
    shutil.rmtree(last / "evaluations")
    for name in ("update-000002", "update-000003"):
        shutil.rmtree(last / "checkpoints" / name)
    Path("w/combinatorial.json").unlink()
    before = {path: made for path, made in files("w").items() if last not in path.parents}
    again = [*CHOICES, "--test-folds", "2", "--seeds", "2", "--out", "w"]
    assert tailwise(*again) == 0
    assert "5 of them finished before" in tailwise.out and "fold 3, seed 1: goes on after update" in tailwise.out
    assert {path: made for path, made in files("w").items() if last not in path.parents} == before
    assert differences_without_time(last / "metrics.jsonl", Path("whole/fold_3_seed_1/metrics.jsonl")) == []
    assert read_combinatorial("w").to_json() == result.to_json()
    assert "test_folds 2, here 1" in tailwise.refuses(*again[:-2], "--test-folds", "1", "--out", "w")
    assert "holds another walk-forward" in tailwise.refuses(*COMMAND, "--folds", "3", "--seeds", "2", "--out", "w")

    # The page is made from the files alone.
    assert tailwise("report", "w", "--out", "w.html") == 0
    page = Path("w.html").read_text(encoding="utf-8").split("<body>")[1]
    assert page.index("2 seeds averaged: the Sharpe ratio over 2 paths") < page.index('id="panel-sharpe"')
    assert 'id="panel-equity"' in page and "path 2" in page
    assert "leave out --stochastic" in tailwise.refuses("report", "w", "--stochastic")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--splits", "random"], "--splits is 'random'; choose walk-forward or combinatorial"),
        (["--test-folds", "2"], "--test-folds is 2, and walk-forward folds test one window each; leave it out"),
        (["--splits", "combinatorial", "--tested", "0.3"], "leave --kind and --tested out"),
        (["--splits", "combinatorial", "--folds", "3", "--test-folds", "3"], "3 of 3 groups tested over"),
        (["--splits", "combinatorial", "--test-folds", "0"], "at least 1 group must be tested"),
        (["--splits", "combinatorial", "--folds", "20", "--test-folds", "10"], "184,756 choices, each a training"),
        (["--splits", "combinatorial", "--purge", "3"], "its purge of 3 bars is shorter than"),
        (
            ["--splits", "combinatorial", "--folds", "6", "-s", "data.parameters={length: 300}"],
            "bars in the train range 2000-01-03 to 2000-01-04, and 22 are needed (features look back 20)",
        ),
    ],
)
def test_bad_splits_are_a_sentence_and_leave_no_folder(tailwise: Terminal, arguments: list[str], sentence: str) -> None:
    assert sentence in tailwise.refuses("walk-forward", "sine", *arguments)
    assert not list(Path.cwd().iterdir())

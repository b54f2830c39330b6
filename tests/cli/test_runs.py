"""`tailwise runs list|prune|reproduce`, `tailwise evaluate --ensemble`, `tailwise.Run`: on one small run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tailwise as tw
from tailwise.core.errors import DataError
from tests.cli.terminal import SMALL, Terminal

MARKET = ["sine", *SMALL, "-s", "data.parameters={length: 500, noise: 0.002}", "-s", "model.encoder.hidden=[8]"]


def test_runs_are_listed_pruned_and_repeated(tailwise: Terminal) -> None:
    assert "is not a folder" in tailwise.refuses("runs", "list")
    assert tailwise("train", *MARKET, "-s", "evaluate.every=1", "--quiet") == 0
    assert tailwise("train", *MARKET, "-s", "run.keep=1", "-s", "seed=1", "--quiet") == 0
    (Path("runs/broken")).mkdir()
    Path("runs/broken/config.yaml").write_text("sed: 1\n")
    listed = tailwise.json("runs", "list")["runs"]
    assert [(Path(one["folder"]).name, one["status"]) for one in listed] == [
        ("broken", "broken"),
        ("sine-1", "finished"),
        ("sine-2", "finished"),
    ]
    assert listed[1]["steps"] == 192 and listed[1]["measured"] == "evaluate/best" and "'sed'" in listed[0]["note"]
    assert tailwise("runs", "list") == 0 and "sine-1" in tailwise.out and "192 of 192" in tailwise.out

    # Nothing is touched without --yes; best and newest stay; what was said to be freed is freed.
    before = sorted(path.name for path in Path("runs/sine-1/checkpoints").iterdir())
    assert before == ["best", "update-000001", "update-000002", "update-000003"]
    assert tailwise("runs", "prune") == 0 and "2 checkpoints" in tailwise.out and "nothing was touched" in tailwise.out
    assert sorted(path.name for path in Path("runs/sine-1/checkpoints").iterdir()) == before
    told = tailwise.json("runs", "prune", "--yes")
    assert told["deleted"] and told["bytes"] > 1000
    assert sorted(path.name for path in Path("runs/sine-1/checkpoints").iterdir()) == ["best", "update-000003"]
    assert [path.name for path in Path("runs/sine-2/checkpoints").iterdir()] == ["update-000003"]
    assert tailwise("runs", "prune", "--yes") == 0 and "there is nothing to delete" in tailwise.out

    # Bit for bit; and a run that was changed by hand is found out, with the first difference.
    again = tailwise.json("runs", "reproduce", "runs/sine-1")
    assert again["same"] and again["first_difference"] is None and again["again"] == "runs/sine-1-again-1"
    lines = Path("runs/sine-1/metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    row["policy/entropy"] += 1e-9
    lines[1] = json.dumps(row)
    Path("runs/sine-1/metrics.jsonl").write_text("\n".join(lines) + "\n")
    other = tailwise.json("runs", "reproduce", "runs/sine-1", code=1)
    assert other["first_difference"].startswith("line 2: policy/entropy is ")
    assert not other["same_metrics"] and other["same_weights"]


def test_prune_keeps_old_checkpoints_when_the_newest_is_broken(tailwise: Terminal) -> None:
    """Rejects counting by name alone: the only checkpoint that can be resumed would be thrown away."""
    assert tailwise("train", *MARKET, "--quiet") == 0
    newest = Path("runs/sine-1/checkpoints/update-000003/policy/weights.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    assert [Path(one).name for one in tailwise.json("runs", "prune", "--yes")["checkpoints"]] == ["update-000001"]
    assert Path("runs/sine-1/checkpoints/update-000002").is_dir()


def test_several_runs_are_evaluated_together_and_read_in_a_notebook(tailwise: Terminal) -> None:
    for seed in (0, 1, 2):
        assert tailwise("train", *MARKET, "-s", f"seed={seed}", "--quiet") == 0
    runs = [f"runs/sine-{number}" for number in (1, 2, 3)]
    assert "let them decide together with --ensemble" in tailwise.refuses("evaluate", *runs)
    assert "choose vote or average" in tailwise.refuses("evaluate", *runs, "--ensemble", "shout")
    alone = tailwise.json("evaluate", runs[0])
    result = tailwise.json("evaluate", *runs, "--ensemble", "vote")
    assert result["members"] == ["vote", *(f"{run}/update-000003" for run in runs)]
    assert result["folder"] == "runs/sine-1/evaluations/ensemble-1"

    run = tw.Run("runs/sine-1")
    assert run.config.seed == 0 and list(run.metrics["update"]) == [1, 2, 3]
    assert [one.name for one in run.evaluations] == [Path(alone["folder"]).name, "ensemble-1"]
    assert run.checkpoints[0] == "update-000003" and run.alerts == [] and "torch" in run.manifest["versions"]
    single = run.evaluations[0]
    assert single.summary["symbols"] == alone["symbols"]
    path = single.paths()["SYNTHETIC-SINE"]["policy"]
    frame = single.equity()
    own = frame[frame.policy == "policy"]
    assert np.array_equal(own.equity, path.ledger["equity"]) and len(single.decisions()) == len(frame)
    assert np.array_equal(run.policy().trade()[0].equity, path.equity)
    assert set(run.trades().policy) <= set(frame.policy)
    with pytest.raises(DataError, match="has no checkpoint 'worst'"):
        run.policy("worst")
    shutil.rmtree("runs/sine-2/evaluations", ignore_errors=True)
    with pytest.raises(DataError, match="has no evaluation on a market yet"):
        tw.Run("runs/sine-2").equity()

"""Own features as a person meets their check: a refusal, or a verdict in the manifest, the table and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import SMALL, Terminal

FEATURES = """
from tailwise.features import batch_feature


@batch_feature("ahead", warm_up=1, unit="ratio", meaning="next close / close")
def ahead(frame):
    return (frame["close"].shift(-1) / frame["close"]).fillna(1.0)


@batch_feature("behind", warm_up=1, unit="ratio", meaning="close / previous close")
def behind(frame):
    return (frame["close"] / frame["close"].shift(1)).fillna(1.0)
"""
MARKET = """
data: {{kind: synthetic, market: ar1, parameters: {{length: 800}}}}
features: {{modules: [mine.py], include: [return_1, {column}]}}
env: {{kind: market, episode_length: 64}}
evaluate: {{every: null}}
learner: {{gamma: 0.9}}
"""
SKIP = ("-s", "features.leak_check=skip")
RED = "\x1b[1;31m"
SKIPPED = "leak-check: SKIPPED for own features ahead (features.leak_check: skip): they may look ahead"


@pytest.fixture
def own(tailwise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("mine.py").write_text(FEATURES)
    for column in ("ahead", "behind"):
        Path(f"{column}.yaml").write_text(MARKET.format(column=column))
    return tailwise


def manifest(run: str) -> dict[str, Any]:
    value = json.loads(Path(run, "manifest.json").read_text())
    assert isinstance(value, dict)
    return value


def test_look_ahead_is_not_trained_on(own: Terminal) -> None:
    """Rejects shift(-1) that trains and is reported as money earned beyond noise."""
    for command in (("train",), ("walk-forward", "--seeds", "1"), ("frontier", "--limits", "-0.1")):
        assert own(command[0], "ahead.yaml", *command[1:], *SMALL, "--out", "run") == 2
        assert "error: own features fail the leak-check" in own.error
        assert "feature 'ahead' at bar" in own.error and "it looks at least 1 bar ahead" in own.error
        assert not Path("run").exists(), "nothing was begun"


def test_a_passed_check_stands_in_manifest_table_and_report(own: Terminal) -> None:
    assert own("train", "behind.yaml", *SMALL, "--out", "run") == 0, own.error
    verdict = manifest("run")["leak_check"]
    assert (verdict["status"], verdict["features"]) == ("passed", ["behind"])
    assert f"leak-check     {verdict['sentence']}\n" in own.out and own.error == ""
    assert own("evaluate", "run", "--no-stress") == 0, own.error
    (row,) = [line for line in own.out.splitlines() if "leak-check" in line]
    assert [cell.strip() for cell in row.split("│")[1:4]] == ["leak-check", "passed", "-"]
    assert "No evidence of anything" not in own.out
    page = next(Path("run/evaluations").glob("*/report.html")).read_text()
    assert "Leak-check: own features behind: no leak found" in page
    summary = json.loads(next(Path("run/evaluations").glob("*/summary.json")).read_text())
    assert summary["symbols"][0]["leak_check"] == verdict


def test_a_skipped_check_is_red_everywhere(own: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a skipped check that is only in the configuration, and one that --quiet silences."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert own("train", "ahead.yaml", *SMALL, *SKIP, "--quiet", "--out", "run") == 0, own.error
    assert f"{RED}{SKIPPED}" in own.error
    assert manifest("run")["leak_check"]["status"] == "skipped"
    monkeypatch.delenv("FORCE_COLOR")
    assert own("evaluate", "run", "--no-stress") == 0, own.error
    assert SKIPPED in own.error
    (row,) = [line for line in own.out.splitlines() if "│ leak-check" in line]
    assert [cell.strip() for cell in row.split("│")[1:4]] == ["leak-check", "skipped", "-"]
    first = "No evidence of anything: its own features were not checked for look-ahead."
    assert first in own.out
    page = next(Path("run/evaluations").glob("*/report.html")).read_text()
    assert f'<div class="judgement bad" id="verdict"><p class="headline">{first}' in page
    assert '<p class="missed">Leak-check: SKIPPED for own features ahead' in page
    assert own("report", "run", "--no-stress") == 0, own.error
    assert first in own.out


def test_walk_forward_and_compare_carry_the_verdict(own: Terminal) -> None:
    """Rejects a verdict that single runs have and their summaries lose."""
    assert own("train", "ahead.yaml", *SMALL, *SKIP, "--out", "a") == 0, own.error
    assert own("train", "behind.yaml", *SMALL, "--out", "b") == 0, own.error
    assert own("compare", "a", "b") == 0, own.error
    (row,) = [line for line in own.out.splitlines() if "│ leak-check" in line]
    assert [cell.strip() for cell in row.split("│")[1:4]] == ["leak-check", "skipped", "passed"]
    assert SKIPPED in own.error and "a: leak-check: SKIPPED" in Path("compare.html").read_text()
    folds = ("--folds", "2", "--seeds", "1", "--out", "w")
    assert own("walk-forward", "ahead.yaml", *folds, *SMALL, *SKIP) == 0, own.error
    assert SKIPPED in own.error and SKIPPED in own.out
    told = json.loads(Path("w/walk_forward.json").read_text())
    assert told["leak_check"]["status"] == "skipped" and told["verdict"][0].startswith(SKIPPED)
    assert own("report", "w") == 0, own.error
    assert "No evidence of anything: its own features were not checked" in Path("w/report.html").read_text()


def test_a_run_without_a_verdict_is_not_taken_for_checked(own: Terminal) -> None:
    """Rejects the silence of a manifest as innocence: runs that are older than the check have none."""
    assert own("train", "behind.yaml", *SMALL, "--out", "run") == 0, own.error
    old = {key: value for key, value in manifest("run").items() if key != "leak_check"}
    Path("run/manifest.json").write_text(json.dumps(old))
    assert own("evaluate", "run", "--no-stress") == 0, own.error
    assert "leak-check: NOT CHECKED: the run is older than the check of own features (behind)" in own.error
    Path("run/manifest.json").write_text(json.dumps({**old, "leak_check": {"status": "fine"}}))
    assert own("evaluate", "run", "--no-stress") == 2
    assert own.error.startswith("error: run/manifest.json leak_check")

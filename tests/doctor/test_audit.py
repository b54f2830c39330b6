"""The audit of a run: a healthy one passes, and each planted fault is found by the check that is there for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tailwise.cli.main import main
from tailwise.doctor.audit import audit_run
from tailwise.doctor.check import Check, counted, sparkline, thin
from tailwise.doctor.page import points
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real, small run."""
    folder = tmp_path_factory.mktemp("doctor") / "run"
    tree = {
        "backend": "torch",  # nothing to compile
        "env": {"id": "CartPole-v1"},
        "model": {"encoder": {"hidden": [8]}, "critic": {"quantiles": 40, "minibatch_particles": 8}},
        "learner": {"epochs": 1, "minibatches": 1, "gamma": 0.5},
        "run": {
            "environments": 4,
            "rollout_steps": 16,
            "total_steps": 64 * 12,
            "tensorboard": False,
            "checkpoint_every": 4,
        },
    }
    PPO(config=parse_config(tree, source="test"), run_dir=folder).learn()
    (folder / "alerts.jsonl").unlink(missing_ok=True)  # what rules say of so small a run is not the subject here
    return folder


@pytest.fixture
def run(healthy: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(healthy, tmp_path / "run"))


def verdicts(run: Path) -> dict[str, str]:
    return {check.name: check.verdict for check in audit_run(run)}


def test_advice_names_the_run_by_its_folder(run: Path) -> None:
    """Rejects the name alone: `tailwise evaluate run` finds nothing from anywhere else."""
    spaced = run.rename(run.with_name("my run"))
    write_rows(spaced, rows_of(spaced)[:6])
    advice = {check.name: check.advice for check in audit_run(spaced)}
    assert advice["evaluation"] == f"tailwise evaluate '{spaced}'"
    assert advice["progress"].startswith(f"continue it with: tailwise resume '{spaced}', ")


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_rows(run: Path, rows: list[dict[str, Any]]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_healthy_run_has_no_failure(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path for path in healthy.rglob("*"))
    found = verdicts(healthy)
    for name in (
        "configuration",
        "versions",
        "data",
        "metrics",
        "checkpoints",
        "resume",
        "progress",
        "finite",
        "limit",
    ):
        assert found[name] == "ok", name
    assert "fail" not in found.values()
    assert main(["doctor", str(healthy)]) == 0
    printed = capsys.readouterr().out
    assert "bit for bit from update-000012" in printed and "never evaluated" in printed
    assert sorted(path for path in healthy.rglob("*")) == before  # an audit changes nothing


def test_json_and_page(healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "audit.html"
    assert main(["doctor", str(healthy), "--json", "--html", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is True
    assert sum(told["counts"].values()) == len(told["checks"])
    assert set(told["checks"][0]) == {"name", "verdict", "evidence", "meaning", "advice", "series"}
    text = page.read_text()
    assert "<polyline" in text and "http" not in text.replace("http-equiv", "")


def test_a_flipped_byte_in_the_newest_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "checkpoints" / "update-000012" / "policy" / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    found = {check.name: check for check in audit_run(run)}
    assert found["checkpoints"].verdict == "fail"
    assert "checksum" in found["checkpoints"].evidence
    assert "4 updates after it would be made again" in found["resume"].evidence
    assert main(["doctor", str(run)]) == 1
    assert "1 failed" in capsys.readouterr().out


def test_an_older_broken_checkpoint_is_a_warning(run: Path) -> None:
    (run / "checkpoints" / "update-000008" / "training" / "state.json").write_text("{}")
    assert verdicts(run)["checkpoints"] == "warn"


@pytest.mark.parametrize(
    ("change", "check", "verdict", "evidence"),
    [
        (lambda text: text + '{"update": 13, "st', "metrics", "warn", "the last line is torn"),
        (lambda text: text.replace('{"update": 5', '{"updat: 5', 1), "metrics", "fail", "line 5"),
        (lambda text: "".join(text.splitlines(True)[:3] + text.splitlines(True)[5:]), "metrics", "fail", "before 6"),
        (lambda text: "".join(text.splitlines(True)[:6]), "resume", "fail", "ahead of the metrics"),
    ],
)
def test_broken_metrics(run: Path, change: Any, check: str, verdict: str, evidence: str) -> None:
    path = run / "metrics.jsonl"
    path.write_text(change(path.read_text()))
    found = {one.name: one for one in audit_run(run)}[check]
    assert found.verdict == verdict
    assert evidence in found.evidence


def test_an_undefined_loss_a_slow_end_and_a_metric_out_of_range(run: Path) -> None:
    rows = rows_of(run)
    rows[4]["critic/loss"] = None
    for k, row in enumerate(rows):
        row["time/steps_per_second"] = 1000.0 if k < 6 else 100.0
        row["policy/kl"] = 0.01 if k < 6 else 0.7
        row["machine/memory"] = 100.0 + 20 * k
    write_rows(run, rows)
    found = verdicts(run)
    assert (found["finite"], found["throughput"], found["ranges"]) == ("fail", "warn", "warn")
    assert found["range of policy/kl"] == "warn"
    assert found["memory"] == "warn"


def test_alerts_by_severity_and_whether_they_are_over(run: Path) -> None:
    def event(rule: str, severity: str, **more: Any) -> str:
        told = {"update": 3, "rule": rule, "severity": severity, "evidence": "seen", "advice": "act", **more}
        return json.dumps(told) + "\n"

    (run / "alerts.jsonl").write_text(
        event("bad", "error")
        + event("odd", "warn", signal="policy/kl")
        + event("odd", "warn", update=5)
        + event("was_bad", "error")
        + event("was_bad", "error", event="cleared", update=9)
        + event("note", "info")
    )
    found = {check.name: check for check in audit_run(run)}
    assert found["alert bad"].verdict == "fail"
    assert found["alert odd"].verdict == "warn"
    assert "2 times, last in update 5" in found["alert odd"].evidence
    assert found["alert was_bad"].verdict == "warn"
    assert "over since update 9" in found["alert was_bad"].evidence
    assert "alert note" not in found
    (run / "alerts.jsonl").write_text("{}\n")
    assert verdicts(run)["alerts"] == "fail"


@pytest.mark.parametrize(("share", "verdict"), [(0.05, "ok"), (0.15, "warn"), (0.4, "fail"), (None, "unknown")])
def test_calibration(run: Path, share: float | None, verdict: str) -> None:
    rows = [{k: v for k, v in row.items() if not k.startswith("calibration/")} for row in rows_of(run)]
    if share is not None:
        rows[-1]["calibration/coverage_05"] = share
    write_rows(run, rows)
    assert verdicts(run)["calibration"] == verdict


@pytest.mark.parametrize(("measure", "verdict"), [(-0.01, "ok"), (-0.9, "fail")])
def test_a_missed_limit_fails(run: Path, measure: float, verdict: str) -> None:
    config = (run / "config.yaml").read_text()
    start = config.index("risk:")
    end = config.index("run:", start)
    (run / "config.yaml").write_text(config[:start] + "risk: {mode: constraint, limit: -0.1}\n" + config[end:])
    rows = rows_of(run)
    for row in rows:
        row |= {"risk/active": 1.0, "risk/measure": measure, "risk/multiplier": 0.5}
    write_rows(run, rows)
    assert verdicts(run)["limit"] == verdict


@pytest.mark.parametrize(
    ("name", "content", "check"),
    [("config.yaml", "learner: {clp: 1}", "configuration"), ("manifest.json", "{", "versions")],
)
def test_broken_descriptions(run: Path, name: str, content: str, check: str) -> None:
    (run / name).write_text(content)
    found = verdicts(run)
    assert found[check] == "fail"
    assert found["data"] == "unknown"


def test_other_versions_are_told(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["versions"]["torch"] = "1.0.0"
    (run / "manifest.json").write_text(json.dumps(manifest))
    found = {check.name: check for check in audit_run(run)}["versions"]
    assert found.verdict == "warn"
    assert "torch 1.0.0 (installed:" in found.evidence


def test_evaluations_are_read(run: Path) -> None:
    folder = run / "evaluations"
    folder.mkdir()
    (folder / "best-1.json").write_text(json.dumps({"mean_return": 12.5}))
    found = {check.name: check for check in audit_run(run)}["evaluation"]
    assert (found.verdict, found.evidence) == ("ok", "best-1.json: mean return 12.5")
    market = folder / "best-2"
    market.mkdir()
    judged = {"symbol": "A", "limits": {"policy": {"kept": False}}, "verdict": ["limit missed out of sample"]}
    (market / "summary.json").write_text(json.dumps({"symbols": [judged]}))
    (folder / "best-1.json").unlink()
    found = {check.name: check for check in audit_run(run)}["evaluation"]
    assert found.verdict == "fail"
    assert "limit missed out of sample" in found.evidence
    (folder / "attack-1.json").write_text(json.dumps({"kind": "path"}))  # newer, and no evaluation
    assert {check.name: check for check in audit_run(run)}["evaluation"] == found
    # A limit that nobody enforced was neither kept nor missed: rejects the advice to tighten it.
    trained = {"updates": 2, "limit_acted": False}
    (market / "summary.json").write_text(json.dumps({"symbols": [judged], "trained": trained}))
    found = {check.name: check for check in audit_run(run)}["evaluation"]
    assert found.verdict == "warn" and "it never acted: training ended within its warm-up" in found.evidence
    assert found.advice == "train past the warm-up of risk.limit"


def test_bad_questions_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == 2
    assert main(["doctor"]) == 2
    assert main(["doctor", str(tmp_path), "--self"]) == 2
    errors = capsys.readouterr().err
    assert "is not the folder of a run" in errors and errors.count("give either RUN") == 2


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0]) == "▁▃▆█"
    assert sparkline([1.0, float("nan"), 1.0]) == "▄ ▄"
    assert sparkline([1.0]) == ""
    assert thin(list(map(float, range(100))), 10)[0] == 4.5
    assert points([1.0, 2.0]) == "0.0,24.0 120.0,2.0"
    assert points([]) == points([1.0]) == ""
    checks = [Check("a", "ok", "", ""), Check("b", "warn", "", ""), Check("c", "fail", "", "")]
    assert counted(checks) == "1 failed, 1 warning, 1 ok"

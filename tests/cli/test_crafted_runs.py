"""Commands on crafted run folders: an exit code and a sentence, never a traceback, and nothing outside is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.crafted_cases import Case, all_cases
from tests.cli.crafted_runs import _problem, problems

CASES = all_cases()
# One of each kind; the whole set is in the slow suite.
REPRESENTATIVE = (
    "gym manifest.json: deep mappings",
    "gym evaluations/update-000003-1.json: 1e999",
    "gym checkpoint.json: deep lists",
    "gym training/state.json: huge number",
    "gym policy/spec.json: list",
    "gym metrics.parquet: half of it",
    "gym checkpoints/update-000003/policy/weights.safetensors: 32 GiB",
    "gym alerts.jsonl: a pipe",
    "gym config.yaml: a link to itself",
    "gym metrics.jsonl, a line: 1e999",
    "gym metrics.jsonl, loss/policy: list",
    "gym alerts.jsonl, a line: garbage",
    "gym alerts.jsonl, signal: 1e300",
    "gym checkpoint.json, bytes of the weights: 1e300",
    "gym training/state.json total_steps: 1e300",
    "gym training/state.json kl_factor: text",
    "gym training/state.json health.rules.values: nested",
    "gym training/state.json environment.vector.lengths: text",
    "gym policy/spec.json observation.leaves: nested",
    "gym policy/spec.json model.encoder.hidden: enormous",
    "gym training/tensors.safetensors: of one entry",
    "gym checkpoints: a link out of the run",
    "gym alerts.jsonl: a link to nowhere",
    "gym config.yaml: total_steps 1e300",
    "gym metrics.parquet alone: lists",
    "market manifest.json data: list",
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs that others are crafted from are kept."""
    return tmp_path_factory.mktemp("crafted")


@pytest.mark.parametrize("case", [case for case in CASES if case.name in REPRESENTATIVE], ids=lambda case: case.name)
def test_one_of_each_kind(case: Case, bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_case(case, bases, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_crafted_run(case: Case, bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_case(case, bases, tmp_path, monkeypatch)


def check_case(case: Case, bases: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "runs").mkdir()
    monkeypatch.chdir(folder / "runs")
    assert problems(case, bases, folder) == []


def test_the_representatives_are_cases_and_the_judge_can_find_fault() -> None:
    assert {*REPRESENTATIVE} <= {case.name for case in CASES}
    assert "without a sentence" in _problem(2, "", "")
    assert "no sentence" in _problem(2, "", "error: 'update'\n")
    assert "no sentence" in _problem(2, "", f"error: the value is {'9' * 5000} and so on\n")
    assert "traceback" in _problem(1, "", "Traceback (most recent call last):\n")
    assert "exit code 139" in _problem(139, "", "")
    assert _problem(2, "", "error: r/config.yaml: key 'seed' is 'x'; it should be a valid integer.\n") == ""

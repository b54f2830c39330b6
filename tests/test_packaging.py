"""What surrounds the package: the container, the workflow, the citation and the metadata say what is there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailwise.core import VERSION

ROOT = Path(__file__).parent.parent


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continuation lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines()]


def faults(text: str, root: Path = ROOT) -> list[str]:
    """What a linter of Dockerfiles would say, of the rules that matter here."""
    steps, found = instructions(text), []
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ARG", "USER", "ENV", "ENTRYPOINT", "CMD"}
    found += [f"unknown instruction {name}" for name, _ in steps if name not in known]
    stages = {args.split(" AS ")[1] for name, args in steps if name == "FROM" and " AS " in args}
    for name, args in steps:
        image = args.split(" ")[0]
        if name == "FROM" and image not in stages and not re.fullmatch(r"[\w./-]+:\d[\w.-]*", image):
            found.append(f"the image {image} has no version")
        if name == "COPY":
            *sources, _ = [word for word in shlex.split(args) if not word.startswith("--")]
            if "--from=" in args:
                found += [] if re.findall(r"--from=(\w+)", args)[0] in stages else [f"no stage for {args}"]
            else:
                found += [f"COPY of {one}, which is not there" for one in sources if not (root / one).exists()]
        if name == "RUN" and re.search(r"pip (install|wheel)", args) and "--no-cache-dir" not in args:
            found.append(f"pip keeps its cache: {args}")
        if name in ("ENTRYPOINT", "CMD") and not args.startswith("["):
            found.append(f"{name} in shell form")
    users = [args for name, args in steps if name == "USER"]
    if not users or users[-1] in ("root", "0"):
        found.append("it runs as root")
    return found


def test_the_container_has_no_faults() -> None:
    assert faults((ROOT / "Dockerfile").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("python:3.11-slim AS", "python:latest AS", "has no version"),
        ("USER 1000", "USER root", "runs as root"),
        ("COPY src", "COPY source", "COPY of source"),
        ("--from=build", "--from=built", "no stage"),
        ('["tailwise"]', "tailwise", "ENTRYPOINT in shell form"),
        ("pip install --no-cache-dir", "pip install", "pip keeps"),
    ],
)
def test_a_faulty_container_is_noticed(old: str, new: str, complaint: str) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert old in text
    assert any(complaint in fault for fault in faults(text.replace(old, new)))


def test_what_the_container_copies_is_not_ignored() -> None:
    """Rejects a .dockerignore that hides a file which the Dockerfile needs."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word
        for name, args in instructions((ROOT / "Dockerfile").read_text())
        if name == "COPY" and "--from" not in args
        for word in shlex.split(args)[:-1]
    }
    assert copied == kept


def test_the_workflow_runs_what_a_change_must_pass_and_nothing_else() -> None:
    workflow: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert workflow["permissions"] == {"contents": "read"}
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    python = next(step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert citation["version"] == VERSION and citation["license"] == project["license"]
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    assert project["requires-python"] == f">={python}"
    assert citation["authors"] == project["authors"]


def left_out(root: Path, patterns: list[str]) -> list[str]:
    """Files of the package that no pattern of the wheel matches."""
    kept = {path for pattern in patterns for path in root.glob(pattern)}
    files = {path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return sorted(str(path.relative_to(root)) for path in files - kept if path.suffix != ".py")


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    """Templates, styles, scripts, presets, py.typed. Rejects a kind of file that pyproject.toml does not know of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["tailwise"]
    assert left_out(ROOT / "src/tailwise", patterns) == []
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "page.svg").touch()
    assert left_out(tmp_path, patterns) == ["watch/page.svg"]


def test_the_versions_of_python_are_those_that_are_tried() -> None:
    """`make pythons` installs the wheel into each of them that is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [one.rsplit(" ", 1)[1] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    tried = re.search(r"^for version in ([\d. ]+); do$", (ROOT / ".ci/pythons").read_text(), flags=re.MULTILINE)
    assert tried is not None and tried[1].split() == said == ["3.11", "3.12", "3.13"]
    assert (ROOT / ".ci/pythons").stat().st_mode & 0o111

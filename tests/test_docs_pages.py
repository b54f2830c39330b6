"""Pages that are written by hand keep up with what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tailwise.core.metrics import METRICS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_clipping_page_names_every_clip() -> None:
    """Ledger 003-D. A new clip metric that the page does not explain fails here."""
    page = (DOCS / "clipping.md").read_text(encoding="utf-8")
    clips = [name for name in METRICS if "clip" in name or "clamp" in name or name == "obs/outlier_fraction"]
    assert len(clips) >= 5
    assert [name for name in clips if f"`{name}`" not in page] == []


def test_every_command_has_a_page() -> None:
    from tailwise.cli.main import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    commands |= {group.name for group in app.registered_groups if group.name}
    pages = {path.stem for path in (DOCS / "commands").glob("*.md")}
    assert len(commands) >= 6
    assert commands <= pages


@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # its runs are far too small
def test_the_snippets_of_the_python_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a function whose page shows another name, argument or field than it has."""
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(snippet, names)
    assert len(snippets) == 12
    assert names["result"].folder == Path("runs/limits") and (tmp_path / "runs/limits/frontier.html").exists()


@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")
def test_the_snippets_of_the_migration_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / "migration.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(snippet, names)
    assert len(snippets) == 3 and names["agent"].model.encoder.out_features == 16


def test_every_public_function_has_its_section() -> None:
    """Rejects an export without a section, and one whose docstring shows no call of it."""
    import tailwise

    page = (DOCS / "python.md").read_text(encoding="utf-8")
    functions = (
        "walk_forward",
        "combinatorial_cv",
        "frontier",
        "tune",
        "compare",
        "judge",
        "leak_check",
        "check_bars",
        "attack",
    )
    assert set(functions) <= set(tailwise.__all__)
    for name in functions:
        assert f"`tailwise.{name}(" in page
        assert f"tailwise.{name}(" in (getattr(tailwise, name).__doc__ or "")


def test_the_map_names_files_that_exist() -> None:
    """CONTRIBUTING.md: rejects a row whose file was moved or deleted, and a thing to add without a row."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| an? ([^|]+) \| (.+) \|$", page, flags=re.MULTILINE))
    wanted = ["cost", "feature", "critic", "optimiser", "loss", "panel", "command"]
    assert {*wanted, "action kind", "health rule"} <= set(rows)
    named = [path for change in rows.values() for path in re.findall(r"`([\w/]+(?:\.\w+|/))`", change)]
    assert len(named) >= 20
    missing = [
        path for path in named if not (ROOT / ("" if path.startswith("docs/") else "src/tailwise") / path).exists()
    ]
    assert missing == []


def test_the_map_has_every_package_in_the_order_of_imports() -> None:
    from benchmarks.imports import package_order

    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(\w+)/ +\S", page, flags=re.MULTILINE)
    assert listed == package_order(ROOT / "pyproject.toml")


def test_the_configurations_of_the_optimiser_page_are_valid() -> None:
    """Rejects a key that the page shows and the configuration does not have."""
    import yaml

    from tailwise.run.config import parse_config

    snippets = re.findall(r"```yaml\n(.*?)```", (DOCS / "optimisers.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    configs = [parse_config(yaml.safe_load(snippet), source="optimisers.md") for snippet in snippets]
    assert [config.learner.optimiser.kind for config in configs] == ["adamw", "adam"]
    assert [config.learner.variance_scaling.kind for config in configs] == ["off", "on"]

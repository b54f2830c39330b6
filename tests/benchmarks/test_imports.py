"""Imports that point forward or close a cycle are found however they are written; the tree itself has no new ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.imports import KNOWN_CYCLES, ROOT, Findings, findings_in, imports_of, package_order

ORDER = ["core", "run", "cli"]
LAZY = "def later():\n    import tailwise.{0}\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tailwise.{0} import Name\n"
STRING = "HOMES = {{'Name': 'tailwise.{0}'}}\n"
WAYS = {"top": "import tailwise.{0}\n", "lazy": LAZY, "type-only": TYPES, "string": STRING}


def tree(folder: Path, files: Mapping[str, str]) -> Path:
    """A package of three packages with two empty modules each, and `files` put over them."""
    empty = {f"{package}/{name}.py": "" for package in ORDER for name in ("__init__", "one", "two")}
    for path, text in ({"__init__.py": ""} | empty | dict(files)).items():
        file = folder / "tailwise" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def check(folder: Path, files: Mapping[str, str], known: tuple[tuple[str, str], ...] = ()) -> Findings:
    return findings_in(tree(folder, files), ORDER, known)


def test_the_tree_has_no_forward_import_and_no_unknown_cycle() -> None:
    order = package_order(ROOT / "pyproject.toml")
    assert order[0] == "core" and order[-1] == "cli" and order.index("learner") < order.index("run")
    assert findings_in(ROOT / "src", order, KNOWN_CYCLES).sentences == []
    assert len(imports_of(ROOT / "src")) > 1000


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_import_is_found(tmp_path: Path, way: str) -> None:
    found = check(tmp_path, {"core/one.py": WAYS[way].format("run.two")})
    line = {"top": 1, "lazy": 2, "type-only": 3, "string": 1}[way]
    assert found.forward == [f"forward import: tailwise.core.one imports tailwise.run.two (line {line}, {way})"]
    assert found.cycles == [] and found.stale == []


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_import_is_none(tmp_path: Path, way: str) -> None:
    assert check(tmp_path, {"run/one.py": WAYS[way].format("core.two")}).sentences == []


@pytest.mark.parametrize("way", WAYS)
def test_a_cycle_is_found_and_its_imports_are_named(tmp_path: Path, way: str) -> None:
    """one -> two -> package itself -> one; the first arc is hidden in each of the ways."""
    files = {
        "run/one.py": WAYS[way].format("run.two"),
        "run/two.py": "from tailwise.run import NAME\n",
        "run/__init__.py": "from tailwise.run import one\nNAME = 1\n",
    }
    found = check(tmp_path, files)
    assert found.forward == [] and len(found.cycles) == 1
    assert found.cycles[0].startswith("cycle of 3 modules:\n") and f", {way})" in found.cycles[0]
    assert "tailwise.run.two imports tailwise.run (line 1, top)" in found.cycles[0]


def test_a_known_import_may_close_a_cycle_and_must_still_do_so(tmp_path: Path) -> None:
    files = {"run/one.py": LAZY.format("run.two"), "run/two.py": "import tailwise.run.one\n"}
    known = (("run.one", "run.two"),)
    assert check(tmp_path / "a", files, known).sentences == []
    gone = check(tmp_path / "b", files | {"run/one.py": ""}, known)
    assert gone.stale == ["tailwise.run.one no longer imports tailwise.run.two: remove it from KNOWN_CYCLES"]
    open_ended = check(tmp_path / "c", files | {"run/two.py": ""}, known)
    assert open_ended.stale == [
        "tailwise.run.one imports tailwise.run.two without closing a cycle: remove it from KNOWN_CYCLES"
    ]


def test_only_commands_use_the_public_names(tmp_path: Path) -> None:
    public = {"__init__.py": STRING.format("run.one")}
    assert check(tmp_path / "a", public | {"cli/one.py": "from tailwise import Name\n"}).sentences == []
    found = check(tmp_path / "b", public | {"run/two.py": "from tailwise import Name\n"})
    assert found.forward == ["forward import: tailwise.run.two imports tailwise (line 1, top)"]


def test_a_package_outside_the_order_and_a_relative_import_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tailwise\.odd belongs to no package"):
        check(tmp_path / "a", {"odd/__init__.py": "import tailwise.core.one\n"})
    with pytest.raises(ValueError, match="relative import"):
        check(tmp_path / "b", {"run/one.py": "from . import two\n"})

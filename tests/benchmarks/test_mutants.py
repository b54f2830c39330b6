"""The list of planted mistakes still fits the tree, and the script tells a killed mutant from one that survives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.mutant import Mutant
from benchmarks.mutants import AREAS, ROOT, PytestRun, chosen, judge, why_not_clean

MUTANTS = chosen((), None)
SOURCE = "def double(x: float) -> float:\n    return 2 * x\n"
TEST = "from tailwise.double import double\n\ndef test_double() -> None:\n    assert double(3) == 6\n"
SMALL = Mutant("doubles by adding 2", "double.py", "2 * x", "2 + x", ("tests/test_double.py",))


def test_there_are_enough_in_every_area_and_each_has_a_name() -> None:
    assert len(MUTANTS) >= 100 and all(len(mutants) >= 15 for mutants in AREAS.values())
    assert len({mutant.name for _, mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", [mutant for _, mutant in MUTANTS], ids=lambda mutant: mutant.name)
def test_every_mutant_still_applies(mutant: Mutant) -> None:
    """Its text occurs once, the result is another program that compiles, and its tests exist."""
    compile(mutant.planted(ROOT), mutant.file, "exec")
    assert mutant.old != mutant.new
    assert mutant.tests and all((ROOT / test).is_file() for test in mutant.tests)


def _tree(folder: Path) -> Path:
    for path, text in {"src/tailwise/__init__.py": "", "src/tailwise/double.py": SOURCE, SMALL.tests[0]: TEST}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize("text", ["3 * x", "x"])
def test_a_text_that_is_missing_or_ambiguous_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="expected exactly once"):
        replace(SMALL, old=text).planted(_tree(tmp_path))


def test_a_wrong_program_is_killed_by_name_and_the_file_is_put_back(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree")
    verdict = judge(tree, "toys", SMALL, 60.0)
    assert (verdict.outcome, verdict.by) == ("killed", "tests/test_double.py::test_double")
    assert (tree / "src/tailwise/double.py").read_text() == SOURCE


def test_an_equal_program_survives_and_a_hanging_one_times_out(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree")
    same = replace(SMALL, new="x * 2")
    assert judge(tree, "toys", same, 60.0).outcome == "survived"
    assert judge(tree, "toys", replace(same, equivalent="products commute"), 60.0).outcome == "equivalent"
    hangs = replace(SMALL, old="    return 2 * x\n", new="    while True:\n        x += 1\n    return x\n")
    assert judge(tree, "toys", hangs, 5.0).outcome == "timed out"


def test_tests_that_fail_or_select_nothing_by_themselves_are_refused(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree")
    assert why_not_clean(tree, SMALL) is None
    nothing = why_not_clean(tree, replace(SMALL, only="no_such_test"))
    assert nothing is not None and "do not pass without a mutant" in nothing
    (tree / "src/tailwise/double.py").write_text(SOURCE.replace("2 * x", "x"))
    failing = why_not_clean(tree, SMALL)
    assert failing is not None and "tests/test_double.py::test_double" in failing


def test_a_crash_is_named_by_its_signal() -> None:
    assert PytestRun(-11, "", 1.0).first_failure == "signal 11"

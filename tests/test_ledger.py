"""docs/ledger.md is complete and every test that it names exists; and what the ledger asks of the tests themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEDGER = ROOT / "docs" / "ledger.md"

IDS = [
    *(f"H{n}" for n in range(1, 11)),
    *(f"L{n}" for n in range(1, 8)),
    *(f"000-F{n}" for n in range(1, 6)),
    *(f"000-{n}" for n in range(1, 11)),
    *(f"001-{n}" for n in range(1, 13)),
    *(f"001-M{n}" for n in range(1, 4)),
    *(f"002-{n}" for n in range(1, 8)),
    *(f"003-{n}" for n in ("V1", "V2", "D", "1", "C1", "2", "C3", "C4", "A")),
    *(f"004-{n}" for n in range(1, 13)),
    *(f"004-T{n}" for n in range(1, 5)),
    *(f"004-C{n}" for n in range(1, 4)),
    *("000-M3", "001-6b", "003-1b", "003-2b", "004-1b", "004-5b"),
    *(f"R{n}" for n in range(1, 18)),
    *("19-2", "19-3"),
]

ISSUES = {
    "The market: bars, features and a fast, causal, cost-true environment",
    "Tail risk that binds: CVaR constraint, calibrated distributions",
    "Speed: ahead of every peer on the same work",
    "Evidence: evaluation that a sceptic accepts, and a report worth reading",
    "Health: alerts that act, a doctor for runs, a live page",
    "Robust and lasting: adversaries, imitation, continual optimisers, variance scaling",
    "Populations and scale-out: reproducible PBT, search under a limit, Ray and torchrun",
    "Live: decide, paper trading, and online learning that cannot hurt",
    "Speed for every configuration",
    "The front door: README, examples, API habits, reports, packaging",
}

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def problems(text: str, root: Path) -> list[str]:
    """Everything that is wrong with a ledger, a sentence each."""
    found: list[str] = []
    seen: list[str] = []
    for line in text.splitlines():
        if not line.startswith("| ") or line.startswith("| id "):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3:
            found.append(f"{cells[0]}: the row has {len(cells)} columns, expected id, demand, test")
            continue
        row, demand, proof = cells
        seen.append(row)
        if not demand:
            found.append(f"{row}: the demand is empty")
        entries = [entry.strip() for entry in proof.split("<br>") if entry.strip()]
        if not entries:
            found.append(f"{row}: neither a test nor a planned issue")
        for entry in entries:
            match = _TEST.fullmatch(entry)
            if entry.startswith("planned: "):
                if entry.removeprefix("planned: ") not in ISSUES:
                    found.append(f"{row}: there is no issue with the title {entry.removeprefix('planned: ')!r}")
            elif match is None:
                found.append(f"{row}: {entry!r} is neither `tests/path.py::test_name` nor planned: title")
            elif match[2] not in functions_in(root / match[1]):
                found.append(f"{row}: {match[1]} has no test {match[2]}")
    found.extend(f"{row}: the row is missing" for row in IDS if row not in seen)
    found.extend(f"{row}: unknown row" for row in seen if row not in IDS)
    found.extend(f"{row}: the row occurs twice" for row in sorted(set(seen)) if seen.count(row) > 1)
    return found


def functions_in(path: Path) -> dict[str, ast.FunctionDef]:
    """The test functions that a file defines, also inside classes; empty when there is no such file."""
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_ledger_is_complete_and_names_tests_that_exist() -> None:
    assert problems(LEDGER.read_text(encoding="utf-8"), ROOT) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("| 000-F4 |", "| 000-F9 |", "000-F4: the row is missing"),
        ("test_weights_are_bounded_before_the_exponential", "test_nowhere", "has no test test_nowhere"),
        ("tests/learner/test_awr.py", "tests/learner/test_gone.py", "test_gone.py has no test"),
        ("`tests/learner/test_awr.py::test_weights_are_bounded_before_the_exponential`", "", "neither a test nor"),
        ("`tests/learner/test_awr.py::test_weights_are_bounded_before_the_exponential`", "review", "is neither"),
        ("planned: Speed", "planned: Haste", "no issue with the title"),
        ("| H10 |", "| H9 |", "H9: the row occurs twice"),
    ],
)
def test_broken_ledger_is_noticed(old: str, new: str, complaint: str) -> None:
    """A check that cannot fail is none: each way to break the ledger gives its sentence."""
    text = LEDGER.read_text(encoding="utf-8")
    assert old in text
    assert any(complaint in problem for problem in problems(text.replace(old, new), ROOT))


# ------------------------------------------------------------------ what the ledger asks of tests and modules


def asserts_value(function: ast.FunctionDef) -> bool:
    """Whether a test can fail on a value: an assertion that is more than `x is not None`, or an expected error."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            checks = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            if not all(_weak(check) for check in checks):
                return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name in ("raises", "warns", "fail") or name.lstrip("_").startswith(("assert_", "check_", "verify")):
                return True
    return False


def _weak(check: ast.expr) -> bool:
    """`x is not None` and constants say nothing about values; `assert x` is accepted (flags, lists)."""
    if isinstance(check, ast.Constant):
        return True
    return (
        isinstance(check, ast.Compare)
        and isinstance(check.ops[0], ast.IsNot)
        and isinstance(check.comparators[0], ast.Constant)
        and check.comparators[0].value is None
    )


def test_every_test_asserts_a_value() -> None:
    """L7: tests that only assert "is not None" passed while all weights were NaN."""
    silent = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, function in functions_in(path).items()
        if not asserts_value(function)
    ]
    assert silent == []


def test_assertion_that_says_nothing_is_noticed() -> None:
    weak = "def test_a():\n    x = 1\n    assert x is not None\n    assert True\n"
    strong = "def test_b():\n    assert 1 + 1 == 2\n"
    (first,), (second,) = (ast.parse(text).body for text in (weak, strong))
    assert isinstance(first, ast.FunctionDef) and not asserts_value(first)
    assert isinstance(second, ast.FunctionDef) and asserts_value(second)


def test_no_test_uses_mocks() -> None:
    """H6: a mock with names that the model did not have hid an exploit that did nothing."""
    forbidden = re.compile(
        r"^\s*(?:from|import) (?:unittest\.mock|unittest import mock|mock\b)|MagicMock\(|mocker\b", re.M
    )
    using = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__) and forbidden.search(path.read_text(encoding="utf-8"))
    ]
    assert using == []
    assert forbidden.search("from unittest.mock import patch")


def test_no_module_is_a_giant() -> None:
    """000-10: modules by concern; the old learner was one file of several thousand lines."""
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "src").rglob("*.py")
    }
    assert len(lines) > 30
    assert {name: count for name, count in lines.items() if count > 500} == {}

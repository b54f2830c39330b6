"""The list of unused definitions: what it finds, and what it must not accuse."""

from __future__ import annotations

import ast

import pytest

from tests.tools.unused import KEPT, ROOT, definitions, find_unused, read

ONE = """
LIMIT = 3
UNUSED = 4

def used(): return LIMIT
def alone(): return alone()
def only_for_alone(): return 1
def dead(): return only_for_alone()
def named_in_a_table(): return 2
def tested(): return 5

class Thing:
    field: int = 0
    @property
    def seen(self): return self.hidden()
    def hidden(self): return 1
    def forgotten(self): return 2
    def reset(self): return 3

@app.command()
def registered(): return 6
"""
TWO = """
from tailwise import one
from tailwise.one import Thing
HOMES = {"named_in_a_table": "tailwise.one"}
print(HOMES, one.used(), Thing().seen)
def tested(): return 7
print(tested())
"""
TEST = "from tailwise.one import tested\nprint(tested())\n"


def test_what_is_unused_and_what_only_tests_use() -> None:
    """Rejects a count of names alone (`tested` of the other module would hide it), recursion that counts as a use, and
    a function that is used by dead code."""
    found = find_unused({"src/tailwise/one.py": ONE, "src/tailwise/two.py": TWO}, {"tests/test_one.py": TEST})
    assert [one.name for one in found.by_nobody] == ["UNUSED", "alone", "only_for_alone", "dead", "forgotten"]
    assert [(one.name, one.kind, one.lines) for one in found.by_tests] == [("tested", "function", 1)]


@pytest.mark.parametrize("name", sorted(KEPT))
def test_what_is_kept_is_there(name: str) -> None:
    """An exception that outlives its reason would hide something else one day."""
    defined = {one.name for file, text in read(["src"]).items() for one in definitions(ast.parse(text), file)}
    assert name in defined or (ROOT / name).is_file()

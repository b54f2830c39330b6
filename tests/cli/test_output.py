"""Tables that fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwise.cli.output import columns_that_fit, print_table


@given(st.lists(st.integers(4, 30), min_size=1, max_size=12), st.integers(20, 120))
def test_every_column_is_shown_once_beside_the_first(widths: list[int], room: int) -> None:
    """Rejects a split that loses a column, or that is wider than the room although it holds several."""
    tables = columns_that_fit(widths, room)
    assert [at for table in tables for at in table[1:]] == list(range(1, len(widths)))
    assert all(table[0] == 0 for table in tables)
    assert all(sum(widths[at] for at in table) + 1 <= room for table in tables if len(table) > 2)


def test_no_cell_is_broken_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten wide columns: on a file the table is as wide as it has to be."""
    names = [f"a rule with a long name {k}" for k in range(10)]
    print_table("title", ("number", *names), [("worst drawdown", *(f"-12345.{k}%" for k in range(10)))])
    printed = capsys.readouterr().out
    assert all(f" -12345.{k}% " in printed for k in range(10))
    assert "worst drawdown" in printed and max(map(len, printed.splitlines())) > 100

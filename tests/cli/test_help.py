"""What `--help` shows: where to start, examples that can be typed, completion of every command."""

from __future__ import annotations

import shlex

import pytest
import typer

from tailwise.cli.help import EXAMPLES, PANELS
from tailwise.cli.main import app
from tests.cli.terminal import Terminal
from tests.test_docs_snippets import command_of

COMMANDS = [name for name in typer.main.get_command(app).commands if name not in PANELS["Look after"]]  # type: ignore[attr-defined]


def test_every_command_has_examples_that_parse() -> None:
    """Rejects an example with an option that is gone, and a command without one."""
    assert sorted(EXAMPLES) == sorted(COMMANDS)
    for name, lines in EXAMPLES.items():
        assert lines and all(line.startswith(f"tailwise {name}") for line in lines)
        for line in lines:
            command_of(shlex.split(line))


def test_help_shows_them_and_where_to_start(tailwise: Terminal) -> None:
    assert tailwise("tune", "--help") == 0
    assert "$ tailwise tune tailwise.yaml --search random --jobs 2" in tailwise.out
    tailwise()  # nothing but the name
    out = " ".join((tailwise.out + tailwise.error).split())
    assert "Start here: `tailwise demo` trains" in out and "tailwise init BARS.csv" in out
    assert out.index("─ Start here ─") < out.index("─ Train ─") < out.index("─ Trade ─")


@pytest.mark.parametrize(("typed", "completed"), [("wal", "walk-forward"), ("dem", "demo"), ("conf", "config")])
def test_the_shell_completes_commands(
    typed: str, completed: str, monkeypatch: pytest.MonkeyPatch, tailwise: Terminal
) -> None:
    """As bash asks for it."""
    variables = {"_TAILWISE_COMPLETE": "complete_bash", "COMP_WORDS": f"tailwise {typed}", "COMP_CWORD": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tailwise() == 0 and tailwise.out.split() == [completed]

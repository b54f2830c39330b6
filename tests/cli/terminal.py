"""The command line as a person uses it: run a command in a folder, keep what it prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailwise.cli.main import main

# Trains in a second or two.
SMALL = [
    *("-s", "run.environments=4", "-s", "run.rollout_steps=16", "-s", "run.total_steps=192"),
    *("-s", "run.checkpoint_every=1", "-s", "run.tensorboard=false", "-s", "learner.epochs=1"),
]


class Terminal:
    """Runs commands in a folder and keeps what they print; `before` are words in front of every command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *before: str) -> None:
        self.capsys = capsys
        self.before = before
        self.out = ""
        self.error = ""

    def __call__(self, *arguments: str) -> int:
        self.capsys.readouterr()
        code = main([*self.before, *arguments])
        self.out, self.error = self.capsys.readouterr()
        return code

    def refuses(self, *arguments: str) -> str:
        """The one sentence with which bad input is refused."""
        assert self(*arguments) == 2
        assert self.out == ""
        (line,) = self.error.splitlines()
        return line

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        assert self(*arguments, "--json") == code, self.error
        value = json.loads(self.out)  # fails when anything else stands beside the object
        assert isinstance(value, dict)
        return value

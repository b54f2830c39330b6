"""Commands on a run that somebody else sent: none executes its code unless --trust is given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailwise.run.lock import FILE as LOCK
from tests.cli.terminal import SMALL, Terminal
from tests.run.strangers import Stranger, another_user, forget, with_features


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    folder = tmp_path_factory.mktemp("stranger")
    with another_user(folder):
        found = with_features(folder)
    shutil.copytree(found.run, folder / "twin")
    return found


COMMANDS = [
    ("evaluate", "{run}"),
    ("evaluate", "{run}", "{twin}", "--ensemble", "vote"),
    ("evaluate", "{run}", "--checkpoint", "update-000001", "--no-stress"),
    ("report", "{run}"),
    ("compare", "{run}", "{twin}"),
    ("resume", "{run}"),
    ("runs", "reproduce", "{run}"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_refuse_a_strangers_code_and_name_it(
    command: tuple[str, ...], stranger: Stranger, tailwise: Terminal
) -> None:
    before = sorted(stranger.run.parent.rglob("*"))
    run, twin = stranger.run, stranger.run.parent / "twin"
    sentence = tailwise.refuses(*(word.format(run=run, twin=twin) for word in command))
    assert "features.modules" in sentence and "mine.py" in sentence and "pass --trust" in sentence
    assert not stranger.mark.exists() and sorted(stranger.run.parent.rglob("*")) == before


@pytest.mark.parametrize("command", [("runs", "list", "{folder}"), ("doctor", "{run}")], ids=" ".join)
def test_commands_that_look_execute_nothing(command: tuple[str, ...], stranger: Stranger, tailwise: Terminal) -> None:
    assert tailwise(*(word.format(run=stranger.run, folder=stranger.run.parent) for word in command)) in (0, 1)
    assert not stranger.mark.exists() and tailwise.out != ""


def test_trust_is_given_by_an_option(stranger: Stranger, tailwise: Terminal) -> None:
    try:
        result = tailwise.json("evaluate", str(stranger.run), "--no-stress", "--trust")
        assert result["symbols"] and stranger.mark.exists()
    finally:
        forget(stranger.mark)
        shutil.rmtree(stranger.run / "evaluations", ignore_errors=True)


HOLD = """
import sys, time
from pathlib import Path
from tailwise.run.lock import RunLock
with RunLock(Path(sys.argv[1])).held():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_that_another_process_writes_is_left_alone(tailwise: Terminal) -> None:
    assert tailwise("train", "cartpole", *SMALL, "--quiet") == 0
    run = Path("runs/cartpole-1")
    before = sorted(run.rglob("*"))
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        sentence = tailwise.refuses("resume", str(run))
        assert f"runs/cartpole-1 is being written by process {other.pid} on '{os.uname().nodename}'" in sentence
        assert tailwise("runs", "prune", "--yes") == 0
        assert "note: nothing is deleted here: runs/cartpole-1 is being written" in tailwise.error
        assert sorted(run.rglob("*")) == before
        assert tailwise("evaluate", str(run)) == 0  # reading is for everybody
    finally:
        other.kill()
        other.communicate()
    assert tailwise("resume", str(run)) == 0 and "is finished" in tailwise.out
    assert (run / LOCK).exists()
    assert tailwise("runs", "prune", "--yes") == 0 and "deleted" in tailwise.out

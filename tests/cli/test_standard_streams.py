"""Whoever reads the output, and however it is encoded, a command runs to its end and keeps its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import SMALL

ROOT = Path(__file__).parents[2]


def start(folder: Path, *arguments: str, out: int, buffered: bool = True, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "tailwise", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.PIPE, text=True)


def without_reader(folder: Path, *arguments: str, buffered: bool = True) -> tuple[int, str]:
    """(exit code, standard error) of a command whose reader has gone before its first line, as in `... | true`."""
    reader, writer = os.pipe()
    process = start(folder, *arguments, out=writer, buffered=buffered)
    os.close(reader)
    os.close(writer)
    _, error = process.communicate(timeout=240)
    return process.returncode, error


@pytest.mark.parametrize("buffered", [True, False])
def test_training_goes_on_when_its_reader_leaves(tmp_path: Path, buffered: bool) -> None:
    """Rejects ending with a broken pipe (exit code 1 or 2) and half a run."""
    code, error = without_reader(tmp_path, "train", "cartpole", *SMALL, "--out", "r", buffered=buffered)
    assert code == 0, error
    assert error.count("note: nobody reads the output any more; the run goes on and writes its files as before") == 1
    assert "Traceback" not in error and "Broken pipe" not in error
    assert (tmp_path / "r/metrics.jsonl").read_text().count("\n") == 3
    assert (tmp_path / "r/checkpoints/update-000003").is_dir()


def test_a_short_command_says_nothing_about_it(tmp_path: Path) -> None:
    assert without_reader(tmp_path, "presets") == (0, "")
    assert without_reader(tmp_path, "data", "sets") == (0, "")  # through rich, which ends the process by itself
    code, error = without_reader(tmp_path, "presets", "nope")
    assert code == 2 and error.startswith("error: there is no preset 'nope'")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_an_encoding_without_these_characters(tmp_path: Path, encoding: str) -> None:
    """Rejects a UnicodeEncodeError; the bars of the file name are printed as escapes instead."""
    bars = "".join(f"2020-01-{day:02},1,1,1,1,1\n" for day in range(1, 29))
    (tmp_path / "日本.csv").write_text("time,open,high,low,close,volume\n" + bars, encoding="utf-8")
    process = start(tmp_path, "data", "check", "日本.csv", out=subprocess.PIPE, PYTHONIOENCODING=encoding)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert r"\u65e5\u672c" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_is_one_sentence(tmp_path: Path, buffered: bool) -> None:
    """Rejects Python's exit code 120 and the traceback of its last flush."""
    with open("/dev/full", "w") as full:
        process = start(tmp_path, "presets", out=full.fileno(), buffered=buffered)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (2, "error: [Errno 28] No space left on device\n")


def test_streams_that_were_closed_before_the_start(tmp_path: Path) -> None:
    for command, code in (("presets", 0), ("fly", 2)):
        closed = f'exec "{sys.executable}" -m tailwise {command} >&- 2>&-'
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        assert subprocess.run(["sh", "-c", closed], cwd=tmp_path, env=environment, check=False).returncode == code

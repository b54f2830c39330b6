"""Real runs to craft others from, every command that opens a run, and what must hold whatever it finds."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import yaml

import tailwise as tw
from tailwise.cli.main import main
from tailwise.core.errors import TailwiseError
from tests.cli.crafted_cases import Base, Case
from tests.cli.terminal import SMALL

TRAIN = [*SMALL, "-s", "backend=torch", "-s", "model.encoder.hidden=[8]", "-s", "model.actor.hidden=[8]"]
BARS = ["-s", "data.parameters={length: 500, noise: 0.002}"]
LONGEST = 60  # seconds that a command may take; a pipe that is waited for takes forever
LONGEST_SENTENCE = 1500  # characters of a line: a value of any length must not be printed whole


def base_run(folder: Path, base: Base) -> Path:
    """A whole run of a kind in `folder`, made on first use; those of gym and market have something left to train."""
    run = folder / base
    if run.exists():
        return run
    makes: dict[Base, list[list[str]]] = {
        "gym": [["train", "cartpole", *TRAIN, "-q", "--out", str(run)], ["evaluate", str(run), "--episodes", "2"]],
        "market": [["train", "sine", *TRAIN, *BARS, "-q", "--out", str(run)], ["evaluate", str(run), "--no-stress"]],
        "folds": [["walk-forward", "sine", *TRAIN, *BARS, "--folds", "2", "--seeds", "1", "--out", str(run)]],
    }
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        for command in makes[base]:
            assert main(command) == 0, printed.getvalue()
    if base != "folds":
        alert = {"update": 2, "rule": "r", "severity": "warn", "evidence": "e", "advice": "a", "signal": "grad/norm"}
        (run / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
        tree = yaml.safe_load((run / "config.yaml").read_text())
        tree["run"]["total_steps"] = 256  # one update more
        (run / "config.yaml").write_text(yaml.safe_dump(tree))
    return run


def commands_of(base: Base) -> list[list[str]]:
    """Every command that opens a run, with "run" for its folder; those that change it come last."""
    if base == "folds":
        return [["report", "run", "--json"]]
    looks = [["doctor", "run"], ["runs", "list", "."], ["runs", "prune", "."]]
    if base == "gym":
        return [*looks, ["evaluate", "run", "--episodes", "1"], ["report", "run"], ["resume", "run", "-q"]]
    return [
        *looks,
        ["evaluate", "run", "--no-stress", "--json"],
        ["report", "run", "--no-stress"],
        ["compare", "run", "../market"],
        ["resume", "run", "-q"],
    ]


@dataclass(frozen=True)
class Outcome:
    """What a command did: its exit code, or what is wrong with how it ended; empty when nothing is."""

    command: str
    code: int | None
    problem: str


class TooLong(BaseException):
    """A command did not end; no handler of ours may catch it."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(arguments: list[str]) -> Outcome:
    """Run a command in this process and judge how it ended."""
    out, error, words = io.StringIO(), io.StringIO(), " ".join(arguments[:2])
    try:
        with time_limit(LONGEST), redirect_stdout(out), redirect_stderr(error), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main(arguments)
    except TooLong:
        return Outcome(words, None, f"did not end within {LONGEST} s")
    except Exception as raised:  # noqa: BLE001  (what this is for: nothing may get out of main)
        return Outcome(words, None, f"{type(raised).__name__}: {str(raised)[:200]}")
    return Outcome(words, code, _problem(code, out.getvalue(), error.getvalue()))


def _problem(code: int, out: str, error: str) -> str:
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in out + error:
        return "a traceback is printed"
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    if code == 2 and not lines:
        return f"exit code 2 without a sentence: {error[:200]}"
    bare = [line for line in lines if len(line.split()) < 5 or len(line) > LONGEST_SENTENCE]
    return f"no sentence: {bare[0][:200]}" if bare else ""


def python_outcomes(run: Path) -> list[Outcome]:
    """What `tailwise.Run` and `tailwise.load` do: they work, or raise an error of ours."""
    reads: dict[str, Callable[[], object]] = {
        "Run": lambda: tw.Run(run),
        "metrics": lambda: tw.Run(run).metrics,
        "alerts": lambda: tw.Run(run).alerts,
        "manifest": lambda: tw.Run(run).manifest,
        "scores": lambda: tw.Run(run).scores,
        "summaries": lambda: [one.summary for one in tw.Run(run).evaluations],
        "equity": lambda: [one.paths() for one in tw.Run(run).evaluations],
        "load": lambda: tw.load(run),
    }
    found = []
    for name, read in reads.items():
        problem = ""
        try:
            with time_limit(LONGEST):
                read()
        except TooLong:
            problem = f"did not end within {LONGEST} s"
        except TailwiseError as error:
            problem = "" if len(str(error).split()) >= 4 else f"no sentence: {error}"
        except Exception as error:  # noqa: BLE001  (as above)
            problem = f"{type(error).__name__}: {str(error)[:200]}"
        found.append(Outcome(name, None, problem))
    return found


def state_of(folder: Path) -> dict[str, str]:
    """Name -> hash of everything below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if not path.is_fifo()
    }


def problems(case: Case, bases: Path, folder: Path) -> list[str]:
    """Craft a run in a new `folder`/runs/run and let every command loose on it; what went wrong, a line each."""
    runs, outside = folder / "runs", folder / "outside"
    outside.mkdir(parents=True)
    shutil.copytree(base_run(bases, case.base), runs / "run")
    if case.base == "market":
        shutil.copytree(bases / "market", folder / "market")  # to compare with
    (outside / "kept.txt").write_text("this is not yours")
    case.craft(runs / "run", outside)
    before = state_of(outside)
    outcomes = [] if case.base == "folds" else python_outcomes(runs / "run")
    for command in commands_of(case.base):
        outcomes.append(outcome(command))
        if state_of(outside) != before:
            return [f"{case.name}: {' '.join(command[:2])} changed what lies outside of the run"]
    return [f"{case.name}: {one.command}: {one.problem}" for one in outcomes if one.problem]

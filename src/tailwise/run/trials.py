"""How often these bars were tried before: a line in `trials.jsonl` beside the run folders for each training that began.

The best of many trials looks good by chance, so the deflated Sharpe ratio needs their number, and nobody remembers it.
A trial is one configuration, one way to cut the bars and one seed on one set of bars: the folds of a walk-forward are
one trial together, a resumed run is none, and a run that repeats another one exactly is none either.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tailwise.core.errors import DataError
from tailwise.core.parsing import Stored, as_stored, parse_json
from tailwise.run.config import Config
from tailwise.run.run_files import SMALL
from tailwise.run.run_folder import read_config, read_manifest

FILE = "trials.jsonl"
TRAINING, RESULT = "training", "result"


@dataclass(frozen=True)
class Trials:
    """What is known about the trials on one set of bars. sharpes: annualised, out of sample, as far as they are."""

    counted: int
    sharpes: tuple[float, ...]
    file: Path


class _Line(Stored):
    """A line of the book; id: of the run that began; window, sharpe: of a result."""

    kind: Literal["training", "result"]
    data: str
    config: str
    cut: str
    seed: int
    id: str | None = None
    window: str | None = None
    sharpe: float | None = None


@dataclass(frozen=True)
class TrialBook:
    """Where trainings are written down.

    cut     how the bars are cut, where that is not the run's own `data.split`
    whole   configuration of all seeds of a run: they decide together and none is chosen, so they are one trial
    """

    file: Path
    cut: str | None = None
    whole: Config | None = None

    @classmethod
    def beside(cls, run_dir: Path) -> TrialBook:
        """The book of the folder in which the run's folder lies."""
        return cls(run_dir.absolute().parent / FILE)

    def begin(self, run_dir: Path, config: Config, *, data: str) -> bool:
        """Write down that the training of a run on bars with the hash `data` begins; False: it was done before."""
        manifest, one = read_manifest(run_dir), self.whole or config
        line = {
            "kind": TRAINING,
            "time": _now(),
            "run": run_dir.name if self.cut is None and self.whole is None else f"{run_dir.parent.name}/{run_dir.name}",
            "id": manifest.get("id", str(run_dir.absolute())),
            "data": data,
            "config": config_hash(one),
            "cut": self.cut or split_hash(one),
            "seed": one.seed,
        }
        with _locked(self.file) as book:
            if any(written["kind"] == TRAINING and written["id"] == line["id"] for written in book.lines):
                return False
            book.append(line)
        return True

    def result(self, *, data: str, config: str, cut: str, seed: int, window: str, sharpe: float | None) -> None:
        """Write down the Sharpe ratio (per year) that a trial had on a test window, unless it stands there already."""
        key = {"data": data, "config": config, "cut": cut, "seed": seed, "window": window}
        with _locked(self.file) as book:
            if not any(one["kind"] == RESULT and key.items() <= one.items() for one in book.lines):
                book.append({"kind": RESULT, "time": _now(), **key, "sharpe": sharpe})

    def look_up(self, data: str, *, window: str | None = None) -> Trials:
        """The trials on bars with this hash; Sharpe ratios of that test window alone."""
        lines = read_lines(self.file) if self.file.exists() else []
        own = [one for one in lines if one["data"] == data]
        keys = {(one["config"], one["cut"], one["seed"]) for one in own if one["kind"] == TRAINING}
        sharpes = {
            (one["config"], one["cut"], one["seed"]): one["sharpe"]
            for one in own
            if one["kind"] == RESULT and one["window"] == window and one["sharpe"] is not None
        }
        return Trials(len(keys), tuple(sharpes.values()), self.file)


def count_trials(run_dir: str | Path) -> Trials:
    """The trials on the bars of a run, itself included; at least 1. Outside the market there is nothing to count."""
    folder = Path(run_dir)
    read_config(folder)  # says so when this is not the folder of a run
    manifest = read_manifest(folder)
    own = TrialBook.beside(folder)
    outer = TrialBook(own.file.parent.parent / FILE)  # runs of a walk-forward or a frontier are written down there
    book = outer if outer.file.exists() and not own.file.exists() else own
    trials = book.look_up(manifest.get("data_hash", ""))
    return Trials(max(trials.counted, 1), trials.sharpes, trials.file)


def config_hash(config: Config) -> str:
    """sha256 (hex) of a configuration without its seed and its split."""
    data = config.model_dump(mode="json")
    data.pop("seed")
    if data["run"]["seeds"] == 1:  # as trainings from before the key was there
        data["run"].pop("seeds")
    if data["data"] is not None:
        data["data"].pop("split")
    return _digest(data)


def split_hash(config: Config) -> str:
    """sha256 (hex) of how a configuration cuts its bars."""
    return _digest(None if config.data is None else config.data.split.model_dump(mode="json"))


def plan_hash(plan: Mapping[str, Any]) -> str:
    """sha256 (hex) of a plan of folds, as JSON values."""
    return _digest(plan)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """All lines of a book, oldest first; a torn last line is left out."""
    return _parsed(file.read_bytes(), file)


class _Book:
    """The open, locked file."""

    def __init__(self, descriptor: int, file: Path) -> None:
        self.descriptor = descriptor
        with open(os.dup(descriptor), "rb") as reader:
            reader.seek(0)
            content = reader.read()
        self.lines = _parsed(content, file)
        self.torn = bool(content) and not content.endswith(b"\n")

    def append(self, line: Mapping[str, Any]) -> None:
        """One write at the end of the file, on the disk when this returns."""
        text = ("\n" if self.torn else "") + json.dumps(line, allow_nan=False) + "\n"
        os.write(self.descriptor, text.encode())
        os.fsync(self.descriptor)


@contextmanager
def _locked(file: Path) -> Iterator[_Book]:
    """The book, which no other process writes to meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # released when the descriptor is closed, also by a kill
        yield _Book(descriptor, file)
    finally:
        os.close(descriptor)


def _parsed(content: bytes, file: Path) -> list[dict[str, Any]]:
    parsed = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn, or nothing
        if not line:
            continue
        source = f"{file} line {number}"
        try:
            value = parse_json(line, what=source, max_bytes=SMALL)
        except DataError:
            # A line that a power cut tore, to which the next writer put its newline: it counted nothing.
            continue
        try:
            parsed.append(as_stored(_Line, value, source=source).model_dump())
        except DataError as error:
            raise DataError(
                f"{error}\n{source}: is no line of a trial; restore the file or delete that line."
            ) from error
    return parsed


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

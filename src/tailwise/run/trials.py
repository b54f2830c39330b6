"""How often these bars were tried before: a line in `trials.jsonl` beside the run folders for each training that began.

The best of many trials looks good by chance, so the deflated Sharpe ratio needs their number, and nobody remembers it.
A trial is one configuration, one way to cut the bars and one seed on one set of bars: the folds of a walk-forward are
one trial together, a resumed run is none, and a run that repeats another one exactly is none either. Sets that share
bars (a symbol alone and among others, a longer history) are tried together: who looks at one has seen the other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import DataError
from tailwise.core.parsing import Stored, as_stored, parse_json
from tailwise.run.config import Config
from tailwise.run.run_files import SMALL
from tailwise.run.run_folder import read_config, read_manifest

FILE = "trials.jsonl"
TRAINING, RESULT, BARS = "training", "result", "bars"
SKETCH = 64  # hashes of bars that are kept of each symbol


@dataclass(frozen=True)
class Trials:
    """How many policies were tried on the bars of one, itself included, before it was looked at.

    counted     trials on sets of bars that share some with its own
    sharpes     of trials on the same set and test window: annualised, out of sample, as far as they are known
    source      where they are counted, in words
    elsewhere   trials in the same book on sets that share no bar with it
    symbols     that a verdict on one symbol was chosen from; each counts as a trial
    """

    counted: int = 1
    sharpes: tuple[float, ...] = ()
    source: str = "no other trial on these data is known"
    elsewhere: int = 0
    symbols: int = 1

    def of_each(self, symbols: int) -> Trials:
        """The same for the verdict on one of so many symbols, each of which one could have picked."""
        return replace(self, counted=self.counted * symbols, symbols=symbols)


class _Line(Stored):
    """A line of the book; id: of the run that began; window, sharpe: of a result; sketch: of a set of bars."""

    kind: Literal["training", "result", "bars"]
    data: str
    config: str = ""
    cut: str = ""
    seed: int = 0
    id: str | None = None
    window: str | None = None
    sharpe: float | None = None
    sketch: list[str] | None = None


@dataclass(frozen=True)
class TrialBook:
    """Where trainings are written down.

    cut     how the bars are cut, where that is not the run's own `data.split`
    whole   configuration of all seeds of a run: they decide together and none is chosen, so they are one trial
    part   what tells a training from others with the same configuration, of a population for instance
    """

    file: Path
    cut: str | None = None
    whole: Config | None = None
    part: str | None = None

    @classmethod
    def beside(cls, run_dir: Path) -> TrialBook:
        """The book of the folder in which the run's folder lies."""
        return cls(run_dir.absolute().parent / FILE)

    def begin(self, run_dir: Path, config: Config, *, data: str, sketch: Sequence[str] = ()) -> bool:
        """Write down that the training of a run on bars with the hash `data` begins; False: it was done before.

        sketch: of these bars (`bars_sketch`), by which sets that share bars are recognised.
        """
        manifest, one = read_manifest(run_dir), self.whole or config
        line = {
            "kind": TRAINING,
            "time": _now(),
            "run": run_dir.name if self.cut is None and self.whole is None else f"{run_dir.parent.name}/{run_dir.name}",
            "id": manifest.get("id", str(run_dir.absolute())),
            "data": data,
            "config": config_hash(one) if self.part is None else _digest([config_hash(one), self.part]),
            "cut": self.cut or split_hash(one),
            "seed": one.seed,
        }
        with _locked(self.file) as book:
            if any(written["kind"] == TRAINING and written["id"] == line["id"] for written in book.lines):
                return False
            if sketch and not any(one["kind"] == BARS and one["data"] == data for one in book.lines):
                book.append({"kind": BARS, "time": _now(), "data": data, "sketch": list(sketch)})
            book.append(line)
        return True

    def result(self, *, data: str, config: str, cut: str, seed: int, window: str, sharpe: float | None) -> None:
        """Write down the Sharpe ratio (per year) that a trial had on a test window, unless it stands there already."""
        key = {"data": data, "config": config, "cut": cut, "seed": seed, "window": window}
        with _locked(self.file) as book:
            if not any(one["kind"] == RESULT and key.items() <= one.items() for one in book.lines):
                book.append({"kind": RESULT, "time": _now(), **key, "sharpe": sharpe})

    def look_up(self, data: str, *, window: str | None = None) -> Trials:
        """The trials on bars with this hash or on sets that share bars with it; Sharpe ratios of that test window."""
        lines = read_lines(self.file) if self.file.exists() else []
        shared = _sharing(lines, data)
        begun = [one for one in lines if one["kind"] == TRAINING]
        keys = {_key_of(one) for one in begun if one["data"] in shared}
        others = {_key_of(one) for one in begun if one["data"] not in shared}
        sharpes = {
            _key_of(one): one["sharpe"]
            for one in lines
            if one["data"] == data and one["kind"] == RESULT and one["window"] == window and one["sharpe"] is not None
        }
        return Trials(len(keys), tuple(sharpes.values()), self.file.name, len(others))


def bars_sketch(symbols: Iterable[Bars]) -> list[str]:
    """A few bars of each symbol by which sets that share bars are recognised: hex, 12 characters each.

    Every bar (open time and close) has a hash; the SKETCH smallest of each symbol are kept. Two sets that share a part
    p of the larger one share none of these with probability (1 - p)^SKETCH. Other names, more symbols, a longer or a
    shorter history do not matter; other bar lengths and other prices are other bars.
    """
    found: set[str] = set()
    for bars in symbols:
        words = np.empty((len(bars), 2), dtype=np.uint64)
        words[:, 0] = bars.time.astype("datetime64[s]").astype(np.int64).view(np.uint64)
        words[:, 1] = np.ascontiguousarray(bars.close, dtype=np.float64).view(np.uint64)
        with np.errstate(over="ignore"):
            mixed = _mix(words[:, 0] ^ _mix(words[:, 1]))
        found.update(f"{int(one) >> 16:012x}" for one in np.sort(mixed)[:SKETCH])
    return sorted(found)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection whose bits all depend on all bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _key_of(line: Mapping[str, Any]) -> tuple[str, str, str, int]:
    return line["data"], line["config"], line["cut"], line["seed"]


def _sharing(lines: Sequence[Mapping[str, Any]], data: str) -> set[str]:
    """Hashes of the sets of bars that share some with `data`, itself included."""
    sketches = {one["data"]: frozenset(one["sketch"] or ()) for one in lines if one["kind"] == BARS}
    own = sketches.get(data, frozenset())
    return {data, *(other for other, sketch in sketches.items() if own & sketch)}


def count_trials(run_dir: str | Path) -> Trials:
    """The trials on the bars of a run, itself included; at least 1. Outside the market there is nothing to count."""
    folder = Path(run_dir)
    read_config(folder)  # says so when this is not the folder of a run
    manifest = read_manifest(folder)
    own = TrialBook.beside(folder)
    outer = TrialBook(own.file.parent.parent / FILE)  # runs of a walk-forward or a frontier are written down there
    book = outer if outer.file.exists() and not own.file.exists() else own
    trials = book.look_up(manifest.get("data_hash", ""))
    return replace(trials, counted=max(trials.counted, 1))


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

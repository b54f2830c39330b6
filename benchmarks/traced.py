"""How many files does one follow? Counted on traced runs: an update from rollout to weights, a bar from CSV to report.

    python -m benchmarks.traced [--json] [--list] [--only update|bar|size]

A file counts when one of its functions is called on the way; what only runs while a module is imported does not.
`--list` prints the files with the functions that were called, the least used first: those are what could be merged.
The interpreter does not see calls of compiled kernels, so a file is missing where its kernels alone are used.

- update: `update` of the torch backend with LSTM, quantile critics and a limit that acts; beside it, not judged, one
  whole turn of the training loop (collecting, audit, metrics).
- bar: a trained policy trades the test window of a CSV file (read, features, environment, playback), then the bars go
  through `tailwise.backtest` to a page (statistics, baselines, panels). Training and the files of a run are no part.
- size: lines and files of src.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from rich.console import Console

import tailwise
from benchmarks.measured import facts_of
from benchmarks.report import Check, present

PACKAGE = Path(tailwise.__file__).resolve().parent
PARTS = ("update", "bar", "size")
# Qualified name of the function that makes weights of a rollout; to be followed when it is renamed.
UPDATE_ENTRY = "update"
MOST_FILES_OF_AN_UPDATE, MOST_FILES_OF_A_BAR = 15, 40
MOST_LINES, MOST_FILES = 35_000, 210


@dataclass
class Trace:
    """Calls of functions in the package: (file, function) -> count, and calls from one file into another one."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    crossings: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def files(self) -> Counter[str]:
        """Calls per file."""
        found: Counter[str] = Counter()
        for (file, _), count in self.calls.items():
            found[file] += count
        return found

    @property
    def functions(self) -> int:
        """How many functions were called."""
        return len(self.calls)

    def lines(self) -> Iterator[str]:
        """One line per file, the least used first: functions with their calls."""
        for file, _ in sorted(self.files.items(), key=lambda item: (item[1], item[0])):
            inside = sorted((name, n) for (where, name), n in self.calls.items() if where == file)
            yield f"  {file}: " + ", ".join(name if n == 1 else f"{name} x{n}" for name, n in inside)


class Tracer:
    """Counts calls. entry: only those within the first call of the function with this qualified name."""

    def __init__(self, entry: str | None = None) -> None:
        self.entry = entry
        self.trace = Trace()
        self.on, self.over = entry is None, False
        self._first: FrameType | None = None
        self._names: dict[CodeType, tuple[str, str] | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """For `sys.setprofile`."""
        if event == "return" and self._first is frame:
            self.on, self.over, self._first = False, True, None
        if event != "call" or self.over:
            return
        place = self._place(frame.f_code)
        if place is None:
            return
        if not self.on and place[1] == self.entry:
            self.on, self._first = True, frame
        if self.on:
            self.trace.calls[place] += 1
            caller = self._caller(frame)
            if caller is not None and caller[0] != place[0]:
                self.trace.crossings[caller[0], place[0]] += 1

    def _caller(self, frame: FrameType) -> tuple[str, str] | None:
        """The nearest function of the package below on the stack."""
        below = frame.f_back
        while below is not None:
            place = self._place(below.f_code)
            if place is not None:
                return place
            below = below.f_back
        return None

    def _place(self, code: CodeType) -> tuple[str, str] | None:
        """(file, function) of code in the package; None elsewhere, and for the bodies of modules and classes."""
        if code not in self._names:
            file = Path(code.co_filename)
            inside = file.is_absolute() and file.is_relative_to(PACKAGE) and code.co_flags & inspect.CO_OPTIMIZED
            # A comprehension or a lambda belongs to the function that it is written in.
            name = code.co_qualname.split(".<locals>")[0]
            self._names[code] = (file.relative_to(PACKAGE).as_posix(), name) if inside else None
        return self._names[code]


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Trace this thread."""
    sys.setprofile(tracer)
    try:
        yield
    finally:
        sys.setprofile(None)


class TraceOne(tailwise.Callback):
    """Trace all of the update that follows the first one: from one `on_update` to the next."""

    def __init__(self) -> None:
        self.whole, self.inner = Tracer(), Tracer(UPDATE_ENTRY)

    def on_update(self, progress: Any) -> None:
        if progress.update == 1:
            whole, inner = self.whole, self.inner

            def both(frame: FrameType, event: str, argument: Any) -> None:
                whole(frame, event, argument)
                inner(frame, event, argument)

            sys.setprofile(both)
        else:
            sys.setprofile(None)


def trace_update() -> tuple[Trace, Trace]:
    """(from rollout to weights, one whole turn of the loop) of the second update."""
    callback = TraceOne()
    settings = {
        "backend": "torch",
        "env": {"id": "CartPole-v1"},
        "model": {"core": {"kind": "lstm", "hidden": 8}, "critic": {"kind": "quantile", "quantiles": 32}},
        "learner": {"epochs": 2, "minibatches": 2, "gamma": 0.9},
        "risk": {"mode": "constraint", "limit": 5.0, "alpha": 0.1, "warmup": {"updates": 0, "longest": 0}},
        "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "tensorboard": False},
    }
    tailwise.PPO(config=settings, callbacks=[callback]).learn()
    if not callback.inner.trace.calls:
        raise SystemExit(f"{UPDATE_ENTRY} was never called; name the function that takes its place in {__file__}.")
    return callback.inner.trace, callback.whole.trace


def trace_bar() -> Trace:
    """From the CSV file over a policy's decisions to a page."""
    with tempfile.TemporaryDirectory(prefix="traced-") as name:
        folder = Path(name)
        _write_csv(folder / "bars.csv")
        settings = {
            "backend": "torch",
            "data": {"kind": "files", "paths": [str(folder / "bars.csv")]},
            "env": {"kind": "market", "episode_length": 50},
            "model": {"critic": {"kind": "quantile"}},
            "learner": {"epochs": 1, "minibatches": 2},
            "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "tensorboard": False},
        }
        tailwise.PPO(config=settings).save(folder / "policy")
        policy = tailwise.load(folder / "policy")
        backtest = tailwise.backtest  # looked up here: finding its module is no step of a bar
        tracer = Tracer()
        with tracing(tracer):
            market = policy.market()
            policy.trade("test", market=market)
            backtest(lambda bars: 1.0, market.dataset.bars[0], report=folder / "page.html")
    return tracer.trace


def _write_csv(file: Path) -> None:
    """600 daily bars of a random walk."""
    rng = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(0.01 * rng.standard_normal(600)))
    before = np.concatenate([[100.0], close[:-1]])
    high, low = np.maximum(before, close) * 1.002, np.minimum(before, close) * 0.998
    days = np.datetime64("2020-01-01") + np.arange(600)
    rows = [f"{d},{o:.4f},{h:.4f},{lo:.4f},{c:.4f},1000000" for d, o, h, lo, c in zip(days, before, high, low, close)]
    file.write_text("\n".join(["time,open,high,low,close,volume", *rows]) + "\n", encoding="utf-8")


def size_of(package: Path) -> tuple[int, int]:
    """(lines, files) of Python below a folder."""
    files = sorted(package.rglob("*.py"))
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files), len(files)


def _check(name: str, value: int, most: int, detail: str) -> Check:
    return Check(name, float(value), f"<= {most:,}", value <= most, detail)


def _told(trace: Trace) -> str:
    return f"{trace.functions} functions, {len(trace.crossings)} pairs of files that call one another"


def measure(parts: list[str], say: Callable[[str], None], *, lists: bool) -> tuple[list[Check], dict[str, Any]]:
    """Checks of the parts, and the lists of files with their calls."""
    checks, files = [], {}
    if "update" in parts:
        update, turn = trace_update()
        detail = f"{_told(update)}; the whole turn of the loop: {len(turn.files)} files, {_told(turn)}"
        checks.append(
            _check("files of an update, from rollout to weights", len(update.files), MOST_FILES_OF_AN_UPDATE, detail)
        )
        files |= {"update": update, "turn of the loop": turn}
    if "bar" in parts:
        bar = trace_bar()
        checks.append(_check("files of a bar, from CSV to report", len(bar.files), MOST_FILES_OF_A_BAR, _told(bar)))
        files["bar"] = bar
    if "size" in parts:
        lines, count = size_of(PACKAGE)
        checks.append(_check("lines of src", lines, MOST_LINES, f"on average {lines / count:.0f} per file"))
        checks.append(_check("files of src", count, MOST_FILES, ""))
    if lists:
        for name, trace in files.items():
            say(f"{name}: {len(trace.files)} files\n" + "\n".join(trace.lines()))
    return checks, {name: dict(sorted(trace.files.items())) for name, trace in files.items()}


def main() -> None:
    """Parse the command line, trace, print; exit with 1 where there are more than the targets allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    parser.add_argument("--list", action="store_true", help="print the files with the functions that were called")
    parser.add_argument("--only", action="append", default=[], choices=PARTS, help="this part; may be repeated")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    warnings.simplefilter("ignore")  # short rollouts are meant
    measured = facts_of("traced")
    checks, files = measure(arguments.only or list(PARTS), say, lists=arguments.list)
    measured |= {"only": arguments.only, "calls": files}
    present("How much one follows", checks, measured=measured, as_json=arguments.json, console=console)


if __name__ == "__main__":
    main()

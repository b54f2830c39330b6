"""Plant mistakes one at a time and see whether the tests notice: `python -m benchmarks.mutants --only learner`.

The tree is copied to a temporary folder, and everything happens there: the sources that somebody works on are never
touched. Python writes no bytecode there, because it recognises a changed file by its second and its size, and mutants
of one second may have the same size; compiled kernels follow the content of the sources (docs/decisions/0006) and are
kept in the temporary folder as well. docs/mutants.md says how to add a mutant.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import (
    mutants_kernels,
    mutants_learner,
    mutants_market,
    mutants_model,
    mutants_run,
    mutants_statistics,
)
from benchmarks.mutant import Mutant
from tailwise.core import atomic

ROOT = Path(__file__).parents[1]
# Cheap areas first; those that compile kernels for every mutant last.
AREAS: dict[str, tuple[Mutant, ...]] = {
    "learner": mutants_learner.MUTANTS,
    "statistics": mutants_statistics.MUTANTS,
    "model": mutants_model.MUTANTS,
    "run": mutants_run.MUTANTS,
    "market": mutants_market.MUTANTS,
    "kernels": mutants_kernels.MUTANTS,
}
LEFT_BEHIND = (
    ".git",
    ".venv",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    "site",
    "runs",
    "*.egg-info",
)
SECONDS = 120.0
CLEAN_SECONDS = 600.0  # of a run without a mutant, which may have to compile all kernels
PASSED, FAILED, INTERRUPTED = 0, 1, 2  # exit codes of pytest; a module that cannot be imported interrupts it
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """What the tests said about a mutant. outcome: "killed", "survived", "timed out", "refused" (its tests fail without
    it) or "equivalent" (it survived, as the list says it must). by: the test that failed first; None where none did."""

    area: str
    name: str
    outcome: str
    by: str | None
    seconds: float


@dataclass(frozen=True)
class PytestRun:
    """One run of pytest. code: None after a timeout, negative after a signal."""

    code: int | None
    output: str
    seconds: float

    @property
    def first_failure(self) -> str:
        """Name of the first test that failed, or how the process ended."""
        match = _FIRST_FAILURE.search(self.output)
        if match is not None:
            return match[1]
        return f"signal {-self.code}" if self.code is not None and self.code < 0 else "pytest itself"


def copy_tree(target: Path) -> Path:
    """Copy what tests need of the repository to `target`."""
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*LEFT_BEHIND), symlinks=True)
    return target


def run_tests(tree: Path, mutant: Mutant, seconds: float) -> PytestRun:
    """Run the tests of a mutant in `tree` as it stands, in one process that ends after `seconds` at the latest."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *mutant.tests]
    command += ["-k", mutant.only] if mutant.only else []
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(tree.parent / "compiled"),
        "XDG_CACHE_HOME": str(tree.parent / "cache"),
    }
    began = time.monotonic()
    # A session of its own: tests start processes, and all of them must end with a mutant that hangs.
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, code = process.communicate(timeout=seconds)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, code = process.communicate()[0], None
    return PytestRun(code, output, time.monotonic() - began)


def why_not_clean(tree: Path, mutant: Mutant) -> str | None:
    """Say why the tests of a mutant prove nothing: without it they fail, which would kill anything, or select nothing.
    None where they pass."""
    tested = run_tests(tree, mutant, CLEAN_SECONDS)
    if tested.code == PASSED:
        return None
    return (
        f"refused: the tests {' '.join(mutant.tests)} (-k {mutant.only!r}) do not pass without a mutant "
        f"({tested.first_failure}), so they prove nothing about '{mutant.name}'; mend them first."
    )


def judge(tree: Path, area: str, mutant: Mutant, seconds: float) -> Verdict:
    """Plant a mutant in `tree`, run its tests and put the file back."""
    path = tree / "src/tailwise" / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.planted(tree), encoding="utf-8")
    try:
        tested = run_tests(tree, mutant, seconds)
    finally:
        path.write_text(original, encoding="utf-8")
    if tested.code is None:
        return Verdict(area, mutant.name, "timed out", None, tested.seconds)
    if tested.code == PASSED:
        outcome = "equivalent" if mutant.equivalent else "survived"
        return Verdict(area, mutant.name, outcome, None, tested.seconds)
    if tested.code not in (FAILED, INTERRUPTED) and tested.code > 0:
        raise ValueError(f"pytest ended with {tested.code} for '{mutant.name}':\n{tested.output[-2000:]}")
    return Verdict(area, mutant.name, "killed", tested.first_failure, tested.seconds)


def judge_all(
    mutants: Iterable[tuple[str, Mutant]], *, seconds: float, say: Callable[[str], None]
) -> Iterable[Verdict]:
    """Judge mutants one after the other in a copy of the tree; tests must pass there without a mutant first."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder) / "tree")
        broken: dict[tuple[tuple[str, ...], str], str | None] = {}
        for area, mutant in mutants:
            mutant.planted(tree)  # a text that moved is reported before its tests have run for a minute
            selection = (mutant.tests, mutant.only)
            if selection not in broken:
                broken[selection] = why_not_clean(tree, mutant)
                say(broken[selection] or f"clean: {' '.join(mutant.tests)}")
            if broken[selection] is not None:
                yield Verdict(area, mutant.name, "refused", None, 0.0)
                continue
            verdict = judge(tree, area, mutant, seconds)
            say(
                f"{verdict.outcome:10} {verdict.seconds:5.1f} s  {verdict.name}"
                + f"  [{verdict.by}]" * bool(verdict.by)
            )
            yield verdict


def chosen(only: Sequence[str], first: int | None) -> list[tuple[str, Mutant]]:
    """Mutants of the areas `only` (all where none is named), at most `first` of each."""
    areas = only or tuple(AREAS)
    return [(area, mutant) for area in areas for mutant in AREAS[area][:first]]


def main() -> None:
    """Parse the command line, judge, print the counts; exit with 1 where one was neither killed nor equivalent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=list(AREAS), help="this area; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the verdicts here, after every mutant")
    parser.add_argument("--first", type=int, metavar="N", help="at most N mutants of each area")
    parser.add_argument("--seconds-per-mutant", type=float, default=SECONDS, metavar="N", help="then it has timed out")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    verdicts: list[Verdict] = []
    mutants = chosen(arguments.only, arguments.first)
    for verdict in judge_all(mutants, seconds=arguments.seconds_per_mutant, say=say):
        verdicts.append(verdict)
        if arguments.json is not None:
            atomic.write_json(arguments.json, [asdict(one) for one in verdicts])
    counts = dict.fromkeys(("killed", "survived", "timed out", "refused", "equivalent"), 0)
    for verdict in verdicts:
        counts[verdict.outcome] += 1
    say(f"{len(verdicts)} mutants: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if counts["killed"] + counts["equivalent"] < len(verdicts):
        sys.exit(1)


if __name__ == "__main__":
    main()

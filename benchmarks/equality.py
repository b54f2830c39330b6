"""Are results before and after a restructuring equal to the last bit? Two source trees run side by side.

    python -m benchmarks.equality --before REVISION_OR_FOLDER [--after FOLDER] [--json] [--quick] [--only "limit"]

Recorded hashes would not survive another processor, so both sides are run here and now, each in a process of its own
whose PYTHONPATH names its tree. Compared are, after each of 8 updates: every tensor that `agent.save` writes (weights,
optimiser, environments, controllers) and every metric but those under time/ and machine/. Then the files of the earlier
side are opened by the later one: its policy must decide the same, and its run folder, broken off in the middle, must
continue to the same end.

A revision is checked out into a temporary worktree, where all kernels have to be compiled first. A folder keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from safetensors.numpy import load_file

from benchmarks.equality_cases import CASES, Case
from benchmarks.measured import facts_of
from benchmarks.report import Check, present

ROOT = Path(__file__).parents[1]
UPDATES = 8
NOT_COMPARED = ("time/", "machine/")  # names of metrics that differ between two runs of one program
SECONDS = 1800.0  # of one side of one configuration, with all kernels still to be compiled

# Names before -> names after. A name that ends with "/" or "." renames all that begin with it; None: left out on
# purpose, with the reason beside it. A new name that no older one becomes stands in NEW.
RENAMED_METRICS: dict[str, str | None] = {}
# Metrics whose values changed on purpose, with the reason: not compared; one that ends with "/" names all that begin
# with it. They report, and steer nothing but alerts whose bounds are orders of magnitude away from a last digit.
REDEFINED: dict[str, str] = {
    "grad/term/": "torch makes them for both backends, and now adds in another order: the last digits differ",
    "model/effective_rank": "of the features that torch makes for both backends, as above",
    "model/dead_units": "computed in numpy instead of torch: the last digits differ",
    "model/dormant_units": "of 16 steps of 8 environments, where it was 64 of 2",
    "policy/logit_norm": "computed in another order: the last digits differ",
    "policy/entropy_share": "under masks: what it is a share of is added up in another order",
    "reward/mean": "added up in float64, where it was float32",
    "risk/updates_at_cap": "counts updates without progress, where it counted all in which the limit was broken",
    "risk/out_of_reach": "follows from risk/updates_at_cap",
    "risk/began_calibrated": "also 1 where the measured tail was right while the critics still learnt theirs",
}
RENAMED_TENSORS: dict[str, str | None] = {}
NEW: frozenset[str] = frozenset(
    {
        # What the alerts on useless values and outlying returns read since they know how far returns differed before.
        "critic/unexplained",
        "return/record",
        # Plasticity (docs/optimisers.md).
        "model/dormant_units",
        "model/effective_rank",
        "model/weight_norm",
        "model/weight_growth",
        "model/weight_distance",
    }
)


@dataclass(frozen=True)
class Difference:
    """How many entries differ, and the first of them as a sentence; None where all are equal."""

    count: int
    first: str | None


def compare(
    before: Path, after: Path, cases: Sequence[Case], *, updates: int = UPDATES, say: Callable[[str], None]
) -> list[Check]:
    """Four checks per configuration and backend. before, after: folders that hold `src/tailwise`."""
    checks = []
    for case in cases:
        for backend in case.backends:
            with tempfile.TemporaryDirectory(prefix="equality-") as name:
                old, new = (Path(name) / side for side in ("before", "after"))
                failed = run_side(before, case, backend, updates, old)
                failed = failed or run_side(after, case, backend, updates, new, earlier=old)
                if failed is None:
                    found = compare_results(old, new, updates, name=f"{case.name}, {backend}")
                else:
                    found = [Check(f"{case.name}, {backend}: runs", None, "both sides run", False, failed)]
            checks += found
            wrong = [check.detail for check in found if not check.passed]
            say(f"{case.name}, {backend}: {'; '.join(wrong) or 'equal'}")
    return checks


def run_side(
    tree: Path, case: Case, backend: str, updates: int, folder: Path, *, earlier: Path | None = None
) -> str | None:
    """Run a configuration with a source tree, in a process of its own; why it failed, None when it did not.

    folder: made here, for the results; earlier: the folder of the side whose files are opened.
    """
    folder.mkdir()
    file = folder / "case.json"
    file.write_text(json.dumps(asdict(case)), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.equality_worker", str(file), str(folder), "--tree", str(tree)]
    command += ["--backend", backend, "--updates", str(updates)]
    command += [] if earlier is None else ["--earlier", str(earlier)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "XDG_CONFIG_HOME": str(folder.parent / "key"),  # run folders are signed; both sides have one key
    }
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{folder.name}: not done after {SECONDS:.0f} s"
    if done.returncode == 0:
        return None
    last = [line for line in done.stderr.strip().splitlines() if line.strip()][-3:]
    return f"{folder.name}: exit code {done.returncode}: {' | '.join(last)}"


def compare_results(before: Path, after: Path, updates: int, *, name: str) -> list[Check]:
    """Four checks of what `run_side` wrote into two folders, the second with the first as `earlier`."""
    opened, end = after / "opened", f"update-{updates}"
    resumed = _json(opened / "resumed.json")
    doubts = [note for note in resumed["notes"] if "not exact" in note]
    if resumed["updates"] != updates:
        doubts.append(f"the run has {resumed['updates']} of {updates} updates")
    found = {
        "metrics": metric_difference(_json(before / "metrics.json"), _json(after / "metrics.json")),
        "weights": _weights_of_all_updates(before, after, updates),
        "predictions of the earlier policy": prediction_difference(
            _json(before / "predictions.json"), _json(opened / "predictions.json")
        ),
        "end of the earlier run": (
            Difference(len(doubts), doubts[0])
            if doubts
            else tensor_difference(tensors_in(before / end), tensors_in(opened / end), where="at the end")
        ),
    }
    return [
        Check(f"{name}: {what}", float(one.count), "0 differ", one.first is None, one.first or "equal")
        for what, one in found.items()
    ]


def _weights_of_all_updates(before: Path, after: Path, updates: int) -> Difference:
    """The first update whose tensors differ; later ones follow from it."""
    for update in range(1, updates + 1):
        sides = [tensors_in(home / f"update-{update}") for home in (before, after)]
        found = tensor_difference(*sides, where=f"update {update}")
        if found.first is not None:
            return found
    return Difference(0, None)


def tensors_in(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """All tensors of a saved agent, `policy/encoder.0.weight`."""
    found = {
        f"{file.parent.name}/{name}": tensor
        for file in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    if not found:
        raise FileNotFoundError(f"{folder} has no .safetensors file; what `agent.save` writes has changed.")
    return found


def tensor_difference(
    before: Mapping[str, npt.NDArray[Any]], after: Mapping[str, npt.NDArray[Any]], *, where: str
) -> Difference:
    """Tensors that differ in type, shape or any bit."""

    def told(name: str, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> str | None:
        if old.dtype != new.dtype or old.shape != new.shape:
            return f"{name} was {old.dtype} {list(old.shape)} and is {new.dtype} {list(new.shape)}"
        if old.tobytes() == new.tobytes():
            return None
        entries = (old != new) & ~((old != old) & (new != new))  # a NaN that stayed one is not where they part
        at = tuple(int(i) for i in np.argwhere(entries)[0]) if entries.any() else ()
        return (
            f"{name}{list(at)} was {old[at]!r} and is {new[at]!r} ({int(entries.sum())} of {old.size} entries differ)"
        )

    return _difference(before, after, RENAMED_TENSORS, told, where)


def metric_difference(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> Difference:
    """Metrics of all updates that differ in any bit; the first update that has one names it."""
    if len(before) != len(after):
        return Difference(1, f"{len(before)} updates became {len(after)}")

    def told(name: str, old: float, new: float) -> str | None:
        # repr tells 0.0 from -0.0, and a NaN equals itself
        return None if repr(old) == repr(new) else f"{name} was {old!r} and is {new!r}"

    rows = [
        _difference(_compared(old), _compared(new), RENAMED_METRICS, told, f"update {update}")
        for update, (old, new) in enumerate(zip(before, after, strict=True), start=1)
    ]
    return Difference(sum(row.count for row in rows), next((row.first for row in rows if row.first is not None), None))


def prediction_difference(before: Sequence[Any], after: Sequence[Any]) -> Difference:
    """Decisions that differ, each with the hidden state that it left."""
    if len(before) != len(after):
        return Difference(1, f"{len(before)} decisions became {len(after)}")
    wrong = [step for step, (old, new) in enumerate(zip(before, after, strict=True)) if repr(old) != repr(new)]
    if not wrong:
        return Difference(0, None)
    at = wrong[0]
    return Difference(len(wrong), f"decision {at} was {str(before[at])[:80]} and is {str(after[at])[:80]}")


def _compared(row: Mapping[str, float]) -> dict[str, float]:
    left_out = (*NOT_COMPARED, *(name for name in REDEFINED if name.endswith("/")))
    return {name: value for name, value in row.items() if not name.startswith(left_out) and name not in REDEFINED}


def renamed(name: str, table: Mapping[str, str | None]) -> str | None:
    """The name after the restructuring; None where it was left out."""
    if name in table:
        return table[name]
    for old, new in table.items():
        if old.endswith(("/", ".")) and name.startswith(old):
            return None if new is None else new + name[len(old) :]
    return name


def _difference(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    table: Mapping[str, str | None],
    told: Callable[[str, Any, Any], str | None],
    where: str,
) -> Difference:
    """Compare by new names; `told` says how two values differ."""
    moved = {new: value for name, value in before.items() if (new := renamed(name, table)) is not None}
    missing = [f"{name} is gone" for name in sorted(moved.keys() - after.keys())]
    added = [f"{name} is new" for name in sorted(after.keys() - moved.keys() - NEW)]
    differing = [told(name, moved[name], after[name]) for name in sorted(moved.keys() & after.keys())]
    wrong = [*(text for text in differing if text is not None), *missing, *added]
    return Difference(len(wrong), f"{where}: {wrong[0]}" if wrong else None)


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@contextmanager
def tree_of(before: str) -> Iterator[Path]:
    """The folder of a source tree; a revision is checked out for as long as it is needed."""
    if (Path(before) / "src/tailwise").is_dir():
        yield Path(before).resolve()
        return
    known = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{before}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        raise SystemExit(f"--before {before} is neither a revision of {ROOT} nor a folder with src/tailwise.")
    with tempfile.TemporaryDirectory(prefix="equality-before-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), before], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> None:
    """Parse the command line, compare, print; exit with 1 where something differs."""
    title = "Equal to the last bit before and after"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--before", required=True, metavar="REVISION_OR_FOLDER", help="what results are compared with")
    parser.add_argument("--after", type=Path, default=ROOT, metavar="FOLDER", help="the later tree; default: this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one configuration, torch, two updates")
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help="; ".join(names))
    parser.add_argument("--backend", choices=("torch", "fused"), help="only this implementation")
    arguments = parser.parse_args()
    if not (arguments.after / "src/tailwise").is_dir():
        raise SystemExit(f"--after {arguments.after} is no folder with src/tailwise.")
    cases = [case for case in CASES if not arguments.only or case.name in arguments.only]
    wanted = "torch" if arguments.quick else arguments.backend
    cases = [
        Case(**{**asdict(case), "backends": tuple(b for b in case.backends if wanted in (None, b))})
        for case in (cases[:1] if arguments.quick else cases)
    ]
    measured = {
        **facts_of("equality"),
        "before": arguments.before,
        "quick": arguments.quick,
        "only": arguments.only,
        "backends": ["torch", "fused"] if wanted is None else [wanted],
    }
    console = Console(stderr=arguments.json)
    with tree_of(arguments.before) as before:
        checks = compare(
            before,
            arguments.after.resolve(),
            cases,
            updates=2 if arguments.quick else UPDATES,
            say=lambda text: console.print(text, highlight=False, markup=False),
        )
    present(title, checks, measured=measured, as_json=arguments.json, console=console)


if __name__ == "__main__":
    main()

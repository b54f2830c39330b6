"""What a section of docs/results.md depends on, and digests by which a change of it is noticed.

A digest is that of the program, not of its text: comments, docstrings, formatting and the messages of errors do not
count, because no measured number follows from them.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.reachable import Definitions

ROOT = Path(__file__).parent.parent
PACKAGE = "src/tailwise/"

TRAINING = ("core", "model", "learner", "fused", "run")
BARS = ("bars", "features", "market")
MARKET = ("core", *BARS)
PRESETS = "run/presets"  # a part of its own: most benchmarks have their own settings
EVERYTHING = (*TRAINING, PRESETS, *BARS, "evaluate", "cli")
SEARCHED = (*TRAINING, *BARS, "evaluate", "scale")
FUSED = ("fused",)
RECORDS = ("report", "measured", "sources", "reachable")  # how checks are printed and kept
_NAMED = re.compile(r"benchmarks\.(\w+)(?::\w+)?")  # a module of benchmarks/, or a function of one
# Files inside these packages from which no measured number follows: what people read, and what others are told.
BESIDE = (
    "core/config_keys.py",
    "core/errors.py",
    "bars/check_bars.py",
    "bars/synthetic_files.py",
    "run/leak_check.py",
    "run/new_config.py",
    "run/notify.py",
    "run/progress.py",
    "run/reproduction.py",
    "run/risk_words.py",
    "run/run_list.py",
    "run/tracking.py",
    "run/trials.py",
)


@dataclass(frozen=True)
class Subject:
    """The sources of a section: benchmark is the module under benchmarks/, only: what `--only` was given.

    parts: packages of tailwise, or files in them, on which the measured numbers depend.
    timed: whether seconds are among the numbers; those do not follow from results that are equal to the last bit.
    entries: definitions with which the part begins, `risk_minimal.checks`, where a benchmark has many parts: only what
    can be reached from them is a source. None: the whole benchmark is.
    backends: implementations that its policies are trained by. A change that is equal on these carries the section.
    """

    benchmark: str
    parts: tuple[str, ...]
    only: tuple[str, ...] = ()
    timed: bool = False
    entries: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("torch", "fused")

    def command(self, title: str) -> str:
        """How the section is measured again."""
        chosen = "".join(f" --only {name}" for name in self.only)
        file = f'"{title.lower()}.json"' if " " in title else f"{title.lower()}.json"
        return f"python -m benchmarks.{self.benchmark} --json{chosen} > {file}; python -m benchmarks.results {file}"


SUBJECTS = {
    "Learning": Subject("learning", (*TRAINING, PRESETS), ("CartPole", "Pendulum", "Acrobot", "peers"), backends=FUSED),
    "Learning: defaults": Subject("learning", TRAINING, ("defaults",), backends=FUSED),
    "Learning: fresh seeds": Subject("learning", (*TRAINING, PRESETS), ("fresh",), backends=FUSED),
    "Backends": Subject("backends", (*TRAINING, PRESETS)),
    "Environment": Subject("environment", MARKET, timed=True),
    "Learnability": Subject("learnability", (*TRAINING, PRESETS, *BARS, "evaluate/backtest.py"), backends=FUSED),
    "Faults": Subject("faults", (*TRAINING, PRESETS, *BARS), timed=True),
    "Faults: presets": Subject("faults", (*TRAINING, PRESETS, *BARS), ("presets",)),
    "Evidence": Subject("evidence", (*MARKET, "evaluate"), ("golden", "level", "annualisation", "folds")),
    "Evidence: walk-forward": Subject("evidence", EVERYTHING, ("walk_forward",)),
    # What `init` writes is what is measured, so the file that writes it counts.
    "Real": Subject("real", (*TRAINING, *BARS, "evaluate", "run/new_config.py")),
    "Planted": Subject("planted", (*TRAINING, *BARS, "evaluate", "run/new_config.py")),
    "Deployed tail": Subject("deployed", (*TRAINING, *BARS, "evaluate", "run/new_config.py")),
    "Pooling": Subject("pooling", (*TRAINING, *BARS, "evaluate", "run/new_config.py")),
    "Live": Subject("live", (*TRAINING, *BARS, "live", "watch"), timed=True),
    "Robust": Subject("robust", (*TRAINING, *BARS, "evaluate")),
    "Risk": Subject(
        "risk",
        TRAINING,
        ("lottery", "calibration"),
        entries=("risk._lottery", "risk_measured.calibration"),
        backends=FUSED,
    ),
    "Risk: cliff": Subject("risk", TRAINING, ("cliff",), entries=("risk._cliff",), backends=FUSED),
    "Risk: ownership": Subject(
        "risk", TRAINING, ("ownership",), entries=("risk_measured.ownership", "risk._seeds"), backends=FUSED
    ),
    "Risk: signs": Subject("risk", TRAINING, ("signs",), entries=("risk_signs.checks", "risk._seeds"), backends=FUSED),
    "Risk: minimal": Subject(
        "risk", TRAINING, ("minimal",), entries=("risk_minimal.checks", "risk._seeds"), backends=FUSED
    ),
    "Risk: market": Subject(
        "risk", (*TRAINING, *BARS), ("market",), entries=("risk_market.checks", "risk._seeds"), backends=FUSED
    ),
    "Risk: cost": Subject("risk", (*TRAINING, *BARS), ("cost",), timed=True, entries=("risk_measured.cost",)),
    "Risk: exposure": Subject(
        "risk",
        TRAINING,
        ("exposure",),
        entries=("risk._exposure", "risk_toys.ONE_STEP_SIZE", "risk_truth.ONE_STEP"),
        backends=FUSED,
    ),
    "Risk: exposure, continuing": Subject(
        "risk",
        TRAINING,
        ("continuing",),
        entries=(
            "risk._exposure",
            "risk_toys.CONTINUING_SIZE",
            "risk_toys.CONTINUING_FREE_SIZE",
            "risk_truth.CONTINUING",
        ),
        backends=FUSED,
    ),
    "Processes": Subject("processes", TRAINING, timed=True),
    "Live learning": Subject("live_learning", (*TRAINING, *BARS, "live", "online")),
    # A part each: together they take longer than anybody wants to keep a machine for.
    "Scale: exploit": Subject("scale", (*TRAINING, "scale"), ("exploit",)),
    "Scale: lineage": Subject("scale", SEARCHED, ("lineage",)),
    "Scale: kills": Subject("scale", SEARCHED, ("kills",)),
    "Scale: ranks": Subject("scale", (*TRAINING, *BARS), ("ranks",), timed=True),
    "Scale: overhead": Subject("scale", TRAINING, ("overhead",), timed=True),
    "Scale: search": Subject("scale", SEARCHED, ("search",), timed=True),
    "Speed": Subject("speed", (*TRAINING, *BARS), timed=True),
    "Speed: mlp": Subject("speed", (*TRAINING, *BARS), ("mlp64",), timed=True),
    "Speed: lstm": Subject("speed", (*TRAINING, *BARS), ("lstm64", "lstm128"), timed=True),
    "Speed: alike": Subject("speed", (*TRAINING, *BARS), ("alike-mlp64", "alike-lstm64"), timed=True),
    "Speed: workers": Subject("speed", (*TRAINING, *BARS), ("workers",), timed=True),
    "Speed: start": Subject("speed", EVERYTHING, ("start",), timed=True),
}


def subject_of(title: str) -> Subject:
    """The subject of a section. A part that has no entry depends on everything, which is never too little."""
    if title in SUBJECTS:
        return SUBJECTS[title]
    benchmark, _, part = title.lower().partition(": ")
    if not (ROOT / "benchmarks" / f"{benchmark}.py").exists():
        raise SystemExit(
            f"the section '{title}' belongs to no benchmark; name the JSON file after its benchmark (risk.json, "
            "'risk: cliff.json'), or add the section to SUBJECTS in benchmarks/sources.py."
        )
    return Subject(benchmark, EVERYTHING, (part,) if part else (), timed=True)


class Sources:
    """Files by their path from the root of the repository; the program of each is read once."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self._programs: dict[str, str] = {}

    def digest(self, paths: Sequence[str]) -> str:
        """Eight hexadecimal digits that change with the program of any of these files."""
        digest = hashlib.sha256()
        for path in sorted(paths):
            if path not in self._programs:
                self._programs[path] = program(self.files[path], path)
            digest.update(f"{path}\n{self._programs[path]}\n".encode())
        return digest.hexdigest()[:8]


def present_sources() -> Sources:
    """The sources of the working tree."""
    found = [*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / PACKAGE).rglob("*.yaml"), *(ROOT / "benchmarks").glob("*.py")]
    return Sources({path.relative_to(ROOT).as_posix(): path.read_bytes() for path in found})


def sources_at(revision: str) -> Sources:
    """The sources of a commit."""
    command = ["git", "archive", "--format=tar", revision, PACKAGE, "benchmarks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"revision {revision} cannot be read from git: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and m.name.endswith((".py", ".yaml"))]
        found = {m.name: stream.read() for m in members if (stream := archive.extractfile(m)) is not None}
    return Sources(found)


def digests(subject: Subject, sources: Sources) -> dict[str, str]:
    """Part -> digest of its sources, eight hexadecimal digits; the part `benchmark` is the benchmark itself."""
    files = sources.files
    found = {"benchmark": benchmark_digest(subject, sources)}
    for part in subject.parts:
        prefix = PACKAGE + part
        chosen = [path for path in files if path == prefix or path.startswith(f"{prefix}/")]
        chosen = [path for path in chosen if path == prefix or path.removeprefix(PACKAGE) not in BESIDE]
        if part == "run":
            chosen = [path for path in chosen if not path.startswith(f"{PACKAGE}{PRESETS}/")]
        found[part] = sources.digest(chosen)
    return found


def benchmark_digest(subject: Subject, sources: Sources) -> str:
    """Of the benchmark itself: of what can be reached from the beginnings of the part, or of all its files."""
    if not subject.entries:
        return sources.digest(_benchmark_files(subject.benchmark, sources.files))
    reachable = Definitions(sources.files).reachable(subject.entries)
    digest = hashlib.sha256()
    for module, name in sorted(place for place in reachable if place[0] not in RECORDS):
        node = _WithoutWords().visit(reachable[module, name])
        for part in ast.walk(node):
            if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("tailwise"):
                part.module = "tailwise"  # where a function of the package stands; what it does is in the parts
        digest.update(f"{module}.{name}\n{_dump(node)}\n".encode())
    return digest.hexdigest()[:8]


def _benchmark_files(name: str, files: Mapping[str, bytes]) -> list[str]:
    """The file of a benchmark and all of benchmarks/ that it imports, but for how checks are printed and kept."""
    open_, found = [f"benchmarks/{name}.py"], list[str]()
    while open_:
        path = open_.pop()
        if path in files and path not in found and path not in [f"benchmarks/{record}.py" for record in RECORDS]:
            found.append(path)
            open_ += [f"benchmarks/{other}.py" for other in _imported(ast.parse(files[path]))]
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names of the modules under benchmarks/ that a module imports, at its top or inside functions, or names in a text
    ("benchmarks.speed_peers:ppo"), because another process imports them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "benchmarks":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("benchmarks."):
            yield node.module.removeprefix("benchmarks.")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (named := _NAMED.fullmatch(node.value)):
            yield named[1]


def program(source: bytes, path: str) -> str:
    """The program of a file as one text: the same for two files that differ in words or layout alone."""
    if path.endswith(".yaml"):
        return json.dumps(yaml.safe_load(source), sort_keys=True, default=str)
    return _dump(_WithoutWords().visit(ast.parse(source)))


class _WithoutWords(ast.NodeTransformer):
    """Removes docstrings and other bare texts, and what an error says."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc.args, node.exc.keywords = [], []
        return self.generic_visit(node)


def _dump(node: object) -> str:
    """A tree as text without its empty fields, which differ between versions of Python."""
    if isinstance(node, ast.AST):
        fields = [(name, getattr(node, name, None)) for name in node._fields if name != "type_comment"]
        return f"{type(node).__name__}({','.join(f'{name}={_dump(v)}' for name, v in fields if v not in (None, []))})"
    if isinstance(node, list):
        return f"[{','.join(_dump(one) for one in node)}]"
    return repr(node)

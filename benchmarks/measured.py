"""When, where and on what a benchmark measures: kept in its JSON object, shown on docs/results.md."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.sources import EVERYTHING, PACKAGE, ROOT, SUBJECTS, Subject, benchmark_digest, digests, present_sources


def facts_of(benchmark: str) -> dict[str, Any]:
    """Day (UTC), revision, Python, machine, and digests of all sources on which a section of it may depend.

    programs: by section, of the definitions of the benchmark that it depends on, where its subject names entries.
    """
    others = [part for subject in SUBJECTS.values() if subject.benchmark == benchmark for part in subject.parts]
    parts, sources = tuple(dict.fromkeys([*EVERYTHING, *others])), present_sources()
    return {
        "benchmark": benchmark,
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "revision": _revision(),
        "python": platform.python_version(),
        "machine": _machine(),
        "sources": digests(Subject(benchmark, parts), sources),
        "programs": {
            title: benchmark_digest(subject, sources)
            for title, subject in SUBJECTS.items()
            if subject.benchmark == benchmark and subject.entries
        },
    }


def _revision() -> str:
    """The commit, and whether what is measured differs from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    return f"{commit} with changes" if _git("status", "--porcelain", "--", PACKAGE, "benchmarks") else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _machine() -> str:
    """Processor and number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{_processor()}, {cores} core{'' if cores == 1 else 's'}"


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()} ({named[0]})" if named else platform.machine()

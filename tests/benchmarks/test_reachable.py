"""What a part of a benchmark depends on is found definition by definition, and never too little."""

from __future__ import annotations

import pytest

from benchmarks.reachable import Definitions
from benchmarks.sources import SUBJECTS, Sources, benchmark_digest, present_sources

FILES = {
    "benchmarks/parts.py": b"""
import os
from benchmarks import toys
from benchmarks.truth import best as solved

SIZE = 3
OTHER = 4
WORKER = "benchmarks.worker:serve"


class Part:
    def run(self, size=SIZE):
        return solved(size) + toys.lottery(size)


def other():
    return Part, OTHER


def late():
    from benchmarks import toys as again

    return again


def served():
    return WORKER
""",
    "benchmarks/toys.py": b"def lottery(n):\n    return _draw(n)\n\n\ndef _draw(n): ...\n\n\ndef cliff(): ...\n",
    "benchmarks/truth.py": b"LAW = 'normal'\n\n\ndef best(n):\n    return (n, LAW)\n",
    "benchmarks/worker.py": b"def serve(): ...\n",
}


def names(*entries: str) -> set[str]:
    return {f"{module}.{name}" for module, name in Definitions(FILES).reachable(entries)}


def test_what_a_part_uses_is_reached_across_modules_and_nothing_else() -> None:
    assert names("parts.Part") == {
        *("parts.Part", "parts.SIZE", "parts.solved", "parts.toys"),
        *("truth.best", "truth.LAW", "toys.lottery", "toys._draw"),
    }
    assert names("parts.other") - names("parts.Part") == {"parts.other", "parts.OTHER"}
    assert names("parts.SIZE") == {"parts.SIZE"}


def test_a_module_that_is_imported_late_or_named_by_a_text_counts_whole() -> None:
    """Another process imports it by its name; and what becomes of a module that is imported inside is not followed."""
    assert names("parts.late") >= {"toys.lottery", "toys._draw", "toys.cliff"}
    assert "worker.serve" in names("parts.served")


@pytest.mark.parametrize("gone", ["parts.gone", "nothing.here"])
def test_a_beginning_that_is_gone_is_told(gone: str) -> None:
    with pytest.raises(KeyError, match="defines no"):
        names(gone)


RISK = {title: subject for title, subject in SUBJECTS.items() if subject.entries}


def with_change(path: str, old: bytes, new: bytes) -> Sources:
    files = present_sources().files
    assert files[path].count(old) == 1, path
    return Sources({**files, path: files[path].replace(old, new)})


def moved(sources: Sources) -> set[str]:
    """Titles whose digest of the benchmark is another one than now."""
    now = present_sources()
    return {title for title, one in RISK.items() if benchmark_digest(one, now) != benchmark_digest(one, sources)}


def test_a_change_to_one_part_of_the_risk_benchmark_dates_that_part() -> None:
    """Rejects a digest over whole files, which would date all parts, and one that stops at the first module."""
    assert moved(with_change("benchmarks/risk_minimal.py", b"ALLOWED = 0.15", b"ALLOWED = 0.25")) == {"Risk: minimal"}
    assert moved(with_change("benchmarks/risk_minimal.py", b"# of w*, and of q*", b"# of what is best")) == set()
    shared = with_change("benchmarks/risk_truth.py", b"def exposure_cvar(", b"def exposure_cvar(more, ")
    assert moved(shared) >= {"Risk: minimal", "Risk: exposure", "Risk: exposure, continuing"}
    assert "Risk: cost" not in moved(shared)
    seeds = with_change("benchmarks/risk.py", b"SEEDS = (0, 1, 2)", b"SEEDS = (0, 1)")
    assert moved(seeds) >= {"Risk: minimal", "Risk: signs", "Risk: market", "Risk: ownership", "Risk: exposure"}

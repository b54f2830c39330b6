"""Files and functions are counted as they are called, between the call and the return of the entry."""

from __future__ import annotations

from pathlib import Path

from benchmarks.traced import UPDATE_ENTRY, Tracer, size_of, trace_update, tracing
from tailwise.core.errors import text_problem
from tailwise.core.numerics import tail_horizon


def test_calls_are_counted_by_file_and_function() -> None:
    tracer = Tracer()
    with tracing(tracer):
        tail_horizon(0.9)
        tail_horizon(0.99)
        text_problem("plain")
    tail_horizon(0.9)
    assert tracer.trace.calls == {("core/numerics.py", "tail_horizon"): 2, ("core/errors.py", "text_problem"): 1}
    assert tracer.trace.files == {"core/numerics.py": 2, "core/errors.py": 1}
    assert list(tracer.trace.lines()) == ["  core/errors.py: text_problem", "  core/numerics.py: tail_horizon x2"]


def test_only_what_happens_within_the_first_call_of_the_entry_counts() -> None:
    tracer = Tracer("tail_horizon")
    with tracing(tracer):
        text_problem("before")
        tail_horizon(0.9)
        tail_horizon(0.9)
        text_problem("after")
    assert tracer.trace.calls == {("core/numerics.py", "tail_horizon"): 1}


def test_an_update_is_followed_from_rollout_to_weights() -> None:
    update, turn = trace_update()
    inside, around = update.calls, turn.calls
    (entry,) = [place for place in inside if place[1] == UPDATE_ENTRY]
    assert inside[entry] == 1 and around[entry] == 1
    assert inside.keys() < around.keys()
    assert 5 <= len(update.files) < len(turn.files)
    assert "core/streams.py" in update.files and any(file.startswith("model/") for file in update.files)
    assert not any(file.startswith("run/") for file in update.files)  # collecting and audit are around it
    assert update.crossings[entry[0], "core/streams.py"] >= 1


def test_lines_and_files_are_those_of_python(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "one.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "inner/two.py").write_text("c = 3\n")
    (tmp_path / "notes.md").write_text("no\n" * 9)
    assert size_of(tmp_path) == (3, 2)

"""docs/results.md never shows an old number without saying so."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.measured import facts_of
from benchmarks.results import (
    MARK,
    OLDEST,
    PAGE,
    Equality,
    Freshness,
    carried,
    mark,
    measured_section,
    overview,
    sections_of,
)
from benchmarks.sources import (
    BESIDE,
    EVERYTHING,
    PACKAGE,
    ROOT,
    SUBJECTS,
    Sources,
    Subject,
    benchmark_digest,
    digests,
    present_sources,
    program,
    subject_of,
)

TODAY = datetime.datetime.now(datetime.UTC).date()


def test_every_section_that_is_out_of_date_says_so() -> None:
    """Fails when the sources of a section changed or 30 days went by and the page does not say it, and when it still
    says so of a section that was measured again. `python -m benchmarks.results --mark` writes the truth; measuring
    again makes it good."""
    sources, wrong = present_sources(), []
    for title, section in sections_of(PAGE.read_text(encoding="utf-8")).items():
        found = Freshness.of(title, section, sources, TODAY)
        if found.reasons and not found.marked:
            wrong.append(f"{title}: {'; '.join(found.reasons)}; renew: {subject_of(title).command(title)}")
        elif found.marked and not found.reasons:
            wrong.append(f"{title}: it is marked as out of date and is not")
    assert not wrong, "\n".join(
        ["docs/results.md does not tell the truth; run python -m benchmarks.results --mark, or renew:", *wrong]
    )


def test_the_table_at_the_top_says_what_the_sections_say(known: dict[str, Any]) -> None:
    """A line per section; of two checks one missed. Rejects a table that was written before the sections."""
    page = PAGE.read_text(encoding="utf-8")
    assert overview(list(sections_of(page).values())) in page
    checks = [{"name": str(k), "value": 1.0, "goal": "1", "passed": k > 0, "detail": "ok"} for k in range(2)]
    section = measured_section("Environment", {"measured": known, "checks": checks})
    line = overview([section, section.replace("| check |", f"{MARK} why\n\n| check |", 1)]).splitlines()[2:]
    start = f"| [Environment](#environment) | {known['day']} | {known['revision'].split()[0]} |  | 1 of 2 |"
    assert line == [f"{start}  |", f"{start} out of date |"]


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """What an object of the benchmark `environment` says about itself, with the sources of now."""
    return {**facts_of("environment"), "day": "2026-11-17", "quick": False, "only": []}


@pytest.fixture(scope="module")
def now(known: dict[str, Any]) -> str:
    """The section of that object."""
    check = {"name": "speed | of it", "value": 12345.678, "goal": ">= 1", "passed": True, "detail": "median"}
    return measured_section("Environment", {"measured": known, "checks": [check]})


def changed(path: str, old: bytes, new: bytes) -> Sources:
    """The sources of now with one file changed."""
    files: Mapping[str, bytes] = present_sources().files
    assert old in files[path]
    return Sources({**files, path: files[path].replace(old, new)})


FUTURE = b"from __future__ import annotations\n"
ENGINE = f"{PACKAGE}market/engine.py"
REWARD = b"math.log(max(account.equity, floor) / ledger.equity_before)"


def test_a_changed_number_makes_a_section_stale_and_a_word_does_not(now: str) -> None:
    """Rejects a digest over text, which a comment would change, and one that misses a program that changed."""
    day = datetime.date(2026, 11, 18)
    for words in (
        changed(ENGINE, REWARD, REWARD + b"  # a comment"),
        changed(ENGINE, b'"""The market', b'"""Words. The market'),
        changed(f"{PACKAGE}learner/risk.py", b"import", b"import os\nimport"),  # not what this benchmark measures
        changed(f"{PACKAGE}core/errors.py", b"class ", b"class Another(Exception): ...\n\n\nclass "),
    ):
        assert Freshness.of("Environment", now, words, day).reasons == []
    other = changed(ENGINE, REWARD, b"2 * " + REWARD)
    assert Freshness.of("Environment", now, other, day).reasons == ["measured before changes in market"]
    own = changed("benchmarks/environment_peers.py", FUTURE, FUTURE + b"\nSOMETHING = 1\n")
    assert Freshness.of("Environment", now, own, day).reasons == ["measured before changes in benchmark"]
    assert "core/errors.py" in BESIDE


def test_contenders_that_run_in_other_processes_count_too() -> None:
    """They are imported by name: rejects a digest that follows import statements alone."""
    itself = Subject("speed", ())
    before = digests(itself, present_sources())
    for file in ("speed_peers", "speed_products", "speed_serve", "speed_jax", "plain_ahead"):
        after = digests(itself, changed(f"benchmarks/{file}.py", FUTURE, FUTURE + b"\nSOMETHING = 1\n"))
        assert after["benchmark"] != before["benchmark"], file


def test_programs_are_compared_without_words() -> None:
    plain = b"def f(x):\n    raise ValueError(f'{x} is wrong')\n"
    worded = b'"""Module."""\n\n\ndef f(x):  # why\n    """Doc."""\n    raise ValueError("other", x)\n'
    assert program(plain, "a.py") == program(worded, "a.py")
    assert program(plain, "a.py") != program(plain.replace(b"ValueError", b"TypeError"), "a.py")
    assert program(b"x = 1\n", "a.py") != program(b"x = 2\n", "a.py") != program(b"x = '2'\n", "a.py")
    assert program(b"a: 1 # one\nb: 2\n", "p.yaml") == program(b"b: 2\na: 1\n", "p.yaml")


def test_the_mark_comes_and_goes_and_the_numbers_stay(now: str) -> None:
    """Rejects a mark that outlives its reason, one that piles up, and one that touches a number."""
    old, same = changed(ENGINE, REWARD, b"2 * " + REWARD), present_sources()
    day = datetime.date(2026, 11, 18)
    marked = mark("Environment", now, old, day)
    assert (
        f"{MARK} measured before changes in market. To measure it again: `python -m benchmarks.environment --json > "
        "environment.json; python -m benchmarks.results environment.json`\n\n| check |"
    ) in marked
    assert mark("Environment", marked, old, day) == marked
    assert mark("Environment", marked, same, day) == now
    assert [line for line in marked.splitlines() if line.startswith("|")] == [
        line for line in now.splitlines() if line.startswith("|")
    ]
    late = day + OLDEST
    aged = mark("Environment", now, same, late)
    assert f"{MARK} measured on 2026-11-17, more than 30 days ago." in aged
    assert MARK not in mark("Environment", now, same, late - datetime.timedelta(days=1))


def test_a_section_tells_day_machine_and_revision(now: str, known: dict[str, Any]) -> None:
    """And its object carries the digests of whatever a section of that benchmark may depend on."""
    assert f"Measured on 2026-11-17 at revision {known['revision']}, Python {known['python']}, " in now
    assert known["machine"] in now and "core" in known["machine"]
    parts = json.loads(json.dumps(known))["sources"]
    shown = " ".join(f"{part}={parts[part]}" for part in ("benchmark", "core", "bars", "features", "market"))
    assert f"<!-- sources {shown} -->" in now
    assert digests(SUBJECTS["Environment"], present_sources()).items() <= parts.items()
    assert set(parts) >= {"benchmark", *EVERYTHING}


@pytest.mark.parametrize("change", [{"quick": True}, {"benchmark": "risk"}])
def test_a_smoke_run_or_another_benchmark_is_not_shown(known: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match=r"this section shows whole runs of benchmarks\.environment"):
        measured_section("Environment", {"measured": {**known, **change}, "checks": []})


def test_every_benchmark_and_every_part_is_known() -> None:
    """Rejects a section that nobody says the sources of, and a part that names nothing and so never changes."""
    run = [
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if "import Check, Options, main" in path.read_text()
    ]
    assert {subject.benchmark for subject in SUBJECTS.values()} == set(run)
    for subject in set(SUBJECTS.values()):
        assert all((ROOT / PACKAGE / part).exists() for part in subject.parts), subject
    assert all((ROOT / PACKAGE / file).is_file() for file in BESIDE)
    assert subject_of("Risk: something new").parts == SUBJECTS["Evidence: walk-forward"].parts
    with pytest.raises(SystemExit, match="belongs to no benchmark"):
        subject_of("Nonsense")


def equality(before: Sources, after: Sources) -> Equality:
    return Equality(before, after, ("aaaaaaa", "bbbbbbb"), 88)


def minimal_section(sources: Sources) -> str:
    """A section without seconds, measured with these sources."""
    measured = {
        **facts_of("risk"),
        "sources": digests(Subject("risk", EVERYTHING), sources),
        "programs": {"Risk: minimal": benchmark_digest(SUBJECTS["Risk: minimal"], sources)},
        "quick": False,
        "only": [],
    }
    check = {"name": "w", "value": 0.1, "goal": "<= 0.15", "passed": True, "detail": ""}
    return measured_section("Risk: minimal", {"measured": measured, "checks": [check]})


def test_a_restructuring_that_is_equal_carries_sections_over() -> None:
    before = present_sources()
    after = changed(f"{PACKAGE}learner/ppo.py", b"def update(", b"def update_all(")
    section = minimal_section(before)
    assert Freshness.of("Risk: minimal", section, after, TODAY).changed == ("learner",)
    again = carried("Risk: minimal", section, equality(before, after))
    assert not Freshness.of("Risk: minimal", again, after, TODAY).reasons
    assert (
        "Carried over to revision bbbbbbb, which changed learner: its results equal those of revision aaaaaaa" in again
    )
    assert again.count("Carried over") == 1
    # Twice in a row: the sentence of the last time, once.
    twice = carried("Risk: minimal", again, equality(after, before))
    assert twice.count("Carried over") == 1
    assert not Freshness.of("Risk: minimal", twice, before, TODAY).reasons


def test_what_equality_does_not_cover_is_not_carried_over(now: str) -> None:
    before, after = present_sources(), changed(f"{PACKAGE}learner/ppo.py", b"def update(", b"def update_all(")
    section = minimal_section(before)
    # Measured at another revision than the one that was compared.
    assert carried("Risk: minimal", section, equality(after, before)) == section
    # The benchmark itself changed too.
    minimal = "benchmarks/risk_minimal.py"
    other = Sources({**after.files, minimal: after.files[minimal].replace(b"ALLOWED = 0.15", b"ALLOWED = 1.0")})
    assert other.files[minimal] != after.files[minimal]
    assert carried("Risk: minimal", section, equality(before, other)) == section
    # Seconds do not follow from equal results.
    assert (
        carried(
            "Environment", now, equality(before, changed(f"{PACKAGE}market/engine.py", b"def look_up", b"def look_for"))
        )
        == now
    )


@pytest.mark.parametrize("wrong", [{"passed": False}, {"quick": True}, {"only": ["limit"]}, {"benchmark": "risk"}])
def test_only_a_whole_run_that_held_carries_over(wrong: dict[str, Any]) -> None:
    facts = {"benchmark": "equality", "quick": False, "only": [], "before": "0" * 7, "revision": "1" * 7}
    result = {"passed": wrong.get("passed", True), "measured": facts | wrong, "checks": []}
    with pytest.raises(SystemExit, match="a whole run of benchmarks"):
        Equality.of(result)


def test_equality_names_two_commits() -> None:
    facts = {"benchmark": "equality", "quick": False, "only": [], "before": "../old", "revision": "1" * 7}
    with pytest.raises(SystemExit, match="both must be commits"):
        Equality.of({"passed": True, "measured": facts, "checks": []})


def test_a_comparison_of_one_backend_carries_what_is_trained_by_it() -> None:
    """Rejects sections of runs by torch's path that are carried by a comparison of the kernels alone."""
    before, after = present_sources(), changed(f"{PACKAGE}learner/ppo.py", b"def update(", b"def update_all(")
    section = minimal_section(before)
    fused, torch = (Equality(before, after, ("aaaaaaa", "bbbbbbb"), 36, (name,)) for name in ("fused", "torch"))
    assert carried("Risk: minimal", section, torch) == section
    again = carried("Risk: minimal", section, fused)
    assert "in 36 checks (`benchmarks.equality`) on the backend fused, which it is trained by." in again
    known = {"benchmark": "equality", "quick": False, "only": [], "before": "../old", "revision": "1" * 7}
    with pytest.raises(SystemExit, match="both must be commits"):
        Equality.of({"passed": True, "measured": {**known, "backends": ["fused"]}, "checks": []})

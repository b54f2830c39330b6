"""Writes the sections of docs/results.md from the JSON objects of benchmarks; those of other names stay as they are.

    python -m benchmarks.learning --json > learning.json
    python -m benchmarks.results learning.json ...     # a section per file, named after it
    python -m benchmarks.results --mark                # measure nothing; say which sections are out of date
    python -m benchmarks.results --carry equality.json # sections that were up to date before an equal restructuring

A section says when, where and at which revision it was measured, and carries digests of the sources that it depends on
(benchmarks/sources.py). One whose sources changed since, or that is older than 30 days, gets a mark that says so; the
mark goes when the section is measured again. FILE=REVISION names the commit of an object that does not tell its own.

A restructuring changes digests and no number. Where `benchmarks.equality` ran whole and found everything equal to the
last bit, sections of the revision before are carried over to the one after, and say so; not those with seconds in them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.sources import BARS, PRESETS, ROOT, TRAINING, Sources, digests, present_sources, sources_at, subject_of
from tailwise.core.atomic import write_text

PAGE = ROOT / "docs" / "results.md"
OLDEST = datetime.timedelta(days=30)
MARK = "**Out of date:**"
_FACTS = re.compile(r"^(?:Measured .*|Revision \S+\.)$", re.MULTILINE)
_CARRIED = re.compile(r"^Carried over .*\n", re.MULTILINE)
_SOURCES = re.compile(r"^<!-- sources (.*) -->$", re.MULTILINE)
_MARKED = re.compile(rf"^{re.escape(MARK)}.*\n\n", re.MULTILINE)
_REVISION = re.compile(r"[Rr]evision ([0-9a-f]{7,40})\b")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def main() -> None:
    """Write the sections that were measured, then mark those that are out of date."""
    parser = argparse.ArgumentParser(description="write docs/results.md from benchmark objects")
    parser.add_argument("files", nargs="*", metavar="FILE[=REVISION]")
    parser.add_argument("--mark", action="store_true", help="only mark what is out of date, and unmark what is not")
    parser.add_argument("--carry", type=Path, metavar="EQUALITY", help="an object of benchmarks.equality that held")
    arguments = parser.parse_args()
    if bool(arguments.files) + arguments.mark + (arguments.carry is not None) != 1:
        parser.error("give the JSON files of benchmarks, or --mark, or --carry")
    sections = sections_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    for argument in arguments.files:
        name, _, revision = argument.partition("=")
        path = Path(name)
        title = path.stem.capitalize()
        sections[title] = measured_section(title, json.loads(path.read_text(encoding="utf-8")), revision)
    sources, today = present_sources(), datetime.datetime.now(datetime.UTC).date()
    if arguments.carry is not None:
        equality = Equality.of(json.loads(arguments.carry.read_text(encoding="utf-8")))
        sections = {title: carried(title, section, equality) for title, section in sections.items()}
    marked = [mark(title, with_sources(title, section), sources, today) for title, section in sections.items()]
    write_text(PAGE, "\n".join([_head(), overview(marked), *marked]))


def sections_of(page: str) -> dict[str, str]:
    """The sections of a page by their titles, in order."""
    sections = ["## " + part.rstrip("\n") + "\n" for part in page.split("\n## ")[1:]]
    return {section.partition("\n")[0].removeprefix("## "): section for section in sections}


def measured_section(title: str, result: Mapping[str, Any], revision: str = "") -> str:
    """A section from the object of a benchmark; revision: for an object that does not tell its own."""
    known = result.get("measured")
    if known is None and not revision:
        raise SystemExit(f"{title}: the object does not say what was measured; name its commit: FILE=REVISION.")
    subject = subject_of(title)
    if known is None:
        facts = f"{_old_facts(revision)}\n{_sources_line(digests(subject, sources_at(revision)))}"
    else:
        if known["quick"] or known["benchmark"] != subject.benchmark:
            raise SystemExit(
                f"{title}: the object is of benchmarks.{known['benchmark']}{' --quick' if known['quick'] else ''}, and "
                f"this section shows whole runs of benchmarks.{subject.benchmark}."
            )
        sources = {part: known["sources"][part] for part in ("benchmark", *subject.parts)}
        if subject.entries:
            sources["benchmark"] = known["programs"][title]
        facts = (
            f"Measured on {known['day']} at revision {known['revision']}, Python {known['python']}, "
            f"{known['machine']}.\n{_sources_line(sources)}"
        )
    lines = [f"## {title}", "", facts, "", "| check | value | goal | | detail |", "|---|---|---|---|---|"]
    for check in result["checks"]:
        value = "-" if check["value"] is None else f"{check['value']:.4g}"
        verdict = "ok" if check["passed"] else "**missed**"
        lines.append(f"| {check['name']} | {value} | {check['goal']} | {verdict} | {check['detail']} |")
    return "\n".join([*lines, ""])


def overview(sections: Sequence[str]) -> str:
    """One line per section: when it was measured, how many of its checks held, whether it is out of date."""
    lines = ["| section | measured | at revision | carried over to | checks that hold | |", "|---|---|---|---|---|---|"]
    for section in sections:
        title = section.partition("\n")[0].removeprefix("## ")
        facts, carried_to = _FACTS.search(section), _CARRIED.search(section)
        day, revision = (pattern.search(facts[0] if facts else "") for pattern in (_DAY, _REVISION))
        later = None if carried_to is None else _REVISION.search(carried_to[0])
        missed, held = section.count(" | **missed** | "), section.count(" | ok | ")
        anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        told = [one[group] if one else "" for one, group in ((day, 0), (revision, 1), (later, 1))]
        state = "out of date" if MARK in section else ""
        lines.append(f"| [{title}](#{anchor}) | {' | '.join(told)} | {held} of {held + missed} | {state} |")
    return "\n".join([*lines, ""])


def with_sources(title: str, section: str) -> str:
    """The section with its facts and digests; one from before they were kept gets those of its revision."""
    if _SOURCES.search(section):
        return section
    revision, facts = _REVISION.search(section), _FACTS.search(section)
    if revision is None or facts is None:
        raise SystemExit(f"{PAGE.name}: the section '{title}' names no revision; measure it again.")
    line = _sources_line(digests(subject_of(title), sources_at(revision[1])))
    return section.replace(facts[0], f"{_old_facts(revision[1])}\n{line}", 1)


def mark(title: str, section: str, sources: Sources, today: datetime.date) -> str:
    """The section with a mark if it is out of date, without one if it is not; its numbers stay as they are."""
    plain = _MARKED.sub("", section)
    why = Freshness.of(title, plain, sources, today).reasons
    if not why:
        return plain
    command = subject_of(title).command(title)
    told = f"{MARK} {'; '.join(why)}. To measure it again: `{command}`\n\n"
    return plain.replace("| check |", f"{told}| check |", 1)


@dataclass(frozen=True)
class Equality:
    """Two revisions whose results `benchmarks.equality` found equal to the last bit.

    before, after    the sources of both
    revisions        their names
    checks           how many checks held
    backends         implementations that were compared
    """

    before: Sources
    after: Sources
    revisions: tuple[str, str]
    checks: int
    backends: tuple[str, ...] = ("torch", "fused")

    # What its configurations cover: training, also on bars; not statistics and pages.
    COVERED: ClassVar[tuple[str, ...]] = (*TRAINING, *BARS, PRESETS)

    @staticmethod
    def of(result: Mapping[str, Any]) -> Equality:
        """Read the object of a whole run that held, between two commits."""
        known = result["measured"]
        if known["benchmark"] != "equality" or known["quick"] or known["only"] or not result["passed"]:
            raise SystemExit(
                "sections are carried over by a whole run of benchmarks.equality in which every check held."
            )
        before, after = known["before"], known["revision"]
        if not (re.fullmatch("[0-9a-f]{7,40}", before) and re.fullmatch("[0-9a-f]{7,40}", after)):
            raise SystemExit(f"equality of {before} and {after}: both must be commits without further changes.")
        compared = tuple(known.get("backends", Equality.backends))
        return Equality(sources_at(before), sources_at(after), (before, after), len(result["checks"]), compared)


def carried(title: str, section: str, equality: Equality) -> str:
    """The section with the digests of the revision after, if those of the revision before are its own; else as it is.

    What the equality does not cover (the benchmark itself, statistics, a backend) keeps its digests and must not have
    changed.
    """
    subject, line = subject_of(title), _SOURCES.search(section)
    if subject.timed or line is None or not set(subject.backends) <= set(equality.backends):
        return section
    then = dict(part.split("=") for part in line[1].split())
    before, after = digests(subject, equality.before), digests(subject, equality.after)
    changed = [part for part in before if before[part] != after[part]]
    if then != before or not changed or not set(changed) <= set(Equality.COVERED):
        return section
    one, other = equality.revisions
    of = "" if len(equality.backends) > 1 else f" on the backend {equality.backends[0]}, which it is trained by"
    told = (
        f"Carried over to revision {other}, which changed {', '.join(changed)}: its results equal those of revision "
        f"{one} to the last bit in {equality.checks} checks (`benchmarks.equality`){of}.\n"
    )
    return _CARRIED.sub("", section).replace(line[0], f"{told}{_sources_line(after)}", 1)


@dataclass(frozen=True)
class Freshness:
    """Whether a section is out of date. day: of the measurement, or of its revision where that was not kept."""

    title: str
    day: datetime.date
    changed: tuple[str, ...]  # parts whose sources changed since
    today: datetime.date
    marked: bool

    @staticmethod
    def of(title: str, section: str, sources: Sources, today: datetime.date) -> Freshness:
        """Read a section, and compare its digests with those of these sources."""
        line, facts = _SOURCES.search(section), _FACTS.search(section)
        day = None if facts is None else _DAY.search(facts[0])
        if line is None or day is None:
            raise SystemExit(
                f"{PAGE.name}: the section '{title}' has no digests; run python -m benchmarks.results --mark."
            )
        then = dict(part.split("=") for part in line[1].split())
        now = digests(subject_of(title), sources)
        changed = [part for part in {**then, **now} if then.get(part) != now.get(part)]
        return Freshness(title, datetime.date.fromisoformat(day[0]), tuple(changed), today, MARK in section)

    @property
    def reasons(self) -> list[str]:
        """Why it is out of date, as parts of a sentence; none when it is not."""
        found = [f"measured before changes in {', '.join(self.changed)}"] if self.changed else []
        if self.today - self.day > OLDEST:
            found.append(f"measured on {self.day}, more than {OLDEST.days} days ago")
        return found


def stale_sections(page: str, today: datetime.date) -> list[Freshness]:
    """Every section of a page that is out of date today, by the files of the working tree."""
    sources = present_sources()
    found = [Freshness.of(title, section, sources, today) for title, section in sections_of(page).items()]
    return [one for one in found if one.reasons]


def _sources_line(parts: Mapping[str, str]) -> str:
    return f"<!-- sources {' '.join(f'{part}={digest}' for part, digest in parts.items())} -->"


def _old_facts(revision: str) -> str:
    command = ["git", "log", "-1", "--format=%cs", revision]
    day = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return f"Measured at revision {revision} of {day}; the day and the machine were not recorded."


def _head() -> str:
    return (
        "# Results\n\n"
        "Generated by `python -m benchmarks.results`. Every value was measured at the revision of its section; seeds "
        "and goals are fixed in the benchmark's source. A section whose sources changed since it was measured, or that "
        f"is older than {OLDEST.days} days, says that it is out of date.\n"
    )


if __name__ == "__main__":
    main()

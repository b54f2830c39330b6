"""Populations and scale-out: exact exploits, one lineage wherever it runs, kills, shares of one run, what it costs.

    python -m benchmarks.scale [--json] [--quick] [--only exploit]

Parts: exploit, lineage, kills, ranks, overhead, search. Each part stands in a module of its own, `scale_<part>.py`, and
starts real trainings in processes of their own; lineage, kills and overhead need the extra tune (Ray).
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import scale_exploit, scale_kills, scale_lineage, scale_overhead, scale_ranks, scale_search
from benchmarks.report import Check, Options, main


def run(options: Options) -> list[Check]:
    """All parts, or those that were asked for."""
    parts: dict[str, Callable[[Options], list[Check]]] = {
        "exploit": scale_exploit.checks,
        "lineage": scale_lineage.checks,
        "kills": scale_kills.checks,
        "ranks": scale_ranks.checks,
        "overhead": scale_overhead.checks,
        "search": scale_search.checks,
    }
    unknown = sorted(set(options.only) - parts.keys())
    if unknown:
        raise SystemExit(f"--only {unknown[0]}: there is no such part; choose from {', '.join(parts)}.")
    found: list[Check] = []
    for name, part in parts.items():
        if not options.only or name in options.only:
            options.say(f"{name} ...")
            found += part(options)
    if options.quick:
        note = "smoke run: the goal is not judged"
        found = [Check(c.name, c.value, c.goal, c.value is not None, f"{c.detail}; {note}") for c in found]
    return found


if __name__ == "__main__":
    main("Populations and scale-out", run)

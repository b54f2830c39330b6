"""Robust and lasting: what each part of it is worth, or that it is worth nothing.

    python -m benchmarks.robust [--json] [--quick] [--only continual]

Parts: continual, attack, path, cost, imitation. Each part stands in a module of its own, `robust_<part>.py`; what is
trained has at least three seeds.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import robust_attack, robust_continual, robust_cost, robust_imitation, robust_path
from benchmarks.report import Check, Options, main

SEEDS = (0, 1, 2)


def run(options: Options) -> list[Check]:
    """All parts, or those that were asked for."""
    seeds = SEEDS[:1] if options.quick else SEEDS
    parts: dict[str, Callable[[Options], list[Check]]] = {
        "continual": lambda o: robust_continual.checks(o, seeds),
        "attack": lambda o: robust_attack.checks(o, seeds),
        "path": robust_path.checks,
        "cost": robust_cost.checks,
        "imitation": lambda o: robust_imitation.checks(o, seeds),
    }
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
    main("Robust and lasting", run)

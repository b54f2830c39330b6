"""How fast is training, against others on the same work?

    python -m benchmarks.speed [--json] [--quick] [--only mlp64] [--only lstm64/256] ...

Everybody does the same: the same market (`benchmarks.plain_market`), network, samples, epochs and minibatches;
each contender counts its own samples and optimiser steps, and a wrong number is an error. Each has a process of its
own, bound to one core and one thread, and they train in turn, round by round. Medians over the rounds count. Times are
CPU time unless "wall" is written. Parts: mlp64, lstm64, lstm128 (each /64 and /256 environments), alike-mlp64 and
alike-lstm64 (one scalar critic for everybody), workers, start, scaling, profile. `benchmarks.speed_page` turns the
objects into the tables of docs/speed.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.report import Check, Options, main
from benchmarks.speed_alike import ALIKE, measure_alike
from benchmarks.speed_profile import measure_profile
from benchmarks.speed_scaling import measure_scaling
from benchmarks.speed_sizes import SIZES, measure_size
from benchmarks.speed_start import measure_start
from benchmarks.speed_workers import measure_workers

Part = Callable[[Options], list[Check]]
PARTS: dict[str, Part] = {
    **{name: partial(measure_size, size) for name, size in SIZES.items()},
    **{name: partial(measure_alike, alike) for name, alike in ALIKE.items()},
    "workers": measure_workers,
    "start": measure_start,
    "scaling": measure_scaling,
    "profile": measure_profile,
}
QUICK = ("mlp64/64", "workers", "start", "scaling", "profile")


def chosen(options: Options) -> list[str]:
    """Names of the parts to run: all, those named, or all that begin with a name and a slash."""
    if not options.only:
        return list(QUICK if options.quick else PARTS)
    names = [name for name in PARTS if any(name == only or name.startswith(f"{only}/") for only in options.only)]
    unknown = [only for only in options.only if not any(name == only or name.startswith(f"{only}/") for name in PARTS)]
    if unknown:
        raise SystemExit(f"--only {unknown[0]}: there is no such part; choose from {', '.join(PARTS)}")
    return names


def run(options: Options) -> list[Check]:
    """Part by part; what is known is said at once, so that a run that is cut short is not lost."""
    checks: list[Check] = []
    for name in chosen(options):
        options.say(name)
        found = PARTS[name](options)
        for check in found:
            value = "-" if check.value is None else f"{check.value:.4g}"
            options.say(f"  {'' if check.passed else 'FAILED '}{check.name}: {value} ({check.goal}; {check.detail})")
        checks += found
    return checks


if __name__ == "__main__":
    main("Speed", run)

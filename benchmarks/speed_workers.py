"""Do two workers share the work? CPU time for it, the part that only one of them can do, and the wall time.

The serial share is read from the CPU clocks of the threads: what one thread worked longer than the other, over what
both worked. The wall time of a busy machine says nothing, so it counts only where other processes used almost nothing.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from dataclasses import replace

from benchmarks.report import Check, Options
from benchmarks.speed_contenders import Entry
from benchmarks.speed_ours import Ours
from benchmarks.speed_rounds import Round, Running
from benchmarks.speed_sizes import COMPARED, JUDGED, SIZES, name_of
from benchmarks.speed_work import Work

ONE = Entry("one worker", "benchmarks.speed_workers:one", "")
TWO = Entry("two workers", "benchmarks.speed_workers:two", "")
NETWORKS = ("mlp64/64", "lstm64/64", "lstm128/64")
ROUNDS, SECONDS = 9, 1.0
QUIET = 0.1  # cores that other processes may use in a window whose wall time counts
QUIET_NEEDED = 3
MOST_CPU, MOST_SERIAL, FASTER = 1.15, 0.10, 1.6


class Threads(Ours):
    """Our learner, with the CPU time of its threads among its facts."""

    def facts(self) -> dict[str, float]:
        """Since the threads began: the main thread, and all others that Python started."""
        main = threading.main_thread()
        times = {
            thread: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            for thread in threading.enumerate()
            if thread.ident is not None
        }
        mine = times.pop(main)
        return {"main_cpu": mine, "others_cpu": sum(times.values())}


def one(work: Work) -> Threads:
    return Threads(work, "fused", workers=1)


def two(work: Work) -> Threads:
    return Threads(work, "fused", workers=2)


def measure_workers(options: Options) -> list[Check]:
    checks = []
    for part in NETWORKS[:1] if options.quick else NETWORKS:
        work = replace(SIZES[part].work, environments=16, steps=16) if options.quick else SIZES[part].work
        options.say(f"  workers on {work.name}")
        checks += _checks(work, *_rounds(work, options), options=options)
    return checks


def _rounds(work: Work, options: Options) -> tuple[list[Round], list[Round]]:
    """Turns of one worker and of two, side by side in time, not bound to a core."""
    rounds, seconds = (2, 0.1) if options.quick else (ROUNDS, SECONDS)
    running = [Running(entry, work, core=None) for entry in (ONE, TWO)]
    try:
        for contender in running:
            contender.first()
        times = max(1, round(seconds / running[0].turn(1).cpu))
        kept: tuple[list[Round], list[Round]] = ([], [])
        for _ in range(rounds + 1):  # the first pair is the clocks' beginning
            for contender, turns in zip(running, kept, strict=True):
                turns.append(contender.turn(times))
        return kept
    finally:
        for contender in running:
            contender.close()


def serial_share(turns: list[Round]) -> float:
    """(main - others) / (main + others) of the CPU time between the first and the last turn; 0: all is shared."""
    first, last = turns[0].facts, turns[-1].facts
    main, others = (last[key] - first[key] for key in ("main_cpu", "others_cpu"))
    return (main - others) / (main + others)


def _checks(work: Work, alone: list[Round], both: list[Round], *, options: Options) -> list[Check]:
    cpu = statistics.median(b.cpu / a.cpu for a, b in zip(alone[1:], both[1:], strict=True))
    serial = serial_share(both)
    said = f"; {JUDGED}" if options.quick else ""
    return [
        Check(
            name_of(work, "two workers", "CPU-seconds per step, of one worker's"),
            cpu,
            f"<= {MOST_CPU:g}",
            options.quick or cpu <= MOST_CPU,
            f"median of {len(both) - 1} rounds; {both[-1].cpu * 1e3:.1f} ms of CPU per iteration{said}",
        ),
        Check(
            name_of(work, "two workers", "serial share"),
            serial,
            f"<= {MOST_SERIAL:g}",
            options.quick or serial <= MOST_SERIAL,
            f"from the CPU clocks of the threads{said}",
        ),
        _wall(work, alone[1:], both[1:], options),
    ]


def _wall(work: Work, alone: list[Round], both: list[Round], options: Options) -> Check:
    name = name_of(work, "two workers", "times the wall speed of one")
    pairs = [
        a.wall / b.wall
        for a, b in zip(alone, both, strict=True)
        if a.others is not None and b.others is not None and max(a.others, b.others) < QUIET
    ]
    if len(pairs) < QUIET_NEEDED:
        return Check(
            name, None, COMPARED, True, f"not measurable here: {len(pairs)} of {len(both)} windows were quiet enough"
        )
    value = statistics.median(pairs)
    return Check(
        name,
        value,
        f">= {FASTER:g}",
        math.isfinite(value) if options.quick else value >= FASTER,
        f"from {len(pairs)} windows in which other processes used less than {QUIET:g} cores",
    )

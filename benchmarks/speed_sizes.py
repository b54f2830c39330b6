"""The comparison itself: every contender on the same work, in turn; ratios, shares, memory, first iterations."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

from benchmarks.report import Check, Options
from benchmarks.speed_contenders import CONTRIB, FUSED, GEMM, SB3, TORCH, Entry, peers_of
from benchmarks.speed_rounds import Result, Running, compare, last_core, limits, ratio
from benchmarks.speed_work import Work, flops_per_sample, our_outputs

JAX = Entry(
    "JAX in one jit", "benchmarks.speed_jax:make", "two critics with 32 quantiles on a scalar", ("jax", "optax")
)
# Turns of each contender, and CPU-seconds of a turn: the first iteration after another process has emptied the caches
# takes a quarter longer, and training does not switch.
ROUNDS, SECONDS = 7, 2.0
NAME = " · "  # between the parts of a check's name: work, contender, quantity
JUDGED, COMPARED = "smoke run: the goal is not judged", "for comparison"


@dataclass(frozen=True)
class Size:
    """floors: how many times as fast as a peer, per CPU-second; share: of the GEMM limit; torch: what the torch path
    has of the fused path's speed."""

    work: Work
    floors: dict[Entry, float] = field(default_factory=dict)
    share: float | None = None
    torch: float | None = None


SIZES = {
    "mlp64/64": Size(Work(), {SB3: 4.0, JAX: 2.0}, 0.42, 1 / 3),
    "mlp64/256": Size(Work(environments=256), {SB3: 2.2}),
    "lstm64/64": Size(Work("lstm"), {CONTRIB: 10.5, JAX: 1.7}, 0.52, 1 / 3),
    "lstm64/256": Size(Work("lstm", environments=256), {JAX: 1.8}),
    "lstm128/64": Size(Work("lstm", 128), {CONTRIB: 8.0}, 0.62),
    "lstm128/256": Size(Work("lstm", 128, 256)),
}


def measure_size(size: Size, options: Options) -> list[Check]:
    """All contenders that are installed, in one run."""
    if options.quick:
        size = replace(size, work=replace(size.work, environments=16, steps=16))
    work = size.work
    here = [entry for entry in wanted(work) if not entry.missing()]
    rounds, seconds = (2, 0.05) if options.quick else (ROUNDS, SECONDS)
    compile_ours(work)
    found = compare(work, [*here, GEMM], rounds=rounds, seconds=seconds, say=options.say)
    return checks_of(size, dict(zip(here, found[:-1], strict=True)), found[-1], options)


def wanted(work: Work) -> list[Entry]:
    """Everybody that does this work, ours first."""
    return [FUSED, TORCH, *peers_of(work), JAX]


def checks_of(size: Size, results: dict[Entry, Result], limit: Result, options: Options) -> list[Check]:
    """Ratios, shares, memory and the plain numbers; limit: the matrix products alone, measured in the same rounds."""
    work = size.work
    checks = [
        against(work, FUSED, entry, size.floors.get(entry), results, options)
        for entry in wanted(work)
        if entry != FUSED
    ]
    checks.append(against(work, TORCH, FUSED, size.torch, results, options))
    checks += [_wall(size, entry, results) for entry in results if entry != FUSED]
    checks.append(_share(size, results[FUSED], limit, options))
    checks += [_memory(size, entry, results, options) for entry in peers_of(size.work) if entry in results]
    for entry in results:
        checks += facts(work, results[entry])
    return checks


def compile_ours(work: Work) -> None:
    """Have our kernels compiled by a process that is not measured: that takes memory too, once per machine."""
    first = Running(FUSED, work, core=last_core())
    try:
        first.first()
    finally:
        first.close()


def name_of(work: Work, *parts: str) -> str:
    return NAME.join((work.name, *parts))


def against(
    work: Work, own: Entry, peer: Entry, floor: float | None, results: dict[Entry, Result], options: Options
) -> Check:
    """How many times as fast as a peer one of our own paths is, per CPU-second; floor: the goal, None without."""
    quantity = "times its steps per CPU-second" if own == FUSED else f"{own.name}, times its steps per CPU-second"
    name = name_of(work, peer.name, quantity)
    goal = COMPARED if floor is None else f">= {floor:g}"
    if peer not in results:
        return Check(name, None, goal, True, f"not installed, so not compared: {', '.join(peer.missing())}")
    ours, theirs = results[own].per_cpu_second, results[peer].per_cpu_second
    value = ratio(ours, theirs)
    each = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
    passed = math.isfinite(value) if floor is None or options.quick else value >= floor
    detail = f"{own.name} against it; median of {len(each)} rounds, from {each[0]:.2f} to {each[-1]:.2f}"
    return Check(name, value, goal, passed, _said(f"{detail}; it has {peer.critic_on(work)}", options))


def _wall(size: Size, peer: Entry, results: dict[Entry, Result]) -> Check:
    value = ratio(results[FUSED].per_second, results[peer].per_second)
    others = [turn.others for entry in (FUSED, peer) for turn in results[entry].rounds if turn.others is not None]
    beside = f"; other processes used {statistics.median(others):.2f} cores meanwhile" if others else ""
    name = name_of(size.work, peer.name, "times its steps per second of wall time")
    return Check(name, value, COMPARED, math.isfinite(value), f"one core each, in turn{beside}")


def _share(size: Size, ours: Result, limit: Result, options: Options) -> Check:
    """Time that the products alone would take at the limit, over the time that it took."""
    peaks = limits(limit)
    each = flops_per_sample(ours.work, our_outputs(ours.work))
    value = statistics.median(each * speed / peak for speed, peak in zip(ours.per_cpu_second, peaks, strict=True))
    floor = size.share
    detail = (
        f"limit {statistics.median(peaks) / 1e9:.0f} GFLOP/s, the best of square products on one core in the same "
        f"rounds, torch's and our own; {each:,} operations in matrix products per sample"
    )
    return Check(
        name_of(size.work, "tailwise fused", "share of the GEMM limit"),
        value,
        COMPARED if floor is None else f">= {floor:g}",
        math.isfinite(value) if floor is None or options.quick else value >= floor,
        _said(detail, options),
    )


def _memory(size: Size, peer: Entry, results: dict[Entry, Result], options: Options) -> Check:
    ours, theirs = results[FUSED].peak_bytes / 2**20, results[peer].peak_bytes / 2**20
    judged = peer == CONTRIB and not options.quick
    return Check(
        name_of(size.work, peer.name, "our peak memory over its"),
        ours / theirs,
        "<= 1" if peer == CONTRIB else COMPARED,
        ours <= theirs if judged else math.isfinite(ours / theirs),
        _said(f"largest resident memory of the process: {ours:.0f} MiB, its {theirs:.0f} MiB", options),
    )


def facts(work: Work, result: Result) -> list[Check]:
    """Numbers without a goal, for the tables."""
    speed, wall = statistics.median(result.per_cpu_second), statistics.median(result.per_second)
    spread = sorted(result.per_cpu_second)
    rows = (
        ("steps per CPU-second", speed, f"from {spread[0]:,.0f} to {spread[-1]:,.0f}; {result.entry.critic_on(work)}"),
        ("steps per second of wall time", wall, "one core"),
        ("first iteration, CPU-seconds", result.first_cpu, f"{result.first_wall:.1f} s of wall time; with compiling"),
        ("start, CPU-seconds", result.start_cpu, "imports and building, before the first iteration"),
        ("peak memory, MiB", result.peak_bytes / 2**20, "largest resident memory of the process"),
    )
    return [
        Check(name_of(work, result.entry.name, what), value, COMPARED, math.isfinite(value), detail)
        for what, value, detail in rows
    ]


def _said(detail: str, options: Options) -> str:
    return f"{detail}; {JUDGED}" if options.quick else detail

"""`tailwise bench`: how fast this machine trains, with the fused kernels, with plain torch, and with the peers here."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from tailwise.cli.output import note, print_json, print_table
from tailwise.core.texts import number
from tailwise.run.speed.contenders import FUSED, GEMM, TORCH, Entry, peers_of
from tailwise.run.speed.rounds import Result, compare, limits, ratio
from tailwise.run.speed.work import Work, flops_per_sample, our_outputs

WORKS = (Work(), Work("lstm"))
ROUNDS, SECONDS = 5, 0.6  # turns of each contender, and CPU-seconds of a turn
QUICK_ROUNDS, QUICK_SECONDS = 2, 0.1
BEYOND = (
    "python -m benchmarks.speed, from the sources, also compares with JAX and with more environments, and measures "
    "memory, start-up, workers and scaling."
)


def run_bench(*, quick: bool, as_json: bool) -> int:
    """Measure, then print a table per network, or one JSON object."""
    found: dict[str, Any] = {"rounds": QUICK_ROUNDS if quick else ROUNDS, "works": [], "not_installed": []}
    for work in works_of(quick=quick):
        wanted = [FUSED, TORCH, *peers_of(work)]
        absent = [entry for entry in wanted if entry.missing()]
        for entry in absent:
            note(f"{entry.name} is not installed and not compared; pip install 'tailwise[bench]' brings the peers.")
            found["not_installed"].append(entry.name)
        results, limit = measure(work, [entry for entry in wanted if entry not in absent], quick=quick)
        described = describe(results, limit)
        found["works"].append(described)
        if not as_json:
            _print(described)
    if as_json:
        print_json(found)
    else:
        print("Times are CPU time of one core; contenders train in turn, each in its own process. First: the first")
        print(f"iteration, with what is compiled. {BEYOND}")
    return 0


def works_of(*, quick: bool) -> list[Work]:
    """What is compared; quick takes rollouts that are too short to quote."""
    return [replace(WORKS[0], environments=16, steps=32)] if quick else list(WORKS)


def measure(work: Work, entries: list[Entry], *, quick: bool) -> tuple[list[Result], Result]:
    """(results of the contenders, the matrix products alone)."""
    note(f"measuring {work.name}")
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    found = compare(work, [*entries, GEMM], rounds=rounds, seconds=seconds, say=note)
    return found[:-1], found[-1]


def describe(results: list[Result], limit: Result) -> dict[str, Any]:
    """Numbers of one work; results[0] is the fused one."""
    ours, work = results[0], results[0].work
    peaks = limits(limit)
    each = flops_per_sample(work, our_outputs(work))
    shares = [each * speed / peak for speed, peak in zip(ours.per_cpu_second, peaks, strict=True)]
    return {
        "work": work.name,
        "samples": work.samples,
        "gradient_steps": work.gradient_steps,
        "gemm_gflops": statistics.median(peaks) / 1e9,
        "gemm_share": statistics.median(shares),
        "contenders": [
            {
                "name": result.entry.name,
                "critic": result.entry.critic,
                "steps_per_cpu_second": statistics.median(result.per_cpu_second),
                "steps_per_second": statistics.median(result.per_second),
                "fused_is_times_as_fast": ratio(ours.per_cpu_second, result.per_cpu_second),
                "first_iteration_cpu_seconds": result.first_cpu,
                "peak_mib": result.peak_bytes / 2**20,
            }
            for result in results
        ],
    }


def _print(work: dict[str, Any]) -> None:
    rows = [
        [
            one["name"],
            f"{one['steps_per_cpu_second']:,.0f}",
            f"{one['steps_per_second']:,.0f}",
            f"{one['fused_is_times_as_fast']:.2f}",
            number(one["first_iteration_cpu_seconds"], 2),
            f"{one['peak_mib']:,.0f}",
        ]
        for one in work["contenders"]
    ]
    title = f"{work['work']}: {work['samples']:,} samples and {work['gradient_steps']} gradient steps an iteration"
    print_table(title, ("", "steps/CPU-s", "steps/s", "fused is x", "first, CPU-s", "peak, MiB"), rows)
    print(
        f"The fused path reaches {work['gemm_share']:.0%} of what matrix products alone could "
        f"({work['gemm_gflops']:.0f} GFLOP/s on one core)."
    )

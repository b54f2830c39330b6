"""What does a sample cost when the work grows? One factor at a time, from an LSTM of 64 units and 64 environments."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from benchmarks.report import Check, Options
from benchmarks.speed_contenders import FUSED, TORCH
from benchmarks.speed_rounds import compare
from benchmarks.speed_sizes import COMPARED, NAME
from benchmarks.speed_work import Work

BASE = Work("lstm")
FACTORS: dict[str, tuple[int, ...]] = {
    "environments": (16, 64, 256, 1024, 4096),
    "quantiles": (8, 32, 64, 128, 200),
    "hidden": (32, 64, 128, 256),
    "steps": (32, 128, 512),
}
ROUNDS, SECONDS = 3, 0.5
TORCH_SAMPLES = 32_768  # torch is measured too where a rollout is not larger


def measure_scaling(options: Options) -> list[Check]:
    checks = []
    for factor, values in FACTORS.items():
        options.say(f"  scaling in {factor}")
        checks += _along(factor, values[:2] if options.quick else values, options)
        if options.quick:
            break
    return checks


def _along(factor: str, values: tuple[int, ...], options: Options) -> list[Check]:
    base = replace(BASE, environments=16, steps=16) if options.quick else BASE
    works = [replace(base, **{factor: value}) for value in values]
    pairs = [(FUSED, work) for work in works]
    pairs += [(TORCH, work) for work in works if work.samples <= TORCH_SAMPLES and not options.quick]
    rounds, seconds = (1, 0.05) if options.quick else (ROUNDS, SECONDS)
    results = compare(
        base,
        [entry for entry, _ in pairs],
        works=[work for _, work in pairs],
        rounds=rounds,
        seconds=seconds,
        say=lambda text: None,
    )
    checks = []
    for result in results:
        value = statistics.median(result.per_cpu_second)
        name = NAME.join((f"LSTM, {factor} {getattr(result.work, factor)}", result.entry.name, "steps per CPU-second"))
        detail = f"{1e6 / value:.2f} us a sample; peak memory {result.peak_bytes / 2**20:.0f} MiB"
        checks.append(Check(name, value, COMPARED, math.isfinite(value), detail))
    return checks

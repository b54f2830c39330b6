"""The fused kernels against plain torch, on this machine, and what had to be compiled for it.

Compiling takes longer than all checks together. So where nothing is compiled yet the smallest network alone is compiled
and checked, and the check of the other one says that it was not made.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tailwise.doctor.check import Check
from tailwise.doctor.tiny_run import tiny_config
from tailwise.fused.backend import FusedBackend
from tailwise.fused.coverage import why_not_fused
from tailwise.fused.warm_up import kernels_are_kept
from tailwise.run.agent import PPO

CORES = ("none", "lstm")  # the smallest network first
TOLERANCE = 1e-5  # of a tensor's largest entry, after whole updates
MEANING = "the fused backend must give what plain torch gives; it is the default where it covers all options"


@dataclass(frozen=True)
class KernelChecks:
    """checks: one per network; compiling: seconds that it took, 0 when everything was kept; core: the richest network
    whose kernels are there now, None when there is none."""

    checks: tuple[Check, ...]
    compiling: float
    core: str | None


def check_kernels(*, everything: bool) -> KernelChecks:
    """Compare over whole updates. everything: compile whatever is missing, instead of the smallest network at most."""
    checks, compiling, ready = [], 0.0, None
    for core in CORES:
        name = f"fused kernels, core {core}"
        fused = PPO(config=tiny_config(backend="fused", core=core))
        reason = why_not_fused(fused.config.model, fused.config.learner, fused.model.action, auxiliary=())
        if reason is not None:
            checks.append(Check(name, "unknown", reason, MEANING))
            continue
        backend = fused.trainer.backend
        assert isinstance(backend, FusedBackend)
        kept = kernels_are_kept(core=backend.bound.network.core)
        if not (kept or everything or core == CORES[0]):
            told = "not checked: its kernels are not compiled on this machine yet, which takes longer than all checks"
            checks.append(Check(name, "unknown", told, MEANING, "tailwise doctor --self --full compiles and checks"))
            continue
        clock = time.perf_counter()
        backend.warm_up(lambda sentence: None)
        seconds = 0.0 if kept else time.perf_counter() - clock
        plain = PPO(config=tiny_config(backend="torch", core=core))
        for agent in (plain, fused):
            agent.learn()
        checks.append(_compared(name, plain, fused, seconds))
        compiling, ready = compiling + seconds, core
    return KernelChecks(tuple(checks), compiling, ready)


def _compared(name: str, plain: PPO, fused: PPO, seconds: float) -> Check:
    gaps = relative_gaps(plain.model, fused.model)
    worst = max(gaps, key=lambda tensor: gaps[tensor])
    told = (
        f"after {plain.trainer.update} updates parameters differ by at most {gaps[worst]:.2g} of the largest entry of "
        f"their tensor ({worst}), allowed {TOLERANCE:g}"
    )
    told += f"; compiled in {seconds:.1f} s" if seconds else ""
    if gaps[worst] <= TOLERANCE:
        return Check(name, "ok", told, MEANING)
    return Check(name, "fail", told, MEANING, "set backend: torch, and report the processor and the versions")


def relative_gaps(first: torch.nn.Module, second: torch.nn.Module) -> dict[str, float]:
    """Largest |difference| of every parameter over its largest |entry|, by name."""
    gaps = {}
    for (name, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        size = float(a.detach().abs().max())
        gap = float((a - b).detach().abs().max())
        gaps[name] = gap / size if size > 0 else gap
    return gaps

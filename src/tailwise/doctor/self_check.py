"""`tailwise doctor --self`: does this installation compute what Tailwise was proved with?"""

from __future__ import annotations

from dataclasses import dataclass

from tailwise.doctor.check import Check
from tailwise.doctor.formulas import check_formulas
from tailwise.doctor.kernels import check_kernels
from tailwise.doctor.machine import check_products, check_repetition, check_streams


@dataclass(frozen=True)
class Examination:
    """What was found, and the seconds that went into compiling kernels, which only the first time needs."""

    checks: list[Check]
    compiling: float


def check_installation(*, everything: bool = False) -> Examination:
    """Every self-check; everything: also what needs kernels that are not compiled yet."""
    plain = [*check_formulas(), check_products(), check_streams()]
    kernels = check_kernels(everything=everything)
    return Examination([*plain, *kernels.checks, *check_repetition(kernels.core)], kernels.compiling)

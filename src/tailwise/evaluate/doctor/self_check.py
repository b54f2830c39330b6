"""`tailwise doctor --self`: does this installation compute what Tailwise was proved with?"""

from __future__ import annotations

from tailwise.evaluate.doctor.check import Check
from tailwise.evaluate.doctor.formulas import check_formulas
from tailwise.evaluate.doctor.machine import check_kernels, check_products, check_repetition, check_streams


def check_installation() -> list[Check]:
    """Every self-check; some seconds, more when kernels have to be compiled first."""
    return [*check_formulas(), check_products(), check_streams(), *check_kernels(), *check_repetition()]

"""Events in a vector step, as bits of what `vector_step.take_step` returns; apart from it, because it imports numba."""

from __future__ import annotations

ENDED, BROKEN_REWARD, BROKEN_OBSERVATION, ENDED_IN_RESET = 1, 2, 4, 8

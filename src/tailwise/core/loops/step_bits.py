"""What `vector_step.take_step` has seen in a vector step, as bits; not in that module, which is slow to import."""

from __future__ import annotations

ENDED, BROKEN_REWARD, BROKEN_OBSERVATION, ENDED_IN_RESET = 1, 2, 4, 8

"""Loops of core in compiled code, and how they are compiled. Importing one of these modules loads numba, so core itself
does so on first use."""

from __future__ import annotations

# Events in a vector step, as bits of what `arrays.take_step` returns; here, so that reading them does not load numba.
ENDED, BROKEN_REWARD, BROKEN_OBSERVATION, ENDED_IN_RESET = 1, 2, 4, 8
BROKEN_ACTION = 16  # of a step that was not taken; only what runs ahead says so

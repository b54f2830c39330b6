"""Whole rollouts in the plain market without Python between their steps: its loop for `tailwise.fused.ahead`."""

from __future__ import annotations

import numpy as np

from benchmarks import plain_market
from benchmarks.plain_market import PlainArrays, PlainMarket, advance
from tailwise.core.compiled import kernel
from tailwise.core.loops import BROKEN_OBSERVATION, ENDED
from tailwise.fused.ahead import Decided, Loop, Policy, decide, write_step
from tailwise.learner.decisions import Shown


@kernel(calls=(plain_market.__file__,))
def plain_ahead(
    policy: Policy, decided: Decided, state: np.ndarray | None, shown: Shown, market: PlainArrays, t: int, first: int,
    end: int, finite: bool,
) -> tuple[int, int, int]:  # fmt: skip
    """See `tailwise.fused.ahead.market_ahead`."""
    steps, mine = shown.reward.shape[0], slice(first, end)
    seen, together = 0 if finite else BROKEN_OBSERVATION, 0
    while t < steps:
        decide(policy, decided, state, shown, t, first, end, seen & BROKEN_OBSERVATION == 0)
        obs = (shown.last_obs if t + 1 == steps else shown.obs[t + 1])[mine]
        reward, done = market.reward[mine], market.done[mine]
        advance(
            decided.choice[t, mine], market.features, market.returns, market.place[mine], market.account[mine],
            market.random[mine], obs, market.final[mine], reward, done,
        )  # fmt: skip
        seen = write_step(shown, t, mine, obs, reward, done, market.never[mine])
        together |= seen
        t += 1
        if seen & ENDED:
            break
    return t, seen, together


def loop_of(market: PlainMarket) -> Loop:
    """Nothing has to be done when an account begins again: `advance` draws the next start itself."""
    return Loop(plain_ahead, market.arrays, lambda rows: None)

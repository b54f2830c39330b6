"""Accounts that a policy trades beside the session, on the same bars and with the same costs: what it would earn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tailwise.bars.bars import Bars
from tailwise.live.desk import Desk
from tailwise.live.feeds import raw_bar
from tailwise.live.lines import RawBar
from tailwise.live.session import Terms
from tailwise.live.states import State
from tailwise.market.records import BANKRUPT
from tailwise.run.decide import Decider, market_of

Floats = npt.NDArray[np.float64]


class Shadow:
    """One policy with an account for each of the session, begun on bars from before so that it is warm.

    past    log-returns [n, G] on those bars, after all accounts had begun
    ruined  whether an account is at its floor; it then stays as it is
    """

    def __init__(self, trader: Decider, terms: Terms, before: Sequence[Bars]) -> None:
        seed, deterministic = terms.header["seed"], terms.header["deterministic"]
        self.desks = [
            Desk(trader, names, terms.frequency, seed=seed, deterministic=deterministic) for names in terms.groups
        ]
        self._floor = BANKRUPT * market_of(trader)[0].initial_cash  # what a loss is counted to, as in the simulator
        self._worth = [math.nan] * len(self.desks)
        self.ruined = False
        rows = sorted((int(t), k, i) for k, one in enumerate(before) for i, t in enumerate(one.time.astype("int64")))
        times: dict[int, dict[str, RawBar]] = {}
        for time, k, i in rows:
            times.setdefault(time, {})[before[k].symbol] = raw_bar(before[k], i)
        past = [self.step(bars) for bars in times.values()]
        self.past: Floats = np.array([row for row in past if np.isfinite(row).all()]).reshape(-1, len(self.desks))

    def step(self, bars: Mapping[str, RawBar]) -> Floats:
        """Log-returns [G] of the bars of one time; 0 for an account without a bar, NaN for one that has not begun."""
        returns = np.zeros(len(self.desks))
        for k, desk in enumerate(self.desks):
            own = [bars.get(name) for name in desk.symbols]
            if self.ruined or all(bar is None for bar in own):
                returns[k] = 0.0 if desk.begun else math.nan
                continue
            done = desk.show(own)
            if done is None:
                returns[k] = math.nan
                if not desk.ready:
                    continue
                desk.begin()
            else:
                returns[k] = math.log(max(desk.account.equity, self._floor) / self._worth[k])
                self.ruined |= bool(done.ruined)
            self._worth[k] = max(desk.account.equity, self._floor)
            if not self.ruined:
                desk.place(State.RUNNING)
        return returns

    @property
    def begun(self) -> bool:
        """Whether all accounts trade."""
        return all(desk.begun for desk in self.desks)

    def hidden(self) -> list[list[Tensor]]:
        """Hidden states of the policies after the newest bar, for each account."""
        return [desk.follower.player.hidden() for desk in self.desks]

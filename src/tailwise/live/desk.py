"""One paper account and what it needs of its bars: streams of features, the base rule, the policy that follows it.

The account is a row of the simulator (`market.account`), the features come from the streams that equal the table bit
for bit, the policy is played as in every evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tailwise.bars.frequency import Frequency
from tailwise.core.errors import DataError
from tailwise.live.base_stream import BaseStream
from tailwise.live.lines import RawBar
from tailwise.live.states import State, allowed
from tailwise.market.account import Account, AccountStep, FeedBar
from tailwise.market.dataset import scaled_base
from tailwise.run.decide import Decider, forecast_at, market_of, row_of
from tailwise.run.follow import Follower
from tailwise.run.forecast import Forecast
from tailwise.run.limits import scales_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Placed:
    """A decision: what the policy wanted and what the state of the session left of it, exposures [A]."""

    wanted: Floats
    target: Floats


class Desk:
    """One account of one symbol, or of all symbols of a portfolio."""

    def __init__(
        self,
        trader: Decider,
        symbols: Sequence[str],
        frequency: Frequency,
        *,
        deterministic: bool | None = None,
        seed: int | None = None,
    ) -> None:
        market, spec = market_of(trader)
        self.symbols = tuple(symbols)
        self._streams = {name: spec.stream(name, frequency) for name in self.symbols}
        self._bases: dict[str, BaseStream] = {}
        if market.base is not None:
            around, scales = frequency.calendar == "24/7", scales_of(trader.config)
            self._bases = {
                name: BaseStream(
                    scaled_base(market.base, name, scales),
                    periods_per_year=frequency.periods_per_year,
                    around_the_clock=around,
                )
                for name in self.symbols
            }
        self.account = Account(
            self.symbols,
            spec.names,
            market,
            trader.config.costs,
            periods_per_year=frequency.periods_per_year,
            bar=frequency.bar,
        )
        self._plays: dict[str, Any] = {
            "deterministic": deterministic,
            "seed": seed,
            "row": row_of(spec, self.symbols[0]) if len(self.symbols) == 1 else 0,
        }
        self.follower: Follower = trader.follower(self.account, **self._plays)
        self._empty = np.zeros(len(spec.names), dtype=np.float32)
        self._ready = False

    @property
    def begun(self) -> bool:
        """Whether the account trades."""
        return self.follower.begun

    @property
    def ready(self) -> bool:
        """Whether a decision can be made at the last close."""
        return self._ready

    def show(self, bars: Sequence[RawBar | None]) -> AccountStep | None:
        """The next complete bars, None where an asset has none: the waiting order is filled and the account valued;
        before it has begun, it only looks."""
        given = [self._bar(bar) for bar in bars]
        time = np.datetime64(next(bar.time for bar in bars if bar is not None), "ns")
        if self.begun:
            return self.follower.advance(given, time)
        self.account.feed(given, time)
        self._ready |= any(bar is not None and bar.available for bar in given)
        return None

    def begin(self) -> None:
        """Open the account at the last close."""
        self.follower.begin()

    def place(self, state: State) -> Placed:
        """Decide at the last close; `state` may leave less than the policy wants. The policy is asked in any case, so
        that its hidden state goes on as if it were trading."""
        choice = self.follower.choose()
        if state is State.RUNNING:
            return Placed(choice.target, choice.target)
        wanted = choice.target
        return Placed(wanted, self.account.order_target(allowed(state, wanted, self.account.exposure())))

    def forecast(self, trader: Decider) -> Forecast:
        """What `trader`, who decides here, predicts at the last close; before `place`."""
        return forecast_at(trader, self.follower.moment(), self.symbols[0])

    def follow(self, trader: Decider, hidden: Sequence[Tensor] | None = None) -> None:
        """Let another policy with the same features decide from the next close on; the account stays as it is. hidden:
        its hidden states after the last close; None: `set_state` brings them."""
        state = self.follower.get_state()
        self.follower = trader.follower(self.account, **self._plays)
        self.follower.set_state(state)
        if hidden is not None:
            self.follower.player.restore(hidden)

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays: account, hidden state, windows of the features."""
        state = {"ready": np.array([self._ready])}
        state |= {f"follower/{name}": value for name, value in self.follower.get_state().items()}
        for symbol, stream in self._streams.items():
            state |= {f"stream/{symbol}/{name}": value for name, value in stream.get_state().items()}
        for symbol, base in self._bases.items():
            state |= {f"base/{symbol}/{name}": value for name, value in base.get_state().items()}
        return state

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `get_state`."""
        self._ready = bool(state["ready"][0])
        for symbol, stream in self._streams.items():
            stream.set_state(_below(state, f"stream/{symbol}/"))
        for symbol, base in self._bases.items():
            base.set_state(_below(state, f"base/{symbol}/"))
        self.follower.set_state(_below(state, "follower/"))

    def _bar(self, bar: RawBar | None) -> FeedBar | None:
        if bar is None:
            return None
        values = self._streams[bar.symbol].update(bar.time, bar.open, bar.high, bar.low, bar.close, bar.volume)
        base = self._bases.get(bar.symbol)
        if values is None and self.begun and len(self.symbols) == 1:
            raise DataError(f"{bar.symbol}: its features are not complete although the account trades.")
        return FeedBar(
            open=bar.open,
            high=bar.high,
            low=bar.low,
            close=bar.close,
            volume=bar.volume,
            features=self._empty if values is None else values,
            dividend=bar.dividend,
            funding=bar.funding,
            available=values is not None,
            base=None if base is None else base.update(bar.close),
        )


def _below(state: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}

"""The guards of N simulated accounts as arrays for the kernels: built from the bars, saved and restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.market.bar_checks import BAR_MEMORY, check_bars, make_bar_limits
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guards import GUARD, GUARDS, make_limits
from tailwise.market.guards_config import GuardsConfig
from tailwise.market.portfolio_tables import PortfolioTable
from tailwise.market.tables import MarketTable

DAY_NS = 86_400 * 10**9
_PREFIX = "guard_"


class GuardArrays(NamedTuple):
    """What the kernels need: states [N] GUARD, counts int64 [N, G] of interventions, limits [1] LIMITS, and per row of
    the table its flags int8 [R], or [T, A] with several assets, its day int64 and the day int64 on which an order
    decided at its close should be filled."""

    states: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]
    limits: npt.NDArray[Any]
    flags: npt.NDArray[np.int8]
    days: npt.NDArray[np.int64]
    fill_days: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, config: GuardsConfig, accounts: int, shape: tuple[int, ...]) -> GuardArrays:
        """Of accounts on a table of this shape whose bars are still to be judged."""
        return cls(
            states=np.zeros(accounts, dtype=GUARD),
            counts=np.zeros((accounts, len(GUARDS)), dtype=np.int64),
            limits=make_limits(config),
            flags=np.zeros(shape, dtype=np.int8),
            days=np.zeros(shape[0], dtype=np.int64),
            fill_days=np.zeros(shape[0], dtype=np.int64),
        )


def build_guard_arrays(
    config: MarketEnvConfig, table: MarketTable | PortfolioTable, accounts: int
) -> GuardArrays | None:
    """None when no guard is set. Refuses a guard that needs times where a symbol has none."""
    guards = config.guards
    if not guards.active:
        return None
    timeless = np.flatnonzero(table.bar_ns == 0)
    if guards.needing_time and timeless.size:
        raise ConfigError(
            f"env.guards.{guards.needing_time[0]} needs the time of each bar, and {table.symbols[timeless[0]]} has "
            "none; make the table with SymbolTable.from_bars, or pass time and bar."
        )
    arrays = GuardArrays.empty(guards, accounts, table.bars.shape)
    time = table.time.astype(np.int64)
    # Live, the next bar is expected one bar length after this one; that is all a decision can know of its fill.
    expected = time.copy()
    for symbol, (first, last) in enumerate(zip(table.offsets, table.last_rows, strict=True)):
        rows = slice(int(first), int(last) + 1)
        limits = make_bar_limits(guards, int(table.bar_ns[symbol]))
        if table.bars.ndim == 1:
            check_bars(np.zeros(1, dtype=BAR_MEMORY), time[rows], table.bars[rows], limits, arrays.flags[rows])
        else:
            _judge_assets(time, table.bars, limits, arrays.flags)
        if config.fill == "next_open":
            expected[rows] += table.bar_ns[symbol]
    arrays.days[:] = time // DAY_NS
    arrays.fill_days[:] = expected // DAY_NS
    return arrays


def _judge_assets(
    time: npt.NDArray[np.int64], bars: npt.NDArray[Any], limits: npt.NDArray[Any], flags: npt.NDArray[np.int8]
) -> None:
    """flags int8 [T, A]: each asset's bars are judged by its own; where it has none, those of its last bar hold."""
    for a in range(bars.shape[1]):
        rows = np.flatnonzero(bars["present"][:, a] == 1)
        own = np.zeros(len(rows), dtype=np.int8)
        check_bars(np.zeros(1, dtype=BAR_MEMORY), time[rows], np.ascontiguousarray(bars[rows, a]), limits, own)
        last = np.searchsorted(rows, np.arange(len(bars)), side="right") - 1
        flags[:, a] = np.where(last >= 0, own[np.maximum(last, 0)], 0)


def guard_state(guards: GuardArrays | None) -> dict[str, npt.NDArray[Any]]:
    """Copies of what the guards remember, as plain arrays; nothing without guards."""
    if guards is None:
        return {}
    fields = {_PREFIX + name: np.array(guards.states[name]) for name in GUARD.names or ()}
    return {**fields, _PREFIX + "counts": guards.counts.copy()}


def load_guard_state(guards: GuardArrays | None, state: Mapping[str, npt.NDArray[Any]]) -> None:
    """Inverse of `guard_state`; a state with guards where there are none, or the other way round, is refused."""
    expected = set(guard_state(guards))
    found = {name for name in state if name.startswith(_PREFIX)}
    if expected != found:
        raise CheckpointError(
            f"The stored market state has {'guards' if found else 'no guards'}, this market has "
            f"{'guards' if expected else 'none'}; restore it with the env.guards that were saved."
        )
    if guards is None:
        return
    for name in GUARD.names or ():
        guards.states[name] = state[_PREFIX + name]
    guards.counts[...] = state[_PREFIX + "counts"]

"""What the guards work on: their limits, what they remember of each account, and which bars are stale or absurd.

Stale and absurd bars are found by one function that reads one bar after the other. A whole table is checked by the same
function in a loop, so a bar is judged in training exactly as it is live: by the bars before it and by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.core.compiled import kernel, record_dtype
from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.market.env_config import GuardsConfig, MarketEnvConfig
from tailwise.market.tables import MarketTable

# A guard that changed a target or an order sets its bit in the ledger's `guard`; bit k belongs to GUARDS[k].
GUARDS = ("exposure", "order_size", "turnover", "daily_loss", "drawdown", "stale_bar", "absurd_bar")
EXPOSURE, ORDER_SIZE, TURNOVER, DAILY_LOSS, DRAWDOWN, STALE_BAR, ABSURD_BAR = (1 << k for k in range(len(GUARDS)))

# What the guards remember of one account.
GUARD = record_dtype(
    [
        ("day", np.int64),  # days since 1970-01-01
        ("halted", np.int64),  # DAILY_LOSS until the next day, DRAWDOWN until the end of the episode
        ("day_equity", np.float64),  # at the last close before this day
        ("turnover", np.float64),  # notional traded this day, account currency
    ]
)

LIMITS = record_dtype(
    [
        ("closes_on_halt", np.int64),
        *[
            (name, np.float64)
            for name in ("exposure", "fraction", "units", "notional", "turnover", "daily_loss", "drawdown")
        ],
    ]
)


def make_limits(config: GuardsConfig) -> npt.NDArray[Any]:
    """One record [1]; what is off becomes infinite."""
    limits = np.zeros(1, dtype=LIMITS)
    limits["closes_on_halt"] = config.on_halt == "flatten"
    for name, value in {
        "exposure": config.max_exposure,
        "fraction": config.order_fraction,
        "units": config.order_units,
        "notional": config.order_notional,
        "turnover": config.daily_turnover,
        "daily_loss": config.daily_loss,
        "drawdown": config.drawdown,
    }.items():
        limits[name] = np.inf if value is None else value
    return limits


def guard_names(code: int) -> tuple[str, ...]:
    """Names of the guards whose bits are set."""
    return tuple(name for k, name in enumerate(GUARDS) if code >> k & 1)


# ---------------------------------------------------------------------- stale and absurd bars
# Bits of a bar's flag: the first two are known at its open, the third at its close.
STALE_OPEN, ABSURD_OPEN, ABSURD_CLOSE = 1, 2, 4
KNOWN_AT_OPEN = STALE_OPEN | ABSURD_OPEN

# What the check remembers of the bars before.
BAR_MEMORY = record_dtype(
    [
        ("seen", np.int64),  # bars
        ("time", np.int64),  # open time of the last bar, ns
        ("flat_run", np.int64),  # bars in a row with high = low, up to the last one
        ("close", np.float64),
        ("variance", np.float64),  # of log-returns around zero
    ]
)

BAR_LIMITS = record_dtype(
    [
        ("stale_after", np.float64),  # ns from open to open
        ("gap", np.float64),
        ("move", np.float64),
        ("deviations", np.float64),
        ("volatility_bars", np.int64),
        ("flat_run", np.int64),
    ]
)


def make_bar_limits(config: GuardsConfig, bar_ns: int) -> npt.NDArray[Any]:
    """One record [1]; what is off becomes a level that no bar can reach."""
    limits = np.zeros(1, dtype=BAR_LIMITS)
    limits["stale_after"] = np.inf if config.stale_bars is None else config.stale_bars * bar_ns
    limits["gap"] = np.inf if config.absurd_gap is None else config.absurd_gap
    limits["move"] = np.inf if config.absurd_move is None else config.absurd_move
    limits["deviations"] = np.inf if config.absurd_volatility is None else config.absurd_volatility
    limits["volatility_bars"] = config.volatility_bars
    limits["flat_run"] = np.iinfo(np.int64).max if config.absurd_flat_bars is None else config.absurd_flat_bars
    return limits


@kernel
def check_open(memory: Any, time: int, open_: float, limits: Any) -> int:
    """Flags that the open of a bar shows already; changes nothing."""
    if memory.seen == 0:
        return 0
    flags = 0
    if time - memory.time > limits.stale_after:
        flags |= STALE_OPEN
    if abs(open_ / memory.close - 1.0) > limits.gap:
        flags |= ABSURD_OPEN
    return flags


@kernel
def check_bar(memory: Any, time: int, open_: float, high: float, low: float, close: float, limits: Any) -> int:
    """All flags of a complete bar; remembers it.

    The volatility is that of the bars before: the mean square of their log-returns, exponentially forgotten. A return
    enters it cut to the limit, so that a bad price hardly widens the limit while a market that has really become wilder
    is accepted again after some bars. A market that never moved has no volatility to compare with.
    """
    flags = check_open(memory, time, open_, limits)
    flat_run = memory.flat_run + 1 if high == low else 0
    if flat_run >= limits.flat_run:
        flags |= ABSURD_CLOSE
    if memory.seen > 0:
        if abs(close / memory.close - 1.0) > limits.move:
            flags |= ABSURD_CLOSE
        size = abs(math.log(close / memory.close))
        returns = memory.seen - 1  # that the variance is made of
        if returns >= limits.volatility_bars and memory.variance > 0.0:
            largest = limits.deviations * math.sqrt(memory.variance)
            if size > largest:
                flags |= ABSURD_CLOSE
                size = largest
        weight = max(2.0 / (limits.volatility_bars + 1.0), 1.0 / (returns + 1.0))
        memory.variance += weight * (size * size - memory.variance)
    memory.seen += 1
    memory.time = time
    memory.flat_run = flat_run
    memory.close = close
    return flags


@kernel
def check_bars(memory: Any, time: Any, bars: Any, limits: Any, flags: Any) -> None:
    """flags int8 [T] of bars [T] BAR that open at time int64 [T], ns; memory and limits are arrays [1]."""
    for t in range(bars.shape[0]):
        bar = bars[t]
        flags[t] = check_bar(memory[0], time[t], bar.open, bar.high, bar.low, bar.close, limits[0])


# ---------------------------------------------------------------------- guards of N simulated accounts
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


def build_guard_arrays(config: MarketEnvConfig, table: MarketTable, accounts: int) -> GuardArrays:
    """Judge all bars of the table. Refuses a guard that needs times where a symbol has none."""
    guards = config.guards
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
        if not table.has_clock:
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
    stored = {name for name in state if name.startswith(_PREFIX)}
    if expected != stored:
        raise CheckpointError(
            f"The stored market state has {'guards' if stored else 'no guards'}, this market has "
            f"{'guards' if expected else 'none'}; restore it with the env.guards that were saved."
        )
    if guards is None:
        return
    for name in GUARD.names or ():
        guards.states[name] = state[_PREFIX + name]
    guards.counts[...] = state[_PREFIX + "counts"]

"""The memory layout that the kernels share: one record per bar, per account, per step, and one with all rules.

Records (numpy structured arrays) keep what belongs to one bar or account in one or two cache lines and give each
number its name inside the kernels as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.compiled import record_dtype
from tailwise.core.errors import CheckpointError
from tailwise.market.costs import COMPONENTS, COSTS, CostConfig
from tailwise.market.env_config import MarketEnvConfig

BANKRUPT = 0.01  # an episode terminates when equity falls to this fraction of its start

NO_EVENT, STOP_LOSS, TAKE_PROFIT, LIQUIDATION = 0, 1, 2, 3
EVENTS = ("none", "stop_loss", "take_profit", "liquidation")

# What one bar is made of; year_fraction turns annual rates into rates per bar. 64 bytes.
BAR = record_dtype(
    [(name, np.float64) for name in ("open", "high", "low", "close", "volume", "dividend", "funding", "year_fraction")]
)

ACCOUNT = record_dtype(
    [
        ("row", np.int64),  # bar at whose close the next decision is made
        ("last_row", np.int64),  # last bar of the symbol
        ("symbol", np.int64),
        ("episode", np.int64),  # index of the episode: the address of its random start
        ("age", np.int64),  # bars since the start of the episode
        ("held", np.int64),  # bars since the position was opened or turned
        ("cash", np.float64),  # account currency; contains the proceeds of a short
        ("units", np.float64),  # negative: short
        ("entry", np.float64),  # average price of the position before costs; 0 when flat
        ("equity", np.float64),  # at the last close: cash + units x close
        ("peak", np.float64),  # highest equity at a close in this episode
        ("start_equity", np.float64),
    ]
)

# What happened to one account in one step. Amounts in account currency; prices before costs, 0 where nothing happened.
LEDGER = record_dtype(
    [(name, np.float64) for name in COMPONENTS]
    + [
        ("equity_before", np.float64),
        ("equity", np.float64),
        ("shortfall", np.float64),  # how far equity lies below the bankruptcy floor
        ("units", np.float64),  # held at the close
        ("order_units", np.float64),  # traded by the policy's order
        ("order_price", np.float64),
        ("exit_units", np.float64),  # traded by a stop, a take-profit or a liquidation
        ("exit_price", np.float64),
        ("event", np.int64),  # index into EVENTS
        ("guard", np.int64),  # bits of the guards that changed a target or an order; see guards.GUARDS
        ("row", np.int64),  # the bar that was lived through
        ("symbol", np.int64),
    ]
)

RULES = record_dtype(
    [
        ("fill_at_open", np.int64),
        ("episode_length", np.int64),
        ("initial_cash", np.float64),
        *[(cost.rule, np.float64) for cost in COSTS.values()],
        ("linear", np.float64),  # what a taking order pays on its notional without impact
        ("maintenance", np.float64),
        ("stop_loss", np.float64),
        ("take_profit", np.float64),
        ("tolerance", np.float64),
    ]
)


def make_rules(config: MarketEnvConfig, costs: CostConfig) -> npt.NDArray[Any]:
    """Configuration as one record [1] of fractions; what is off becomes a level that no price can reach."""
    rules = np.zeros(1, dtype=RULES)
    values = {
        "fill_at_open": int(config.fill == "next_open"),
        "episode_length": config.episode_length or np.iinfo(np.int64).max,
        "initial_cash": config.initial_cash,
        **costs.rules(),
        "linear": costs.taker_rate,
        "maintenance": config.maintenance_margin,
        "stop_loss": np.inf if config.stop_loss is None else config.stop_loss,
        "take_profit": np.inf if config.take_profit is None else config.take_profit,
        "tolerance": config.tolerance,
    }
    for name, value in values.items():
        rules[name] = value
    return rules


@dataclass
class AccountState:
    """N accounts: `records` [N] of dtype ACCOUNT; `pending` float64 [N, latency], waiting targets, oldest first."""

    records: npt.NDArray[Any]
    pending: npt.NDArray[np.float64]

    @classmethod
    def empty(cls, accounts: int, latency: int) -> AccountState:
        return cls(np.zeros(accounts, dtype=ACCOUNT), np.zeros((accounts, latency)))

    def to_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all numbers as plain arrays, one per name."""
        fields = {name: np.array(self.records[name]) for name in ACCOUNT.names or ()}
        return {**fields, "pending": self.pending.copy()}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Inverse of `to_dict`; arrays of another number of accounts or another latency are refused."""
        for name in ACCOUNT.names or ():
            if name not in state or np.shape(state[name]) != self.records.shape:
                found = np.shape(state[name]) if name in state else "nothing"
                raise CheckpointError(
                    f"Market state '{name}': found {found}, expected an array of shape {self.records.shape}; restore "
                    "with as many environments as were saved."
                )
        if np.shape(state["pending"]) != self.pending.shape:
            raise CheckpointError(
                f"Market state 'pending' has shape {np.shape(state['pending'])}, expected {self.pending.shape}; "
                "restore with the latency that was saved."
            )
        for name in ACCOUNT.names or ():
            self.records[name] = state[name]
        self.pending[...] = state["pending"]

"""The memory layout that the kernels share: records of bars, accounts, positions and steps, and one with all rules.

An account with one asset carries its position in its own record; one with several (the action kind `weights`) has a
HOLDING for each. Fields that both have are listed once.

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

NO_EVENT, STOP_LOSS, TAKE_PROFIT, LIQUIDATION, SETTLEMENT = 0, 1, 2, 3, 4
# A settlement: the history of an asset ended before the clock of its account, at the last close.
EVENTS = ("none", "stop_loss", "take_profit", "liquidation", "settlement")

_BAR = [
    (name, np.float64) for name in ("open", "high", "low", "close", "volume", "dividend", "funding", "year_fraction")
]
_CLOCK = [
    ("row", np.int64),  # bar, or time of the clock, at whose close the next decision is made
    ("last_row", np.int64),  # last bar of the symbol, or last time of the clock
    ("episode", np.int64),  # index of the episode: the address of its random start
    ("age", np.int64),  # bars since the start of the episode
]
_WORTH = [
    ("cash", np.float64),  # account currency; contains the proceeds of shorts
    ("equity", np.float64),  # at the last close: cash + sum of units x close
    ("peak", np.float64),  # highest equity at a close in this episode
    ("start_equity", np.float64),
]
_POSITION = [
    ("held", np.int64),  # bars of the asset since the position was opened or turned
    ("units", np.float64),  # negative: short
    ("entry", np.float64),  # average price of the position before costs; 0 when flat
]
_RESULT = [
    *[(name, np.float64) for name in COMPONENTS],
    ("equity_before", np.float64),
    ("equity", np.float64),
    ("shortfall", np.float64),  # how far equity lies below the bankruptcy floor
]
_FILLS = [
    ("units", np.float64),  # held at the close
    ("order_units", np.float64),  # traded by the policy's order
    ("order_price", np.float64),
    ("exit_units", np.float64),  # traded by a stop, a take-profit, a liquidation or a settlement
    ("exit_price", np.float64),
    ("event", np.int64),  # index into EVENTS
]

# What one bar is made of; year_fraction turns annual rates into rates per bar. 64 bytes.
BAR = record_dtype(_BAR)

# One asset at one time of the clock of an account with several.
ASSET_BAR = record_dtype(
    [
        *_BAR,
        ("present", np.int64),  # 1: the asset has a bar at this time and can be traded
        ("available", np.int64),  # 1: a decision at the close of this bar may want the asset
        ("ends", np.int64),  # 1: the last bar of the asset, and the clock goes on
    ]
)

ACCOUNT = record_dtype([*_CLOCK, ("symbol", np.int64), *_POSITION, *_WORTH])
PORTFOLIO = record_dtype([*_CLOCK, *_WORTH])

# The position of one account in one of several assets. `accounting` works on it as on an account: its `cash` takes up
# what a trade moves and is swept into the shared cash at once, so that it is 0 between trades.
HOLDING = record_dtype([*_POSITION, ("mark", np.float64), ("cash", np.float64)])  # mark: last price it was valued at

# What is about to happen to one of several assets in one step; scratch memory of the kernel.
PLAN = record_dtype(
    [
        ("tradable", np.int64),  # 1: an order could be filled now
        ("target", np.float64),  # weight that the order aims at
        ("sends", np.int64),  # 1: an order is considered
        ("wanted", np.float64),  # units that it leads to
        ("reducing", np.float64),  # units of it that make the position smaller, and
        ("adding", np.float64),  # that make it larger, or open the other side, as far as the largest order allows
        ("cut", np.int64),  # 1: it is larger than the largest order
        ("event", np.int64),  # exit by stop-loss or take-profit inside the bar
        ("price", np.float64),  # its price
        ("moment", np.float64),  # when, as a fraction of the way from the open to the adverse extreme
        ("adverse", np.float64),  # the worst price inside the bar
    ]
)

# What happened to one account in one step. Amounts in account currency; prices before costs, 0 where nothing happened.
LEDGER = record_dtype(
    [
        *_RESULT,
        *_FILLS,
        ("guard", np.int64),  # bits of the guards that changed a target or an order; see guards.GUARDS
        ("row", np.int64),  # the bar of the step
        ("symbol", np.int64),
    ]
)
PORTFOLIO_LEDGER = record_dtype(
    [*_RESULT, ("margin_call", np.int64), ("guard", np.int64), ("row", np.int64)]  # margin_call 1: it was liquidated
)
ASSET_LEDGER = record_dtype(_FILLS)

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


def joined_ledger(accounts: npt.NDArray[Any], assets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Records [N] with the fields of `accounts` [N] PORTFOLIO_LEDGER and, as rows of A, of `assets` [N, A]."""
    account_names, asset_names = accounts.dtype.names or (), assets.dtype.names or ()
    fields: list[Any] = [(name, accounts.dtype[name]) for name in account_names]
    fields += [(name, assets.dtype[name], (assets.shape[1],)) for name in asset_names]
    result = np.empty(accounts.shape, dtype=fields)
    for name in account_names:
        result[name] = accounts[name]
    for name in asset_names:
        result[name] = assets[name]
    return result


def identity_error(ledger: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """|dE - sum of components| relative to equity before, per record of dtype LEDGER: [N] float64, 0 up to rounding."""
    explained = sum(sign * ledger[name] for name, sign in COMPONENTS.items())
    change = ledger["equity"] - ledger["equity_before"]
    relative: npt.NDArray[np.float64] = np.abs(change - explained) / np.abs(ledger["equity_before"])
    return relative


def total_cost(ledger: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """Sum of everything that a step cost, in account currency: fees to liquidation, without interest and dividends."""
    costs = [ledger[name] for name, sign in COMPONENTS.items() if sign < 0]
    total: npt.NDArray[np.float64] = np.sum(costs, axis=0)
    return total


@dataclass
class AccountState:
    """N accounts and the targets that wait for their fill, oldest first.

    records   [N] ACCOUNT, or [N] PORTFOLIO where an account has several assets
    holdings  [N, A] HOLDING of the latter, None for the former
    pending   float64 [N, latency], or [N, latency, A]
    """

    records: npt.NDArray[Any]
    holdings: npt.NDArray[Any] | None
    pending: npt.NDArray[np.float64]

    @classmethod
    def of_asset(cls, accounts: int, latency: int) -> AccountState:
        """Accounts with one asset each."""
        return cls(np.zeros(accounts, dtype=ACCOUNT), None, np.zeros((accounts, latency)))

    @classmethod
    def of_portfolio(cls, accounts: int, assets: int, latency: int) -> AccountState:
        """Accounts with `assets` assets each."""
        holdings = np.zeros((accounts, assets), dtype=HOLDING)
        return cls(np.zeros(accounts, dtype=PORTFOLIO), holdings, np.zeros((accounts, latency, assets)))

    def to_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all numbers as plain arrays, one per name."""
        return {name: np.array(view) for name, view in self._views().items()}

    def check(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Refuse arrays of another number of accounts, other assets or another latency."""
        for name, view in self._views().items():
            if name not in state or np.shape(state[name]) != view.shape:
                stored = np.shape(state[name]) if name in state else "nothing"
                raise CheckpointError(
                    f"Market state '{name}': found {stored}, expected an array of shape {view.shape}; restore with as "
                    "many environments and assets and with the latency that were saved."
                )

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Inverse of `to_dict`; `check` the state before."""
        for name, view in self._views().items():
            view[...] = state[name]
        if self.holdings is not None:
            self.holdings["cash"] = 0.0

    def _views(self) -> dict[str, npt.NDArray[Any]]:
        """The numbers by name; a holding's cash is 0 between trades and not among them."""
        views = {name: self.records[name] for name in self.records.dtype.names or ()}
        if self.holdings is not None:
            views |= {name: self.holdings[name] for name in HOLDING.names or () if name != "cash"}
        return {**views, "pending": self.pending}

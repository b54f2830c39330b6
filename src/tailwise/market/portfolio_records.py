"""The memory layout of accounts that hold several assets; `records.py` has the parts shared with a single asset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.compiled import record_dtype
from tailwise.core.errors import CheckpointError
from tailwise.market.costs import COMPONENTS
from tailwise.market.records import BAR, EVENTS

SETTLEMENT = len(EVENTS)  # the history of an asset ended and its position was closed at the last close
PORTFOLIO_EVENTS = (*EVENTS, "settlement")

# One asset at one time of the account's clock.
ASSET_BAR = record_dtype(
    [
        *[(name, np.float64) for name in BAR.names or ()],
        ("present", np.int64),  # 1: the asset has a bar at this time and can be traded
        ("available", np.int64),  # 1: a decision at the close of this bar may want the asset
        ("ends", np.int64),  # 1: the last bar of the asset, and the clock goes on
    ]
)

PORTFOLIO = record_dtype(
    [
        ("row", np.int64),  # time at whose close the next decision is made
        ("last_row", np.int64),  # last time of the clock
        ("episode", np.int64),
        ("age", np.int64),  # clock times since the start of the episode
        ("cash", np.float64),  # account currency, shared; contains the proceeds of shorts
        ("equity", np.float64),  # at the last close: cash + sum of units x price
        ("peak", np.float64),
        ("start_equity", np.float64),
    ]
)

# The position of one account in one asset. `accounting` works on it as on an account: its `cash` takes up what a trade
# moves and is swept into the shared cash at once.
HOLDING = record_dtype(
    [
        ("held", np.int64),  # bars of the asset since the position was opened or turned
        ("units", np.float64),
        ("entry", np.float64),
        ("mark", np.float64),  # last price at which the position was valued
        ("cash", np.float64),  # 0 between trades
    ]
)
SAVED_HOLDING = tuple(name for name in HOLDING.names or () if name != "cash")

# What is about to happen to one asset in one step; scratch memory of the kernel, one record per asset.
PLAN = record_dtype(
    [
        ("target", np.float64),  # weight that the order aims at
        ("sends", np.int64),  # 1: an order is considered
        ("event", np.int64),  # exit by stop-loss or take-profit inside the bar
        ("price", np.float64),  # its price
        ("moment", np.float64),  # when, as a fraction of the way from the open to the adverse extreme
        ("adverse", np.float64),  # the worst price inside the bar
    ]
)

PORTFOLIO_LEDGER = record_dtype(
    [(name, np.float64) for name in COMPONENTS]
    + [
        ("equity_before", np.float64),
        ("equity", np.float64),
        ("shortfall", np.float64),
        ("margin_call", np.int64),  # 1: the account was liquidated
        ("row", np.int64),  # the time of the clock that was lived through
    ]
)

ASSET_LEDGER = record_dtype(
    [
        ("units", np.float64),  # held at the close
        ("order_units", np.float64),  # traded by the policy's order
        ("order_price", np.float64),
        ("exit_units", np.float64),  # traded by a stop, a take-profit, a liquidation or a settlement
        ("exit_price", np.float64),
        ("event", np.int64),  # index into PORTFOLIO_EVENTS
    ]
)


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


@dataclass
class PortfolioState:
    """N accounts: `accounts` [N] PORTFOLIO, `holdings` [N, A] HOLDING, `pending` float64 [N, latency, A] weights that
    wait, oldest first."""

    accounts: npt.NDArray[Any]
    holdings: npt.NDArray[Any]
    pending: npt.NDArray[np.float64]

    @classmethod
    def empty(cls, accounts: int, assets: int, latency: int) -> PortfolioState:
        return cls(
            np.zeros(accounts, dtype=PORTFOLIO),
            np.zeros((accounts, assets), dtype=HOLDING),
            np.zeros((accounts, latency, assets)),
        )

    def to_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all numbers as plain arrays, one per name."""
        return {name: values.copy() for name, values in self._views().items()}

    def check(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Refuse arrays of other accounts, assets or latency."""
        for name, view in self._views().items():
            if name not in state or np.shape(state[name]) != view.shape:
                found = np.shape(state[name]) if name in state else "nothing"
                raise CheckpointError(
                    f"Portfolio state '{name}': found {found}, expected an array of shape {view.shape}; restore with "
                    "as many environments and assets and the latency that were saved."
                )

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Inverse of `to_dict`, of a state that `check` has let pass."""
        for name, view in self._views().items():
            view[...] = state[name]
        self.holdings["cash"] = 0.0

    def _views(self) -> dict[str, npt.NDArray[Any]]:
        views = {name: self.accounts[name] for name in PORTFOLIO.names or ()}
        views |= {name: self.holdings[name] for name in SAVED_HOLDING}
        return {**views, "pending": self.pending}

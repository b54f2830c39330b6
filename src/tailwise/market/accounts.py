"""N accounts on a table of bars: their state, rules and guards, and the kernels that move them.

`Simulator` adds episodes, `Account` follows a feed with one of them. An account holds one asset, or all assets
of the table where the kind of actions says so (`weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.core.compiled import Repeated
from tailwise.market.action_kinds import DecisionContext, action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.engine import (
    begin_accounts,
    observe_accounts,
    step_accounts,
)
from tailwise.market.env_config import GuardsConfig, MarketEnvConfig, WeightsAction
from tailwise.market.guard_arrays import GUARDS, GuardArrays, guard_state, load_guard_state
from tailwise.market.portfolio_engine import PortfolioArrays
from tailwise.market.records import (
    ASSET_LEDGER,
    LEDGER,
    PLAN,
    PORTFOLIO_LEDGER,
    AccountState,
    joined_ledger,
    make_rules,
)
from tailwise.market.tables import MarketTable

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class SimulatorStep(NamedTuple):  # a tuple: three times as fast to make as a frozen dataclass, and this is the hot path
    """Fresh arrays of one step. `final_obs` is None when no episode ended; `ledger` [N] is None without `report`;
    `reward_parts` [N] each is None without `env.reward`, else the reward is their sum."""

    obs: npt.NDArray[np.float32]
    final_obs: npt.NDArray[np.float32] | None
    reward: npt.NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    ledger: npt.NDArray[Any] | None
    reward_parts: dict[str, npt.NDArray[np.float64]] | None = None


class Accounts:
    """The state of N accounts and what moves it.

    table      bars and features
    accounts   how many there are; assets: how many each of them holds
    state      what the accounts own and what waits for its fill
    guards     what the guards remember, None where none is set
    portfolio  what accounts with several assets need beside, None for one asset
    names      of the entries of an observation; size: how many
    has_mask   whether anything can forbid an action
    final      float32 [N, D]: where the next last observations of episodes are written
    """

    def __init__(
        self,
        table: MarketTable,
        config: MarketEnvConfig,
        costs: CostConfig,
        *,
        accounts: int,
        guards: GuardArrays | None,
    ) -> None:
        self.table, self.config, self.costs, self.accounts, self.guards = table, config, costs, accounts, guards
        self.kind = action_kind(config.action)
        self.rules = make_rules(config, costs)
        narrowed = self.kind.venue_narrows(config, costs)
        self.has_mask = guards is not None or narrowed
        self.portfolio: PortfolioArrays | None = None
        if table.has_clock:
            self.assets = len(table.symbols)
            self.state = AccountState.of_portfolio(accounts, self.assets, costs.latency)
            self.portfolio = _portfolio_arrays(self.state, table, config)
            # Bounds differ from those of the action space where an asset is outside its history.
            self.has_mask |= not (table.bars["available"][table.first_rows[0] :] == 1).all()
        else:
            self.assets = 1
            self.state = AccountState.of_asset(accounts, costs.latency)
        self._single = True if self.portfolio is None else None
        self.names = observation_names(table, costs.latency, config.guards)
        self.size = len(self.names)
        self.final = np.zeros((accounts, self.size), dtype=np.float32)
        self._ledger_dtype = LEDGER if self.portfolio is None else PORTFOLIO_LEDGER
        self._unread_ledger = np.zeros(1, dtype=self._ledger_dtype)
        self._step_accounts, self._observe_accounts = Repeated(step_accounts), Repeated(observe_accounts)
        self._context = DecisionContext(
            self.state.records,
            self.state.holdings,
            table.bars,
            self.rules,
            guards,
            costs.latency == 0,
            narrowed,
            table.symbols,
            table.base,
        )

    def begin(self, which: Integers, rows: Integers, symbols: Integers) -> None:
        """Start episodes of the accounts `which` [M] at the close of `rows` [M] of the table."""
        state, table = self.state, self.table
        begin_accounts(
            state.records,
            state.pending,
            which,
            rows,
            symbols,
            table.last_rows,
            table.bars,
            self.rules,
            self.guards,
            self._single,
            self.portfolio,
        )

    def observe(self) -> npt.NDArray[np.float32]:
        """Observations float32 [N, D] of all accounts at their last close."""
        obs = np.empty((self.accounts, self.size), dtype=np.float32)
        state, table = self.state, self.table
        self._observe_accounts(
            state.records,
            state.pending,
            table.bars,
            table.features,
            self.guards,
            self._single,
            self.portfolio,
            obs,
        )
        return obs

    def targets(self, actions: Any) -> npt.NDArray[np.float64]:
        """Check actions and turn them into target exposures: float64 [N] of indices for `positions` and of exposures
        [N] or [N, 1]; [N, A] for `weights`, as the policy named them: their bounds are applied by the step."""
        return self.kind.targets(np.asarray(actions), self._context)

    def mask(self) -> npt.NDArray[np.int8] | npt.NDArray[np.float32]:
        """What the next decision may choose: int8 [N, K] for `positions`, [low, high] float32 [N, 2] for `exposure` and
        [N, A, 2] for `weights`."""
        return self.kind.mask(self._context)

    def advance(
        self, targets: npt.NDArray[np.float64], start_rows: Integers, start_symbols: Integers, *, autoreset: bool
    ) -> tuple[SimulatorStep, int]:
        """Advance by one bar towards targets float64 [N] or [N, A]: the step, and how many accounts used up their
        starts int64 [N, K]."""
        n = self.accounts
        obs = np.empty((n, self.size), dtype=np.float32)
        reward = np.empty(n)
        terminated, truncated = np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.bool_)
        ledger = np.zeros(n, dtype=self._ledger_dtype) if self.config.report else None
        ended, used_up = self._step_accounts(
            self.state.records,
            self.state.pending,
            np.ascontiguousarray(targets, dtype=np.float64),
            self.table.bars,
            self.table.features,
            self.rules,
            self.guards,
            self._single,
            self.portfolio,
            self.table.last_rows,
            start_rows,
            start_symbols,
            autoreset,
            obs,
            self.final,
            reward,
            terminated,
            truncated,
            self._unread_ledger if ledger is None else ledger,
        )
        final = None
        if ended and autoreset:
            final, self.final = self.final, np.zeros((n, self.size), dtype=np.float32)
        if ledger is not None and self.portfolio is not None:
            ledger = joined_ledger(ledger, self.portfolio.fills)
        return SimulatorStep(obs, final, reward, terminated, truncated, ledger), used_up

    def guard_counts(self) -> dict[str, int]:
        """In how many steps of all accounts each guard changed a target or an order; empty without guards."""
        if self.guards is None:
            return {}
        return dict(zip(GUARDS, self.guards.counts.sum(axis=0).tolist(), strict=True))

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all numbers as plain arrays."""
        return {**self.state.to_dict(), **guard_state(self.guards)}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `get_state`; check the state with `self.state.check` before."""
        self.state.load(state)
        load_guard_state(self.guards, state)


def observation_names(table: MarketTable, latency: int, guards: GuardsConfig) -> tuple[str, ...]:
    """Names of the D entries of an observation, in the order in which `engine.observe` or
    `portfolio_engine.observe_portfolio` writes them."""
    symbols, features = table.symbols, table.feature_names
    turnover = () if guards.daily_turnover is None else ("turnover_left",)
    if not table.has_clock:
        account = ("exposure", "unrealised_return", "bars_held", "drawdown")
        pending = (f"pending_target_{k}" for k in range(latency))
        return (*features, *account, *pending, *(("halted",) if guards.active else ()), *turnover)
    of_asset = ("exposure", "unrealised_return", "bars_held", "available", "fresh")
    of_account = ("gross", "cash_share", "drawdown")
    return (
        *(f"{symbol}.{feature}" for symbol in symbols for feature in features),
        *(f"{symbol}.{name}" for symbol in symbols for name in of_asset),
        *of_account,
        *(f"{symbol}.pending_weight_{k}" for k in range(latency) for symbol in symbols),
        *(f"{symbol}.halted" for symbol in symbols if guards.active),
        *turnover,
    )


def _portfolio_arrays(state: AccountState, table: MarketTable, config: MarketEnvConfig) -> PortfolioArrays:
    assets = len(table.symbols)
    assert isinstance(config.action, WeightsAction) and state.holdings is not None
    low, high = config.action.bounds(assets)
    if len(table.base):  # bounds of actions are no bounds of weights there; `WeightsKind.targets` applies them
        low, high = np.full(assets, -np.inf), np.full(assets, np.inf)
    return PortfolioArrays(
        holdings=state.holdings,
        low=low,
        high=high,
        gross=config.action.gross,
        clock_year=1.0 / table.clock_per_year,
        weights=np.zeros(assets),
        plans=np.zeros(assets, dtype=PLAN),
        fills=np.zeros((len(state.records) if config.report else 1, assets), dtype=ASSET_LEDGER),
    )

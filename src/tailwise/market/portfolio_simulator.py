"""N accounts that each hold several assets: the counterpart of `simulator.Simulator` for the action kind `weights`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import CheckpointError, ConfigError, NotBuiltError
from tailwise.market.action_kinds import Desk, WeightsKind, action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guards_config import NO_GUARDS
from tailwise.market.path import AccountPath
from tailwise.market.portfolio_engine import (
    begin_portfolios,
    observation_names,
    observe_portfolios,
    step_portfolios,
)
from tailwise.market.portfolio_tables import PortfolioTable
from tailwise.market.records import ASSET_LEDGER, PLAN, PORTFOLIO_LEDGER, AccountState, joined_ledger, make_rules
from tailwise.market.simulator import SimulatorStep
from tailwise.market.starts import StartPlan
from tailwise.market.tables import MarketTable, SymbolTable

Integers = npt.NDArray[np.int64]


class PortfolioSimulator:
    """Advances N accounts over A assets. Two equal calls of `seed` are followed by equal episodes."""

    def __init__(
        self,
        assets: Sequence[SymbolTable],
        config: MarketEnvConfig,
        costs: CostConfig,
        *,
        accounts: int,
        first_environment: int = 0,
    ) -> None:
        kind = action_kind(config.action)
        if not isinstance(kind, WeightsKind):
            raise ConfigError(
                f"env.action is {config.action!r}; an account with several assets needs the kind 'weights'."
            )
        if config.guards != NO_GUARDS:
            raise NotBuiltError("env.guards stand before the orders of one asset; with weights they are not built yet.")
        if accounts < 1:
            raise ConfigError(f"The market was asked for {accounts} environments; at least 1 is needed.")
        config.check_with(costs)
        self.config, self.costs, self.accounts, self.kind = config, costs, accounts, kind
        self.table = PortfolioTable.build(assets, costs)
        self.assets = len(self.table.symbols)
        self.low, self.high = kind.action.bounds(self.assets)
        # Bounds can differ from those of the action space only where an asset is outside its history.
        self.has_mask = not (self.table.bars["available"][self.table.first_rows[0] :] == 1).all()
        self.rules = make_rules(config, costs)
        self.state = AccountState.of_portfolio(accounts, self.assets, costs.latency)
        self._desk = Desk(
            self.state.records, self.table.bars, self.rules, None, costs.latency == 0, False, self.table.symbols
        )
        self.names = observation_names(self.table.symbols, self.table.feature_names, costs.latency)
        self.size = len(self.names)
        # StartPlan reads `first_rows` and `last_rows` only: the whole clock is one symbol to it.
        self._plan = StartPlan(cast(MarketTable, self.table), config, accounts, first_environment)
        self._final = np.zeros((accounts, self.size), dtype=np.float32)
        self._weights = np.zeros(self.assets)
        self._plans = np.zeros(self.assets, dtype=PLAN)
        self._unread = (np.zeros(1, dtype=PORTFOLIO_LEDGER), np.zeros((1, self.assets), dtype=ASSET_LEDGER))

    def seed(self, seeds: int | Sequence[int | None]) -> None:
        """Begin the streams of episodes again; see `StartPlan.seed`."""
        self._plan.seed(seeds, self.state.records["episode"])

    def spread_first_episodes(self) -> None:
        """From the next `seed` on; see `StartPlan.spread_first_episodes`."""
        self._plan.spread_first_episodes(self.config.episode_length)

    def reset(self, which: Integers | None = None, *, rows: Any = None, symbols: Any = None) -> npt.NDArray[np.float32]:
        """Begin the next episode of the accounts `which` (all): observations float32 [N, D].

        `rows` (times of the clock, one number or one per account of `which`) replace the random start.
        """
        if symbols is not None:
            raise ConfigError("reset: an account with all assets has no 'symbol' to choose; give 'start' alone.")
        which = np.arange(self.accounts) if which is None else which
        episodes = self.state.records["episode"]
        starts = None if rows is None else self._chosen_starts(len(which), rows)
        episodes[which] += 1
        self._plan.prepare(which, episodes[which])
        if starts is None:
            starts, _ = self._plan.at(which, episodes[which])
        state, table = self.state, self.table
        begin_portfolios(state.records, state.holdings, state.pending, which, starts, table.bars, self.rules)
        state.records["age"][which] = self._plan.ages(which, episodes[which])
        self._plan.prepare_following(which, self.state.records["episode"])
        return self.observe()

    def observe(self) -> npt.NDArray[np.float32]:
        obs = np.empty((self.accounts, self.size), dtype=np.float32)
        state, table = self.state, self.table
        observe_portfolios(state.records, state.holdings, state.pending, table.bars, table.features, obs)
        return obs

    def targets(self, actions: Any) -> npt.NDArray[np.float64]:
        """Weights float64 [N, A] as the policy named them, checked; bounds are applied by `step`."""
        return self.kind.targets(np.asarray(actions), self._desk)

    def step(self, targets: npt.NDArray[np.float64], *, autoreset: bool) -> SimulatorStep:
        """Advance by one bar towards weights float64 [N, A]."""
        n, state, table = self.accounts, self.state, self.table
        obs = np.empty((n, self.size), dtype=np.float32)
        reward = np.empty(n)
        terminated, truncated = np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.bool_)
        ledgers, records = self._unread
        if self.config.report:
            ledgers, records = np.zeros(n, dtype=PORTFOLIO_LEDGER), np.zeros((n, self.assets), dtype=ASSET_LEDGER)
        ended, used_up = step_portfolios(
            state.records,
            state.holdings,
            state.pending,
            targets,
            table.bars,
            table.features,
            self.low,
            self.high,
            self.kind.action.gross,
            1.0 / table.periods_per_year,
            self.rules,
            self._plan.rows,
            autoreset,
            self._weights,
            self._plans,
            obs,
            self._final,
            reward,
            terminated,
            truncated,
            ledgers,
            records,
        )
        final = None
        if ended and autoreset:
            final, self._final = self._final, np.zeros_like(self._final)
            if used_up:
                self._plan.prepare_following(np.flatnonzero(terminated | truncated), self.state.records["episode"])
        ledger = joined_ledger(ledgers, records) if self.config.report else None
        return SimulatorStep(obs, final, reward, terminated, truncated, ledger)

    def mask(self) -> npt.NDArray[np.float32]:
        """Bounds float32 [N, A, 2] of the next decision: [low, high], [0, 0] for an asset that is not available."""
        return self.kind.mask(self._desk)

    def paths(
        self,
        bars: Sequence[Bars],
        ledgers: Sequence[Mapping[str, npt.NDArray[Any]]],
        targets: Sequence[npt.NDArray[np.float64]],
        planned: Sequence[int],
    ) -> list[AccountPath]:
        """What became of the first account, from its ledger and targets; bars: of the assets."""
        label = "; ".join(dict.fromkeys(one.label for one in bars))
        return [AccountPath.of_portfolio(self.table, ledgers[0], targets[0], label=label, planned=planned[0])]

    def guard_counts(self) -> dict[str, int]:
        """Empty: guards are refused."""
        return {}

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit."""
        return {**self.state.to_dict(), **self._plan.get_state()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.state.check(state)
        row, last = np.asarray(state["row"]), np.asarray(state["last_row"])
        if not ((last == self.table.last_rows[0]) & (row >= 0) & (row <= last)).all():
            raise CheckpointError(
                "The stored portfolio state points at times that this clock does not have; restore it with the same "
                "assets and the same bars."
            )
        self.state.load(state)
        self._plan.set_state(state, self.state.records["episode"])

    def _chosen_starts(self, count: int, rows: Any) -> Integers:
        first, last = int(self.table.first_rows[0]), int(self.table.last_rows[0])
        chosen = np.broadcast_to(np.asarray(rows, dtype=np.int64), (count,)).copy()
        bad = (chosen < first) | (chosen >= last)
        if bad.any():
            raise ConfigError(
                f"reset: time {chosen[int(np.argmax(bad))]} of the clock cannot be a start; choose from {first} (first "
                f"valid features) to {last - 1} (last time but one)."
            )
        return chosen

"""N accounts, their random starts and their rules behind one object; both Gymnasium environments are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import CheckpointError, ConfigError, EnvironmentContractError
from tailwise.market.bounds import (
    guard_bounds_of_accounts,
    margin_can_bind,
    mask_positions,
    venue_bounds_of_accounts,
)
from tailwise.market.costs import CostConfig
from tailwise.market.engine import (
    GUARD_OBSERVATIONS,
    begin_accounts,
    look_up,
    observation_names,
    observe_accounts,
    step_accounts,
)
from tailwise.market.env_config import ExposureAction, MarketEnvConfig, PositionsAction
from tailwise.market.guard_arrays import build_guard_arrays, guard_state, load_guard_state
from tailwise.market.guards import GUARDS
from tailwise.market.portfolio_config import WeightsAction
from tailwise.market.records import LEDGER, AccountState, make_rules
from tailwise.market.starts import StartPlan
from tailwise.market.tables import MarketTable, SymbolTable

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def first_episode(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Gymnasium's reset options "start" (bar numbers) and "symbol" (indices) as arguments of `Simulator.reset`."""
    chosen = dict(options or {})
    rows, symbols = chosen.pop("start", None), chosen.pop("symbol", None)
    if chosen:
        raise EnvironmentContractError(f"reset does not know the options {sorted(chosen)}; use 'start', 'symbol'.")
    return {"rows": rows, "symbols": symbols}


class SimulatorStep(NamedTuple):  # a tuple: three times as fast to make as a frozen dataclass, and this is the hot path
    """Fresh arrays of one step. `final_obs` is None when no episode ended; `ledger` [N] LEDGER, or None."""

    obs: npt.NDArray[np.float32]
    final_obs: npt.NDArray[np.float32] | None
    reward: npt.NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    ledger: npt.NDArray[Any] | None


class MarketArrays(NamedTuple):
    """What `step_accounts` works on, as it names them, without guards; positions float64 [K]: targets of the choices;
    targets, reward float64, terminated, truncated bool [N] and ledgers [1]: scratch."""

    accounts: npt.NDArray[Any]
    pending: npt.NDArray[np.float64]
    positions: npt.NDArray[np.float64]
    bars: npt.NDArray[Any]
    features: npt.NDArray[np.float32]
    rules: npt.NDArray[Any]
    last_rows: Integers
    start_rows: Integers
    start_symbols: Integers
    final: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float64]
    reward: npt.NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    ledgers: npt.NDArray[Any]


class Simulator:
    """Advances N accounts. Two equal calls of `seed` are followed by equal episodes."""

    def __init__(
        self,
        symbols: Sequence[SymbolTable],
        config: MarketEnvConfig,
        costs: CostConfig,
        *,
        accounts: int,
        first_environment: int = 0,
    ) -> None:
        if accounts < 1:
            raise ConfigError(f"The market was asked for {accounts} environments; at least 1 is needed.")
        if isinstance(config.action, WeightsAction):
            raise ConfigError("env.action.kind is weights: an account with all assets is a `PortfolioEnv`.")
        config.check_with(costs)
        self.config, self.costs, self.accounts = config, costs, accounts
        self.table = MarketTable.build(symbols, costs)
        self.rules = make_rules(config, costs)
        self.state = AccountState.empty(accounts, costs.latency)
        self._guards = build_guard_arrays(config, self.table, accounts)
        shown = () if self._guards is None else GUARD_OBSERVATIONS[: 1 if config.guards.daily_turnover is None else 2]
        self.names = observation_names(self.table.feature_names, costs.latency, shown)
        self.size = len(self.names)
        action = config.action
        self._positions = np.asarray(action.positions) if isinstance(action, PositionsAction) else np.zeros(0)
        self._range = (action.low, action.high) if isinstance(action, ExposureAction) else (0.0, 0.0)
        # A mask can forbid something only where an order can be too small, or where guards stand. Bounds also know the
        # margin; with latency the order meets another account than the one that is known now.
        small_orders = costs.lot_size > 0 or costs.minimum_notional > 0
        self._venue_bounds = (
            isinstance(action, ExposureAction)
            and costs.latency == 0
            and (small_orders or margin_can_bind(config, costs))
        )
        self.has_mask = (
            self._guards is not None or self._venue_bounds or (small_orders and isinstance(action, PositionsAction))
        )
        self._plan = StartPlan(self.table, config, accounts, first_environment)
        self._final = np.zeros((accounts, self.size), dtype=np.float32)
        self._unread_ledger = np.zeros(1, dtype=LEDGER)

    def seed(self, seeds: int | Sequence[int | None]) -> None:
        """Begin the streams of episodes again; see `StartPlan.seed`."""
        self._plan.seed(seeds, self.state.records["episode"])

    def spread_first_episodes(self) -> None:
        """From the next `seed` on; see `StartPlan.spread_first_episodes`."""
        self._plan.spread_first_episodes(self.config.episode_length)

    def reset(self, which: Integers | None = None, *, rows: Any = None, symbols: Any = None) -> npt.NDArray[np.float32]:
        """Begin the next episode of the accounts `which` (all): observations float32 [N, D].

        `rows` (bar numbers within the symbol) and `symbols` (indices), each one number or one per account of `which`,
        replace the random start; given one of them, the other is the first valid bar or symbol 0.
        """
        which = np.arange(self.accounts) if which is None else which
        records = self.state.records
        records["episode"][which] += 1
        episodes = records["episode"][which]
        self._plan.prepare(which, episodes)
        start_rows, start_symbols = self._plan.at(which, episodes)
        if rows is not None or symbols is not None:
            start_rows, start_symbols = self._chosen_starts(len(which), rows, symbols)
        begin_accounts(
            records,
            self.state.pending,
            which,
            start_rows,
            start_symbols,
            self.table.last_rows,
            self.rules,
            self._guards,
        )
        records["age"][which] = self._plan.ages(which, episodes)
        self._plan.prepare_following(which, self.state.records["episode"])
        return self.observe()

    def observe(self) -> npt.NDArray[np.float32]:
        obs = np.empty((self.accounts, self.size), dtype=np.float32)
        table, state = self.table, self.state
        observe_accounts(state.records, state.pending, table.bars, table.features, self._guards, obs)
        return obs

    def targets(self, actions: Any) -> npt.NDArray[np.float64]:
        """Target exposures float64 [N] of actions: indices for `positions`, exposures [N] or [N, 1] for `exposure`."""
        action = self.config.action
        values = np.asarray(actions)
        if values.size != self.accounts:
            raise EnvironmentContractError(
                f"Actions have shape {values.shape}, expected one per account, ({self.accounts},)."
            )
        if values.ndim != 1:
            values = values.reshape(-1)
        if isinstance(action, ExposureAction):
            exposures = np.clip(values.astype(np.float64), action.low, action.high)
            if np.isnan(exposures).any():
                raise EnvironmentContractError(f"Action of account {int(np.argmax(np.isnan(exposures)))} is NaN.")
            if self._venue_bounds:
                bounds = self._venue_range()
                exposures = np.clip(exposures, bounds[:, 0], bounds[:, 1])
            return exposures
        targets = np.empty(self.accounts)
        bad = look_up(self._positions, values, targets) if values.dtype.kind in "iu" else 0
        if bad >= 0:
            raise EnvironmentContractError(
                f"Action of account {bad} is {values[bad]} ({values.dtype}); positions are chosen by integers from 0 "
                f"to {self._positions.size - 1}."
            )
        return targets

    def step(self, targets: npt.NDArray[np.float64], *, autoreset: bool) -> SimulatorStep:
        """Advance by one bar towards target exposures float64 [N]."""
        n, records = self.accounts, self.state.records
        obs = np.empty((n, self.size), dtype=np.float32)
        reward = np.empty(n)
        terminated, truncated = np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.bool_)
        ledger = np.zeros(n, dtype=LEDGER) if self.config.report else None
        ended, used_up = step_accounts(
            records,
            self.state.pending,
            targets,
            self.table.bars,
            self.table.features,
            self.rules,
            self._guards,
            self.table.last_rows,
            self._plan.rows,
            self._plan.symbols,
            autoreset,
            obs,
            self._final,
            reward,
            terminated,
            truncated,
            self._unread_ledger if ledger is None else ledger,
        )
        final = None
        if ended and autoreset:
            final, self._final = self._final, np.zeros((n, self.size), dtype=np.float32)
            if used_up:
                self.prepare_starts(np.flatnonzero(terminated | truncated))
        return SimulatorStep(obs, final, reward, terminated, truncated, ledger)

    @property
    def says_little(self) -> bool:
        """Whether a step says nothing but observation, reward and end (no mask, guard or report), and an action is a
        choice of positions: what `arrays` is for."""
        return not (self.has_mask or self.config.report) and isinstance(self.config.action, PositionsAction)

    def arrays(self) -> MarketArrays:
        """The accounts as they stand, for compiled code that steps by itself; their numbers move on with that, and
        `prepare_starts` is due where episodes end. Guards are left out."""
        n, table, plan = self.accounts, self.table, self._plan
        return MarketArrays(
            *(self.state.records, self.state.pending, self._positions, table.bars, table.features, self.rules),
            *(table.last_rows, plan.rows, plan.symbols, self._final),
            *(np.empty(n), np.empty(n), np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.bool_)),
            np.zeros(1, dtype=LEDGER),
        )

    def prepare_starts(self, ended: Integers) -> None:
        """Lay ready the starts that follow the newest episodes of the accounts `ended`."""
        self._plan.prepare_following(ended, self.state.records["episode"])

    def mask(self) -> npt.NDArray[np.int8] | npt.NDArray[np.float32]:
        """What the next decision may choose: int8 [N, K] for `positions`, [low, high] float32 [N, 2] for `exposure`."""
        records, bars, immediate = self.state.records, self.table.bars, self.costs.latency == 0
        if isinstance(self.config.action, PositionsAction):
            mask = np.empty((self.accounts, self._positions.size), dtype=np.int8)
            mask_positions(records, bars, self._positions, self.rules, self._guards, immediate, mask)
            return mask
        bounds = self._venue_range()
        if self._guards is not None:
            guard_bounds_of_accounts(records, bars, self._guards, immediate, bounds)
        return bounds.astype(np.float32)

    def guard_counts(self) -> dict[str, int]:
        """In how many steps of all accounts each guard changed a target or an order; empty without guards."""
        if self._guards is None:
            return {}
        return dict(zip(GUARDS, self._guards.counts.sum(axis=0).tolist(), strict=True))

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit."""
        return {**self.state.to_dict(), **self._plan.get_state(), **guard_state(self._guards)}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        symbol, row = np.asarray(state["symbol"]), np.asarray(state["row"])
        known = (symbol >= 0) & (symbol < len(self.table.symbols))
        same_end = known & (self.table.last_rows[np.where(known, symbol, 0)] == state["last_row"])
        first = self.table.first_rows[np.where(known, symbol, 0)]
        if not (same_end & (row >= first) & (row <= state["last_row"])).all():
            raise CheckpointError(
                "The stored market state points at bars that this market does not have; restore it with the same "
                "symbols and the same rows."
            )
        self.state.load(state)
        load_guard_state(self._guards, state)
        self._plan.set_state(state, self.state.records["episode"])

    def _venue_range(self) -> npt.NDArray[np.float64]:
        """[low, high] float64 [N, 2] of `exposure`, cut to what margin and the smallest order leave."""
        low, high = self._range
        bounds = np.tile([low, high], (self.accounts, 1))
        if self._venue_bounds:
            venue_bounds_of_accounts(self.state.records, self.table.bars, low, high, self.rules, bounds)
        return bounds

    def _chosen_starts(self, count: int, rows: Any, symbols: Any) -> tuple[Integers, Integers]:
        table = self.table
        chosen = np.broadcast_to(np.asarray(0 if symbols is None else symbols, dtype=np.int64), (count,)).copy()
        if chosen.min() < 0 or chosen.max() >= len(table.symbols):
            raise ConfigError(f"reset: symbols are {chosen.tolist()}; the market has {len(table.symbols)}.")
        first, last, offset = table.first_rows[chosen], table.last_rows[chosen], table.offsets[chosen]
        if rows is None:
            return first, chosen
        absolute = offset + np.broadcast_to(np.asarray(rows, dtype=np.int64), (count,))
        bad = (absolute < first) | (absolute >= last)
        if bad.any():
            i = int(np.argmax(bad))
            raise ConfigError(
                f"reset: bar {absolute[i] - offset[i]} of {table.symbols[chosen[i]]} cannot be a start; choose from "
                f"{first[i] - offset[i]} (first valid features) to {last[i] - offset[i] - 1} (last bar but one)."
            )
        return absolute, chosen

"""N accounts, their random starts and their rules behind one object; both Gymnasium environments are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import CheckpointError, ConfigError, EnvironmentContractError
from tailwise.market.action_kinds import Desk, action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.engine import (
    GUARD_OBSERVATIONS,
    begin_accounts,
    observation_names,
    observe_accounts,
    step_accounts,
)
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guard_arrays import build_guard_arrays, guard_state, load_guard_state
from tailwise.market.guards import GUARDS
from tailwise.market.path import AccountPath
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
        self.kind = action_kind(config.action)
        if self.kind.portfolio:
            raise ConfigError(
                f"env.action.kind is {config.action.kind}: an account with all assets is a `PortfolioEnv`."
            )
        config.check_with(costs)
        self.config, self.costs, self.accounts = config, costs, accounts
        self.table = MarketTable.build(symbols, costs)
        self.rules = make_rules(config, costs)
        self.state = AccountState.of_asset(accounts, costs.latency)
        self._guards = build_guard_arrays(config, self.table, accounts)
        shown = () if self._guards is None else GUARD_OBSERVATIONS[: 1 if config.guards.daily_turnover is None else 2]
        self.names = observation_names(self.table.feature_names, costs.latency, shown)
        self.size = len(self.names)
        # A mask can forbid something only where the venue or guards can.
        narrowed = self.kind.venue_narrows(config, costs)
        self.has_mask = self._guards is not None or narrowed
        self._desk = Desk(
            self.state.records,
            self.table.bars,
            self.rules,
            self._guards,
            costs.latency == 0,
            narrowed,
            self.table.symbols,
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
        return self.kind.targets(np.asarray(actions), self._desk)

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
        return not (self.has_mask or self.config.report) and self.kind.choices.size > 0

    def arrays(self) -> MarketArrays:
        """The accounts as they stand, for compiled code that steps by itself; their numbers move on with that, and
        `prepare_starts` is due where episodes end. Guards are left out."""
        n, table, plan = self.accounts, self.table, self._plan
        return MarketArrays(
            *(self.state.records, self.state.pending, self.kind.choices, table.bars, table.features, self.rules),
            *(table.last_rows, plan.rows, plan.symbols, self._final),
            *(np.empty(n), np.empty(n), np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.bool_)),
            np.zeros(1, dtype=LEDGER),
        )

    def prepare_starts(self, ended: Integers) -> None:
        """Lay ready the starts that follow the newest episodes of the accounts `ended`."""
        self._plan.prepare_following(ended, self.state.records["episode"])

    def mask(self) -> npt.NDArray[np.int8] | npt.NDArray[np.float32]:
        """What the next decision may choose: int8 [N, K] for `positions`, [low, high] float32 [N, 2] for `exposure`."""
        return self.kind.mask(self._desk)

    def paths(
        self,
        bars: Sequence[Bars],
        ledgers: Sequence[Mapping[str, npt.NDArray[Any]]],
        targets: Sequence[npt.NDArray[np.float64]],
        planned: Sequence[int],
    ) -> list[AccountPath]:
        """What became of each account, from its ledger and targets; bars: of the symbols, in the order of the table."""
        return [
            AccountPath.of_asset(bars[i], ledgers[i], targets[i], offset=int(self.table.offsets[i]), planned=planned[i])
            for i in range(self.accounts)
        ]

    def guard_counts(self) -> dict[str, int]:
        """In how many steps of all accounts each guard changed a target or an order; empty without guards."""
        if self._guards is None:
            return {}
        return dict(zip(GUARDS, self._guards.counts.sum(axis=0).tolist(), strict=True))

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit."""
        return {**self.state.to_dict(), **self._plan.get_state(), **guard_state(self._guards)}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.state.check(state)
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

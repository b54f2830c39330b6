"""N accounts and their random starts behind one object; both Gymnasium environments are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import CheckpointError, ConfigError, EnvironmentContractError
from tailwise.market.accounts import Accounts, Bools, Integers, SimulatorStep
from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guard_arrays import build_guard_arrays
from tailwise.market.path import AccountPath
from tailwise.market.portfolio_tables import PortfolioTable
from tailwise.market.records import LEDGER, AccountState
from tailwise.market.starts import StartPlan
from tailwise.market.tables import MarketTable, SymbolTable


def first_episode(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Gymnasium's reset options "start" (bar numbers) and "symbol" (indices) as arguments of `Simulator.reset`."""
    chosen = dict(options or {})
    rows, symbols = chosen.pop("start", None), chosen.pop("symbol", None)
    if chosen:
        raise EnvironmentContractError(f"reset does not know the options {sorted(chosen)}; use 'start', 'symbol'.")
    return {"rows": rows, "symbols": symbols}


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
    """Advances N accounts with one asset each, or with all of them (`assets`) where the kind of actions is `weights`.
    Two equal calls of `seed` are followed by equal episodes."""

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
        config.check_with(costs)
        self.config, self.costs, self.accounts = config, costs, accounts
        self.kind = action_kind(config.action)
        self.table: MarketTable | PortfolioTable = (
            PortfolioTable.build(symbols, costs) if self.kind.portfolio else MarketTable.build(symbols, costs)
        )
        guards = build_guard_arrays(config, self.table, accounts)
        self._accounts = Accounts(self.table, config, costs, accounts=accounts, guards=guards)
        self.names, self.size, self.has_mask = self._accounts.names, self._accounts.size, self._accounts.has_mask
        self._plan = StartPlan(self.table, config, accounts, first_environment)

    @property
    def assets(self) -> int:
        """How many assets an account holds."""
        return self._accounts.assets

    @property
    def state(self) -> AccountState:
        """What the accounts own and what waits for its fill."""
        return self._accounts.state

    def seed(self, seeds: int | Sequence[int | None]) -> None:
        """Begin the streams of episodes again; see `StartPlan.seed`."""
        self._plan.seed(seeds, self.state.records["episode"])

    def spread_first_episodes(self) -> None:
        """From the next `seed` on; see `StartPlan.spread_first_episodes`."""
        self._plan.spread_first_episodes(self.config.episode_length)

    def reset(self, which: Integers | None = None, *, rows: Any = None, symbols: Any = None) -> npt.NDArray[np.float32]:
        """Begin the next episode of the accounts `which` (all): observations float32 [N, D].

        `rows` (bar numbers within the symbol, or times of the clock of several assets) and `symbols` (indices), each
        one number or one per account of `which`, replace the random start; given one of them, the other is the first
        valid bar or symbol 0.
        """
        which = np.arange(self.accounts) if which is None else which
        chosen = None
        if rows is not None or symbols is not None:
            chosen = self._chosen_starts(len(which), rows, symbols)
        records = self.state.records
        records["episode"][which] += 1
        episodes = records["episode"][which]
        self._plan.prepare(which, episodes)
        self._accounts.begin(which, *(chosen or self._plan.at(which, episodes)))
        records["age"][which] = self._plan.ages(which, episodes)
        self._plan.prepare_following(which, records["episode"])
        return self.observe()

    def observe(self) -> npt.NDArray[np.float32]:
        """Observations float32 [N, D] of all accounts as they stand."""
        return self._accounts.observe()

    def targets(self, actions: Any) -> npt.NDArray[np.float64]:
        """Target exposures of actions: float64 [N] of indices for `positions` and of exposures [N] or [N, 1]; [N, A]
        for `weights`, as the policy named them: their bounds are applied by `step`."""
        return self._accounts.targets(actions)

    def step(self, targets: npt.NDArray[np.float64], *, autoreset: bool) -> SimulatorStep:
        """Advance by one bar towards target exposures float64 [N], or weights [N, A]."""
        plan = self._plan
        result, used_up = self._accounts.step(targets, plan.rows, plan.symbols, autoreset=autoreset)
        if used_up:
            self.prepare_starts(np.flatnonzero(result.terminated | result.truncated))
        return result

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
            accounts=self.state.records,
            pending=self.state.pending,
            positions=self.kind.choices,
            bars=table.bars,
            features=table.features,
            rules=self._accounts.rules,
            last_rows=table.last_rows,
            start_rows=plan.rows,
            start_symbols=plan.symbols,
            final=self._accounts.final,
            targets=np.empty(n),
            reward=np.empty(n),
            terminated=np.empty(n, dtype=np.bool_),
            truncated=np.empty(n, dtype=np.bool_),
            ledgers=np.zeros(1, dtype=LEDGER),
        )

    def prepare_starts(self, ended: Integers) -> None:
        """Lay ready the starts that follow the newest episodes of the accounts `ended`."""
        self._plan.prepare_following(ended, self.state.records["episode"])

    def mask(self) -> npt.NDArray[np.int8] | npt.NDArray[np.float32]:
        """What the next decision may choose; see `Accounts.mask`."""
        return self._accounts.mask()

    def paths(
        self,
        bars: Sequence[Bars],
        ledgers: Sequence[Mapping[str, npt.NDArray[Any]]],
        targets: Sequence[npt.NDArray[np.float64]],
        planned: Sequence[int],
    ) -> list[AccountPath]:
        """What became of each account, from its ledger and targets; bars: of the symbols, in the order of the table.
        Of accounts with several assets, the path of the first."""
        if isinstance(self.table, PortfolioTable):
            label = "; ".join(dict.fromkeys(one.label for one in bars))
            return [AccountPath.of_portfolio(self.table, ledgers[0], targets[0], label=label, planned=planned[0])]
        return [
            AccountPath.of_asset(bars[i], ledgers[i], targets[i], offset=int(self.table.offsets[i]), planned=planned[i])
            for i in range(self.accounts)
        ]

    def guard_counts(self) -> dict[str, int]:
        """In how many steps of all accounts each guard changed a target or an order; empty without guards."""
        return self._accounts.guard_counts()

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit."""
        return {**self._accounts.get_state(), **self._plan.get_state()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `get_state`; refuses the state of another market."""
        self.state.check(state)
        row, last_row = np.asarray(state["row"]), np.asarray(state["last_row"])
        symbol = np.asarray(state["symbol"]) if "symbol" in state else np.zeros_like(row)
        known = (symbol >= 0) & (symbol < len(self.table.last_rows))
        place = np.where(known, symbol, 0)
        same_end = known & (self.table.last_rows[place] == last_row)
        if not (same_end & (row >= self.table.first_rows[place]) & (row <= last_row)).all():
            raise CheckpointError(
                "The stored market state points at bars that this market does not have; restore it with the same "
                "symbols and the same bars."
            )
        self._accounts.set_state(state)
        self._plan.set_state(state, self.state.records["episode"])

    def _chosen_starts(self, count: int, rows: Any, symbols: Any) -> tuple[Integers, Integers]:
        table = self.table
        if symbols is not None and self.kind.portfolio:
            raise ConfigError("reset: an account with all assets has no 'symbol' to choose; give 'start' alone.")
        chosen = np.broadcast_to(np.asarray(0 if symbols is None else symbols, dtype=np.int64), (count,)).copy()
        if chosen.min() < 0 or chosen.max() >= len(table.last_rows):
            raise ConfigError(f"reset: symbols are {chosen.tolist()}; the market has {len(table.last_rows)}.")
        first, last, offset = table.first_rows[chosen], table.last_rows[chosen], table.offsets[chosen]
        if rows is None:
            return first, chosen
        absolute = offset + np.broadcast_to(np.asarray(rows, dtype=np.int64), (count,))
        bad = (absolute < first) | (absolute >= last)
        if bad.any():
            i = int(np.argmax(bad))
            raise ConfigError(
                f"reset: {table.name_row(chosen[i], absolute[i] - offset[i])} cannot be a start; choose from "
                f"{first[i] - offset[i]} (first valid features) to {last[i] - offset[i] - 1} (last but one)."
            )
        return absolute, chosen

"""N accounts and their random starts behind one object; both Gymnasium environments are made of it.

Where an episode begins is a pure function of (seed, environment, index of the episode). The kernel cannot ask Python
for a random number when an episode ends in the middle of a step, so the starts of the next episodes are drawn ahead
into two arrays [N, BLOCK]. None of them is saved: they follow from the addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import CheckpointError, ConfigError, DataError, EnvironmentContractError
from tailwise.core.numerics import golden_fractions
from tailwise.core.streams import Streams
from tailwise.market.accounts import Accounts, Bools, Integers, SimulatorStep
from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guard_arrays import build_guard_arrays
from tailwise.market.path import AccountPath
from tailwise.market.records import LEDGER
from tailwise.market.rewards import Before, RewardTerms
from tailwise.market.tables import MarketTable, SymbolTable

BLOCK = 32
STREAM = "market/start"


class StartPlan:
    """Starts of the current block of episodes: `rows` and `symbols` int64 [N, BLOCK], episode e in column e % BLOCK."""

    def __init__(
        self,
        table: MarketTable,
        config: MarketEnvConfig,
        environments: int,
        first_environment: int,
        resampled: float = 0.0,
    ) -> None:
        """resampled: share of the episodes that begin in resampled symbols, where there are any."""
        self._fixed_symbol = config.symbol == "fixed"
        self._first_rows = table.first_rows
        if config.start == "first":
            self._counts = np.ones_like(table.first_rows)
        else:
            # Episodes fit into the data where they can; a symbol shorter than an episode starts at its first row.
            reach = table.last_rows - (config.episode_length or 1)
            self._counts = np.maximum(reach - table.first_rows + 1, 1)
        self._bounds = np.cumsum(self._counts)
        self._mixed = _Mixed.of(table, self._counts, resampled, by_symbol=self._fixed_symbol)
        self._first_environment = first_environment
        self.seeds: Integers = np.zeros(environments, dtype=np.int64)
        self.ids: Integers = np.zeros(environments, dtype=np.int64)
        self.seed_all(0)
        self.rows: Integers = np.zeros((environments, BLOCK), dtype=np.int64)
        self.symbols: Integers = np.zeros((environments, BLOCK), dtype=np.int64)
        self._first_ages: Integers = np.zeros(environments, dtype=np.int64)

    def spread_first_episodes(self, length: int | None) -> None:
        """Cut the first episodes to different lengths, so that the environments never end and begin all at once.

        In step with one another, the accounts of a rollout would all be young or all be old; what is measured on it
        then swings with the age, and what was learnt from the young is applied to the old. Environment i begins at the
        age frac(i x golden ratio) of an episode: evenly spread for any number of environments, and the same whether
        they are simulated together or in parts. length: bars of an episode; None (only the data ends) spreads nothing.
        """
        if length is not None:
            ids = self._first_environment + np.arange(len(self._first_ages))
            self._first_ages[:] = np.floor(golden_fractions(ids) * length)

    def ages(self, which: Integers, episodes: Integers) -> Integers:
        """Ages at which the given episodes begin: 0, but for spread first ones."""
        return np.where(episodes == 0, self._first_ages[which], 0)

    def seed_all(self, seed: int) -> None:
        """One seed for all; environment i draws at the address of its id."""
        self.seeds[:] = seed
        self.ids[:] = self._first_environment + np.arange(len(self.ids))

    def seed(self, seeds: int | Sequence[int | None], episodes: Integers) -> None:
        """Begin the streams of episodes again, and set `episodes` [N] of the environments concerned to -1, before the
        first one: one seed for all (environment i draws at its own address), or a list with a seed per environment
        (None leaves that environment as it is), each drawing at the address 0."""
        if isinstance(seeds, (int, np.integer)):
            self.seed_all(_checked_seed(int(seeds)))
            episodes[:] = -1
            return
        if len(seeds) != len(self.seeds):
            raise ConfigError(f"reset got {len(seeds)} seeds for {len(self.seeds)} environments; give one for each.")
        for i, seed in enumerate(seeds):
            if seed is not None:
                self.seeds[i], self.ids[i] = _checked_seed(int(seed)), 0
                episodes[i] = -1

    def get_state(self) -> dict[str, Integers]:
        """Copies of the addresses that episodes are drawn from."""
        return {"seeds": self.seeds.copy(), "ids": self.ids.copy()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]], episodes: Integers) -> None:
        """Continue from `get_state` in the middle of `episodes` [N], and draw the starts that follow them."""
        self.seeds[:] = state["seeds"]
        self.ids[:] = state["ids"]
        self.prepare(np.arange(len(self.seeds)), episodes + 1)

    def prepare_following(self, which: Integers, episodes: Integers) -> None:
        """Draw the starts that follow `episodes` [N] of the environments `which`, where a new block begins."""
        following = episodes[which] + 1
        fresh = following % BLOCK == 0
        if fresh.any():
            self.prepare(which[fresh], following[fresh])

    def prepare(self, which: Integers, episodes: Integers) -> None:
        """Draw the blocks of starts that contain episode `episodes[j]` of environment `which[j]`."""
        blocks = episodes // BLOCK
        addresses = np.stack([self.seeds[which], blocks], axis=1)
        for seed, block in np.unique(addresses, axis=0).tolist():
            group = which[(addresses[:, 0] == seed) & (addresses[:, 1] == block)]
            ids = self.ids[group]
            levels = Streams(seed).uniforms(
                STREAM, update=0, environments=ids, steps=BLOCK, draws=1, first_step=block * BLOCK
            )
            self.rows[group], self.symbols[group] = self._place(levels[:, :, 0].T, ids)

    def at(self, which: Integers, episodes: Integers) -> tuple[Integers, Integers]:
        """(rows, symbols) at which the given episodes begin; their blocks must have been prepared."""
        columns = episodes % BLOCK
        return self.rows[which, columns], self.symbols[which, columns]

    def _place(self, levels: npt.NDArray[np.float64], ids: Integers) -> tuple[Integers, Integers]:
        """Turn uniform levels [M, BLOCK] into starts."""
        if self._mixed is not None:
            symbols, inside = self._mixed.place(levels, ids)
        elif self._fixed_symbol:
            symbols = np.broadcast_to((ids % len(self._counts))[:, None], levels.shape)
            inside = np.floor(levels * self._counts[symbols]).astype(np.int64)
        else:
            position = np.floor(levels * self._bounds[-1]).astype(np.int64)
            symbols = np.searchsorted(self._bounds, position, side="right")
            inside = position - (self._bounds - self._counts)[symbols]
        return self._first_rows[symbols] + inside, np.array(symbols, dtype=np.int64)


@dataclass(frozen=True)
class _Mixed:
    """Starts in real and in resampled symbols, [G, S] each: one row, or with `env.symbol: fixed` one for each real
    symbol.

    shares   of the episodes of a row that begin in each symbol; ends: their cumulative sums
    counts   int64 [S], possible starts
    """

    shares: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    counts: Integers

    @classmethod
    def of(cls, table: MarketTable, counts: Integers, share: float, *, by_symbol: bool) -> _Mixed | None:
        """None where nothing is resampled."""
        if not table.resampled.any():
            return None
        if table.resampled.all() or not 0 <= share <= 1:
            raise ConfigError(
                f"{share:g} of the episodes were to begin in resampled symbols, beside "
                f"{int((~table.resampled).sum())} real ones; give a share from 0 to 1, and the real symbols too."
            )
        real = np.flatnonzero(~table.resampled)
        names = np.array(table.symbols)
        groups = [np.flatnonzero(names == names[k]) for k in real] if by_symbol else [np.arange(len(counts))]
        shares = np.zeros((len(groups), len(counts)))
        for row, (members, own) in enumerate(zip(groups, real if by_symbol else [None], strict=True)):
            # A symbol without other worlds, a helper of the path adversary, begins in its own bars alone.
            others = share if table.resampled[members].any() else 0.0
            for kind, part in ((True, others), (False, 1 - others)):
                chosen = members[table.resampled[members] == kind]
                if own is not None and not kind:
                    chosen = np.array([own])  # with several train ranges a symbol has several tables
                shares[row, chosen] = part * counts[chosen] / counts[chosen].sum()
        return cls(shares, np.cumsum(shares, axis=1), counts)

    def place(self, levels: npt.NDArray[np.float64], ids: Integers) -> tuple[Integers, Integers]:
        """(symbols, starts counted from the first possible one) of uniform levels [M, K] of environments `ids` [M]."""
        rows = np.broadcast_to((ids % len(self.shares))[:, None], levels.shape)
        symbols, inside = np.zeros(levels.shape, dtype=np.int64), np.zeros(levels.shape, dtype=np.int64)
        for row in np.unique(rows).tolist():
            here, ends, shares = rows == row, self.ends[row], self.shares[row]
            # Rounding may leave the last end below 1: no symbol of share 0 is ever chosen.
            chosen = np.minimum(np.searchsorted(ends, levels[here], side="right"), np.flatnonzero(shares)[-1])
            within = (levels[here] - (ends - shares)[chosen]) / shares[chosen]
            symbols[here] = chosen
            inside[here] = np.clip(np.floor(within * self.counts[chosen]), 0, self.counts[chosen] - 1)
        return symbols, inside


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed}; it must be at least 0 and below 2**63.")
    return seed


def first_episode(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Gymnasium's reset options "start" (bar numbers) and "symbol" (indices) as arguments of `Simulator.reset`."""
    unread = dict(options or {})
    rows, symbols = unread.pop("start", None), unread.pop("symbol", None)
    if unread:
        raise EnvironmentContractError(f"reset does not know the options {sorted(unread)}; use 'start', 'symbol'.")
    return {"rows": rows, "symbols": symbols}


class MarketArrays(NamedTuple):
    """Arguments of `step_accounts` by their names there, without guards.

    positions   float64 [K], target exposures of the choices, or multiples of base; none where actions are numbers
    low, high   of such a number; narrowed: whether the venue can cut the exposure
    base        float64 [R], or [0] where actions are exposures themselves
    units       float64 [S], in which rewards are paid, by symbol
    targets, unit, reward float64 [N], terminated, truncated bool [N], ledgers [1]: scratch
    """

    accounts: npt.NDArray[Any]
    pending: npt.NDArray[np.float64]
    positions: npt.NDArray[np.float64]
    low: float
    high: float
    narrowed: bool
    base: npt.NDArray[np.float64]
    units: npt.NDArray[np.float64]
    bars: npt.NDArray[Any]
    features: npt.NDArray[np.float32]
    rules: npt.NDArray[Any]
    last_rows: Integers
    start_rows: Integers
    start_symbols: Integers
    final: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float64]
    unit: npt.NDArray[np.float64]
    reward: npt.NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    ledgers: npt.NDArray[Any]


class Simulator(Accounts):
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
        resampled: float = 0.0,
    ) -> None:
        """resampled: share of the episodes that begin in resampled symbols, where the table has any."""
        if accounts < 1:
            raise ConfigError(f"The market was asked for {accounts} environments; at least 1 is needed.")
        config.check_with(costs)
        build = MarketTable.on_one_clock if action_kind(config.action).portfolio else MarketTable.build
        table = build(symbols, costs)
        if (config.base is None) != (len(table.base) == 0):
            raise ConfigError(
                "env.base and the base exposures of the symbols go together; give SymbolTable.base (from "
                "`base_exposures`) for env.base, and none without it."
            )
        guards = build_guard_arrays(config, table, accounts) if config.guards.active else None
        self._reports, shaped = config.report, config.reward.active
        if shaped:  # the terms are made of the ledger
            config = config.model_copy(update={"report": True})
        super().__init__(table, config, costs, accounts=accounts, guards=guards)
        self._terms = RewardTerms(config.reward, self.names) if shaped else None
        self._plan = StartPlan(table, config, accounts, first_environment, resampled)
        self._in_units = bool((table.units != 1.0).any())

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
        given = None
        if rows is not None or symbols is not None:
            given = self._given_starts(len(which), rows, symbols)
        records = self.state.records
        records["episode"][which] += 1
        episodes = records["episode"][which]
        self._plan.prepare(which, episodes)
        start_rows, start_symbols = given or self._plan.at(which, episodes)
        self.begin(which, start_rows, start_symbols)
        records["age"][which] = self._plan.ages(which, episodes)
        self._plan.prepare_following(which, records["episode"])
        return self.observe()

    def step(self, targets: npt.NDArray[np.float64], *, autoreset: bool) -> SimulatorStep:
        """Advance by one bar towards target exposures float64 [N], or weights [N, A]."""
        plan, terms, records = self._plan, self._terms, self.state.records
        units = self.table.units[records["symbol"]] if self._in_units else None  # before the next episode
        before = None if terms is None else terms.before(records)
        result, used_up = self.advance(targets, plan.rows, plan.symbols, autoreset=autoreset)
        if terms is not None and before is not None:
            result = self._with_terms(result, terms, before)
        if units is not None:
            parts = result.reward_parts
            shares = None if parts is None else {name: part / units for name, part in parts.items()}
            result = result._replace(reward=result.reward / units, reward_parts=shares)
        if used_up:
            self.prepare_starts(np.flatnonzero(result.terminated | result.truncated))
        return result

    def replace_bars(self, first: int, tables: Sequence[SymbolTable]) -> None:
        """Let the symbols `first`, `first` + 1, ... have other bars, as many as before.

        Accounts that hold one of them are restated as by a split of shares, so that equity and exposure stay: none of
        them gains or loses by the change.
        """
        table, records, fresh = self.table, self.state.records, MarketTable.build(tables, self.costs)
        last = first + len(tables)
        begin, end = int(table.offsets[first]), int(table.last_rows[last - 1]) + 1
        if not np.array_equal(fresh.last_rows + begin, table.last_rows[first:last]):
            raise DataError(
                f"{tables[0].symbol}: {len(fresh.bars)} bars were to replace {end - begin}; give as many as there are."
            )
        mine = (records["symbol"] >= first) & (records["symbol"] < last)
        rows = records["row"][mine]
        before = table.bars["close"][rows]
        table.bars[begin:end], table.features[begin:end] = fresh.bars, fresh.features
        if len(table.base):
            table.base[begin:end] = fresh.base
        split = before / table.bars["close"][rows]
        records["units"][mine] *= split
        records["entry"][mine] /= split
        if self.guards is not None:
            self.guards.flags[:] = build_guard_arrays(self.config, table, self.accounts).flags

    def _with_terms(self, result: SimulatorStep, terms: RewardTerms, before: Before) -> SimulatorStep:
        """The step with the terms of `env.reward` in its reward."""
        ledger, observation = result.ledger, result.obs
        assert ledger is not None  # report is on
        if result.final_obs is not None:  # where an episode ended, the step ends with its last observation
            ended = result.terminated | result.truncated
            observation = np.where(ended[:, None], result.final_obs, observation)
        parts = terms.parts(result.reward, before, ledger, observation)
        reward = np.sum(list(parts.values()), axis=0)
        return result._replace(reward=reward, reward_parts=parts, ledger=ledger if self._reports else None)

    @property
    def reports_only_reward(self) -> bool:
        """Whether a step of an account with one asset returns nothing that is read but observation, log-return and
        end: no guard, no report (terms of env.reward need one), and no mask of choices. What `arrays` is for."""
        masked = self.has_mask and self.kind.choices.size > 0  # a number is cut by the account itself
        return not (masked or self.guards is not None or self.config.report or self.kind.portfolio)

    def arrays(self) -> MarketArrays:
        """The arrays of the accounts, not copies, for compiled code that steps them itself; it has to call
        `prepare_starts` where episodes end. Guards are left out."""
        n, table, plan = self.accounts, self.table, self._plan
        return MarketArrays(
            accounts=self.state.records,
            pending=self.state.pending,
            positions=self.kind.choices,
            low=self.kind.low,
            high=self.kind.high,
            narrowed=self._context.narrowed,
            base=table.base,
            units=table.units,
            bars=table.bars,
            features=table.features,
            rules=self.rules,
            last_rows=table.last_rows,
            start_rows=plan.rows,
            start_symbols=plan.symbols,
            final=self.final,
            targets=np.empty(n),
            unit=np.empty(n),
            reward=np.empty(n),
            terminated=np.empty(n, dtype=np.bool_),
            truncated=np.empty(n, dtype=np.bool_),
            ledgers=np.zeros(1, dtype=LEDGER),
        )

    def prepare_starts(self, ended: Integers) -> None:
        """Draw the starts that follow the newest episodes of the accounts `ended`."""
        self._plan.prepare_following(ended, self.state.records["episode"])

    def paths(
        self,
        bars: Sequence[Bars],
        ledgers: Sequence[Mapping[str, npt.NDArray[Any]]],
        targets: Sequence[npt.NDArray[np.float64]],
        planned: Sequence[int],
    ) -> list[AccountPath]:
        """What became of each account, from its ledger and targets; bars: of the symbols, in the order of the table.
        Account i holds symbol i, modulo the number of symbols, or all of them."""
        if self.table.has_clock:
            label = "; ".join(dict.fromkeys(one.label for one in bars))
            return [
                AccountPath.of_portfolio(self.table, ledgers[i], targets[i], label=label, planned=planned[i])
                for i in range(self.accounts)
            ]
        return [
            AccountPath.of_asset(
                bars[i % len(bars)],
                ledgers[i],
                targets[i],
                offset=int(self.table.offsets[i % len(bars)]),
                planned=planned[i],
            )
            for i in range(self.accounts)
        ]

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit."""
        return {**super().get_state(), **self._plan.get_state()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `get_state`; refuses the state of another market."""
        self.state.check(state)
        row, last_row = np.asarray(state["row"]), np.asarray(state["last_row"])
        symbol = np.asarray(state["symbol"]) if "symbol" in state else np.zeros_like(row)
        exists = (symbol >= 0) & (symbol < len(self.table.last_rows))
        place = np.where(exists, symbol, 0)
        same_end = exists & (self.table.last_rows[place] == last_row)
        if not (same_end & (row >= self.table.first_rows[place]) & (row <= last_row)).all():
            raise CheckpointError(
                "The stored market state points at bars that this market does not have; restore it with the same "
                "symbols and the same bars."
            )
        super().set_state(state)
        self._plan.set_state(state, self.state.records["episode"])

    def _given_starts(self, count: int, rows: Any, symbols: Any) -> tuple[Integers, Integers]:
        """(rows of the table, symbols) [M] of the starts that `reset` was given."""
        table = self.table
        if symbols is not None and self.kind.portfolio:
            raise ConfigError("reset: an account with all assets has no 'symbol' to choose; give 'start' alone.")
        symbol_ids = np.broadcast_to(np.asarray(0 if symbols is None else symbols, dtype=np.int64), (count,)).copy()
        if symbol_ids.min() < 0 or symbol_ids.max() >= len(table.last_rows):
            raise ConfigError(f"reset: symbols are {symbol_ids.tolist()}; the market has {len(table.last_rows)}.")
        first, last, offset = table.first_rows[symbol_ids], table.last_rows[symbol_ids], table.offsets[symbol_ids]
        if rows is None:
            return first, symbol_ids
        absolute = offset + np.broadcast_to(np.asarray(rows, dtype=np.int64), (count,))
        bad = (absolute < first) | (absolute >= last)
        if bad.any():
            i = int(np.argmax(bad))
            raise ConfigError(
                f"reset: {table.name_row(symbol_ids[i], absolute[i] - offset[i])} cannot be a start; choose from "
                f"{first[i] - offset[i]} (first valid features) to {last[i] - offset[i] - 1} (last but one)."
            )
        return absolute, symbol_ids

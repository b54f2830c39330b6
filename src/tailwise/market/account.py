"""One account that follows a feed of bars: observed, given an order and stepped by itself.

It is one row of the simulator: the same kernels on a table of two rows, the bar of the decision and the bar after it,
so that on the same bars it has the same numbers, bit for bit. A decision is made at the close of a bar
and waits; it is filled when the next bar opens (or as `env.fill` and `costs.latency` say).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import CheckpointError, ConfigError, DataError, EnvironmentContractError, ShapeError
from tailwise.market.accounts import Accounts
from tailwise.market.action_kinds import action_kind, guard_bounds_of_accounts, guard_bounds_of_portfolios
from tailwise.market.costs import BPS, CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guard_arrays import BAR_MEMORY, DAY_NS, GuardArrays, check_bar, guard_names, make_bar_limits
from tailwise.market.guards import bar_code
from tailwise.market.records import ASSET_BAR, BANKRUPT, BAR
from tailwise.market.tables import NO_PRICE, MarketTable, SymbolTable

_BEFORE, _NOW = 0, 1  # rows of the table: the bar of the last decision, and the newest one
_FOREVER = np.iinfo(np.int64).max  # a feed has no last bar
_START = np.zeros((1, 1), dtype=np.int64)
_PREFIX = "feed_"


@dataclass(frozen=True)
class FeedBar:
    """A complete bar of one asset.

    features   float32 [F], known at its close
    dividend   per unit, paid at its open
    funding    fraction of the notional that longs pay to shorts, without `costs.funding_bps`
    available  whether a decision at its close may want the asset: False while its features warm up
    ends       whether the asset has no bar after this one; with several assets its position is settled at the close
    base       exposure of `env.base` at its close, where there is such a rule
    """

    open: float
    high: float
    low: float
    close: float
    volume: float
    features: npt.NDArray[np.float32]
    dividend: float = 0.0
    funding: float = 0.0
    available: bool = True
    ends: bool = False
    base: float | None = None


@dataclass(frozen=True)
class AccountStep:
    """What a bar did to the account. ledger: numbers, or arrays [A], by the names of `records.LEDGER`, or of
    PORTFOLIO_LEDGER and ASSET_LEDGER; reward: log-return of the equity; ruined: the account is at its floor."""

    obs: npt.NDArray[np.float32]
    reward: float
    ruined: bool
    ledger: Mapping[str, Any]


class Account:
    """One account, of one asset or, with the action kind `weights`, of several.

    `feed` shows it bars before it trades, `begin` opens it at the last close; then in turn `observe`, `order` and
    `step`. Bars before `begin` matter to guards alone, which judge a bar by those before it.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        feature_names: Sequence[str],
        config: MarketEnvConfig,
        costs: CostConfig | None = None,
        *,
        periods_per_year: float,
        clock_per_year: float | None = None,
        bar: np.timedelta64 | None = None,
    ) -> None:
        """periods_per_year: bars of an asset; clock_per_year: times at which any of several assets has a bar, by
        default the same; bar: its length, which guards with a day or a stale bar need."""
        costs = costs or CostConfig()
        config = config.model_copy(update={"report": True, "episode_length": None})
        config.check_with(costs)
        if config.guards.needing_time and bar is None:
            raise ConfigError(f"env.guards.{config.guards.needing_time[0]} needs the length of a bar; pass bar.")
        self.symbols, self._costs, self._config = tuple(symbols), costs, config
        self._bar_ns = 0 if bar is None else int(bar.astype("timedelta64[ns]").astype(np.int64))
        self._periods_per_year = periods_per_year
        table = self._empty_table(tuple(feature_names), clock_per_year or periods_per_year)
        guards = GuardArrays.empty(config.guards, 1, table.bars.shape) if config.guards.active else None
        self._accounts = Accounts(table, config, costs, accounts=1, guards=guards)
        self._memory = np.zeros(len(self.symbols), dtype=BAR_MEMORY)
        self._bar_limits = make_bar_limits(config.guards, self._bar_ns)
        self._time = np.zeros(1, dtype=np.int64)  # of the newest bar, ns
        self._counts = np.zeros(2, dtype=np.int64)  # bars since the first one, and since `begin`; -1: not begun
        self._counts[1] = -1
        self._ready = np.zeros(1, dtype=np.bool_)  # whether a decision can be made at the last close
        self._target: npt.NDArray[np.float64] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries of an observation, as in the simulator."""
        return self._accounts.names

    @property
    def equity(self) -> float:
        """At the last close, account currency."""
        return float(self._accounts.state.records["equity"][0])

    @property
    def units(self) -> npt.NDArray[np.float64]:
        """What is held, float64 [A]; negative: short."""
        state = self._accounts.state
        return np.array(state.records["units"] if state.holdings is None else state.holdings["units"][0])

    @property
    def has_mask(self) -> bool:
        """Whether anything can forbid an action."""
        return self._accounts.has_mask

    @property
    def bars_lived(self) -> int:
        """Bars since `begin`; -1 before it."""
        return int(self._counts[1])

    @property
    def per_action(self) -> npt.NDArray[np.float64]:
        """Exposure [A] of an action of 1 at the last close: that of `env.base`, or 1."""
        base = self._accounts.table.base[_NOW:]
        return np.array(base).reshape(-1) if len(base) else np.ones(len(self.symbols))

    def feed(self, bars: FeedBar | Sequence[FeedBar | None], time: np.datetime64 | None = None) -> None:
        """Show the next bar, or with several assets the bars that opened at `time`, None where an asset has none,
        without trading it."""
        if self._counts[1] >= 0:
            raise EnvironmentContractError("The account has begun; show it the next bar with step.")
        self._push(bars, time)

    def begin(self) -> npt.NDArray[np.float32]:
        """Open the account at the last close, flat, with `env.initial_cash`; the first observation float32 [D]."""
        if not self._ready[0]:
            raise EnvironmentContractError(
                "An account begins at a close at which an asset is available; feed it the bars of the warm-up first."
            )
        which = np.zeros(1, dtype=np.int64)
        self._accounts.begin(which, np.full(1, _NOW), which)
        self._counts[1] = 0
        self._target = None
        return self.observe()

    def observe(self) -> npt.NDArray[np.float32]:
        """Observation float32 [D] at the last close."""
        self._check_begun()
        return self._accounts.observe()[0]

    def mask(self) -> npt.NDArray[np.int8] | npt.NDArray[np.float32]:
        """What the next order may choose: int8 [K], or [low, high] float32 [2] or [A, 2]; see `MarketEnv`."""
        self._check_begun()
        return self._accounts.mask()[0]

    def order(self, action: Any) -> npt.NDArray[np.float64]:
        """Decide at the last close, in the action space of the environment; replaces an earlier decision at this close.
        Returns the target exposure [1], or weights [A], that waits for the next bar."""
        self._check_begun()
        self._target = self._accounts.targets(np.asarray(action).reshape(1, -1))
        return self._target.reshape(-1).copy()

    def order_target(self, target: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Let this exposure [1], or these weights [A], wait for the next bar instead of a decision: what an operator or
        a live guard wants. Costs, margin and guards apply as to any order."""
        self._check_begun()
        wanted = np.array(target, dtype=np.float64).reshape(-1)
        if wanted.shape != (len(self.symbols),) or not np.isfinite(wanted).all():
            raise ShapeError(f"The target is {wanted.tolist()}; give a finite number for each of {list(self.symbols)}.")
        self._target = wanted.copy() if self._accounts.portfolio is None else wanted.reshape(1, -1)
        return wanted

    def hold(self, units: float, equity: float, entry: float | None, peak: float | None, held: int) -> None:
        """Make the account hold this at the last close, as an account elsewhere does; see `run.decision.Holding`."""
        self._check_begun()
        state = self._accounts.state
        close = float(np.atleast_1d(self._accounts.table.bars["close"][_NOW])[0])
        price, top = close if entry is None else entry, equity if peak is None else peak
        if state.holdings is not None:
            raise ConfigError("What is held is told of accounts with one asset; this one holds several.")
        if not (np.isfinite([units, price, top]).all() and 0 < equity <= top and price > 0 and held >= 0):
            raise DataError(
                f"units {units}, equity {equity}, entry {price}, peak {top}, held {held}: they must be finite, equity "
                "and entry positive, peak at least the equity and held at least 0."
            )
        records = state.records
        records["units"], records["entry"] = units, price if units else 0.0
        records["held"], records["peak"] = held if units else 0, top
        records["equity"], records["cash"] = equity, equity - units * close

    def exposure(self) -> npt.NDArray[np.float64]:
        """What is held at the last close, float64 [A], as multiples of equity; 0 where no equity is left."""
        state = self._accounts.state
        close = self._accounts.table.bars["close"][_NOW]
        value = self.units * np.atleast_1d(close)
        equity = float(state.records["equity"][0])
        return np.asarray(value / equity if equity > 0 else np.zeros_like(value))

    def guard_bounds(self) -> npt.NDArray[np.float64]:
        """Exposures [low, high] float64 [A, 2] that the guards leave of the next decision; infinite without guards."""
        self._check_begun()
        guards, state, bars = self._accounts.guards, self._accounts.state, self._accounts.table.bars
        bounds = np.tile([-np.inf, np.inf], (len(self.symbols), 1))
        if guards is None:
            return bounds
        immediate = self._costs.latency == 0
        if state.holdings is None:
            guard_bounds_of_accounts(state.records, bars, guards, immediate, bounds)
            return bounds
        together = bounds[None]
        guard_bounds_of_portfolios(state.records, state.holdings, guards, immediate, together)
        return np.asarray(together[0])

    def guards_now(self) -> tuple[str, ...]:
        """Names of the guards that speak at the last close: losses that halt, and a bar that cannot be believed."""
        self._check_begun()
        guards = self._accounts.guards
        if guards is None:
            return ()
        codes = [bar_code(int(flag), 0) for flag in np.atleast_1d(guards.flags[_NOW])]
        code = int(np.bitwise_or.reduce([*codes, *np.atleast_1d(guards.states["halted"][0])]))
        return guard_names(code)

    def step(self, bars: FeedBar | Sequence[FeedBar | None], time: np.datetime64 | None = None) -> AccountStep:
        """Move through the next bar, whose open fills the waiting order; `bars` and `time` as in `feed`."""
        self._check_begun()
        if self._target is None:
            raise EnvironmentContractError("There is no decision at the last close; call order before step.")
        state = self._accounts.state.records
        if state["equity"][0] <= BANKRUPT * state["start_equity"][0]:
            raise EnvironmentContractError("The account is ruined; begin again.")
        self._push(bars, time)
        state["row"], state["last_row"] = _BEFORE, _FOREVER
        result, _ = self._accounts.advance(self._target, _START, _START, autoreset=False)
        self._target = None
        self._counts[1] += 1
        assert result.ledger is not None  # report is on
        names, several = result.ledger.dtype.names or (), self._accounts.portfolio is not None
        record = result.ledger[0] if several else result.ledger.item(0)  # plain numbers at once
        ledger = dict(zip(names, record, strict=True))
        ledger.pop("symbol", None)
        ledger["row"] = int(self._counts[0]) - 1
        return AccountStep(result.obs[0], float(result.reward[0]), bool(result.terminated[0]), ledger)

    def guard_counts(self) -> dict[str, int]:
        """In how many steps each guard changed a target or an order; empty without guards."""
        return self._accounts.guard_counts()

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit, between two bars."""
        state = self._accounts.get_state()
        for name, values in self._feed_views().items():
            state[_PREFIX + name] = values.copy()
        state[_PREFIX + "target"] = np.zeros(0) if self._target is None else self._target.copy()
        return state

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `get_state` of an account with the same assets and settings."""
        self._accounts.state.check(state)
        views = self._feed_views()
        for name, view in views.items():
            if _PREFIX + name not in state or np.shape(state[_PREFIX + name]) != view.shape:
                raise CheckpointError(
                    f"The stored account has no '{name}' of shape {view.shape}; restore it with the same assets, "
                    "features and guards."
                )
        self._accounts.set_state(state)
        for name, view in views.items():
            view[...] = state[_PREFIX + name]
        target = state[_PREFIX + "target"]
        self._target = np.array(target) if np.size(target) else None

    def _check_begun(self) -> None:
        if self._counts[1] < 0:
            raise EnvironmentContractError("The account has not begun; call begin first.")

    def _feed_views(self) -> dict[str, npt.NDArray[Any]]:
        """What is remembered of the feed, by name: the newest row of the table and what judges the next one."""
        table, guards = self._accounts.table, self._accounts.guards
        views: dict[str, npt.NDArray[Any]] = {"time": self._time, "counts": self._counts, "ready": self._ready}
        views |= {f"bar_{name}": table.bars[name][_NOW:] for name in table.bars.dtype.names or ()}
        views["features"] = table.features[_NOW:]
        if len(table.base):
            views["base"] = table.base[_NOW:]
        if guards is not None:
            views |= {f"memory_{name}": self._memory[name] for name in BAR_MEMORY.names or ()}
            views |= {"flags": guards.flags[_NOW:], "days": guards.days, "fill_days": guards.fill_days}
        return views

    def _empty_table(self, features: tuple[str, ...], clock_per_year: float) -> MarketTable:
        several, assets = action_kind(self._config.action).portfolio, len(self.symbols)
        if not several and assets != 1:
            raise ConfigError(
                f"env.action.kind is {self._config.action.kind}: such an account holds one asset, and {assets} symbols "
                "were given."
            )
        bars = np.zeros((2, assets) if several else 2, dtype=ASSET_BAR if several else BAR)
        if several:
            for name in ("open", "high", "low", "close"):
                bars[name] = NO_PRICE
        first = np.zeros(1, dtype=np.int64)
        return MarketTable(
            symbols=self.symbols,
            feature_names=features,
            bars=bars,
            features=np.zeros((2, assets * len(features)), dtype=np.float32),
            time=np.zeros(2, dtype="datetime64[ns]"),
            offsets=first,
            first_rows=first,
            last_rows=np.full(1, _FOREVER),
            bar_ns=np.full(1, self._bar_ns),
            clock_per_year=clock_per_year if several else 0.0,
            base=np.zeros((0 if self._config.base is None else 2, *bars.shape[1:])),
        )

    def _push(self, bars: FeedBar | Sequence[FeedBar | None], time: np.datetime64 | None) -> None:
        """Move the newest row of the table back and write the next one."""
        given = [bars] if isinstance(bars, FeedBar) else list(bars)
        now = 0 if time is None else int(time.astype("datetime64[ns]").astype(np.int64))
        self._check_bars(given, time, now)
        table, guards = self._accounts.table, self._accounts.guards
        table.bars[:_NOW] = table.bars[_NOW:]  # slices: a single record is an object that takes longer to make
        table.features[:_NOW] = table.features[_NOW:]
        table.base[:_NOW] = table.base[_NOW:]
        rows, features = table.bars[_NOW:].reshape(-1), table.features[_NOW:].reshape(len(given), -1)
        if guards is not None:
            for values in (guards.flags, guards.days, guards.fill_days):
                values[_BEFORE] = values[_NOW]
            guards.days[_NOW] = now // DAY_NS
            guards.fill_days[_NOW] = (now + (self._bar_ns if self._config.fill == "next_open" else 0)) // DAY_NS
        for a, bar in enumerate(given):
            if bar is None:
                _carry(rows[a])
                continue
            self._write(rows[a : a + 1], features[a], bar)
            if bar.base is not None:
                share = 1 if self._accounts.portfolio is None else len(given)
                table.base[_NOW:].reshape(-1)[a] = bar.base / share if bar.available and not bar.ends else 0.0
            if guards is not None:
                guards.flags[_NOW:].reshape(-1)[a] = check_bar(
                    self._memory[a], now, bar.open, bar.high, bar.low, bar.close, self._bar_limits[0]
                )
        self._time[0] = now
        self._counts[0] += 1
        several = self._accounts.portfolio is not None
        self._ready[0] = (rows["available"] == 1).any() if several else given[0] is not None and given[0].available

    def _write(self, row: npt.NDArray[Any], features: npt.NDArray[np.float32], bar: FeedBar) -> None:
        """Write a bar into its row [1] of the table, and its features [F]."""
        available = bar.available
        values = (  # one by one, names of fields take five times as long; the order is that of records.BAR
            *(bar.open, bar.high, bar.low, bar.close, bar.volume, bar.dividend),
            self._costs.funding_bps * BPS + bar.funding,
            1.0 / self._periods_per_year,
        )
        if self._accounts.portfolio is None:
            row[0] = values
        else:
            available = available and not bar.ends  # what ends here has been settled and cannot be wanted again
            row[0] = (*values, 1, available, bar.ends)
        features[:] = bar.features if available else 0.0

    def _check_bars(self, bars: Sequence[FeedBar | None], time: np.datetime64 | None, now: int) -> None:
        """Refuse what the table of a simulator would refuse, and times that go back; now: `time` in ns."""
        if len(bars) != len(self.symbols) or all(bar is None for bar in bars):
            raise ShapeError(f"{len(bars)} bars came for the assets {list(self.symbols)}; one is needed at least.")
        count = len(self._accounts.table.feature_names)
        wanted = self._config.base is not None
        for symbol, bar in zip(self.symbols, bars, strict=True):
            if bar is not None:
                _check_bar(symbol, bar, count, self._periods_per_year)
                if wanted != (bar.base is not None) or (bar.base is not None and not math.isfinite(bar.base)):
                    raise DataError(
                        f"{symbol}: a bar came with base {bar.base}; with env.base it needs the exposure of that rule, "
                        "without it none."
                    )
                if not bar.available and self._accounts.portfolio is None and self._counts[1] >= 0:
                    raise DataError(
                        f"{symbol}: a bar came without valid features; the account cannot decide at its close."
                    )
        if self._bar_ns:
            if time is None:
                raise DataError("A bar came without its open time; an account with a length of bars needs it.")
            if self._counts[0] and now <= self._time[0]:
                raise DataError(f"A bar opens at {time}, not after the bar before it; the feed is out of order.")


def _carry(row: Any) -> None:
    """An asset without a bar keeps its last close as its price, and stays as available as it was."""
    for name in ("open", "high", "low"):
        row[name] = row["close"]
    for name in ("volume", "dividend", "funding", "year_fraction", "present", "ends"):
        row[name] = 0


def _is_plain(bar: FeedBar, features: int) -> bool:
    """Whether a bar is what `SymbolTable.check` accepts, by plain numbers: arrays take ten times as long."""
    top, bottom = (bar.open, bar.close) if bar.open >= bar.close else (bar.close, bar.open)
    return (
        0.0 < bar.low <= bottom
        and top <= bar.high < np.inf
        and 0.0 <= bar.volume < np.inf
        and abs(bar.dividend) < np.inf
        and abs(bar.funding) < np.inf
        and (not bar.available or (bar.features.shape == (features,) and bool(np.isfinite(bar.features).all())))
    )


def _check_bar(symbol: str, bar: FeedBar, features: int, periods_per_year: float) -> None:
    """Ask `SymbolTable` what is wrong with a bar that the simulator cannot live through; it wants two of them."""
    if periods_per_year > 0 and _is_plain(bar, features):
        return
    values = np.asarray(bar.features, dtype=np.float32).reshape(1, -1)
    SymbolTable(
        symbol=symbol,
        open=np.full(2, bar.open),
        high=np.full(2, bar.high),
        low=np.full(2, bar.low),
        close=np.full(2, bar.close),
        volume=np.full(2, bar.volume),
        features=np.concatenate([values, values]) if bar.available else np.zeros((2, features), dtype=np.float32),
        feature_names=tuple(str(k) for k in range(features)),
        periods_per_year=periods_per_year,
        dividends=np.full(2, bar.dividend),
        funding=np.full(2, bar.funding),
    ).check()

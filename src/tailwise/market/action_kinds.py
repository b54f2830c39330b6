"""Kinds of actions: how what a policy chooses becomes target exposures, and what it may choose next.

One object per section of `env.action`; a new kind is such a section and an object here. The kernels above them compute
the action mask of `positions` and the [low, high] of `exposure` and `weights` at each step. The bounds of the venue
(margin, smallest order) and the guards are kept apart, because the engine itself applies the guards to every target and
counts what they change.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tailwise.core.compiled import kernel
from tailwise.core.errors import EnvironmentContractError
from tailwise.market.costs import CostConfig
from tailwise.market.engine import look_up
from tailwise.market.env_config import Action, ExposureAction, MarketEnvConfig, PositionsAction, WeightsAction
from tailwise.market.guards import guard_bounds, inside, risk_bounds
from tailwise.market.records import BANKRUPT

_MARGIN_AT_REACH = 0.5  # of 1 / maintenance; up to it an order would have to cost half of the equity to be liquidated
_BISECTIONS = 40


def margin_can_bind(config: MarketEnvConfig, costs: CostConfig) -> bool:
    """Whether impact, the one cost that sizing cannot foresee exactly, could carry an allowed exposure into a margin
    call."""
    return costs.impact_bps > 0 and config.largest_exposure * config.maintenance_margin > _MARGIN_AT_REACH


@kernel
def can_be_held(target: float, exposure: float, equity: float, close: float, volume: float, rules: Any) -> bool:
    """Whether equity exceeds the maintenance margin after an order from `exposure` to `target`, all costs paid."""
    traded = abs(target - exposure)  # as a multiple of equity
    participation = traded * equity / (close * volume) if volume > 0.0 else 1.0
    linear = rules.linear * traded
    left = 1.0 - linear - rules.impact * traded * math.sqrt(participation)
    return left > rules.maintenance * abs(target) * (1.0 - linear)


@kernel
def furthest_held(end: float, exposure: float, equity: float, close: float, volume: float, rules: Any) -> float:
    """The target between 0 and `end`, as near to `end` as margin allows."""
    if can_be_held(end, exposure, equity, close, volume, rules):
        return end
    held, lost = 0.0, 1.0  # fractions of `end`
    for _ in range(_BISECTIONS):
        middle = 0.5 * (held + lost)
        if can_be_held(middle * end, exposure, equity, close, volume, rules):
            held = middle
        else:
            lost = middle
    return held * end


@kernel
def venue_bounds(account: Any, bar: Any, low: float, high: float, rules: Any) -> tuple[float, float]:
    """[low, high] cut to what margin and the smallest order leave at the close of `bar`, with its volume.

    An end that is worth less than one lot or one order is as good as 0, or as the present exposure if that is beyond 0.
    """
    close = bar.close
    equity = max(account.equity, BANKRUPT * account.start_equity)
    exposure = account.units * close / equity
    high = furthest_held(high, exposure, equity, close, bar.volume, rules)
    low = min(furthest_held(low, exposure, equity, close, bar.volume, rules), high)
    smallest = max(rules.lot * close, rules.minimum_notional)
    if high > 0.0 and high * equity < smallest:
        high = min(high, max(exposure, 0.0))
    if low < 0.0 and -low * equity < smallest:
        low = max(low, min(exposure, 0.0))
    return min(low, high), high


@kernel
def venue_bounds_of_accounts(accounts: Any, bars: Any, rules_array: Any, bounds: Any) -> None:
    """Cut bounds float64 [N, 2] of the next decision to what the venue leaves; without guards."""
    for i in range(accounts.shape[0]):
        account = accounts[i]
        low, high = bounds[i, 0], bounds[i, 1]
        bounds[i, 0], bounds[i, 1] = venue_bounds(account, bars[account.row], low, high, rules_array[0])


@kernel
def guard_bounds_of(account: Any, bars: Any, guards: Any, i: int, immediate: bool) -> tuple[float, float]:
    """[low, high] that the guards leave of the next decision of account `i`."""
    row = account.row
    close = bars[row].close
    equity = max(account.equity, BANKRUPT * account.start_equity)
    guard = guards.states[i]
    low, high, _ = guard_bounds(
        0.0,
        account.units * close / equity,
        equity,
        close,
        guard,
        guards.limits[0],
        guards.flags[row],
        guards.fill_days[row] == guard.day,
        immediate,
    )
    return low, high


@kernel
def guard_bounds_of_accounts(accounts: Any, bars: Any, guards: Any, immediate: bool, bounds: Any) -> None:
    """Cut bounds float64 [N, 2] to what the guards leave of the next decision; guards win where nothing is left."""
    for i in range(accounts.shape[0]):
        floor, ceiling = guard_bounds_of(accounts[i], bars, guards, i, immediate)
        bounds[i, 0], bounds[i, 1] = inside(bounds[i, 0], bounds[i, 1], floor, ceiling)


@kernel
def guard_bounds_of_portfolios(accounts: Any, holdings: Any, guards: Any, immediate: bool, bounds: Any) -> None:
    """Cut bounds float64 [N, A, 2] to what exposure limit, halts and ignored bars leave of the next decision."""
    for i in range(accounts.shape[0]):
        account, guard = accounts[i], guards.states[i]
        equity = max(account.equity, BANKRUPT * account.start_equity)
        for a in range(holdings.shape[1]):
            exposure = holdings[i, a].units * holdings[i, a].mark / equity
            floor, ceiling, _ = risk_bounds(0.0, exposure, guard.halted, guards.limits[0])
            if immediate and guards.flags[account.row, a] != 0:
                floor, ceiling = exposure, exposure
            bounds[i, a, 0], bounds[i, a, 1] = inside(bounds[i, a, 0], bounds[i, a, 1], floor, ceiling)


@kernel
def allow_positions(
    positions: Any,
    unit: float,
    equity: float,
    close: float,
    exposure: float,
    low: float,
    high: float,
    hold: bool,
    rules: Any,
    mask: Any,
) -> None:
    """mask int8 [K]: 1 where a target of positions [K] x unit is worth at least one lot and one order and lies in
    [low, high].

    The target nearest to the present exposure, brought into [low, high], stays allowed when nothing else is, and always
    with `hold`: it is how one keeps a position that guards forbid to enlarge.
    """
    anchor = min(max(exposure, low), high)
    nearest = 0
    some = False
    for k in range(positions.shape[0]):
        target = positions[k] * unit
        notional = abs(target) * equity
        traded = target == 0.0 or (notional >= rules.lot * close and notional >= rules.minimum_notional)
        allowed = traded and low <= target <= high
        mask[k] = 1 if allowed else 0
        some = some or allowed
        if abs(target - anchor) < abs(positions[nearest] * unit - anchor):
            nearest = k
    if hold or not some:
        mask[nearest] = 1


@kernel
def mask_positions(
    accounts: Any, bars: Any, base: Any, positions: Any, rules_array: Any, guards: Any, immediate: bool, mask: Any
) -> None:
    """Action mask int8 [N, K] of the next decision; `guards` is None or a `GuardArrays`; base as in `MarketTable`."""
    rules = rules_array[0]
    for i in range(accounts.shape[0]):
        account = accounts[i]
        close = bars[account.row].close
        equity = max(account.equity, BANKRUPT * account.start_equity)
        exposure = account.units * close / equity
        low, high = -np.inf, np.inf
        if guards is not None:
            low, high = guard_bounds_of(account, bars, guards, i, immediate)
        unit = base[account.row] if base.shape[0] > 0 else 1.0
        allow_positions(positions, unit, equity, close, exposure, low, high, guards is not None, rules, mask[i])


@kernel
def read_exposures(
    named: Any, low: float, high: float, accounts: Any, base: Any, bars: Any, rules: Any, narrowed: bool, targets: Any
) -> int:
    """targets[i]: the exposure that account i asks for by named[i] in [low, high], times its base, within the bounds of
    the venue where they can bind (`narrowed`). Returns the first i whose number is NaN, or -1."""
    for i in range(accounts.shape[0]):
        if np.isnan(named[i]):
            return i
        unit = base[accounts[i].row] if base.shape[0] > 0 else 1.0
        target = np.minimum(np.maximum(named[i], low), high) * unit
        if narrowed:
            one, other = low * unit, high * unit
            account = accounts[i]
            least, most = venue_bounds(account, bars[account.row], min(one, other), max(one, other), rules[0])
            target = np.minimum(np.maximum(target, least), most)  # NaN where the bounds are
        targets[i] = target
    return -1


@kernel
def multiply_by_base(targets: Any, accounts: Any, base: Any) -> None:
    """targets[i] *= the base exposure at the close at which account i decides; targets [N], base [R]."""
    for i in range(accounts.shape[0]):
        targets[i] *= base[accounts[i].row]


# ---------------------------------------------------------------------- kinds of actions
Floats = npt.NDArray[np.float64]
_NO_CHOICES = np.zeros(0)


@dataclass(frozen=True)
class DecisionContext:
    """What the next decisions of N accounts are made on; the arrays are those of the simulator and change with it.

    records    accounts [N]; bars: all bars of the market, the rows of which `records["row"]` names
    holdings   [N, A] HOLDING of accounts with several assets, None for one asset
    rules      [1] RULES
    guards     None where none is set
    immediate  whether an order meets the account that is known now (no latency)
    narrowed   what `ActionKind.venue_narrows` said
    symbols    names of the assets
    base       exposures that actions multiply, as in `MarketTable`: [R], [T, A], or of no rows
    """

    records: npt.NDArray[Any]
    holdings: npt.NDArray[Any] | None
    bars: npt.NDArray[Any]
    rules: npt.NDArray[Any]
    guards: Any
    immediate: bool
    narrowed: bool
    symbols: tuple[str, ...]
    base: Floats

    @property
    def units(self) -> Floats | None:
        """Exposure [N] or [N, A] of an action of 1 at the next decision; None where actions are exposures."""
        return self.base[self.records["row"]] if len(self.base) else None


class ActionKind(ABC):
    """How actions of one kind are read.

    portfolio  whether an account holds all assets, one target for each
    choices    float64 [K]: target exposures of a discrete choice, empty for other kinds
    low, high  of a number that names an exposure; 0 for other kinds
    """

    portfolio: ClassVar[bool] = False
    choices: Floats = _NO_CHOICES
    low: float = 0.0
    high: float = 0.0

    @abstractmethod
    def space(self, assets: int) -> spaces.Space[Any]:
        """The actions of one account that holds `assets` assets."""

    @abstractmethod
    def base_action(self, assets: int) -> list[float]:
        """The action that follows `env.base`: a multiplier of 1, or the index of one."""

    @abstractmethod
    def venue_narrows(self, config: MarketEnvConfig, costs: CostConfig) -> bool:
        """Whether lots, the smallest order or the margin can forbid an action."""

    @abstractmethod
    def targets(self, actions: npt.NDArray[Any], context: DecisionContext) -> Floats:
        """Target exposures float64 [N], or [N, A] of a portfolio, of the actions of N accounts, checked."""

    @abstractmethod
    def mask(self, context: DecisionContext) -> npt.NDArray[np.int8] | npt.NDArray[np.float32]:
        """What the next decision may choose: int8 [N, K] of choices, [low, high] float32 [N, 2] or [N, A, 2] of
        numbers."""


def _one_each(actions: npt.NDArray[Any], accounts: int) -> npt.NDArray[Any]:
    """Actions [N] of N accounts with one asset each."""
    if actions.size != accounts:
        raise EnvironmentContractError(f"Actions have shape {actions.shape}, expected one per account, ({accounts},).")
    return actions if actions.ndim == 1 else actions.reshape(-1)


def nan_action(account: int) -> str:
    """What is wrong with the action of an account that is NaN."""
    return f"Action of account {account} is NaN."


def _small_orders(costs: CostConfig) -> bool:
    """Whether an order can be too small."""
    return costs.lot_size > 0 or costs.minimum_notional > 0


class PositionsKind(ActionKind):
    """Discrete(K): one of K target exposures."""

    def __init__(self, action: PositionsAction) -> None:
        self.choices = np.asarray(action.positions)

    def space(self, assets: int) -> spaces.Discrete:
        return spaces.Discrete(self.choices.size)

    def base_action(self, assets: int) -> list[float]:
        return [float(np.argmax(self.choices == 1.0))]

    def venue_narrows(self, config: MarketEnvConfig, costs: CostConfig) -> bool:
        return _small_orders(costs)

    def targets(self, actions: npt.NDArray[Any], context: DecisionContext) -> Floats:
        values = _one_each(actions, context.records.size)
        targets = np.empty(context.records.size)
        bad = look_up(self.choices, values, targets) if values.dtype.kind in "iu" else 0
        if bad >= 0:
            raise EnvironmentContractError(
                f"Action of account {bad} is {values[bad]} ({values.dtype}); positions are chosen by integers from 0 "
                f"to {self.choices.size - 1}."
            )
        if len(context.base):
            multiply_by_base(targets, context.records, context.base)
        return targets

    def mask(self, context: DecisionContext) -> npt.NDArray[np.int8]:
        mask = np.empty((context.records.size, self.choices.size), dtype=np.int8)
        mask_positions(
            context.records,
            context.bars,
            context.base,
            self.choices,
            context.rules,
            context.guards,
            context.immediate,
            mask,
        )
        return mask


class ExposureKind(ActionKind):
    """Box of shape (1,): the target exposure itself, clipped to what may be held."""

    def __init__(self, action: ExposureAction) -> None:
        self.low, self.high = action.low, action.high

    def space(self, assets: int) -> spaces.Box:
        return spaces.Box(self.low, self.high, (1,), np.float32)

    def base_action(self, assets: int) -> list[float]:
        return [1.0]

    def venue_narrows(self, config: MarketEnvConfig, costs: CostConfig) -> bool:
        # With latency the order meets another account than the one that is known now.
        return costs.latency == 0 and (_small_orders(costs) or margin_can_bind(config, costs))

    def targets(self, actions: npt.NDArray[Any], context: DecisionContext) -> Floats:
        values = _one_each(actions, context.records.size)
        exposures = values.astype(np.float64)
        bad = read_exposures(
            exposures,
            self.low,
            self.high,
            context.records,
            context.base,
            context.bars,
            context.rules,
            context.narrowed,
            exposures,
        )
        if bad >= 0:
            raise EnvironmentContractError(nan_action(bad))
        return exposures

    def mask(self, context: DecisionContext) -> npt.NDArray[np.float32]:
        bounds = self._range(context)
        if context.guards is not None:
            guard_bounds_of_accounts(context.records, context.bars, context.guards, context.immediate, bounds)
        return as_actions(bounds, context.units, self.low, self.high).astype(np.float32)

    def _range(self, context: DecisionContext) -> Floats:
        """Exposures [low, high] float64 [N, 2], cut to what margin and the smallest order leave."""
        bounds = np.tile([self.low, self.high], (context.records.size, 1))
        units = context.units
        if units is not None:
            bounds = np.sort(bounds * units[:, None], axis=-1)
        if context.narrowed:
            venue_bounds_of_accounts(context.records, context.bars, context.rules, bounds)
        return bounds


class WeightsKind(ActionKind):
    """Box of shape (A,): a weight for each asset of an account."""

    portfolio = True

    def __init__(self, action: WeightsAction) -> None:
        self.action = action

    def space(self, assets: int) -> spaces.Box:
        low, high = self.action.bounds(assets)
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def base_action(self, assets: int) -> list[float]:
        return [1.0] * assets

    def venue_narrows(self, config: MarketEnvConfig, costs: CostConfig) -> bool:
        return False  # what a weight loses to lots and margin is shared with the other weights, in `step`

    def targets(self, actions: npt.NDArray[Any], context: DecisionContext) -> Floats:
        """As the policy named them; bounds are applied by `step`, or here where actions multiply a base."""
        shape = (context.records.size, len(context.symbols))
        if actions.shape != shape or actions.dtype.kind not in "fiu":
            raise EnvironmentContractError(
                f"Actions are {actions.dtype} of shape {actions.shape}, expected numbers of shape "
                f"({shape[0]}, {shape[1]}), a weight for each account and asset."
            )
        weights = np.ascontiguousarray(actions, dtype=np.float64)
        if not np.isfinite(weights).all():
            i, a = (int(index) for index in np.argwhere(~np.isfinite(weights))[0])
            raise EnvironmentContractError(
                f"Action of account {i} for {context.symbols[a]} is {weights[i, a]}; weights must be finite."
            )
        units = context.units
        if units is not None:
            weights = np.clip(weights, *self.action.bounds(shape[1])) * units
        return weights

    def mask(self, context: DecisionContext) -> npt.NDArray[np.float32]:
        """[low, high], cut to what the guards leave, and [0, 0] for an asset that is not available."""
        low, high = self.action.bounds(len(context.symbols))
        available = context.bars["available"][context.records["row"]] == 1
        bounds = np.tile(np.stack([low, high], axis=-1), (context.records.size, 1, 1))
        units = context.units
        if units is not None:
            bounds = np.sort(bounds * units[:, :, None], axis=-1)
        if context.guards is not None:
            guard_bounds_of_portfolios(context.records, context.holdings, context.guards, context.immediate, bounds)
        bounds = as_actions(bounds, units, low, high)
        return np.where(available[:, :, None], bounds.astype(np.float32), np.float32(0.0))


def as_actions(bounds: Floats, units: Floats | None, low: float | Floats, high: float | Floats) -> Floats:
    """Bounds of exposures [..., 2] as bounds of the actions that multiply `units` [...]; where those are 0 any action
    within [low, high] gives 0."""
    if units is None:
        return bounds
    divided = np.sort(bounds / np.where(units == 0, 1.0, units)[..., None], axis=-1)
    free = np.broadcast_to(np.stack(np.broadcast_arrays(low, high), axis=-1), bounds.shape)
    return np.where((units == 0)[..., None], free, divided)


def action_kind(action: Action) -> ActionKind:
    """The kind of a section `env.action`."""
    match action:
        case PositionsAction():
            return PositionsKind(action)
        case ExposureAction():
            return ExposureKind(action)
        case WeightsAction():
            return WeightsKind(action)

"""Any rule, or any list of target exposures, through the same simulator, costs and statistics as a policy.

Then rules that anybody could have followed, for a policy to be compared with: targets [T] for one asset, weights for
several in one account (`backtest_portfolio`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError, DataError, ShapeError
from tailwise.core.streams import Streams
from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import Action, ExposureAction, MarketEnvConfig, WeightsAction
from tailwise.market.path import AccountPath
from tailwise.market.simulator import Simulator
from tailwise.market.tables import MarketTable, SymbolTable

Rule = Callable[[Bars], float]
Floats = npt.NDArray[np.float64]


def play_rule(
    rule: Rule | Sequence[float] | npt.NDArray[Any],
    bars: Bars,
    costs: CostConfig | None = None,
    *,
    config: MarketEnvConfig | None = None,
    first: int = 0,
    last: int | None = None,
) -> AccountPath:
    """Trade `bars` by a rule and return the path of the account; the arguments are those of `tailwise.backtest`."""
    if not isinstance(bars, Bars):
        raise DataError(
            f"backtest got bars of type {type(bars).__name__}; read them with tailwise.bars.bars.load_bars."
        )
    end = len(bars) if last is None else last + 1
    if not 0 <= first < end - 1 <= len(bars) - 1:
        raise DataError(
            f"{bars.symbol}: a backtest from bar {first} to bar {end - 1} of {len(bars)} bars is empty or outside them."
        )
    targets = _targets(rule, bars, first, end - 1)
    largest = max(float(np.abs(targets).max()), 1.0)
    settings = _settings(config, ExposureAction(low=-largest, high=largest))
    part = bars.slice(0, end)
    simulator = Simulator([_table(part, first)], settings, costs or CostConfig(), accounts=1)
    ledger = _run(simulator, targets[:, None])
    return AccountPath.of_asset(part, ledger, targets[: len(ledger["row"])], planned=len(targets))


def backtest_portfolio(
    weights: npt.NDArray[Any],
    tables: Sequence[SymbolTable],
    costs: CostConfig | None = None,
    *,
    config: MarketEnvConfig | None = None,
    label: str,
) -> AccountPath:
    """Trade several assets in one account by weights: [A], held at every decision, or [n, A], one row per decision.

    tables: one per asset, as `Dataset.tables` gives them; the first decision is made at the first row with features,
    the last one bar before the end of their common clock.
    """
    given = np.asarray(weights, dtype=np.float64)
    if given.ndim not in (1, 2) or given.shape[-1] != len(tables) or not np.isfinite(given).all():
        raise ShapeError(
            f"weights of shape {given.shape} were given; one finite number for each of {len(tables)} assets is needed, "
            "once or for each decision."
        )
    gross = max(float(np.abs(given).sum(axis=-1).max()), 1.0)
    action: Action = WeightsAction(low=-gross, high=gross, gross=gross)
    if config is not None and action_kind(config.action).portfolio:
        action = config.action
    simulator = Simulator(tables, _settings(config, action), costs or CostConfig(), accounts=1)
    steps = int(simulator.table.last_rows[0] - simulator.table.first_rows[0])
    if given.ndim == 2 and len(given) != steps:
        raise ShapeError(f"weights for {len(given)} decisions were given; the window has {steps} of them.")
    targets = np.broadcast_to(given, (steps, len(tables)))
    ledger = _run(simulator, targets[:, None])
    lived = targets[: len(ledger["row"])].copy()
    return AccountPath.of_portfolio(simulator.table, ledger, lived, label=label, planned=steps)


def play_side_by_side(
    targets: Floats,
    bars: Bars,
    costs: CostConfig | None = None,
    *,
    config: MarketEnvConfig | None = None,
    first: int = 0,
    last: int | None = None,
) -> Floats:
    """Trade `bars` by N lists of targets [N, T] in as many accounts: wealth [N, n + 1] as multiples of the start.

    The arguments are those of `play_rule`, which gives the same wealth one account at a time. What is ruined stays.
    """
    end = len(bars) if last is None else last + 1
    wanted = np.asarray(targets, dtype=np.float64)[:, first : end - 1]
    count, steps = wanted.shape
    largest = max(float(np.abs(wanted).max(initial=0.0)), 1.0)
    settings = _settings(config, ExposureAction(low=-largest, high=largest))
    simulator = Simulator([_table(bars.slice(0, end), first)], settings, costs or CostConfig(), accounts=count)
    simulator.seed(0)
    simulator.reset()
    wealth, running = np.ones((count, steps + 1)), np.ones(count, dtype=np.bool_)
    for step in range(steps):
        result = simulator.step(np.ascontiguousarray(wanted[:, step]), autoreset=False)
        assert result.ledger is not None  # report is on
        gained = result.ledger["equity"] / result.ledger["equity_before"]
        wealth[:, step + 1] = wealth[:, step] * np.where(running, np.maximum(gained, 0.0), 1.0)
        running &= ~result.terminated
    return wealth


def _settings(config: MarketEnvConfig | None, action: Action) -> MarketEnvConfig:
    """The account and execution of `config`, over the whole window."""
    return (config or MarketEnvConfig()).whole_window().model_copy(update={"action": action, "base": None})


def _run(simulator: Simulator, targets: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Step one account through targets [n, 1, ...]; its ledger by name, shorter than n when it is ruined."""
    simulator.seed(0)
    simulator.reset()
    records: npt.NDArray[Any] | None = None
    lived = 0
    for target in targets:
        result = simulator.step(np.ascontiguousarray(target, dtype=np.float64), autoreset=False)
        assert result.ledger is not None  # report is on
        if records is None:
            records = np.empty(len(targets), dtype=result.ledger.dtype)
        records[lived] = result.ledger[0]
        lived += 1
        if result.terminated[0]:
            break
    assert records is not None  # there is at least one target
    ledger = records[:lived]
    return {name: ledger[name] for name in ledger.dtype.names or ()}


def _number(value: Any, bars: Bars, row: int) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{bars.symbol}: the rule returned {value!r} at bar {row}; a number is needed, the target exposure."
        ) from error


def _table(bars: Bars, first: int) -> SymbolTable:
    return SymbolTable.from_bars(bars, _NoFeatures(np.zeros((len(bars), 0), dtype=np.float32), first))


class _NoFeatures:
    """A feature table without columns: a rule looks at the bars themselves."""

    names: tuple[str, ...] = ()

    def __init__(self, values: npt.NDArray[np.float32], first_valid: int) -> None:
        self.values, self.first_valid = values, first_valid


def _targets(rule: Rule | Any, bars: Bars, first: int, stop: int) -> npt.NDArray[np.float64]:
    """Targets float64 of the decisions at the closes of bars first .. stop - 1."""
    if callable(rule):
        targets = np.array([_number(rule(bars.slice(0, t + 1)), bars, t) for t in range(first, stop)])
    else:
        try:
            given = np.asarray(rule, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{bars.symbol}: targets are not a list of numbers: {error}.") from error
        if given.shape != (len(bars),):
            raise ShapeError(
                f"{bars.symbol}: targets have shape {given.shape}; one for each bar is needed, ({len(bars)},)."
            )
        targets = given[first:stop]
    if not np.isfinite(targets).all():
        row = first + int(np.argmax(~np.isfinite(targets)))
        raise DataError(
            f"{bars.symbol}: the target at bar {row} is {targets[row - first]}; targets are finite numbers."
        )
    return targets


def random_matched(bars: Bars, path: AccountPath, *, seed: int) -> Floats:
    """Targets [T] that know nothing of the bars but hold and trade as much as `path` does.

    At each bar, with one probability, a new target is drawn from those that the path asked for; the probability is the
    path's turnover per bar over the mean distance of two such draws. What a policy earns beyond this rule is timing.
    """
    return np.asarray(random_targets(bars, path, seed=seed, count=1)[0])


def random_targets(bars: Bars, path: AccountPath, *, seed: int, count: int) -> Floats:
    """So many draws of `random_matched`: targets [count, T]. The first one does not depend on how many there are."""
    if path.target.shape[1] != 1:
        raise DataError(f"{path.symbol}: a rule for one asset was asked to imitate {path.target.shape[1]} assets.")
    wanted = path.target[:, 0]
    distance = _mean_distance(wanted)
    if distance <= 0:
        return np.full((count, len(bars)), wanted[0])
    draws = Streams(seed).uniforms("evaluate/random", update=0, environments=count, steps=len(bars), draws=2)
    changing, choosing = draws[..., 0].T, draws[..., 1].T  # [count, T]
    drawn = wanted[(choosing * len(wanted)).astype(np.int64)]
    changes = changing < path.traded.mean() / distance
    changes[:, 0] = True
    latest = np.maximum.accumulate(np.where(changes, np.arange(len(bars)), 0), axis=1)
    return np.take_along_axis(drawn, latest, axis=1)


def _mean_distance(values: Floats) -> float:
    """Mean |x - y| of two independent draws from values [n] (Gini's mean difference)."""
    ordered, count = np.sort(values), len(values)
    return float(2 * (ordered * (2 * np.arange(count) - count + 1)).sum() / count**2)


def equal_weights(tables: Sequence[SymbolTable]) -> Floats:
    """The same share of equity in every asset: weights [A]."""
    return np.full(len(tables), 1.0 / len(tables))


def min_cvar_weights(
    tables: Sequence[SymbolTable],
    *,
    alpha: float = 0.05,
    window: int | None = None,
    every: int | None = None,
    costs: CostConfig | None = None,
) -> Floats:
    """Long-only weights [n, A] of the smallest CVaR of the past, one row for each of the n decisions of the window.

    Every `every` clock times (default: a twelfth of a year) skfolio minimises the mean of the worst share alpha of the
    simple returns over the last `window` times (default: a year); in between the weights stay. A decision uses closes
    up to its own time only. An asset that has not been there for the whole window, or is not there now, gets nothing;
    before any asset has been, the account stays flat. Needs the extra `portfolio`.
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha}; a tail probability lies in (0, 1).")
    table = MarketTable.on_one_clock(tables, costs or CostConfig())
    span = max(round(table.clock_per_year), 2) if window is None else window
    pause = max(round(table.clock_per_year / 12), 1) if every is None else every
    if span < 2 or pause < 1 or span * alpha < 1:
        raise ConfigError(
            f"a window of {span} returns, renewed every {pause}, has no tail of {alpha:g}; give a longer window."
        )
    close, available = table.bars["close"], table.bars["available"] == 1
    begun = np.cumsum(table.bars["present"] == 1, axis=0) > 0
    first, last = int(table.first_rows[0]), int(table.last_rows[0])
    weights = np.zeros((last - first, len(tables)))
    for row in range(first, last):
        at = row - first
        if at % pause == 0:
            weights[at] = _weights(close, begun, available[row], row, span, alpha)
        else:
            weights[at] = np.where(available[row], weights[at - 1], 0.0)
    return weights


def _weights(
    close: Floats, begun: npt.NDArray[np.bool_], now: npt.NDArray[np.bool_], row: int, span: int, alpha: float
) -> Floats:
    """Weights [A] at one row of the clock from the `span` returns up to it."""
    weights = np.zeros(close.shape[1])
    if row < span:
        return weights
    usable = np.flatnonzero(begun[row - span] & now)
    if not len(usable):
        return weights
    past = close[row - span : row + 1, usable]
    returns = past[1:] / past[:-1] - 1
    moving = returns.std(axis=0) > 0  # a price that stood still all the time is no asset
    usable, returns = usable[moving], returns[:, moving]
    if len(usable) == 1:
        weights[usable] = 1.0
    elif len(usable) > 1:
        weights[usable] = _smallest_cvar(returns, alpha)
    return weights


def _smallest_cvar(returns: Floats, alpha: float) -> Floats:
    try:
        from skfolio import RiskMeasure
        from skfolio.exceptions import OptimizationError
        from skfolio.optimization import MeanRisk, ObjectiveFunction
    except ImportError as error:
        raise ConfigError("the smallest CVaR needs skfolio; pip install 'tailwise[portfolio]'.") from error
    model = MeanRisk(
        objective_function=ObjectiveFunction.MINIMIZE_RISK, risk_measure=RiskMeasure.CVAR, cvar_beta=1 - alpha
    )
    try:
        model.fit(returns)
    except OptimizationError as error:
        raise DataError(f"skfolio found no weights of smallest CVaR for {returns.shape[1]} assets: {error}") from error
    return np.asarray(model.weights_, dtype=np.float64)

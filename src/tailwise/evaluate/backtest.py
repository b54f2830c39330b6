"""Any rule, or any list of target exposures, through the same simulator, costs and statistics as a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import DataError, ShapeError
from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import Action, ExposureAction, MarketEnvConfig, WeightsAction
from tailwise.market.path import AccountPath
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable

Rule = Callable[[Bars], float]


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


def _settings(config: MarketEnvConfig | None, action: Action) -> MarketEnvConfig:
    """The account and execution of `config`, over the whole window."""
    return (config or MarketEnvConfig()).whole_window().model_copy(update={"action": action})


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

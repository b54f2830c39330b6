"""`tailwise.backtest`: a rule or a list of targets through the simulator, and its report, as that of a policy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigWarning
from tailwise.evaluate.backtest import Rule, play_rule
from tailwise.evaluate.findings import weigh
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import DEFAULT_ALPHA, POLICY, judge_rule
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.stress import StressResult, default_scenarios, rule_player, stress
from tailwise.evaluate.words import costly_impact
from tailwise.market.base import buy_and_hold
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath
from tailwise.pages.report import write_report

GAMMA = 0.99  # discount per bar of the long tail; a rule has none of its own


def backtest(
    rule: Rule | Sequence[float] | npt.NDArray[Any],
    bars: Bars,
    costs: CostConfig | None = None,
    *,
    config: MarketEnvConfig | None = None,
    first: int = 0,
    last: int | None = None,
    out: str | Path | None = None,
    report: str | Path | None = None,
) -> AccountPath:
    """Trade `bars` by a rule: the path of the account.

    rule     a function that is given the bars up to and including the close of the decision, and returns the target
             exposure (a multiple of equity, negative for a short); or the targets themselves, one for each bar, the
             entry of bar t being decided at its close and filled as `config.fill` says
    costs    default: those of `CostConfig`
    config   account and execution; its action is not used. A target beyond what the margin can hold is refused
    first    bar at whose close the first decision is made
    last     last bar to live through; default: the last one
    out      folder for equity.parquet, decisions.parquet and trades.parquet; default: nothing is written
    report   HTML file to write: the same report as of a policy, with baselines, evidence and stress tests

    A warning is given when impact was the largest cost, which ticks in place of units make it.
    """
    path = play_rule(rule, bars, costs, config=config, first=first, last=last)
    for sentence in costly_impact(path):
        warnings.warn(sentence, ConfigWarning, stacklevel=2)
    if out is not None:
        save_paths(out, {path.symbol: {"rule": path}})
    if report is not None:
        write_backtest_report(Path(report), path, rule, bars, costs, config=config)
    return path


def write_backtest_report(
    file: Path,
    path: AccountPath,
    rule: Any,
    bars: Bars,
    costs: CostConfig | None = None,
    *,
    config: MarketEnvConfig | None = None,
    stressed: bool = True,
) -> None:
    """Write the report of `path`, which `backtest(rule, bars, costs, config=config, ...)` gave.

    In a stress test a function is asked anew about the changed bars; given targets stay as they are.
    """
    judged = judge_rule(path, bars, costs, config=config, alpha=DEFAULT_ALPHA, gamma=GAMMA)
    played = _stress(path, rule, bars, costs or CostConfig(), config) if stressed else {}
    findings = weigh(judged, stressed=played, rhythm=bars.frequency.sentence, gamma=GAMMA)
    name = getattr(rule, "__name__", "targets") if callable(rule) else "targets"
    how = f"The policy is a rule, {name}, played by tailwise.backtest."
    hashes = {"all bars": {bars.symbol: bars.data_hash()}}
    given = f"costs: {(costs or CostConfig()).model_dump_json(indent=1)}\n"
    account = f"account: {(config or MarketEnvConfig()).model_dump_json(indent=1)}\n"
    background = Background(configuration=given + account, hashes=hashes)
    write_report(file, [findings], title=f"Backtest of {bars.symbol}", how=how, gamma=GAMMA, background=background)


def _stress(
    path: AccountPath, rule: Any, bars: Bars, costs: CostConfig, config: MarketEnvConfig | None
) -> dict[str, list[StressResult]]:
    first = int(np.searchsorted(bars.time, path.time[0])) - 1
    start, end = bars.time[first], first + path.planned + 1
    stop = None if end >= len(bars) else bars.time[end]

    scenarios = default_scenarios()
    if not callable(rule):  # targets are one for each bar: nobody knows them for other bars
        scenarios = [one for one in scenarios if one.group != "missing bars"]
    play = rule_player(lambda _: rule, config=config, start=start, end=stop)
    always_in = rule_player(buy_and_hold, config=config, start=start, end=stop)
    return {
        POLICY: stress(play, bars, costs, scenarios, alpha=DEFAULT_ALPHA, gamma=GAMMA),
        "buy and hold": stress(always_in, bars, costs, scenarios, alpha=DEFAULT_ALPHA, gamma=GAMMA),
    }

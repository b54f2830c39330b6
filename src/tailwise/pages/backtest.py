"""`tailwise.backtest`: a rule or a list of targets through the simulator, and its report, as that of a policy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.bars.bars import Bars, load_bars
from tailwise.core.config import parse
from tailwise.core.errors import ConfigWarning
from tailwise.evaluate.backtest import Rule, play_rule
from tailwise.evaluate.findings import weigh
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import DEFAULT_ALPHA, POLICY, judge_rule
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.statistics import PathStatistics, drawdowns, path_statistics
from tailwise.evaluate.stress import StressResult, default_scenarios, rule_player, stress
from tailwise.evaluate.words import costly_impact
from tailwise.market.base import buy_and_hold
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath, round_trips, trips_frame
from tailwise.pages.account_panels import Curve
from tailwise.pages.figures import LIMIT, OWN, QUIET, layout, line, thin
from tailwise.pages.report import write_report
from tailwise.pages.views import Panel, Part, Plot, ReportPage, Top, write_page

GAMMA = 0.99  # discount per bar of the long tail; a rule has none of its own


@dataclass(frozen=True, eq=False, repr=False)
class Backtest(AccountPath):
    """The path of an account, with what one asks of it first."""

    @classmethod
    def of(cls, path: AccountPath) -> Backtest:
        """Any path, for instance that of a policy: `Backtest.of(agent.trade("test")[0]).plot()`."""
        return cls(**vars(path))

    def statistics(self, *, alpha: float = DEFAULT_ALPHA, gamma: float = GAMMA) -> PathStatistics:
        """Everything that is measured of a path; alpha: tail probability, gamma: discount per bar of the long tail."""
        return path_statistics(self, alpha=alpha, gamma=gamma)

    @property
    def stats(self) -> pd.Series:
        """The same as a Series by name; docs/backtest.md says what each is."""
        return pd.Series(asdict(self.statistics()), name=self.symbol, dtype=object)

    @property
    def trades(self) -> pd.DataFrame:
        """One row per round trip: side, entry and exit with times and prices, costs, profit and return."""
        frame = trips_frame(self, round_trips(self))
        order = ["asset", "side", "first_time", "last_time", "entry_price", "exit_price", "return", "profit"]
        return frame[order + [name for name in frame.columns if name not in order]]

    def plot(self, file: str | Path | None = None) -> go.Figure:
        """Draw equity, drawdown and exposure beside buy and hold of the same bars before costs; `file`: write HTML."""
        figure = account_figure(self)
        if file is not None:
            drawn = Panel("account", "Equity, drawdown and exposure", repr(self)[1:-1], [Plot(figure)])
            write_page(Path(file), ReportPage(self.symbol, Top([]), [Part([drawn])]))
        opaque = {"paper_bgcolor": "white", "plot_bgcolor": "white"}  # shown by itself, whatever lies behind it
        return figure.update_layout(title={"text": self.symbol, "x": 0.02}, **opaque)


def account_figure(path: AccountPath) -> go.Figure:
    """Equity, drawdown and exposure of a path, one above the other."""
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, row_heights=[0.6, 0.2, 0.2], vertical_spacing=0.04)
    curve = Curve(path.time, path.wealth, path.periods_per_year)
    rows = thin(curve.wealth)
    figure.add_trace(line(curve.times[rows], curve.wealth[rows], "account", OWN, width=1.8), row=1, col=1)
    if len(path.assets) == 1:
        closes = path.close[:, 0] / path.close[0, 0] * path.wealth[1]
        kept = thin(closes)
        figure.add_trace(line(path.time[kept], closes[kept], f"{path.symbol} itself", QUIET), row=1, col=1)
    under = -drawdowns(curve.wealth)
    figure.add_trace(line(curve.times[rows], under[rows], "drawdown", LIMIT), row=2, col=1)
    kept = thin(path.exposure)
    figure.add_trace(line(path.time[kept], path.exposure[kept], "exposure", OWN), row=3, col=1)
    figure.update_traces(showlegend=False, row=2)
    figure.update_traces(showlegend=False, row=3)
    legend = {"orientation": "h", "y": 1.06, "x": 1, "xanchor": "right"}
    layout(figure, height=560, showlegend=True, legend=legend)
    for row, (title, shape) in enumerate([("wealth", ".2f"), ("drawdown", ".0%"), ("exposure", ".2f")], start=1):
        figure.update_yaxes(title_text=title, tickformat=shape, row=row, col=1)
    return figure


def backtest(
    rule: Rule | Sequence[float] | npt.NDArray[Any],
    bars: Bars | pd.DataFrame | str | Path,
    costs: CostConfig | Mapping[str, Any] | None = None,
    *,
    config: MarketEnvConfig | Mapping[str, Any] | None = None,
    symbol: str | None = None,
    first: int = 0,
    last: int | None = None,
    out: str | Path | None = None,
    report: str | Path | None = None,
) -> Backtest:
    """Trade `bars` by a rule: the path of the account, with its statistics, trades and picture.

    rule     a function that is given the bars up to and including the close of the decision, and returns the target
             exposure (a multiple of equity, negative for a short); or the targets themselves, one for each bar, the
             entry of bar t being decided at its close and filled as `config.fill` says
    bars     what `load_bars` gave, or what it reads: a DataFrame, a CSV or a Parquet file
    costs    `CostConfig` or a dictionary of its keys; default: its defaults, which are not zero
    config   account and execution, `MarketEnvConfig` or a dictionary of its keys; its action is not used. A target
             beyond what the margin can hold is refused
    symbol   name of the bars where they have none
    first    bar at whose close the first decision is made
    last     last bar to live through; default: the last one
    out      folder for equity.parquet, decisions.parquet and trades.parquet; default: nothing is written
    report   HTML file to write: the same report as of a policy, with baselines, evidence and stress tests

    A warning is given when impact was the largest cost, which ticks in place of units make it.
    """
    if not isinstance(bars, Bars):
        bars = load_bars(bars, symbol=symbol)
    if isinstance(costs, Mapping):
        costs = parse(CostConfig, dict(costs), source="costs")
    if isinstance(config, Mapping):
        config = parse(MarketEnvConfig, dict(config), source="config")
    path = Backtest.of(play_rule(rule, bars, costs, config=config, first=first, last=last))
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

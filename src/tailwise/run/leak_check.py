"""`tailwise data leak-check`: the features, the fit and the environment of a configuration, with changed futures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailwise.cli.configuring import read_effective
from tailwise.cli.main import CHECK_FAILED, DONE
from tailwise.cli.output import print_json
from tailwise.core.errors import ConfigError
from tailwise.market.bars import Bars
from tailwise.market.dataset import Dataset, build_dataset, fit_on_train, train_times
from tailwise.market.env import MarketEnv
from tailwise.market.features.table import FeatureTable
from tailwise.market.leak_check import LeakReport, check_environment, check_fit
from tailwise.market.make_env import make_market_env
from tailwise.market.own_features import feature_report
from tailwise.market.tables import SymbolTable
from tailwise.run.config import Config, MarketEnvSection


def check_leaks(config: str, overrides: list[str], *, cuts: int, seed: int, as_json: bool) -> int:
    """Print what was found; the exit code is 1 when something depends on the future."""
    _, full = read_effective(config, overrides)
    if not isinstance(full.env, MarketEnvSection) or full.data is None or full.features is None:
        raise ConfigError(f"{config}: env.kind is gym; a leak-check needs the bars and features of a market.")
    dataset = build_dataset(full.data, full.features)
    reports = leak_reports(full, dataset, cuts=cuts, seed=seed)
    passed = all(report.passed for report in reports)
    if as_json:
        print_json({"passed": passed, "reports": [report.to_json() for report in reports]})
    else:
        for report in reports:
            for sentence in report.sentences():
                print(sentence)
    return DONE if passed else CHECK_FAILED


def leak_reports(config: Config, dataset: Dataset, *, cuts: int, seed: int) -> list[LeakReport]:
    """Features of every symbol, the fit, and the environment."""
    assert isinstance(config.env, MarketEnvSection) and config.features is not None and config.costs is not None
    settings, costs, features = config.env, config.costs, config.features
    # Columns that came with the bars are given, in the scale of the train rows: no probe may seem to change them.
    given = {bars.symbol: whole for bars, whole in zip(dataset.bars, dataset.features, strict=True)}

    def table(bars: Bars) -> FeatureTable:
        made, whole = dataset.spec.table(bars), given[bars.symbol]
        extra = whole.values[: len(bars), len(made.names) :]
        return FeatureTable(np.concatenate([made.values, extra], axis=1), whole.names, made.first_valid)

    def fit(bars: Sequence[Bars]) -> Any:
        # The very function that training uses, by time: the probe `truncate` has fewer rows.
        return fit_on_train(features, bars, train_times(dataset.bars, dataset.window("train")))

    def build(bars: Sequence[Bars]) -> MarketEnv:
        return make_market_env([SymbolTable.from_bars(one, table(one)) for one in bars], settings, costs, num_envs=1)

    reports = [feature_report(dataset.spec, bars, table, cuts=cuts, seed=seed) for bars in dataset.bars]
    last = max(b.time[w.end - 1] for b, w in zip(dataset.bars, dataset.window("train"), strict=True))
    end = last + dataset.bars[0].frequency.bar
    if all(bars.time[-1] >= end for bars in dataset.bars):
        reports.append(check_fit(fit, list(dataset.bars), train_end=end, seed=seed))
    reports.append(check_environment(build, list(dataset.bars), cuts=max(cuts // 2, 1), seed=seed))
    return reports

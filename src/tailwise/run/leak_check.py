"""Look-ahead: the leak-check of a configuration, and what the manifest of a run says about its own features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.bars.bars import Bars
from tailwise.core.config import parse
from tailwise.core.errors import ConfigError, DataError
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import FeatureTable
from tailwise.market.base import base_exposures
from tailwise.market.dataset import Dataset, build_dataset, fit_on_train, train_times
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.leaks.environment import check_environment
from tailwise.market.leaks.features import LeakVerdict, check_fit, feature_report, unknown_verdict
from tailwise.market.leaks.report import LeakReport
from tailwise.market.tables import SymbolTable
from tailwise.run.config import Config, ConfigLike, effective_config
from tailwise.run.run_folder import MANIFEST, read_manifest

LEAK_CHECK = "leak_check"  # its key in the manifest
_CUTS_OF_REWARD = 4  # beside the places at which leaks hide; a reward is checked each time a training begins


@dataclass(frozen=True)
class LeakCheck:
    """What came of a leak-check. reports: of the features of each symbol, of the fit, of the environment."""

    reports: tuple[LeakReport, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing depends on the future."""
        return all(report.passed for report in self.reports)

    def sentences(self) -> list[str]:
        """One per leak, then how much was compared and what that says."""
        return [sentence for report in self.reports for sentence in report.sentences()]

    def to_json(self) -> dict[str, Any]:
        return {"passed": self.passed, "reports": [report.to_json() for report in self.reports]}


def leak_check(config: ConfigLike, *, overrides: Sequence[str] = (), cuts: int = 24, seed: int = 0) -> LeakCheck:
    """Change the future of the bars and look whether features, fit or environment of a market knew it.

    config      a `Config`, a nested dictionary, a YAML file or the name of a preset
    overrides   "features.include=[return_1]" and the like
    cuts        moments at which the future is changed
    seed        of the changed futures

        checked = tailwise.leak_check("sp500")
        assert checked.passed, "\\n".join(checked.sentences())
    """
    full = effective_config(config, overrides).config
    if full.env.market is None or full.data is None or full.features is None:
        label = config if isinstance(config, str) else "config"
        raise ConfigError(f"{label}: env.kind is gym; a leak-check needs the bars and features of a market.")
    return LeakCheck(tuple(_reports(full, build_dataset(full.data, full.features), cuts=cuts, seed=seed)))


def _reports(config: Config, dataset: Dataset, *, cuts: int, seed: int) -> list[LeakReport]:
    """Features of every symbol, the fit, and the environment."""
    features, table = config.features, _table_of(dataset)
    assert features is not None

    def fit(bars: Sequence[Bars]) -> Any:
        # The very function that training uses, by time: the probe `truncate` has fewer rows.
        return fit_on_train(features, bars, train_times(dataset.bars, dataset.all_ranges()["train"]))

    reports = [feature_report(dataset.spec, bars, table, cuts=cuts, seed=seed) for bars in dataset.bars]
    train = dataset.all_ranges()["train"]
    last = max(b.time[ranges[-1].end - 1] for b, ranges in zip(dataset.bars, train, strict=True))
    end = last + dataset.bars[0].frequency.bar
    if all(bars.time[-1] >= end for bars in dataset.bars):
        reports.append(check_fit(fit, list(dataset.bars), train_end=end, seed=seed))
    reports.append(_environment_report(config, dataset, cuts=max(cuts // 2, 1), seed=seed))
    return reports


def check_own_reward(config: Config, dataset: Dataset) -> None:
    """Raise where the environment with the user's reward function depends on the future."""
    report = _environment_report(config, dataset, cuts=_CUTS_OF_REWARD, seed=0)
    # Of an account that is never flat, its age depends on nothing: that is no matter of the reward.
    blind = [text for text in report.faults if text.startswith("reward ")]
    wrong = [*(finding.sentence() for finding in report.findings), *blind]
    if wrong:
        name = _market(config).reward.function
        raise DataError(f"env.reward.function {name} looks ahead, so nothing is trained on it: {wrong[0]}")


def _environment_report(config: Config, dataset: Dataset, *, cuts: int, seed: int) -> LeakReport:
    """Of the market with its account, its mask and its reward."""
    settings, costs, table = _market(config), config.costs, _table_of(dataset)

    def build(bars: Sequence[Bars]) -> MarketEnv:
        base = settings.base
        tables = [
            SymbolTable.from_bars(one, table(one), base=None if base is None else base_exposures(base, one))
            for one in bars
        ]
        return MarketEnv(tables, settings, costs, num_envs=1)

    return check_environment(build, list(dataset.bars), cuts=cuts, seed=seed)


def _table_of(dataset: Dataset) -> Callable[[Bars], FeatureTable]:
    """What computes the features of changed bars."""
    # Columns that came with the bars are given, in the scale of the train rows: no probe may seem to change them.
    given = {bars.symbol: whole for bars, whole in zip(dataset.bars, dataset.features, strict=True)}

    def table(bars: Bars) -> FeatureTable:
        computed, whole = dataset.spec.table(bars), given[bars.symbol]
        extra = whole.values[: len(bars), len(computed.names) :]
        return FeatureTable(np.concatenate([computed.values, extra], axis=1), whole.names, computed.first_valid)

    return table


def _market(config: Config) -> MarketEnvConfig:
    assert config.env.market is not None
    return config.env.market


def read_leak_verdict(run_dir: Path, features: FeatureSpec | None) -> LeakVerdict | None:
    """The verdict of a run whose policy sees `features`; None when there is nothing to say: no own feature.

    A run that is older than the check has none in its manifest: then it is unknown.
    """
    own = None if features is None else features.own()
    if own is None:
        return None
    stored = read_manifest(run_dir).get(LEAK_CHECK)
    if stored is None:
        return unknown_verdict(own.names)
    return parse(LeakVerdict, stored, source=f"{run_dir / MANIFEST} {LEAK_CHECK}")


def worst_verdict(verdicts: Iterable[LeakVerdict | None]) -> LeakVerdict | None:
    """The verdict of policies that decide together: that of the one that is known least about."""
    given = [verdict for verdict in verdicts if verdict is not None]
    return max(given, key=lambda verdict: verdict.doubtful, default=None)

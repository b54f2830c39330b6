"""The configuration section `features`: which columns the policy sees, and how they are scaled."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tailwise.bars.frequency import parse_rule
from tailwise.core.config import Section
from tailwise.core.errors import ConfigError

# Works on daily equities and on hourly crypto: no column is constant on either, and nothing looks back over 60 bars.
DEFAULT_COLUMNS = (
    "return_1",
    "return_5",
    "return_20",
    "return_60",
    "momentum_20",
    "efficiency_20",
    "macd_12_26",
    "rsi_14",
    "zscore_20",
    "range_position_60",
    "drawdown_60",
    "close_location",
    "volatility_20",
    "volatility_ratio_5_60",
    "downside_share_20",
    "volume_ratio_20",
)


class FeaturesConfig(Section):
    """The columns of the feature table. docs/features.md lists what there is."""

    include: tuple[str, ...] = Field(
        DEFAULT_COLUMNS,
        max_length=1024,
        description="columns on the bars themselves: the name of a feature and its windows in bars, such as return_5",
    )
    timeframes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="columns on longer bars, by their length (4h, 1D, 1W), each shown once its bar is complete",
    )
    modules: tuple[str, ...] = Field(
        (),
        description="Python files with your own features, relative to the configuration file, or importable modules",
    )
    leak_check: Literal["before_training", "skip"] = Field(
        "before_training",
        description="your own features: look for look-ahead before training and refuse it, or skip that, which every "
        "table and report then says",
    )
    standardise: bool = Field(
        True, description="subtract each column's mean and divide by its standard deviation over the train rows"
    )
    clip: float = Field(
        10.0, gt=0, le=1000, description="largest size of a value, train standard deviations; needs standardise"
    )
    scales: Literal["shared", "symbol"] = Field(
        "shared",
        description="means and deviations of all symbols together, or of each symbol by itself; needs standardise",
    )
    instrument: bool = Field(
        False,
        description="a further column per train symbol, 1 for its own bars and 0 for others', out of which the first "
        "layer learns an embedding of each",
    )

    @model_validator(mode="after")
    def _columns_exist(self) -> FeaturesConfig:
        if self.scales == "symbol" and not self.standardise:
            raise ConfigError("scales is symbol and standardise is false, so nothing is scaled; leave one of them out.")
        if not self.include and not any(self.timeframes.values()):
            raise ConfigError("no feature is named; list at least one under include or timeframes.")
        for rule, names in (("include", self.include), *self.timeframes.items()):
            if rule != "include":
                parse_rule(rule)
            twice = [name for k, name in enumerate(names) if name in names[:k]]
            if twice:
                raise ConfigError(f"feature '{twice[0]}' is listed twice under '{rule}'; remove one.")
        sizes = {rule: parse_rule(rule) for rule in self.timeframes}
        if len(set(sizes.values())) < len(sizes):
            raise ConfigError(f"timeframes {', '.join(sizes)} are partly of the same length; write each length once.")
        # Names of users' features are known once their modules are loaded, when the features are fitted.
        if not self.modules and (self.include != DEFAULT_COLUMNS or self.timeframes):
            from tailwise.features.registry import Registry

            registry = Registry()
            for names in (self.include, *self.timeframes.values()):
                for name in names:
                    registry.column(name)
        return self

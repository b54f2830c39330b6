"""How an instrument is trained and what it is compared with: configuration, splits, base rule and limit.

A configuration is chosen by what was known before the test window of its split: `init` never sees a test bar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.real_instruments import write_bars
from benchmarks.real_old_init import old_init
from tailwise.bars.bars import Bars
from tailwise.evaluate.splits import Fold, Range, common_clock, rows_of_symbol, walk_forward
from tailwise.evaluate.walk_forward_folds import Plan, Settings, make_plan
from tailwise.learner.risk_config import RiskConstraint
from tailwise.market.base import base_exposures
from tailwise.market.env_config import VolatilityTargetBase
from tailwise.run.config import Config, parse_config
from tailwise.run.limits import limit_of as own_limit

Floats = npt.NDArray[np.float64]
Recipe = Literal["init", "old"]

SPLITS = 3
TESTED = 0.5  # share of the bars, the newest, that the test windows of all splits cover
FEWEST_POOLED = 350  # bars in every train and test window; below, an instrument is no member of the pooled policy
SELECT, LOOK_BACK = 0.15, 60  # of `init`; for the choice of the pooled instruments alone
SHARE_OF_BASE = 0.5  # the limit where a configuration has none: this share of the base rule's tail on the train bars
ALPHA = 0.05  # where a configuration measures no tail


def recipe(files: list[Path]) -> Config:
    """What `tailwise init` writes for these files, no key changed."""
    from tailwise.core.config import load_yaml
    from tailwise.run.new_config import write_config

    out = files[0].with_name("init.yaml")
    write_config(files, out=out, force=True)
    return parse_config(load_yaml(out), source=str(out))


def windows_tested(clock: npt.NDArray[np.datetime64]) -> list[Range]:
    """Rows of the clock that each split tests: they depend on nothing but the number of bars."""
    return [fold.test[0] for fold in walk_forward(len(clock), folds=SPLITS, purge=0, tested=TESTED)]


def split_config(names: Sequence[str], bars: Sequence[Bars], split: int, which: Recipe, folder: Path) -> SplitConfig:
    """The configuration of one split of one instrument, or of several that are pooled.

    The recipe is given the bars before the test window; then the same configuration is pointed at the bars up to the
    end of the test window, cut into the windows of the split.
    """
    clock = common_clock([one.time for one in bars])
    test = windows_tested(clock)[split]
    seen = [one.slice(0, rows_of_symbol(one.time, clock, Range(0, test.first)).end) for one in bars]
    known = [write_bars(name, one, folder / "before") for name, one in zip(names, seen, strict=True)]
    chosen = recipe(known) if which == "init" else old_init(known, seen)
    whole = [write_bars(name, one, folder / "whole") for name, one in zip(names, bars, strict=True)]
    data = chosen.model_dump(mode="json")
    data["data"]["paths"] = [str(file) for file in whole]
    plan = make_plan(parse_config(data, source="split"), Settings(folds=SPLITS, tested=TESTED))
    fold = plan.folds[split]
    assert fold.test[0] == test
    # Bars after the test window are not even in the files that are trained on.
    for name, one in zip(names, bars, strict=True):
        write_bars(name, one.slice(0, rows_of_symbol(one.time, clock, Range(0, test.end)).end), folder / "whole")
    data["data"]["split"] = plan.split(fold).model_dump(mode="json")
    return SplitConfig(data, plan, fold)


class SplitConfig:
    """A configuration with the windows of one split, for any seed."""

    def __init__(self, data: dict[str, Any], plan: Plan, fold: Fold) -> None:
        self.data, self.plan, self.fold = data, plan, fold

    def seeded(self, seed: int, *, smoke: bool = False) -> Config:
        """With this seed. smoke: a few updates in place of the steps of the recipe."""
        data = {**self.data, "seed": seed, "run": {**self.data["run"], "seeds": 1}}
        if smoke:
            data["run"] = {"total_steps": 4096, "environments": 16, "rollout_steps": 64, "tensorboard": False}
            data["evaluate"] = {"every": 2}
        return parse_config(data, source=f"split {self.fold.number}, seed {seed}")


def pooled_members(bars: Mapping[str, Bars]) -> tuple[list[str], dict[str, str]]:
    """Names of the daily instruments that have enough bars in every window of every split, and why others do not."""
    clock = common_clock([one.time for one in bars.values()])
    folds = walk_forward(len(clock), folds=SPLITS, purge=LOOK_BACK, tested=TESTED, select=int(SELECT * len(clock)))
    members, others = [], {}
    for name, one in bars.items():
        counts = [len(rows_of_symbol(one.time, clock, part)) for fold in folds for part in (*fold.train, *fold.test)]
        if min(counts) >= FEWEST_POOLED:
            members.append(name)
        else:
            others[name] = f"{min(counts)} bars in one of the windows; the pooled policy needs {FEWEST_POOLED}"
    return members, others


def base_rule(config: Config) -> Callable[[Bars], Floats]:
    """The rule that the configuration names as its base, unscaled; without one a volatility target of 10%."""
    settings = config.env.market
    assert settings is not None
    named = settings.base or VolatilityTargetBase(kind="volatility_target")
    return lambda bars: base_exposures(named.model_copy(update={"scale": 1.0}), bars)


def limit_of(config: Config, base_tail: float, symbol: str = "") -> float | None:
    """The limit of the configuration as a number (`with_numbers`), of a symbol where each has its own; base_tail: of
    the base rule on the train bars.

    Without one, SHARE_OF_BASE of the base's tail, to measure against. None where the base has no loss to take a share
    of.
    """
    if isinstance(config.risk, RiskConstraint):
        return own_limit(config, symbol)
    return SHARE_OF_BASE * base_tail if base_tail < 0 else None


def alpha_of(config: Config) -> float:
    """Tail probability of the configuration."""
    return float(config.model_dump(mode="json")["risk"].get("alpha", ALPHA))

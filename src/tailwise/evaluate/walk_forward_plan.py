"""The folds of a walk-forward: from a configuration and its bars to one configuration for each fold and seed, with the
checks that nothing of the test reaches into the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from tailwise.bars.bars import Bars
from tailwise.bars.data_config import SharesSplit, TimesSplit
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.splits import Fold, Range, Times, check_fold, common_clock, least_purge, walk_forward
from tailwise.evaluate.walk_forward_result import Span, Windows
from tailwise.features.spec import FeatureSpec, columns_of, longest_warm_up
from tailwise.market.dataset import PURPOSES, load_data
from tailwise.run.config import Config, parse_config
from tailwise.run.worlds import MarketWorld

Kind = Literal["anchored", "rolling"]
KINDS: tuple[Kind, ...] = ("anchored", "rolling")


@dataclass(frozen=True)
class Settings:
    """What the command was told. purge None: as long as features look back and decisions look ahead."""

    folds: int = 5
    kind: Kind = "anchored"
    purge: int | None = None
    embargo: int = 0
    tested: float = 0.5  # share of the bars, the newest, that all test windows cover together
    select: float | None = None  # share of the bars in each select window; None: that of data.split, else 0.15


@dataclass(frozen=True, eq=False)
class Plan:
    """All folds over one clock. bar: length of a bar; look_back and label_horizon: what the purge covers, bars."""

    settings: Settings
    folds: tuple[Fold, ...]
    clock: Times
    bar: np.timedelta64
    purge: int
    look_back: int
    label_horizon: int

    def split(self, fold: Fold) -> TimesSplit:
        """The windows of a fold as a configuration names them."""
        windows = {"train": fold.train[0], "select": fold.select, "test": fold.test[0]}
        moments = {name: None if part is None else self._moments(part) for name, part in windows.items()}
        return TimesSplit(**moments)

    def _moments(self, part: Range) -> tuple[datetime, datetime]:
        end = self.clock[part.end] if part.end < len(self.clock) else self.clock[-1] + self.bar
        return _moment(self.clock[part.first]), _moment(end)

    def windows(self, fold: Fold) -> Windows:
        """train, select and test by the common clock."""
        train, test = fold.train[0], fold.test[0]
        return Windows(
            train=span_of(self.clock[train.first : train.end]),
            select=None if fold.select is None else span_of(self.clock[fold.select.first : fold.select.end]),
            test=span_of(self.clock[test.first : test.end]),
        )

    def identity(self) -> dict[str, Any]:
        """What another call must share to continue this one, as JSON values."""
        return {**asdict(self.settings), "purge": self.purge, "clock_bars": len(self.clock)}


def as_kind(text: str) -> Kind:
    """A kind by its name."""
    for kind in KINDS:
        if text == kind:
            return kind
    raise ConfigError(f"the kind of walk-forward is '{text}'; choose {' or '.join(KINDS)}.")


def make_plan(base: Config, settings: Settings) -> Plan:
    """Cut the bars of a market configuration into folds and check every one of them."""
    if base.env.market is None or base.data is None or base.features is None or base.costs is None:
        raise ConfigError("walk-forward cuts bars into folds, and env.kind is gym; use env.kind market.")
    bars = [item.bars for item in load_data(base.data)]
    clock, bar = common_clock([one.time for one in bars]), bars[0].frequency.bar
    step = int(bar.astype("timedelta64[ns]").astype(np.int64))
    look_back = longest_warm_up(columns_of(base.features), step)
    label_horizon = 1 + base.costs.latency
    purge = settings.purge
    if purge is None:
        purge = least_purge(label_horizon=label_horizon, look_back=look_back)
    folds = walk_forward(
        len(clock),
        folds=settings.folds,
        purge=purge,
        embargo=settings.embargo,
        anchored=settings.kind == "anchored",
        tested=settings.tested,
        select=_select_rows(base, settings, len(clock)),
    )
    for fold in folds:
        check_fold(fold, len(clock), label_horizon=label_horizon, look_back=look_back)
    return Plan(settings, tuple(folds), clock, bar, purge, look_back, label_horizon)


def _select_rows(base: Config, settings: Settings, rows: int) -> int:
    """Rows of a select window: none where nothing is selected."""
    if base.evaluate.every is None:
        if settings.select:
            raise ConfigError(
                "a select window was asked for, and evaluate.every is null, so nothing would be selected on it; set "
                "evaluate.every, e.g. -s evaluate.every=5."
            )
        return 0
    assert base.data is not None
    share = settings.select
    if share is None:
        share = base.data.split.select if isinstance(base.data.split, SharesSplit) else SharesSplit().select
    count = int(rows * share)
    if count < 1:
        raise ConfigError(
            f"evaluate.every is {base.evaluate.every}, which selects by a window, and --select {share:g} leaves none; "
            "name a share, e.g. --select 0.15, or set evaluate.every to null."
        )
    return count


def fold_config(base: Config, plan: Plan, fold: Fold, seed: int) -> Config:
    """The configuration of one run: its windows and its seed."""
    data = base.model_dump(mode="json")
    data["seed"] = seed
    data["data"]["split"] = plan.split(fold).model_dump(mode="json")
    return parse_config(data, source=f"fold {fold.number + 1}, seed {seed}")


def base_config(config: Config) -> dict[str, Any]:
    """What all runs of a walk-forward share: JSON values without seed and split."""
    data = config.model_dump(mode="json")
    data.pop("seed")
    if data["data"] is not None:
        data["data"].pop("split")
    return data


def check_world(world: MarketWorld, plan: Plan, fold: Fold) -> None:
    """Raise unless the market that a run was built on keeps its fold apart, whatever built it.

    Its windows are cut anew from the times of the bars and must be those of the fold; the features must have been
    fitted on the train rows of the fold and nothing else.
    """
    check_fold(fold, len(plan.clock), label_horizon=plan.label_horizon, look_back=plan.look_back)
    named = {"train": fold.train[0], "select": fold.select, "test": fold.test[0]}
    for at, bars in enumerate(world.dataset.bars):
        for purpose in PURPOSES:
            part = named[purpose]
            if part is None:
                continue
            window = world.dataset.window(purpose)[at]
            rows = _rows_within(bars, plan, part)
            if (window.first, window.end) != rows:
                raise DataError(
                    f"fold {fold.number + 1}: the {purpose} window of {bars.symbol} has the rows "
                    f"[{window.first}, {window.end}), and the fold [{rows[0]}, {rows[1]}); the run was built on "
                    "another cut."
                )
    check_fitted(world.features, world.dataset.bars, plan, fold)


def check_fitted(spec: FeatureSpec, bars: Sequence[Bars], plan: Plan, fold: Fold) -> None:
    """Raise unless the features were fitted on exactly the train rows of the fold."""
    for one in bars:
        first, end = _rows_within(one, plan, fold.train[0])
        known = spec.windows.get(one.symbol)
        if known is None or known.data_hash != one.slice(first, end).data_hash():
            seen = "nothing" if known is None else f"{known.rows} bars, {known.first[:10]} to {known.last[:10]}"
            raise DataError(
                f"fold {fold.number + 1}: the features of {one.symbol} were fitted on {seen}, and the train window is "
                f"{end - first} bars, {str(one.time[first])[:10]} to {str(one.time[end - 1])[:10]}; what is fitted "
                "must see the train rows of its fold and nothing else."
            )


def windows_of_account(world: MarketWorld, symbol: str) -> Windows:
    """train, select and test of one symbol; of all of them for an account that holds them all."""
    found: dict[str, Span | None] = {}
    for purpose in PURPOSES:
        windows = world.dataset.windows.get(purpose)
        if windows is None:
            found[purpose] = None
            continue
        times = [
            bars.time[window.first : window.end]
            for bars, window in zip(world.dataset.bars, windows, strict=True)
            if world.portfolio or bars.symbol == symbol
        ]
        found[purpose] = span_of(common_clock(times))
    return Windows.model_validate(found)


def span_of(times: Times) -> Span:
    """The window of bars that open at these times."""
    return Span(first_bar=iso(times[0]), last_bar=iso(times[-1]), bars=len(times))


def iso(moment: np.datetime64) -> str:
    """UTC, ISO 8601, to the second."""
    return f"{moment.astype('datetime64[s]')}Z"


def _rows_within(bars: Bars, plan: Plan, part: Range) -> tuple[int, int]:
    """Rows [first, end) of a symbol whose bars open in the rows `part` of the clock."""
    first = int(np.searchsorted(bars.time, plan.clock[part.first]))
    return first, int(np.searchsorted(bars.time, plan.clock[part.end - 1], side="right"))


def _moment(time: np.datetime64) -> datetime:
    whole = time.astype("datetime64[us]")
    if whole != time:
        raise DataError(f"a bar opens at {time}, between two microseconds; round the times of the bars.")
    found = whole.astype(datetime)
    assert isinstance(found, datetime)
    return found.replace(tzinfo=UTC)

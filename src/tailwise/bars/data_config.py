"""The configuration section `data`: which bars, and which of them train, select and test."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from tailwise.bars.frequency import FIRST_YEAR, LAST_YEAR
from tailwise.core.config import Section
from tailwise.core.errors import ConfigError

Purpose = Literal["train", "select", "test"]


def _within_years(day: date) -> date:
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise ConfigError(f"bars can open in the years {FIRST_YEAR} to {LAST_YEAR}")
    return day


def _in_utc(moment: datetime) -> datetime:
    """A time without a zone is UTC."""
    _within_years(moment)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


Day = Annotated[date, AfterValidator(_within_years)]
Moment = Annotated[datetime, AfterValidator(_in_utc)]
Dates = tuple[Day | None, Day | None]
Moments = tuple[Moment, Moment]


class SharesSplit(Section):
    """The oldest bars train, the next ones select, the newest ones test; by shares of all their times."""

    kind: Literal["shares"] = "shares"
    select: float = Field(0.15, ge=0, le=0.8, description="share of the bars that selects the best policy")
    test: float = Field(0.25, ge=0, le=0.8, description="share of the bars that only tests; the newest ones")
    purge: int = Field(
        0, ge=0, le=10**6, description="bars left out before select and before test, at the end of the window before"
    )

    @model_validator(mode="after")
    def _leave_some(self) -> SharesSplit:
        if self.select + self.test > 0.9:
            raise ConfigError(
                f"select {self.select} and test {self.test} leave less than a tenth of the bars to train on; lower them"
            )
        return self


class DatesSplit(Section):
    """Windows by UTC dates, [first, end): a bar belongs to the window in which it opens; null means no limit."""

    kind: Literal["dates"] = "dates"
    train: Dates = Field(description="bars that train and fit the features: [first, end), dates in UTC")
    select: Dates | None = Field(None, description="bars that select the best policy; null: none")
    test: Dates | None = Field(None, description="bars that only test; null: none")

    @model_validator(mode="after")
    def _in_order(self) -> DatesSplit:
        _follow_one_another([(name, getattr(self, name)) for name in ("train", "select", "test")])
        return self


class TimesSplit(Section):
    """Windows by UTC times, [first, end), for cuts inside a day; walk-forward writes its folds so."""

    kind: Literal["times"] = "times"
    train: Moments = Field(description="bars that train and fit the features: [first, end), times in UTC")
    select: Moments | None = Field(None, description="bars that select the best policy; null: none")
    test: Moments | None = Field(None, description="bars that only test; null: none")

    @model_validator(mode="after")
    def _in_order(self) -> TimesSplit:
        _follow_one_another([(name, getattr(self, name)) for name in ("train", "select", "test")])
        return self


class RangesSplit(Section):
    """Several ranges by UTC times, [first, end), that train and test; combinatorial folds are written so.

    Each train range is a series of its own: features see its bars alone, and no episode leaves it. Each test range is
    played by an account of its own.
    """

    kind: Literal["ranges"] = "ranges"
    train: tuple[Moments, ...] = Field(
        min_length=1, description="ranges that train and fit the features: [[first, end), ...], times in UTC"
    )
    select: Moments | None = Field(None, description="bars that select the best policy; null: none")
    test: tuple[Moments, ...] = Field((), description="ranges that only test: [[first, end), ...]; empty: none")

    @model_validator(mode="after")
    def _apart(self) -> RangesSplit:
        for name, ranges in (("train", self.train), ("test", self.test)):
            if list(ranges) != sorted(ranges):
                raise ConfigError(f"the ranges of {name} are not in the order of time; sort them")
        select = () if self.select is None else (self.select,)
        named = [(one, name) for name in ("train", "test") for one in getattr(self, name)]
        named += [(one, "select") for one in select]
        _follow_one_another([(name, one) for one, name in sorted(named)])
        return self


def _follow_one_another(windows: Sequence[tuple[str, tuple[date | None, date | None] | None]]) -> None:
    """Raise when a window is empty or overlaps the one before; None: a window that is not there."""
    given = [(name, window) for name, window in windows if window is not None]
    for name, (first, end) in given:
        if first is not None and end is not None and first >= end:
            raise ConfigError(f"{name} begins on {first} and ends before {end}; a window must not be empty")
    for (before, (_, end)), (after, (first, _)) in pairwise(given):
        if end is None or first is None or first < end:
            raise ConfigError(
                f"{after} begins on {first} and {before} ends before {end}; windows must follow one another "
                "without overlap, because a policy is never judged on bars that it was made with"
            )


Split = Annotated[SharesSplit | DatesSplit | TimesSplit | RangesSplit, Field(discriminator="kind")]


class PoolUnit(Section):
    """What one symbol is measured in, found when training begins."""

    unit: float = Field(gt=0, le=1e6, description="its tail, as a multiple of the mean tail of all symbols")
    scale: float = Field(1.0, gt=0, le=1e6, description="factor on the exposures of env.base beside env.base.scale")


class PoolConfig(Section):
    """One policy over many symbols, each in an account of its own. docs/pooling.md has what it does to them."""

    tails: Literal["pooled", "symbol"] = Field(
        "symbol",
        description="pooled: one limit for all, which the most volatile symbols fill; symbol: each has a limit in "
        "proportion to its own tail, and its rewards are divided by that",
    )
    train_only: tuple[str, ...] = Field(
        (), description="symbols that train, and are neither selected by nor tested; they may end before the others"
    )
    units: dict[str, PoolUnit] | None = Field(
        None, description="tail and scale of each symbol with tails symbol; null: measured on the train bars"
    )

    @model_validator(mode="after")
    def _units_are_read(self) -> PoolConfig:
        if self.units is not None and self.tails == "pooled":
            raise ConfigError("data.pool.units is read with tails symbol alone, and tails is pooled; remove one.")
        if self.units is not None and not self.units:
            raise ConfigError("data.pool.units is empty; name every symbol, or set it to null to have them measured.")
        return self


class ResampleConfig(Section):
    """Further training worlds: the train bars in random blocks (stationary bootstrap). docs/pooling.md tells how."""

    share: float = Field(0.5, gt=0, le=1, description="share of the training episodes that begin in resampled worlds")
    worlds: int = Field(16, ge=1, le=1024, description="resampled histories, each as long as the train bars")
    block: float = Field(60.0, ge=1, le=1e6, description="mean length of a block of consecutive bars; 1: single bars")
    drift: Literal["keep", "remove"] = Field(
        "keep", description="remove: the mean log-return of the train bars is taken out of each resampled bar"
    )


class _Data(Section):
    split: Split = Field(default=SharesSplit(), description="which bars train, select and test")
    pool: PoolConfig | None = Field(None, description="one policy over many symbols; null: their returns as they are")
    resample: ResampleConfig | None = Field(None, description="further training worlds; null: the train bars alone")


class BuiltinData(_Data):
    """Real bars that come with the package `arch`."""

    kind: Literal["builtin"] = "builtin"
    names: tuple[Literal["sp500", "nasdaq"], ...] = Field(
        ("sp500",), min_length=1, description="daily bars 1999-2018 of the S&P 500 or the NASDAQ composite"
    )


class FilesData(_Data):
    """Bars from CSV or Parquet files, one symbol each."""

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = Field(min_length=1, description="CSV or Parquet files, one symbol each")
    symbols: tuple[str, ...] | None = Field(None, description="names of the symbols; null: names of the files")
    repair: Literal["none", "drop", "clip"] = Field(
        "none", description="bad rows: an error, left out, or clipped into a valid bar; what changed is recorded"
    )
    adjust: Literal["refuse", "consistent", "ignore", "all"] = Field(
        "refuse",
        description="an adjusted close beside the close: refuse, scale all prices by it, or ignore it; all: scale also "
        "where the closes are adjusted in place and open, high and low are not",
    )
    close_only: Literal["refuse", "previous_close", "same_close"] = Field(
        "refuse",
        description="files without open, high and low: an error; previous_close: open is the close before, so an order "
        "is filled at the price it was decided at; same_close: all four are the close, so it waits for the next one",
    )
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(
        None, description="unit of numeric times; null: seconds or milliseconds as their size allows only one"
    )
    periods_per_year: float | None = Field(
        None, gt=0, description="bars per year; null: inferred from the times and printed"
    )

    @model_validator(mode="after")
    def _one_name_each(self) -> FilesData:
        if self.symbols is not None and len(self.symbols) != len(self.paths):
            raise ConfigError(f"{len(self.symbols)} symbols are named for {len(self.paths)} paths; name one for each")
        return self


class SyntheticData(_Data):
    """Bars drawn from a known law; every artefact says so."""

    kind: Literal["synthetic"] = "synthetic"
    market: Literal["sine", "ar1", "random_walk", "regime_switching", "jump_diffusion", "heston", "leak"] = Field(
        description="law of the returns"
    )
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), min_length=1, description="one symbol is drawn for each seed"
    )
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="parameters of the law, such as length, sigma or phi",
    )


DataConfig = BuiltinData | FilesData | SyntheticData

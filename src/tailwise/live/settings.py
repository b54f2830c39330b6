"""What guards a live session beside the guards of the market (`env.guards`), which belong to the policy's training."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from tailwise.bars.frequency import LONG_WEEKEND, SECOND, WEEK
from tailwise.core.config import Section
from tailwise.core.errors import ConfigError

_HOURS = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)$")
DAY_S = 86_400


class LiveGuards(Section):
    """Guards of the feed and of the venue; docs/live.md says what each of them does."""

    stale_seconds: float | None = Field(
        None, gt=0, le=1e7, description="wall time after a bar was due from which on the feed is stale; null: off"
    )
    gap_bars: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="bars that may be missing before a bar; null: none around the clock, five days on an exchange",
    )
    hours: tuple[str, ...] = Field(
        (), description="UTC hours in which orders may add risk, such as 13:30-20:00; empty: always"
    )
    bad_lines: int = Field(10, ge=1, le=1_000_000, description="refused lines in a row that make a feed untrusted")
    largest_move: float = Field(
        1.0, gt=0, le=20, description="|log-return| of a bar, or into it, from which on the bar is refused"
    )
    position_tolerance: float = Field(
        1e-9, ge=0, le=1, description="largest difference of a reported position, as a fraction of what is held"
    )

    @field_validator("hours")
    @classmethod
    def _readable(cls, hours: tuple[str, ...]) -> tuple[str, ...]:
        for text in hours:
            if not _HOURS.match(text) or _span(text)[0] >= _span(text)[1]:
                raise ConfigError(f"hours has {text!r}; write UTC times in order, such as 13:30-20:00.")
        return hours

    def open_at(self, stamp: int) -> bool:
        """Whether orders that are filled at this time, ns, may add risk."""
        second = stamp // SECOND % DAY_S
        return not self.hours or any(first <= second < end for first, end in map(_span, self.hours))

    def missing(self, before: int, now: int, bar: int, calendar: str) -> int:
        """Bars that are missing between two open times in ns, beyond those that may be; 0: none."""
        step = now - before
        if self.gap_bars is not None:
            return max(0, round(step / bar) - 1 - self.gap_bars)
        usual = max(LONG_WEEKEND, bar) if calendar == "exchange" and bar < WEEK else bar * 3 // 2
        return max(0, round(step / bar) - 1) if step > usual else 0


def _span(text: str) -> tuple[int, int]:
    """Seconds of the day from and to which a span of hours lasts."""
    first, end = (
        sum(int(part) * size for part, size in zip(one.split(":"), (3600, 60), strict=True)) for one in text.split("-")
    )
    return first, end

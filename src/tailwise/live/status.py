"""What a paper session is at now, as one small file beside its journal, for pages and programs that look on.

It is written at most once a second of wall time and replaced as a whole. The session never reads it: what continues a
session is in the journal alone.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tailwise.core.atomic import write_json
from tailwise.core.parsing import Stored, as_stored, parse_json
from tailwise.live.journal import Number, Stamp, Whole

STATUS = "status.json"
LARGEST_STATUS = 2**20  # bytes
EVERY = 1.0  # seconds of wall time


class ForecastStatus(Stored):
    """The predicted law of the discounted return after the close of `time`, ns; see `run.forecast.Forecast`."""

    time: Stamp
    mean: Number
    horizon: Whole
    alpha: Number
    cvar: Number | None
    limit: Number | None
    levels: list[Number] | None
    quantiles: list[Number] | None


class AccountStatus(Stored):
    """One account. exposure: held at the newest close; wanted, target: see `TickDesk`, None before trading begins."""

    symbols: list[str]
    equity: Number
    exposure: list[Number]
    units: list[Number]
    wanted: list[Number] | None
    target: list[Number] | None
    guards: list[str]
    forecast: ForecastStatus | None


class SessionStatus(Stored):
    """time: of the newest bar, ns, of `bar_ns`; wall: when it was here, seconds since 1970; open: whether the session
    goes on, False once its process has ended it."""

    format: Literal[1]
    state: Literal["running", "reduce-only", "flat", "stopped"]
    reasons: list[str]
    ticks: Whole
    time: Stamp
    bar_ns: Whole
    wall: Number
    open: bool
    accounts: list[AccountStatus]


class StatusFile:
    """The file of a session."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STATUS
        self._written = -EVERY
        self._failed = False

    def due(self) -> bool:
        """Whether a second has gone by since it was written."""
        return time.monotonic() - self._written >= EVERY

    def write(self, value: Mapping[str, Any]) -> None:
        """Replace it. Where it cannot be written, that is said once and tried again: nothing depends on the file."""
        try:
            write_json(self.path, {"format": 1, **value})
        except OSError as error:
            if not self._failed:
                self._failed = True
                warnings.warn(
                    f"{self.path} cannot be written ({error.strerror or error}); the session goes on and writes its "
                    "journal, but whoever looks on sees an old status. Make that place writable",
                    stacklevel=2,
                )
        self._written = time.monotonic()


def read_status(data: bytes, *, source: str) -> SessionStatus:
    """The status in a file; DataError for anything that no session writes."""
    return as_stored(SessionStatus, parse_json(data, what=source, max_bytes=LARGEST_STATUS), source=source)

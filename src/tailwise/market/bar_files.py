"""Where the data commands write: only whole files, only formats that can be read back, nothing replaced unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailwise.core.errors import DataError
from tailwise.market.bars import Bars, load_bars, save_bars

FORMATS = (".csv", ".parquet", ".pq")


def check_target(out: Path, *, force: bool, sources: tuple[Path, ...] = ()) -> None:
    """Refuse a target before work begins: wrong ending, no folder, a file that exists or that is being read."""
    if out.suffix.lower() not in FORMATS:
        raise DataError(f"{out}: the ending {out.suffix!r} is neither .csv nor .parquet; choose one of them.")
    if not out.parent.is_dir():
        raise DataError(f"{out}: there is no folder {out.parent}; make it first.")
    if any(out.exists() and source.exists() and out.samefile(source) for source in sources):
        raise DataError(f"{out}: is the file that is read; choose another name for --out.")
    if out.exists() and not force:
        raise DataError(f"{out}: the file exists; remove it, choose another name or pass --force.")


def save_and_read_back(bars: Bars, out: Path) -> dict[str, Any]:
    """Write the bars and prove that the file holds them: name and hash under which they load."""
    save_bars(bars, out)
    again = load_bars(out, periods_per_year=bars.frequency.periods_per_year)
    if again.label != bars.label or len(again) != len(bars) or (again.close != bars.close).any():
        raise DataError(f"{out}: the file does not read back as it was written; the disk may be faulty.")
    return {"file": str(out), "symbol": again.symbol, "data_hash": again.data_hash()}

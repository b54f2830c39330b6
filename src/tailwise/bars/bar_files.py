"""Where bars are written: only whole files, only formats that can be read back, nothing replaced unasked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailwise.bars.bars import Bars, load_bars, save_bars
from tailwise.core.errors import DataError

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


@dataclass(frozen=True)
class SavedBars:
    """A file of bars: the symbol and hash under which it loads."""

    file: str
    symbol: str
    data_hash: str


def save_and_read_back(bars: Bars, out: Path) -> SavedBars:
    """Write the bars and prove that the file holds them: name and hash under which they load."""
    save_bars(bars, out)
    again = load_bars(out, periods_per_year=bars.frequency.periods_per_year)
    if again.label != bars.label or len(again) != len(bars) or (again.close != bars.close).any():
        raise DataError(f"{out}: the file does not read back as it was written; the disk may be faulty.")
    return SavedBars(str(out), again.symbol, again.data_hash())

"""`tailwise data check`: read bars as training would, and say what was understood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tailwise.market.check_bars import facts, print_facts
from tailwise.market.bar_files import check_target, save_and_read_back
from tailwise.cli.main import BAD_INPUT, DONE
from tailwise.cli.output import note, print_json, print_table
from tailwise.core.errors import ConfigError, DataError
from tailwise.market.bars import Adjust, Bars, load_bars
from tailwise.market.validation import Repair


@dataclass(frozen=True)
class Reading:
    """How files are to be read: the options of `load_bars`, which says what is wrong with them."""

    repair: str
    adjust: str
    time_unit: str | None
    periods_per_year: float | None
    symbol: str | None

    def load(self, path: Path) -> Bars:
        """The bars of one file."""
        return load_bars(
            path,
            symbol=self.symbol,
            repair=cast(Repair, self.repair),
            adjust=cast(Adjust, self.adjust),
            time_unit=self.time_unit,
            periods_per_year=self.periods_per_year,
        )


def adjust_option(adjust: str, everything: bool) -> str:
    """`--adjust` and `--adjust-all` as one value."""
    if everything and adjust not in ("refuse", "all"):
        raise ConfigError(f"--adjust {adjust} and --adjust-all are both given; leave one of them out.")
    return "all" if everything else adjust


def check_files(files: list[Path], how: Reading, *, out: Path | None, force: bool, as_json: bool) -> int:
    """Print what is in the files; a file that cannot be used is a sentence and exit code 2, the others are shown."""
    if out is not None:
        if len(files) > 1:
            raise DataError(f"--out {out}: is for one file and {len(files)} are given; check them one by one.")
        check_target(out, force=force, sources=tuple(files))
    good: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    for path in files:
        try:
            bars = how.load(path)
        except DataError as error:
            errors.append({"file": str(path), "error": str(error)})
            continue
        told = {"file": str(path), **facts(bars)}
        if out is not None:
            told["saved"] = save_and_read_back(bars, out)
        good.append(told)
    if as_json:
        print_json({"usable": not errors, "files": good, "errors": errors})
    elif len(files) == 1 and good:
        print_facts(good[0])
    elif good:
        _print_overview(good)
    for problem in errors:
        for sentence in problem["error"].splitlines():
            note(f"error: {sentence}")
    return BAD_INPUT if errors else DONE


def _print_overview(good: list[dict[str, Any]]) -> None:
    header = ("file", "bars", "first", "last", "bar", "gaps", "move")
    rows = [
        (
            told["file"],
            f"{told['bars']:,}",
            told["first"][:10],
            told["last"][:10],
            told["bar"],
            f"{told['gaps']:,}",
            f"{told['largest_moves'][0]['change']:+.2%}" if told["largest_moves"] else "none",
        )
        for told in good
    ]
    print_table(f"{len(good)} file(s)", header, rows)
    for told in good:
        print(f"{told['file']}: {told['symbol']}, {told['label']}")
        per_year = f"{told['periods_per_year']:g} bars per year, calendar {told['calendar']}"
        volume = f"{told['zero_volume']:,} bars without volume"
        for sentence in (per_year, volume, *told["notes"], *told["repairs"], f"data hash {told['data_hash']}"):
            print(f"  {sentence}")

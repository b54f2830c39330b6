"""`tailwise data check|sets|synth|leak-check|fetch` and `tailwise init`: call and print."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tailwise.bars import synthetic
from tailwise.bars.bars import CloseOnly, SavedBars, check_target, save_and_read_back
from tailwise.bars.builtin import DATA_SETS, find_set
from tailwise.bars.check_bars import BarFacts, Reading, facts_of
from tailwise.bars.fetch import Fetched, FetchProgress, Series, fetch_bars
from tailwise.bars.synthetic_files import meaning, write_market
from tailwise.bars.validation import Adjust, Repair
from tailwise.cli.output import BAD_INPUT, CHECK_FAILED, DONE, INTERRUPTED, note, print_json, print_table
from tailwise.core.errors import ConfigError, DataError, number

PLAIN_LINE_EVERY = 5.0  # seconds between two lines of progress
MOST_LISTED = 5  # gaps, and candles that were left out


def reading_of(
    repair: str,
    adjust: str,
    time_unit: str | None,
    periods_per_year: float | None,
    *,
    adjust_all: bool,
    close_only: str,
    symbol: str | None = None,
) -> Reading:
    """Collect the options of a command in one record; `load_bars` checks them."""
    if adjust_all and adjust not in ("refuse", "all"):
        raise ConfigError(f"--adjust {adjust} and --adjust-all are both given; leave one of them out.")
    chosen = cast(Adjust, "all" if adjust_all else adjust)
    closes = cast(CloseOnly, close_only)
    return Reading(cast(Repair, repair), chosen, time_unit, periods_per_year, symbol, closes)


def check_files(files: Sequence[Path], how: Reading, *, out: Path | None, force: bool, as_json: bool) -> int:
    """Print a summary of each file; an unusable one is a sentence and exit code 2."""
    if out is not None:
        if len(files) > 1:
            raise DataError(f"--out {out}: is for one file and {len(files)} are given; check them one by one.")
        check_target(out, force=force, sources=tuple(files))
    good: list[tuple[Path, BarFacts]] = []
    errors: list[tuple[Path, str]] = []
    saved: SavedBars | None = None
    for path in files:
        try:
            bars = how.load(path)
        except DataError as error:
            errors.append((path, str(error)))
            continue
        good.append((path, facts_of(bars)))
        if out is not None:
            saved = save_and_read_back(bars, out)
    if as_json:
        listed = [{"file": str(path), **_json(facts, saved)} for path, facts in good]
        problems = [{"file": str(path), "error": text} for path, text in errors]
        print_json({"usable": not errors, "files": listed, "errors": problems})
    elif len(files) == 1 and good:
        _print_facts(good[0][1], saved)
    elif good:
        _print_overview(good)
    for _, text in errors:
        for sentence in text.splitlines():
            note(f"error: {sentence}")
    return BAD_INPUT if errors else DONE


def _json(facts: BarFacts, saved: SavedBars | None) -> dict[str, Any]:
    return {**facts.to_json(), **({} if saved is None else {"saved": asdict(saved)})}


def _print_facts(facts: BarFacts, saved: SavedBars | None) -> None:
    lines = facts.lines()
    if saved is not None:
        lines.append(("saved", f"{saved.file}, read as symbol {saved.symbol} with data hash {saved.data_hash}"))
    for name, text in lines:
        print(f"{name:<12} {text}")


def _print_overview(good: Sequence[tuple[Path, BarFacts]]) -> None:
    header = ("file", "bars", "first", "last", "bar", "gaps", "move")
    rows = [
        (
            str(path),
            f"{facts.bars:,}",
            facts.first[:10],
            facts.last[:10],
            facts.bar,
            f"{facts.gaps:,}",
            f"{facts.largest_moves[0].change:+.2%}" if facts.largest_moves else "none",
        )
        for path, facts in good
    ]
    print_table(f"{len(good)} file(s)", header, rows)
    for path, facts in good:
        print(f"{path}: {facts.symbol}, {facts.label}")
        per_year = f"{facts.periods_per_year:g} bars per year, calendar {facts.calendar}"
        volume = f"{facts.zero_volume:,} bars without volume"
        for sentence in (per_year, volume, *facts.notes, *facts.repairs, f"data hash {facts.data_hash}"):
            print(f"  {sentence}")


def show_sets(name: str | None, *, out: Path | None, force: bool, as_json: bool) -> None:
    """Print the list of sets, or one of them; save it to `out` if given."""
    if name is None:
        if out is not None:
            raise DataError(f"--out {out}: which set? Write: tailwise data sets NAME --out {out}.")
        _list_sets(as_json)
        return
    chosen = find_set(name)
    if out is not None:
        check_target(out, force=force)
    assert chosen.load is not None
    bars = chosen.load()
    facts, saved = facts_of(bars), None if out is None else save_and_read_back(bars, out)
    if as_json:
        print_json({"name": name, "package": chosen.package, **_json(facts, saved)})
        return
    _print_facts(facts, saved)


def _list_sets(as_json: bool) -> None:
    sets, markets = DATA_SETS, {kind: meaning(kind) for kind in synthetic.kinds()}
    if as_json:
        listed = [
            {
                "name": each.name,
                "package": each.package,
                "installed": each.installed,
                "extra": each.extra,
                "bars": each.load is not None,
                "meaning": each.meaning,
            }
            for each in sets
        ]
        print_json({"sets": listed, "synthetic": [{"name": k, "meaning": text} for k, text in markets.items()]})
        return
    width = max(map(len, (*markets, *(each.name for each in sets))))
    print("Real prices (tailwise data sets NAME --out FILE)")
    for each in sets:
        state = each.package if each.installed else f"not installed; {each.advice}"
        print(f"  {each.name:<{width}}  {each.meaning} [{state}]")
    print("Synthetic markets (tailwise data synth KIND --out FILE)")
    for kind, text in markets.items():
        print(f"  {kind:<{width}}  {text}")


def synthesise(
    kind: str, settings: Sequence[str], *, bars: int | None, seed: int, out: Path, force: bool, as_json: bool
) -> None:
    """Write a synthetic market and print its truth."""
    written = write_market(kind, settings, bars=bars, seed=seed, out=out, force=force)
    if as_json:
        print_json(written.to_json())
        return
    print(f"{out}: {written.bars:,} bars, {written.label}")
    if written.columns:
        print(f"with the column {', '.join(written.columns)}, which bars do not read: it is for features")
    print(f"Truth: {written.truth}")
    rows = [(each.name, number(each.law), number(each.sample)) for each in written.numbers]
    print_table("in numbers", ("", "by its law", "in this sample"), rows)
    print(f"data hash {written.saved.data_hash}")


def check_leaks(config: str, overrides: Sequence[str], *, cuts: int, seed: int, as_json: bool) -> int:
    """Print the result of the leak-check; the exit code is 1 when something depends on the future."""
    from tailwise.run.leak_check import leak_check

    checked = leak_check(config, overrides=overrides, cuts=cuts, seed=seed)
    if as_json:
        print_json(checked.to_json())
    else:
        for sentence in checked.sentences():
            print(sentence)
    return DONE if checked.passed else CHECK_FAILED


def init_config(bars: Sequence[Path], how: Reading, *, out: Path, force: bool) -> None:
    """Write a configuration for these bars and print the next command."""
    from tailwise.run.new_config import write_config

    for sentence in write_config(bars, how, out=out, force=force):
        print(sentence)
    print(f"written to {out}; train with: tailwise train {shlex.quote(str(out))}")


def fetch(series: Series, out: Path, *, url: str | None, as_json: bool) -> int:
    """Download, then print what is in the file; return the exit code."""
    check_target(out, force=True)  # a file that exists is continued
    try:
        with FetchDisplay(f"{series.exchange} {series.symbol} {series.timeframe}") as display:
            fetched = fetch_bars(series, out, progress=display.show, url=url)
    except KeyboardInterrupt:
        kept = f"; what was fetched is in {out} and the same command continues it" if out.exists() else ""
        note(f"interrupted{kept}.")
        return INTERRUPTED
    if as_json:
        print_json(asdict(fetched))
    else:
        _print_fetched(fetched)
    return DONE


def _print_fetched(fetched: Fetched) -> None:
    print(f"{fetched.file}: {fetched.bars:,} bars of {fetched.timeframe}, {fetched.new:,} of them new")
    print(f"from {fetched.first} to {fetched.last}; {fetched.requests} requests, {fetched.retries} of them repeated")
    for sentence in fetched.notes:
        print(sentence)
    if fetched.unfinished:
        print("the last candle was not finished and is left out")
    if fetched.left_out:
        print(f"{len(fetched.left_out)} candle(s) are no bars and are left out:")
        for sentence in fetched.left_out[:MOST_LISTED]:
            print(f"  {sentence}")
    if not fetched.gaps:
        print("no gaps")
        return
    missing = sum(gap.missing for gap in fetched.gaps)
    print(f"{len(fetched.gaps)} gap(s), {missing} bars that the exchange does not have; nothing was filled in:")
    for gap in sorted(fetched.gaps, key=lambda gap: -gap.missing)[:MOST_LISTED]:
        print(f"  {gap.missing} after {gap.after}")


class FetchDisplay:
    """Progress of a download on standard error: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, title: str) -> None:
        console = Console(stderr=True)
        self._title = title
        self._next_line = time.monotonic() + PLAIN_LINE_EVERY
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}% {task.fields[bars]} bars to {task.fields[reached]}", markup=False),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task(title, total=1.0, bars=0, reached="-")

    def __enter__(self) -> FetchDisplay:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: FetchProgress) -> None:
        """Called after each page and before each wait."""
        if progress.note:
            self._say(progress.note)
        if self._bar is not None:
            self._bar.update(
                self._task, completed=progress.fraction, bars=f"{progress.bars:,}", reached=progress.reached
            )
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_LINE_EVERY
            self._say(f"{progress.bars:,} bars to {progress.reached}, {progress.fraction:.0%}")

    def _say(self, sentence: str) -> None:
        text = f"{self._title}: {sentence}"
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            note(text)

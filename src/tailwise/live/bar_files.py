"""Bars from files as a trained run reads them: which file holds which of its symbols."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailwise.bars.bars import Bars, load_bars
from tailwise.bars.data_config import FilesData
from tailwise.core.errors import DataError
from tailwise.run.config import Config
from tailwise.run.decide import Decider, market_of


def named_files(texts: Sequence[str], symbols: Sequence[str]) -> dict[str, Path]:
    """Symbol -> file, of SYMBOL=FILE or FILE. Alone, a file is that of the only symbol; else its name says which."""
    files: dict[str, Path] = {}
    for text in texts:
        symbol, given, file = text.partition("=")
        if not given:
            file = text
            symbol = symbols[0] if len(symbols) == 1 and len(texts) == 1 else Path(text).stem
        if symbol in files:
            raise DataError(f"{symbol} has two files, {files[symbol]} and {file}; give each symbol once.")
        if not file:
            raise DataError(f"{text!r} names no file; write SYMBOL=FILE.")
        files[symbol] = Path(file)
    return files


def read_bars(trader: Decider, texts: Sequence[str]) -> list[Bars]:
    """The bars of all files, in the order of the symbols that the policy was trained on; others follow.

    They are read as `data` of the run says: repair, adjustment, unit of times, bars per year.
    """
    _, spec = market_of(trader)
    known = list(spec.windows)
    files = named_files(texts, known)
    order = [name for name in known if name in files] + [name for name in files if name not in known]
    return [read_as(trader.config, files[name], name) for name in order]


def read_as(config: Config, file: Path, symbol: str) -> Bars:
    """The bars of one file, read as the section `data` says."""
    data = config.data
    if not isinstance(data, FilesData):
        return load_bars(file, symbol=symbol)
    return load_bars(
        file,
        symbol=symbol,
        repair=data.repair,
        adjust=data.adjust,
        time_unit=data.time_unit,
        periods_per_year=data.periods_per_year,
    )

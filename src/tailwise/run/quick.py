"""From bars to a configuration in one call: what `tailwise init` chooses, written beside the run that it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from tailwise.bars.bars import Bars, load_bars, save_bars
from tailwise.core.errors import ConfigError
from tailwise.run.new_config import write_config

Source: TypeAlias = "Bars | pd.DataFrame | str | Path"
BAR_FILES = (".csv", ".parquet", ".pq")


def is_bars(source: Any) -> bool:
    """Whether bars were given, and not a configuration: a DataFrame, `Bars`, a CSV or Parquet file, or several."""
    if isinstance(source, str | Path):
        return Path(source).suffix.lower() in BAR_FILES
    if isinstance(source, Sequence):
        return bool(source) and all(is_bars(one) for one in source)
    return isinstance(source, Bars | pd.DataFrame)


def name_of(source: Any, symbol: str | None) -> str:
    """What a run on these bars (`is_bars`) is called."""
    if symbol is not None:
        return symbol
    if isinstance(source, str | Path):
        return Path(source).stem
    if isinstance(source, Bars):
        return source.symbol
    return "bars" if isinstance(source, pd.DataFrame) or len(source) != 1 else name_of(source[0], None)


def config_beside(source: Any, folder: Path, *, symbol: str | None = None) -> Path:
    """Write the configuration that `tailwise init` chooses for bars (`is_bars`) as FOLDER.yaml; its path.

    folder: of the run. Bars that are no file are written into FOLDER.bars, so that the run can be resumed and judged
    later. symbol: name of a DataFrame's bars.
    """
    several = list(source) if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if symbol is not None and len(several) > 1:
        raise ConfigError(
            f"symbol is {symbol!r} and there are {len(several)} sets of bars; give each its name as Bars."
        )
    beside = folder.parent.absolute()
    beside.mkdir(parents=True, exist_ok=True)
    paths = []
    for one in several:
        if isinstance(one, str | Path):
            paths.append(Path(one).absolute())
            continue
        bars = one if isinstance(one, Bars) else load_bars(one, symbol=symbol)
        file = beside / f"{folder.name}.bars" / f"{bars.symbol}.parquet"  # the file names the symbol
        if file in paths:
            raise ConfigError(f"two sets of bars are called {bars.symbol}; give them different names.")
        file.parent.mkdir(exist_ok=True)
        save_bars(bars, file)
        paths.append(file)
    target = beside / f"{folder.name}.yaml"
    write_config(paths, out=target, force=True)  # the folder of the run is free, so this belongs to an attempt before
    return target


def with_limits(limit: float | Mapping[str, Any] | None, drawdown: float | None) -> list[str]:
    """The overrides that a limit on the tail and one on drawdowns are; none where `tailwise init` chooses."""
    tail = [] if limit is None else [f"risk.limit={json.dumps(limit)}"]
    return tail if drawdown is None else [*tail, f"env.guards.drawdown={drawdown}", "env.guards.on_halt=flatten"]

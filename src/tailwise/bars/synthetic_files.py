"""A synthetic market as a file that says what it is, with the truth that is known of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailwise.bars import synthetic
from tailwise.bars.bar_files import SavedBars, check_target, save_and_read_back
from tailwise.bars.synthetic_truth import Truth, maker, truths, words
from tailwise.core import atomic
from tailwise.core.config import apply_overrides
from tailwise.core.errors import ConfigError


@dataclass(frozen=True)
class SyntheticFile:
    """A synthetic market that was written.

    saved        the file, its symbol and hash
    label        what the bars are, as the file says it
    parameters   of the market, all of them but the length
    columns      further columns of the file, for features; bars do not read them
    truth        of its law, in words; numbers: in numbers, beside what the sample shows
    """

    kind: str
    saved: SavedBars
    label: str
    bars: int
    seed: int
    parameters: dict[str, Any]
    columns: tuple[str, ...]
    truth: str
    numbers: tuple[Truth, ...]

    def to_json(self) -> dict[str, Any]:
        parts = asdict(self)
        saved = parts.pop("saved")
        return {"kind": parts.pop("kind"), **saved, **parts}


def write_market(
    kind: str, settings: Sequence[str] = (), *, bars: int | None = None, seed: int = 0, out: Path, force: bool = False
) -> SyntheticFile:
    """Make a market and save it with its label (and, for `leak`, with the column that leaks).

    settings: "phi=0.5" and the like; bars: how many, None for the market's own number; force: replace a file.
    """
    if kind not in synthetic.kinds():
        raise ConfigError(f"there is no synthetic market {kind!r}; there are {', '.join(synthetic.kinds())}.")
    given = read_parameters(kind, list(settings))
    if bars is not None:
        given["length"] = bars
    check_target(out, force=force)
    made, columns = synthetic.make(kind, seed=seed, **given)
    saved = save_and_read_back(made, out)
    if columns:
        add_columns(out, columns)
    parameters = {**maker(kind).__kwdefaults__, **given}
    return SyntheticFile(
        kind=kind,
        saved=saved,
        label=made.label,
        bars=len(made),
        seed=seed,
        parameters={name: value for name, value in parameters.items() if name != "length"},
        columns=tuple(columns),
        truth=words(kind),
        numbers=tuple(truths(kind, made, parameters, seed=seed)),
    )


def read_parameters(kind: str, settings: list[str]) -> dict[str, Any]:
    """`phi=0.5` and the like, each of the type that the market's own value has."""
    defaults = maker(kind).__kwdefaults__
    given = apply_overrides({}, settings)
    for name, value in given.items():
        if name in ("seed", "length"):
            raise ConfigError(f"synthetic market {kind}: set {name} with --{'bars' if name == 'length' else name}.")
        if name not in defaults:
            known = ", ".join(known for known in defaults if known != "length")
            raise ConfigError(f"synthetic market {kind}: no parameter {name!r}; there are {known}.")
        given[name] = _typed(f"synthetic market {kind}: {name}", value, defaults[name])
    return given


def _typed(what: str, value: Any, example: Any) -> Any:
    if isinstance(example, str):
        if not isinstance(value, str):
            raise ConfigError(f"{what} is {value!r}; it must be a text like {example}.")
        return value
    if isinstance(example, tuple):
        if not isinstance(value, list) or len(value) != len(example):
            raise ConfigError(f"{what} is {value!r}; it must be {len(example)} numbers, like {list(example)}.")
        return tuple(_typed(what, each, single) for each, single in zip(value, example, strict=True))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{what} is {value!r}; it must be a number, like {example}.")
    return float(value)


def add_columns(path: Path, columns: dict[str, NDArray[np.float64]]) -> None:
    """The file once more with further columns at its end; its label stays."""
    if path.suffix.lower() == ".csv":
        lines = path.read_text(encoding="utf-8").splitlines()
        header = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        texts = [",".join(["", *columns])]
        texts += [",".join(["", *(repr(float(value)) for value in row)]) for row in zip(*columns.values(), strict=True)]
        rows = [line + text for line, text in zip(lines[header:], texts, strict=True)]
        atomic.write_text(path, "\n".join([*lines[:header], *rows]) + "\n")
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    atomic.write_bytes(path, sink.getvalue().to_pybytes())

"""Write a synthetic market to a labelled file, and compare the numbers of its law with those of the sample."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailwise.bars import synthetic
from tailwise.bars.bars import Bars, SavedBars, check_target, save_and_read_back
from tailwise.bars.frequency import parse_rule
from tailwise.core import atomic
from tailwise.core.config import apply_overrides
from tailwise.core.errors import ConfigError


@dataclass(frozen=True)
class SyntheticFile:
    """A synthetic market that has been written to a file.

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
    """Draw a market and save it with its label (and, for `leak`, with the column that leaks).

    settings: "phi=0.5" and the like; bars: how many, None for the market's own number; force: replace a file.
    """
    if kind not in synthetic.kinds():
        raise ConfigError(f"there is no synthetic market {kind!r}; there are {', '.join(synthetic.kinds())}.")
    given = read_parameters(kind, list(settings))
    if bars is not None:
        given["length"] = bars
    check_target(out, force=force)
    drawn, columns = synthetic.make(kind, seed=seed, **given)
    saved = save_and_read_back(drawn, out)
    if columns:
        add_columns(out, columns)
    parameters = {**synthetic.defaults(kind), **given}
    return SyntheticFile(
        kind=kind,
        saved=saved,
        label=drawn.label,
        bars=len(drawn),
        seed=seed,
        parameters={name: value for name, value in parameters.items() if name != "length"},
        columns=tuple(columns),
        truth=truth_in_words(kind),
        numbers=tuple(truths(kind, drawn, parameters, seed=seed)),
    )


def read_parameters(kind: str, settings: list[str]) -> dict[str, Any]:
    """Parse settings such as `phi=0.5`, each to the type of the market's default."""
    defaults = synthetic.defaults(kind)
    given = apply_overrides({}, settings)
    for name, value in given.items():
        if name in ("seed", "length"):
            raise ConfigError(f"synthetic market {kind}: set {name} with --{'bars' if name == 'length' else name}.")
        if name not in defaults:
            allowed = ", ".join(parameter for parameter in defaults if parameter != "length")
            raise ConfigError(f"synthetic market {kind}: no parameter {name!r}; there are {allowed}.")
        given[name] = synthetic.typed(f"synthetic market {kind}: {name}", value, defaults[name])
    return given


def add_columns(path: Path, columns: dict[str, NDArray[np.float64]]) -> None:
    """Rewrite a file of bars with further columns [T] at its end; its label stays."""
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


Floats: TypeAlias = NDArray[np.float64]
YEAR = 365 * 86_400e9  # ns


@dataclass(frozen=True)
class Truth:
    """One number of the law; `sample` is its estimate from the bars, None where they do not show it."""

    name: str
    law: float
    sample: float | None


def meaning(kind: str) -> str:
    """The law of a market in one line: the first of its docstring."""
    return (inspect.getdoc(synthetic.MARKETS[kind]) or "").partition("\n")[0]


def truth_in_words(kind: str) -> str:
    """What is known of a market by its law: the part of its docstring after "Truth:"."""
    text = inspect.getdoc(synthetic.MARKETS[kind]) or ""
    return " ".join(text.partition("Truth: ")[2].split())


def truths(kind: str, bars: Bars, p: dict[str, Any], *, seed: int) -> list[Truth]:
    """Compute the numbers of the law with all parameters `p`, per bar and before costs unless named otherwise."""
    r = np.log(bars.close / bars.open)
    mean, deviation = Truth("mean log-return per bar", 0.0, float(r.mean())), float(r.std())
    oracle = float(np.abs(r[1:]).mean())  # earned by holding the right side of every bar
    if kind == "sine":
        whole = int(len(r) // p["period"] * p["period"])  # bars of complete periods
        earned = float(np.abs(r[:whole]).sum()) * p["period"] / whole if whole and not p["noise"] else None
        return [Truth("oracle's log-return per period, without noise", 4 * p["amplitude"], earned)]
    if kind == "ar1":
        followed = float((np.sign(p["phi"] * r[:-1]) * r[1:]).mean())
        return [
            mean,
            _deviation(p["sigma"], deviation),
            Truth("autocorrelation at lag 1", p["phi"], _autocorrelation(r)),
            Truth("log-return per bar of sign(phi r[t])", abs(p["phi"]) * p["sigma"] * _MEAN_ABSOLUTE, followed),
        ]
    if kind == "random_walk":
        return [
            Truth(mean.name, p["drift"], mean.sample),
            _deviation(p["sigma"], deviation),
            Truth("autocorrelation at lag 1", 0.0, _autocorrelation(r)),
        ]
    if kind == "regime_switching":
        return _regimes(p, r, seed)
    if kind == "jump_diffusion":
        m, s, jumps = p["jump_mean"], p["jump_sigma"], p["jumps"]
        variance = p["sigma"] ** 2 + jumps * (m**2 + s**2)
        fourth = jumps * (m**4 + 6 * m**2 * s**2 + 3 * s**4)
        return [
            Truth(mean.name, p["drift"] + jumps * m, mean.sample),
            _deviation(math.sqrt(variance), deviation),
            Truth("excess kurtosis", fourth / variance**2, float(((r - r.mean()) ** 4).mean() / deviation**4 - 3)),
        ]
    if kind == "heston":
        dt = parse_rule(p["bar"]) / YEAR
        return [
            Truth("long-run volatility per year", math.sqrt(p["theta"]), deviation / math.sqrt(dt)),
            Truth("share of a variance shock left after one bar", math.exp(-p["kappa"] * dt), None),
            Truth("correlation of price and variance", p["rho"], None),
        ]
    assert kind == "leak"
    return [
        _deviation(p["sigma"], deviation),
        Truth("log-return per bar of sign(next_log_return)", p["sigma"] * _MEAN_ABSOLUTE, oracle),
    ]


_MEAN_ABSOLUTE = math.sqrt(2 / math.pi)  # of a standard normal


def _deviation(law: float, sample: float) -> Truth:
    return Truth("standard deviation per bar", law, sample)


def _autocorrelation(r: Floats) -> float | None:
    centred = r - r.mean()
    return float((centred[1:] * centred[:-1]).mean() / r.var()) if r.var() else None


def _regimes(p: dict[str, Any], r: Floats, seed: int) -> list[Truth]:
    states = synthetic.regime_states(seed=seed, length=len(r), leave_calm=p["leave_calm"], leave_storm=p["leave_storm"])
    share = p["leave_calm"] / (p["leave_calm"] + p["leave_storm"])
    (calm_mean, storm_mean), (calm, storm) = p["drift"], p["sigma"]
    mean = (1 - share) * calm_mean + share * storm_mean
    variance = (1 - share) * (calm**2 + calm_mean**2) + share * (storm**2 + storm_mean**2) - mean**2
    storms = int(np.sum(np.diff(states, prepend=0) == 1))
    return [
        Truth("share of storm", share, float(states.mean())),
        Truth("bars per storm", 1 / p["leave_storm"], float(states.sum()) / storms if storms else None),
        Truth("mean log-return per bar", mean, float(r.mean())),
        _deviation(math.sqrt(variance), float(r.std())),
    ]

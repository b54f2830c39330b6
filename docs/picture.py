"""Draw the picture of the README from a run of `tailwise demo`: equity of policy and buy and hold, and their tails.

tailwise demo --out runs/demo
python docs/picture.py runs/demo
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tailwise.evaluate.path_files import read_paths
from tailwise.market.path import AccountPath

TARGET = Path(__file__).parent / "images" / "demo.svg"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 360, 52, 58, 34
PLOT = 640  # width of the equity picture; the tails stand beside it
POINTS = 500
COLOURS = {"policy": "#1f6fb2", "buy and hold": "#7b8794"}
LIMIT = "#c2452d"


def main(run: Path) -> None:
    """Write the SVG from the newest evaluation of a demo."""
    folder = run / "evaluations" / "demo"
    named = next(iter(read_paths(folder).values()))
    symbol = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["symbols"][0]
    tails = {name: float(symbol["statistics"][name]["cvar_return"]) for name in COLOURS}
    limit = symbol["limits"]["policy"]
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(picture({name: named[name] for name in COLOURS}, tails, limit), encoding="utf-8")


def picture(paths: dict[str, AccountPath], tails: dict[str, float], limit: dict[str, float]) -> str:
    """The SVG: two lines, and a bar for each tail beside the limit."""
    path = paths["policy"]
    curves = {name: one.wealth for name, one in paths.items()}
    low, high = (float(pick([pick(curve) for curve in curves.values()])) for pick in (np.min, np.max))
    bottom = HEIGHT - BOTTOM

    def y(value: float) -> float:
        return bottom - (np.log(value) - np.log(low)) / (np.log(high) - np.log(low)) * (bottom - TOP)

    def x(row: int | npt.NDArray[np.int64]) -> float | npt.NDArray[np.float64]:
        return LEFT + np.asarray(row) / len(path) * (PLOT - LEFT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        'font-size="13" role="img">',
        "<title>Equity of a policy under a tail limit and of buy and hold, out of sample, and their tails</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(
            LEFT, 24, f"{path.symbol}, {_day(path.time[0])} to {_day(path.time[-1])}, out of sample, after costs", 15
        ),
    ]
    for value in _ticks(low, high):
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{PLOT}" stroke="#e6eaee"/>')
        parts.append(_text(LEFT - 8, y(value) + 4, f"{value:g}", anchor="end"))
    years = path.time.astype("datetime64[Y]")
    for row in np.flatnonzero(years[1:] != years[:-1]) + 1:
        parts.append(_text(float(x(row)), HEIGHT - 12, str(years[row]), anchor="middle"))
    rows = np.unique(np.linspace(0, len(path), POINTS).astype(np.int64))
    for place, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{a:.1f},{y(float(b)):.1f}" for a, b in zip(np.asarray(x(rows)), curve[rows], strict=True))
        colour = COLOURS[name]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(_text(LEFT + 4 + 190 * place, 46, _named(name), colour=colour, weight="600"))
    parts += _tail_bars(tails, limit)
    return "\n".join([*parts, "</svg>\n"])


def _tail_bars(tails: dict[str, float], limit: dict[str, float]) -> list[str]:
    """Tails as bars that hang down, with the limit as a line."""
    left, bottom = PLOT + 46, HEIGHT - BOTTOM
    deepest = 1.15 * max(*(-tail for tail in tails.values()), -limit["limit"])
    size = (bottom - TOP) / deepest
    worst = f"worst {100 * limit['alpha']:g}% of {limit['horizon']} bars"
    parts = [_text(left - 16, 24, worst, 15), _text(left - 16, 46, "discounted log-return", colour="#5b6874")]
    for place, (name, tail) in enumerate(tails.items()):
        at = left + 76 * place
        parts.append(f'<rect x="{at}" y="{TOP}" width="44" height="{-tail * size:.1f}" fill="{COLOURS[name]}"/>')
        parts.append(_text(at + 22, TOP - tail * size + 16, f"{100 * tail:.1f}%", anchor="middle"))
    line = TOP - limit["limit"] * size
    parts.append(f'<path d="M{left - 16} {line:.1f}h160" stroke="{LIMIT}" stroke-width="2" stroke-dasharray="5 4"/>')
    parts.append(_text(left - 16, line + 17, f"limit {100 * limit['limit']:.1f}%", colour=LIMIT, weight="600"))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    step = 0.25 if high - low < 1.5 else 0.5
    return [float(value) for value in np.arange(np.ceil(low / step) * step, high + 1e-9, step)]


def _named(name: str) -> str:
    return "policy under the limit" if name == "policy" else name


def _day(moment: np.datetime64) -> str:
    return str(moment)[:10]


def _text(
    x: float,
    y: float,
    text: str,
    size: int = 13,
    *,
    anchor: str = "start",
    colour: str = "#1b2733",
    weight: str = "400",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

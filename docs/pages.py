"""Every page that Tailwise writes, from small real runs, and pictures of each: python -m docs.pages FOLDER

Four pictures per page: 1280 and 390 pixels wide, light and dark. They are for looking at: the runs are far too short to
say anything. Needs Chromium (`make browser`) for the pictures.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import tailwise
from tailwise.bars.bars import Bars
from tailwise.bars.builtin import sp500
from tailwise.cli.main import main as command_line
from tailwise.core.errors import ConfigWarning
from tailwise.pages.judge import write_run_report

SIZES = {"wide": (1280, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
CONFIG: dict[str, Any] = {
    "data": {"kind": "builtin", "names": ["sp500"]},
    "features": {"include": ["return_1", "return_5", "volatility_20"]},
    "env": {"kind": "market", "action": {"kind": "positions", "positions": [0, 0.5, 1]}, "episode_length": 256},
    "model": {"encoder": {"hidden": [16]}},
    "learner": {"gamma": 0.9, "epochs": 2},
    "risk": {"mode": "constraint", "limit": {"of": "buy_and_hold", "share": 0.5}},
    "run": {"total_steps": 4096, "environments": 8, "rollout_steps": 64},
}
FREE = {**CONFIG, "risk": {"mode": "report", "alpha": 0.05}}


def above_average(past: Bars) -> float:
    """Hold while the close is above its average of 200 days."""
    return float(past.close[-1] > past.close[-200:].mean())


def write_pages(folder: Path) -> list[Path]:
    """Train what is needed below `folder` and write every page there; the pages, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = folder / "runs"
    for seed, config in enumerate((CONFIG, FREE)):
        tailwise.train({**config, "seed": seed}, out=runs / f"run-{seed}")
    judged = tailwise.judge(runs / "run-0")
    (judged.folder / "report.html").replace(folder / "report.html")
    rule = tailwise.backtest(above_average, sp500(), first=4000, report=folder / "backtest.html")
    rule.plot(folder / "plot.html")
    tailwise.compare([runs / "run-0", runs / "run-1"], page=folder / "compare.html")
    tailwise.attack(runs / "run-0", budgets=[0.1, 0.5], attacks=["random", "mad"], page=folder / "attack.html")
    tailwise.attack(runs / "run-0", kind="path", budgets=[0.1, 0.5], steps=2, page=folder / "attack-path.html")
    studies: dict[str, Any] = {"folds": tailwise.walk_forward, "choices": tailwise.combinatorial_cv}
    for name, study in studies.items():
        study({**CONFIG, "seed": 5}, folds=3, seeds=2, out=runs / name)
        write_run_report(runs / name, folder / f"{name}.html")
    limits = tailwise.frontier(FREE, [-0.01, -0.03], seeds=2, out=runs / "limits")
    (limits.folder / "frontier.html").replace(folder / "frontier.html")
    space = {"learner.learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}}
    searched = tailwise.tune(FREE, space, settings={"population": 3, "generations": 3}, out=runs / "search")
    (searched.folder / "tune.html").replace(folder / "tune.html")
    command_line(["doctor", str(runs / "run-0"), "--html", str(folder / "doctor.html")])
    return sorted(folder.glob("*.html"))


def photograph(pages: list[Path], folder: Path) -> None:
    """Write NAME-SIZE-SCHEME.png of each page, whole."""
    from tests.chromium import browser
    from tests.pages.browser import wait_until_drawn

    with browser() as running:
        for page in pages:
            for size, (width, height) in SIZES.items():
                for scheme in SCHEMES:
                    tab = running.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                    tab.set_default_timeout(300_000)  # milliseconds
                    tab.goto(page.resolve().as_uri())
                    wait_until_drawn(tab)
                    tab.screenshot(path=str(folder / f"{page.stem}-{size}-{scheme}.png"), full_page=True)
                    tab.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConfigWarning)  # the runs are too short, and say so
    place = Path(sys.argv[1])
    photograph(write_pages(place), place)

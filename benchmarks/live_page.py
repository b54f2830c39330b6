"""The live page on a paper session, in headless Chromium: what it says is what the session says."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.live_world import KINDS, MARKET, Script, first_tested, session_of, trained
from tailwise.live.feeds import BarsFeed
from tailwise.live.lines import Refused
from tailwise.live.paper import Paper
from tailwise.live.status import STATUS
from tailwise.watch.paper import FOLDER

SIZES = {"desktop": {"width": 1360, "height": 900}, "phone": {"width": 390, "height": 844}}
COLOURS = ("light", "dark")
_WAIT = 120_000  # ms, for machines that do much else
RUN = {"run": MARKET["run"]}


@dataclass(frozen=True)
class Look:
    """One look at the page. says: whether it has the session's equity, state and reason; charts: drawn ones of the
    session; wide: pixels that stick out of the window; complaints: of the console."""

    name: str
    says: bool
    charts: int
    wide: int
    complaints: list[str]

    @property
    def good(self) -> bool:
        return self.says and self.charts >= 3 and self.wide <= 0 and not self.complaints


def chromium() -> str | None:
    """The browser of this system, where playwright is there to drive it."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


@contextmanager
def session_in(folder: Path) -> Iterator[None]:
    """A run with a paper session that goes on, reduce-only because of the lines that came last."""
    agent = trained(1, KINDS["LSTM"])
    world = agent.market()
    bars = list(world.dataset.bars)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 1, "data": {"names": [bars[0].symbol]}, **RUN}))
    session = session_of(agent, bars, folder / FOLDER, since=first_tested(bars[0], agent))
    session.open()
    paper = Paper(session)
    paper.run(BarsFeed(bars))
    while not session.status.due():
        time.sleep(0.05)
    paper.run(Script([*[Refused("line 107: this is not valid JSON")] * 10, None]))
    try:
        yield
    finally:
        session.close()


def looks(folder: Path, executable: str, pictures: Path | None = None) -> Iterator[Look]:
    """Open the page on a run whose session goes on, in each size and colour; pictures: where to keep what was seen."""
    from playwright.sync_api import sync_playwright

    equity = json.loads((folder / FOLDER / STATUS).read_text())["accounts"][0]["equity"]
    with serving(folder) as address, sync_playwright() as started:
        running = started.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for size, viewport in SIZES.items():
            for colour in COLOURS:
                complaints: list[str] = []
                page = running.new_context(viewport=viewport, color_scheme=colour).new_page()
                page.on("console", lambda said, to=complaints: to.append(said.text) if said.type == "error" else None)
                page.on("pageerror", lambda error, to=complaints: to.append(str(error)))
                page.goto(address, timeout=_WAIT)
                page.wait_for_selector("#paper:not([hidden]) .main-svg", timeout=_WAIT)
                for card in page.locator("#paper-charts .card:not([hidden])").all():
                    card.scroll_into_view_if_needed()  # a chart is drawn when it is seen
                    card.locator(".main-svg").first.wait_for(timeout=_WAIT)
                page.wait_for_timeout(500)
                text = page.locator("#paper").inner_text()
                said = all(words in text for words in (f"{equity:,.2f}", "reduce-only", "10 lines in a row"))
                charts = page.locator("#paper-charts .card:not([hidden]) .plot .main-svg:first-child").count()
                wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                if pictures is not None:
                    page.evaluate("window.scrollTo(0, 0)")  # where a reader begins; the head of the page sticks
                    page.screenshot(path=pictures / f"paper-{size}-{colour}.png", full_page=True)
                yield Look(f"{size}, {colour}", said, charts, int(wide), complaints)
        running.close()


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Address of `tailwise watch` on a folder."""
    command = [sys.executable, "-m", "tailwise", "watch", str(folder), "--port", "0", "--no-open"]
    environment: dict[str, Any] = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("TAILWISE_WATCH_TOKEN", None)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        said = [process.stdout.readline(), process.stdout.readline()][1]
        if not said.startswith("open "):
            raise RuntimeError("the live page did not start")
        yield said.split()[1]
    finally:
        process.terminate()
        process.wait(10)

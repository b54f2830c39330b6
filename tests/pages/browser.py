"""A page in headless Chromium: what its console says, how wide it is, which panels are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pages.contrast import faint

DESKTOP, PHONE = (1280, 900), (390, 844)
_LOOK = """() => ({
  width: document.documentElement.scrollWidth,
  panels: [...document.querySelectorAll('section.panel')].map(panel => ({
    id: panel.id,
    height: panel.getBoundingClientRect().height,
    plots: [...panel.querySelectorAll('.js-plotly-plot')].map(plot => {
      const box = plot.querySelector('svg.main-svg').getBoundingClientRect();
      const marks = plot.querySelectorAll('.scatterlayer path, .scatterlayer .point, .barlayer path').length;
      return {width: box.width, height: box.height, right: box.right, marks: marks};
    }),
  })),
  divs: document.querySelectorAll('.plotly-graph-div').length,
  outside: document.querySelectorAll('.js-plotly-plot').length
    - document.querySelectorAll('section.panel .js-plotly-plot').length,
})"""


@dataclass(frozen=True)
class Seen:
    """What a reader of that width sees."""

    errors: list[str]  # of the console, and requests to a network
    width: int  # pixels, of the whole document
    panels: dict[str, list[dict[str, Any]]]  # id -> its pictures
    heights: dict[str, float]
    undrawn: int  # places of pictures without one
    faint: list[str]  # texts whose contrast is below 4.5


def wait_until_drawn(tab: Any) -> None:
    """Until the page of a report has drawn its pictures; one without any has a moment."""
    if tab.locator("#plotly").count():
        tab.wait_for_selector("html[data-drawn]", state="attached")
    tab.wait_for_timeout(300)  # milliseconds


def look(running: Any, page: Path, size: tuple[int, int], **context: Any) -> Seen:
    """Open the file at that window size and wait until its pictures are drawn."""
    tab = running.new_page(viewport={"width": size[0], "height": size[1]}, **context)
    errors: list[str] = []
    tab.set_default_timeout(120_000)  # milliseconds; a page has megabytes of script, and a machine may be busy
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: errors.append(request.url) if request.url.startswith("http") else None)
    try:
        tab.goto(page.resolve().as_uri())
        wait_until_drawn(tab)
        found = tab.evaluate(_LOOK)
        tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        unreadable = faint(tab)
    finally:
        tab.close()
    panels = {panel["id"]: panel["plots"] for panel in found["panels"]}
    drawn = sum(len(plots) for plots in panels.values())
    heights = {panel["id"]: panel["height"] for panel in found["panels"]}
    return Seen(errors, found["width"], panels, heights, found["divs"] - drawn - found["outside"], unreadable)

"""Take the pictures of docs/gallery.md: python -m docs.gallery

They are those that tests/pages/test_contrast.py writes, of made-up results, and the report of a rule on the S&P 500.
The frontier is taken in the dark. Needs Chromium (`make browser`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from docs.pages import above_average
from tailwise import backtest
from tailwise.bars.builtin import sp500
from tests.chromium import browser
from tests.pages.browser import wait_until_drawn
from tests.pages.test_contrast import write_pages

GALLERY = Path(__file__).parent / "gallery.md"
IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 900


def main() -> None:
    """Write the first screen of each page as gallery-NAME.png."""
    with tempfile.TemporaryDirectory() as folder, browser() as running:
        report = Path(folder) / "report.html"
        backtest(above_average, sp500(), first=4000, report=report)
        for page in [report, *write_pages(Path(folder))]:
            if f"gallery-{page.stem}.png" not in GALLERY.read_text(encoding="utf-8"):
                continue
            scheme = "dark" if page.stem == "frontier" else "light"
            tab = running.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            tab.set_default_timeout(300_000)  # milliseconds; pages have megabytes of script
            tab.goto(page.resolve().as_uri())
            wait_until_drawn(tab)
            tab.screenshot(path=str(IMAGES / f"gallery-{page.stem}.png"))
            tab.close()


if __name__ == "__main__":
    main()

"""Take the pictures of docs/gallery.md: python -m docs.gallery RUN/evaluations/NAME/report.html

The report is given; the others are those that tests/pages/test_contrast.py writes, of made-up results. Needs Chromium
(`make browser`).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.chromium import browser
from tests.pages.test_contrast import write_pages

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 900


def main(report: Path) -> None:
    """Write the first screen of each page as gallery-NAME.png."""
    with tempfile.TemporaryDirectory() as folder, browser() as running:
        for page in (report, *write_pages(Path(folder))):
            tab = running.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            tab.set_default_timeout(300_000)  # milliseconds; pages have megabytes of script
            tab.goto(page.resolve().as_uri())
            tab.wait_for_timeout(800)  # pictures are drawn
            tab.screenshot(path=str(IMAGES / f"gallery-{page.stem}.png"))
            tab.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

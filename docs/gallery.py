"""Take the pictures of docs/gallery.md: python -m docs.gallery

They are those that tests/pages/test_contrast.py writes, of made-up results; the frontier is taken in the dark. Needs
Chromium (`make browser`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.chromium import browser
from tests.pages.test_contrast import write_pages

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 900


def main() -> None:
    """Write the first screen of each page as gallery-NAME.png."""
    with tempfile.TemporaryDirectory() as folder, browser() as running:
        for page in write_pages(Path(folder)):
            scheme = "dark" if page.stem == "frontier" else "light"
            tab = running.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            tab.set_default_timeout(300_000)  # milliseconds; pages have megabytes of script
            tab.goto(page.resolve().as_uri())
            tab.wait_for_timeout(800)  # pictures are drawn
            tab.screenshot(path=str(IMAGES / f"gallery-{page.stem}.png"))
            tab.close()


if __name__ == "__main__":
    main()

"""Headless Chromium for tests that open pages, or a skip that says why there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@contextmanager
def browser() -> Iterator[Any]:
    """Playwright's handle on the Chromium of this system."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed here (Debian: make browser)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
    with api.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield running
        finally:
            running.close()

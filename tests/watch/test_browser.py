"""The page in Chromium: it opens, follows a run without being loaded again, and shows an alert within five seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailwise.cli.demo import live_page
from tests.chromium import browser
from tests.watch.watched_runs import alert, line, serving, write_run

SOON = 5000  # milliseconds in which an alert must be seen


@contextmanager
def page_on(address: str, **context: Any) -> Iterator[tuple[Any, list[str]]]:
    """An open page and the complaints of its console; loads are counted in a mark that a reload would lose."""
    with browser() as running:
        page = running.new_context(**context).new_page()
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        outside = []
        page.on(
            "request",
            lambda request: outside.append(request.url) if address.split("?")[0] not in request.url else None,
        )
        page.goto(address)
        page.evaluate("window.mark = 'not reloaded'")
        yield page, complaints
        assert page.evaluate("window.mark") == "not reloaded"
        assert [url for url in outside if not url.startswith(("data:", "blob:"))] == []  # nothing from elsewhere


@pytest.mark.slow
def test_it_follows_a_run_and_shows_an_alert(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", 5)
    write_run(tmp_path / "runs" / "b", 4)
    with serving(str(tmp_path / "runs")) as (address, _, _), page_on(address) as (page, complaints):
        page.wait_for_selector("html[data-points='5'], html[data-points='4']")
        assert page.locator("#runs li").count() == 2
        page.locator("#runs li button", has_text="a").first.click()
        page.wait_for_selector("html[data-update='5']")
        page.wait_for_selector(".card .main-svg")
        with open(run / "metrics.jsonl", "a") as file:
            file.write(line(6, episode__return=60.0) + '{"update": 7, "ste')
        page.wait_for_selector("html[data-update='6']", timeout=SOON)
        (run / "alerts.jsonl").write_text(alert(6))
        page.wait_for_selector(".alert.error[data-rule='planted_alert']", timeout=SOON)
        assert "do this" in page.locator(".alert").inner_text()
        page.locator("#runs li input").nth(1).check()  # the other run over it
        page.wait_for_selector("html[data-points='10']")
        assert "#" in page.url and page.url.count(",") == 1
        assert complaints == []


@pytest.mark.slow
def test_it_opens_on_a_training_that_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tailwise",
        "train",
        "cartpole",
        "--out",
        str(tmp_path / "runs" / "live"),
        "--quiet",
    ]
    command += ["-s", "run.total_steps=2000000", "-s", "run.tensorboard=false"]
    training = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    try:
        metrics = tmp_path / "runs" / "live" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        with serving(str(tmp_path / "runs")) as (address, _, _), page_on(address) as (page, complaints):
            page.wait_for_selector(".state.running")
            page.wait_for_selector("html[data-update]:not([data-update='0'])", timeout=60_000)
            first = int(page.evaluate("document.documentElement.dataset.update"))
            deadline = time.monotonic() + 60
            while int(page.evaluate("document.documentElement.dataset.update")) < first + 2:
                assert time.monotonic() < deadline, "the page does not follow the training"
                page.wait_for_timeout(200)
            assert training.poll() is None
            with open(tmp_path / "runs" / "live" / "alerts.jsonl", "a") as file:
                file.write(alert(first))
            page.wait_for_selector(".alert[data-rule='planted_alert']", timeout=SOON)
            assert complaints == []
    finally:
        training.kill()
        training.wait(20)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling_and_both_colours_work(tmp_path: Path, scheme: str) -> None:
    write_run(tmp_path / "runs" / "a", 5)
    phone = {"viewport": {"width": 375, "height": 812}, "color_scheme": scheme}
    with serving(str(tmp_path / "runs")) as (address, _, _), page_on(address, **phone) as (page, _):
        page.wait_for_selector("html[data-points='5']")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (red + green + blue < 150) == (scheme == "dark")
        page.locator("#theme").click()  # auto -> light
        page.wait_for_timeout(100)
        assert sum(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")) > 600


def test_the_demo_has_a_live_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects an address that nobody serves, and a server that outlives the demo."""
    run = write_run(tmp_path / "runs" / "demo-1", 3)
    with live_page(run):
        address = capsys.readouterr().out.removeprefix("live page, while it trains: ").strip()
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert answer.status == 200 and b"/watch.js" in answer.read()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=20)

"""`tailwise report` and `tailwise compare`, as a person uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.terminal import SMALL, Terminal

MARKET = [*SMALL, "-s", "data.parameters={length: 900, noise: 0.002}", "-s", "model.encoder.hidden=[16]", "--quiet"]


def test_report_and_compare(tailwise: Terminal) -> None:
    """Rejects a comparison over other bars, of a run with itself, and a report of something that is no market."""
    for name, more in (("a", []), ("b", ["-s", "seed=7"]), ("c", ["-s", "data.split={kind: shares, test: 0.2}"])):
        assert tailwise("train", "sine", *MARKET, *more, "--out", name) == 0
    told = tailwise.json("report", "a")
    assert told["verdict"][0].startswith("SYNTHETIC-SINE: ") and told["file"] == "a/report.html"
    text = Path("a/report.html").read_text(encoding="utf-8")
    for panel in ("equity", "costs", "latency", "crash", "missing", "training", "alerts", "origin"):
        assert f'id="panel-{panel}"' in text, panel
    assert "Not a real market: synthetic: sine(" in text
    assert tailwise("report", "a", "--no-stress", "--out", "short.html") == 0
    assert 'id="panel-costs"' not in Path("short.html").read_text(encoding="utf-8")
    assert "page: short.html" in tailwise.out
    pytest.importorskip("sharpebench")
    judged = tailwise.json("report", "a", "--no-stress", "--judge", "sharpebench")
    assert judged["outside"][0].startswith("sharpebench ") and told["outside"] is None
    assert judged["outside"][0].split(";")[0] in Path("a/report.html").read_text(encoding="utf-8")
    assert tailwise("report", "a", "--judge", "nobody") == 2 and "choose sharpebench" in tailwise.error

    result = tailwise.json("compare", "a", "b")
    (account,) = result["accounts"]
    assert list(account["statistics"]) == ["a", "b", "buy and hold"]
    pairs = {(pair["first"], pair["second"]): pair for pair in account["pairs"]}
    assert set(pairs) == {("a", "b"), ("a", "buy and hold"), ("b", "buy and hold")}
    gap = account["statistics"]["a"]["total_return"], account["statistics"]["b"]["total_return"]
    assert (pairs["a", "b"]["mean_return"]["estimate"] > 0) == (gap[0] > gap[1])
    assert 'id="panel-pairs"' in Path("compare.html").read_text(encoding="utf-8")
    assert tailwise("compare", "a", "b") == 0 and "a minus b" in tailwise.out

    assert tailwise("compare", "a", "c") == 2
    assert "a and c cannot be compared: the test window of a is SYNTHETIC-SINE" in tailwise.error
    assert tailwise("compare", "a") == 2 and "at least two" in tailwise.error
    assert tailwise("compare", "a", "a") == 2 and "cannot be compared with itself" in tailwise.error


def test_a_run_that_is_no_market_has_no_report(tailwise: Terminal) -> None:
    assert tailwise("train", "cartpole", *SMALL, "--quiet", "--out", "r") == 0
    assert tailwise("report", "r") == 2 and "tailwise evaluate r" in tailwise.error
    assert tailwise("compare", "r", "r") == 2
    assert tailwise("report", "nowhere") == 2 and "not the folder of a run" in tailwise.error

"""Attacks in every text that the live page shows: names of runs, configurations, alerts, evaluations, metrics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from tests.attacks import PREPARE, Attacks, attack, judge
from tests.chromium import browser
from tests.pages.contrast import faint
from tests.watch.watched_runs import alert, line, serving, write_run

NAME = "<img src=x onerror=hacked(7) hacked><i hacked>7\"'`"  # a folder has no slash in its name


def write_attacks(runs: Path, attacks: Attacks) -> None:
    """Two runs, both hostile, so that the page names them over each other."""
    for number in (1, 2):
        run = write_run(runs / f"{number}{NAME}", 3)
        text = attacks.text
        config = {
            "seed": 7,
            "env": {"id": text("env.id")},
            "data": {"names": [f"<i hacked>{attacks.text('cut name')}"]},
            "model": {"core": {"kind": attack(0)[:40]}},
        }
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"update": 4, "steps": 256, text("metric"): 1.0, "policy/kl": text("value")}) + "\n")
            file.write(line(5, episode__return=50.0))
        alerts = {key: text(f"alert.{key}") for key in ("evidence", "advice", "severity", "action", "signal", "event")}
        rules = [alert(4, text("alert.rule"), **{**alerts, "event": "raised"}), alert(4, "x", **alerts)]
        acted = alert(4, "y", event="acted", evidence=text("acted"))
        (run / "alerts.jsonl").write_text("".join([*rules, acted]))
        folder = run / "evaluations" / f"best{NAME}"
        folder.mkdir(parents=True)
        symbol, policy = text("symbol"), "policy"
        frame = pd.DataFrame(
            {"symbol": [symbol, "B"], "policy": [policy, text("policy")], "equity_before": 100.0, "equity": 101.0},
            index=pd.DatetimeIndex(np.array(["2020-01-01"] * 2, dtype="datetime64[ns]"), tz="UTC", name="time"),
        )
        frame.to_parquet(folder / "equity.parquet")
        statistics = {policy: {"sharpe": 1.0}, text("statistics.policy"): {"sharpe": text("sharpe")}}
        summary = {"symbols": [{"symbol": text("statistics.symbol"), "statistics": statistics}]}
        (folder / "summary.json").write_text(json.dumps(summary))


# Not shown: metrics that are not declared, values that are no numbers, words that no rule has, names that are cut.
HIDDEN = {"metric", "value", "sharpe", "cut name", "env.id"}
HIDDEN |= {f"alert.{key}" for key in ("severity", "action", "signal", "event")}


def test_no_text_of_any_run_becomes_part_of_the_live_page(tmp_path: Path) -> None:
    """One run alone, then both over each other. Rejects a name that is put into the page, or a picture, as HTML."""
    attacks = Attacks()
    write_attacks(tmp_path / "runs", attacks)
    texts: set[int] = set()
    with serving(str(tmp_path / "runs")) as (address, _, _), browser() as running:
        page = running.new_page(viewport={"width": 1280, "height": 3000})
        errors: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.add_init_script(PREPARE)
        page.goto(address)
        for chosen in (1, 2):
            page.wait_for_selector("html[data-points='5']")
            page.wait_for_selector("#evaluation-charts .main-svg")
            page.locator("#numbers summary").click()
            outcome = judge(page, attacks.fields, errors, [])
            assert (outcome.ran, outcome.elements, outcome.errors) == ([], [], [])
            texts |= outcome.texts
            assert NAME in page.locator("#runs").inner_text() and NAME in page.locator("#evaluation-words").inner_text()
            page.locator("#runs li button").nth(chosen % 2).click()
            page.wait_for_timeout(1200)
        for box in page.locator("#runs li input").all():
            box.check()
        page.wait_for_selector("html[data-points='10']")
        page.wait_for_timeout(1500)
        outcome = judge(page, attacks.fields, errors, [])
        assert (outcome.ran, outcome.elements, outcome.errors) == ([], [], [])
        assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
        for scheme in ("light", "dark"):  # of whatever is shown: alerts, charts, names, hints
            # The labels that `judge` called up keep the colours that they were drawn with.
            page.evaluate("document.querySelectorAll('.js-plotly-plot').forEach((plot) => Plotly.Fx.unhover(plot))")
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(500)
            assert faint(page) == [], scheme
    hidden = {where for number, where in attacks.fields.items() if number not in texts | outcome.texts}
    assert hidden == HIDDEN

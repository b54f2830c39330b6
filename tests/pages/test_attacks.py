"""Attacks in every text field of every page that is written: nothing runs, nothing becomes an element, all is read."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailwise
from tailwise import backtest
from tailwise.bars.builtin import sp500
from tailwise.doctor.check import Check
from tailwise.doctor.page import write_audit
from tailwise.evaluate.background import Background
from tailwise.evaluate.compare_accounts import compare_accounts
from tailwise.evaluate.findings import Findings, weigh
from tailwise.evaluate.frontier_result import MOST_LIKELY, SAMPLED, Cell, Frontier, Result, Score
from tailwise.evaluate.judgement import ALWAYS_IN, POLICY, judge_rule
from tailwise.evaluate.limit import LimitVerdict
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.stress import StressResult
from tailwise.evaluate.walk_forward_result import read_walk_forward
from tailwise.pages.compare import write_comparison
from tailwise.pages.frontier import write_frontier_page
from tailwise.pages.markup import Html, data_block, element, escape, join
from tailwise.pages.report import write_report
from tailwise.pages.walk_forward import write_folds_report
from tests.attacks import HACKED, Attacks, attack, outcome
from tests.chromium import browser
from tests.pages.test_walk_forward import make_folder

# Words that the program looks up; whatever else is a text may come from a file.
WORDS = (POLICY, *ALWAYS_IN, SAMPLED, MOST_LIKELY, "backtest", "costs", "none", "update", "rule", "evidence", "advice")
BACKGROUND = Background(
    facts=["A fact."],
    alerts=[{"update": "7", "rule": "kl", "evidence": "it rose", "advice": "wait"}],
    configuration="seed: 1",
    hashes={"test": {"SP500": "f00d"}},
    versions={"torch": "2"},
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@cache
def findings() -> Findings:
    """A rule on two years of the S&P 500, with a limit, a stress test and a doubt."""
    bars = sp500().slice(4000, 4600)
    judged = judge_rule(backtest(np.where(np.arange(600) % 40 < 20, 1.0, 0.0), bars, first=300), bars, gamma=0.9)
    verdict = LimitVerdict("wang", "the mean", -0.03, 0.05, 0.97, 100, -0.01, 10, 1)
    limits = {POLICY: verdict, "buy and hold": verdict}
    numbers = judged.statistics[POLICY]
    rows = [StressResult("none", 1.0, "as it was", numbers), StressResult("costs", 2.0, "dearer", numbers)]
    found = weigh(replace(judged, limits=limits, label="a wave"), stressed={POLICY: rows, "momentum": rows})
    return replace(found, doubt="A doubt.", rhythm="252 bars.")


def report(file: Path, attacks: Attacks) -> None:
    found = attacks.into(findings(), "findings")
    texts = {name: attacks.text(name) for name in ("title", "how")}
    write_report(file, [found], gamma=0.9, background=attacks.into(BACKGROUND, "background"), **texts)


def report_of_two_accounts(file: Path, attacks: Attacks) -> None:
    bare = replace(findings(), stressed={}, not_stressed="No stress.")
    accounts = [attacks.into(replace(bare, judged=replace(bare.judged, symbol=name)), name) for name in ("one", "two")]
    texts = {name: attacks.text(name) for name in ("title", "how")}
    write_report(file, accounts, gamma=0.9, background=Background(), **texts)


def comparison(file: Path, attacks: Attacks) -> None:
    judged = findings().judged
    names = (POLICY, "momentum", "buy and hold")
    paths = {attacks.key(name, "run"): attacks.into(judged.paths[name], f"path of {name}") for name in names}
    statistics = {attacks.key(name, "run"): judged.statistics[name] for name in names}
    accounts = [compare_accounts(paths, "buy and hold", statistics)]
    accounts.append(replace(accounts[0], symbol=attacks.text("second symbol")))
    write_comparison(file, accounts, title=attacks.text("title"), facts=[attacks.text("fact")])


def walk_forward(file: Path, attacks: Attacks) -> None:
    folder = make_folder(file.parent / "folds")
    folds = json.loads((folder / "walk_forward.json").read_text())
    second = {**folds["stitched"][0], "account": "EURUSD"}
    folds["stitched"].append(second)
    folds["rows"] += [{**row, "account": "EURUSD"} for row in folds["rows"]]
    folds |= {"label": "a wave", "doubts": ["D."]}
    folds["verdict"] = ["D.", *folds["verdict"], "More."]
    attacks.keep = {*WORDS, "stitched", *_keys_of(folds), "buy and hold"}
    names = {"SP500": attacks.key("SP500", "account"), "EURUSD": attacks.key("EURUSD", "account")}
    hostile = attacks.into(folds, "walk_forward.json")
    for one, given in zip(hostile["stitched"] + hostile["rows"], folds["stitched"] + folds["rows"], strict=True):
        one["account"] = names[given["account"]]
    hostile["headline"]["account"] = names["SP500"]
    own = {POLICY: findings().judged.paths[POLICY], "buy and hold": findings().judged.paths["buy and hold"]}
    own[attacks.key("a rule", "path")] = own["buy and hold"]
    save_paths(folder / "stitched", dict.fromkeys(names.values(), own))
    (folder / "walk_forward.json").write_text(json.dumps(hostile))
    write_folds_report(file, read_walk_forward(folder), folder)


def _keys_of(value: Any) -> set[str]:
    """Keys of all mappings: what the page looks up."""
    if isinstance(value, dict):
        return set(value) | {key for one in value.values() for key in _keys_of(one)}
    return {key for one in value for key in _keys_of(one)} if isinstance(value, list) else set()


def frontier(file: Path, attacks: Attacks) -> None:
    score = Score(0.1, -0.04, -0.01)
    results = tuple(
        Result(
            Cell(limit, seed),
            "r",
            "c",
            1,
            "ended",
            True,
            30,
            True,
            {SAMPLED: score, MOST_LIKELY: score},
            {"a rule": score},
        )
        for limit in (None, -0.05)
        for seed in (0, 1)
    )
    plain = Frontier("name", "env", "a wave", True, 0.05, 0.9, 30, None, ("A fact.",), results)
    write_frontier_page(file, attacks.into(plain, "frontier"))


def audit(file: Path, attacks: Attacks) -> None:
    checks = [
        Check(
            name=attacks.text("name"),
            verdict="warn",
            evidence=attacks.text("evidence"),
            meaning=attacks.text("meaning"),
            advice=attacks.text("advice"),
            series=(1.0, 2.0),
        )
    ]
    write_audit(file, checks, title=attacks.text("title"), facts=[attacks.text("fact")])


# What is not printed, or cut before the number of its attack: by page, of the field's name.
PAGES: dict[Callable[[Path, Attacks], None], str] = {
    report: r"paths\..*\.label|limits\.buy and hold\.(measure|statistic)|stressed\.momentum\[.\]\.label",
    report_of_two_accounts: r"paths\..*\.(label|symbol key 'SP500')|limits\.buy and hold\.(measure|statistic)",
    comparison: r"path of .*\.label",
    walk_forward: r"account|_bar$|(evidence|against.*)\.verdict|json\.verdict\[0\]|limit\.sentence|config_hash"
    r"|json\.cut|ensemble\.how|trials\.file",
    frontier: r"results\[.\]\.(checkpoint|folder)|frontier\.environment",
    audit: r"nothing is left out",
}


@pytest.mark.parametrize("write", PAGES, ids=lambda page: page.__name__)
def test_no_text_of_any_field_becomes_part_of_a_page(
    chromium: Any, tmp_path: Path, write: Callable[[Path, Attacks], None]
) -> None:
    """With the content security policy, and without it: the text is harmless by itself. It is shown as it was written.

    Rejects a heading, a field of an alert or a name in a picture that is put into the page as it is.
    """
    attacks = Attacks(keep=WORDS)
    write(tmp_path / "page.html", attacks)
    assert len(attacks.fields) >= 6
    for policy in (True, False):
        result = outcome(chromium, tmp_path / "page.html", attacks.fields, policy=policy)
        assert (result.ran, result.elements, result.requests, result.errors) == ([], [], [], [])
        hidden = [where for number, where in attacks.fields.items() if number not in result.texts]
        assert [where for where in hidden if not re.search(PAGES[write], where)] == []


def test_the_browser_sees_an_attack_that_works(chromium: Any, tmp_path: Path) -> None:
    """The control: without escaping all of it happens, and the policy alone still stops every script."""
    file = tmp_path / "page.html"
    write_audit(file, [Check("here", "ok", "", "")], title="t", facts=[])
    file.write_text(file.read_text().replace("<td>here</td>", f"<td></td></table>{attack(5)}"))
    bare = outcome(chromium, file, [5], policy=False)
    assert 5 in bare.ran and any("<img" in one for one in bare.elements) and not bare.harmless
    guarded = outcome(chromium, file, [5])
    assert guarded.ran == [] and guarded.elements != []
    assert any("Content Security Policy" in error for error in guarded.errors)


def test_a_name_with_markup_in_a_picture_is_plain_text(chromium: Any, tmp_path: Path) -> None:
    """Plotly reads tags in its texts: a name could become a link to anywhere."""
    import plotly.graph_objects as go

    from tailwise.pages.page_frame import plot, whole_page

    name = f'<a href="https://{HACKED}/">profit</a> &amp; <b>&lt;i&gt;</b>'
    figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 2], name=name)).update_layout(showlegend=True, height=300)
    file = tmp_path / "page.html"
    file.write_text(whole_page("t", facts=[], parts=plot(figure), legend="", plots=True), encoding="utf-8")
    page = chromium.new_page()
    page.goto(file.as_uri())
    assert page.locator(".legendtext").text_content() == name
    assert page.locator("a").count() == 0
    page.close()


def test_every_page_admits_its_own_scripts_by_their_hash_and_no_other(tmp_path: Path) -> None:
    for number, write in enumerate((audit, frontier)):
        write(tmp_path / f"{number}.html", Attacks(keep=WORDS))
        text = (tmp_path / f"{number}.html").read_text(encoding="utf-8")
        policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
        assert policy is not None and policy.start() < text.index("<title>")
        scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        hashes = {f"'sha256-{b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts}
        rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
        assert rules["default-src"] == "'none'" and rules["base-uri"] == "'none'" and rules["form-action"] == "'none'"
        assert set(rules.get("script-src", "").split()) == hashes
        assert len(hashes) == (0 if write is audit else 2)
        assert "unsafe-eval" not in policy[1] and "http" not in policy[1].replace("http-equiv", "")


def test_text_and_html_are_two_things() -> None:
    assert element("p", "<b>", element("i", "&"), class_='"x"').text == (
        '<p class="&quot;x&quot;">&lt;b&gt;<i>&amp;</i></p>'
    )
    assert join(["<", Html("<br>"), ">"]).text == "&lt;<br>&gt;"
    assert escape("a\0b\ud800c\x1bd\ne") == "a\ufffdb\ufffdc\ufffdd\ne"
    assert data_block({"a": "</script><!--"}).text == (
        '<script type="application/json">{"a":"\\u003c/script>\\u003c!--"}</script>'
    )
    with pytest.raises(TypeError):
        element("p", "x") + "<b>"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("script", {}),
        ("p onload=x", {}),
        ("p", {"onclick": "x"}),
        ("a", {"href": "javascript:x"}),
        ("a", {"href": "https://x"}),
        ("img", {"src": "x"}),
        ("p", {'a"b': "x"}),
    ],
)
def test_an_element_that_could_run_or_load_is_refused(name: str, attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"element '{name}'"):
        element(name, **attributes)


NAMES = (
    "a b i p td tr th table tbody div span h[1-6] li ul ol dl dt dd section nav main header footer details summary pre"
)
NAMES += (
    " code svg path polyline script style link meta base small strong em img iframe form input button html head body br"
)
TAG = re.compile(rf"(?<!\?P)</?(?:{'|'.join(NAMES.split())})(?:\s|/?>)|<!doctype|<!--", re.IGNORECASE)


def test_no_other_module_writes_html() -> None:
    """Rejects a tag in a string, `html.escape` at a place of its own, and `Html(...)` around a string."""
    package = Path(tailwise.__file__).parent
    own = {package / "pages" / name for name in ("markup.py", "page_frame.py")}
    files = [file for file in sorted(package.rglob("*.py")) if file not in own]
    assert len(files) > 200
    assert [complaint for file in files for complaint in _written_html(file)] == []
    assert len(_written_html(package / "pages" / "markup.py")) > 3


def _written_html(file: Path) -> list[str]:
    """Places in a module at which HTML is written by hand; docstrings speak of it and do not count."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    complaints = []
    for node in ast.walk(tree):
        wrong = False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            wrong = bool(TAG.search(node.value))
        elif isinstance(node, ast.Import):
            wrong = any(alias.name == "html" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            wrong = node.func.id == "Html"
        if wrong:
            complaints.append(f"{file.name}:{node.lineno}")
    return complaints

"""Attacks in every text field of every page that is written: nothing runs, nothing becomes an element, all is read."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import tomllib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import UndefinedError

import tailwise
from tailwise import backtest
from tailwise.bars.builtin import sp500
from tailwise.doctor.check import Check
from tailwise.doctor.page import write_audit
from tailwise.evaluate.compare import compare_accounts
from tailwise.evaluate.findings import Findings, weigh
from tailwise.evaluate.frontier_result import MOST_LIKELY, SAMPLED, Cell, Frontier, Result, Score
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import ALWAYS_IN, POLICY, LimitVerdict, judge_rule
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.stress import StressResult
from tailwise.evaluate.walk_forward_result import read_walk_forward
from tailwise.pages.compare import write_comparison
from tailwise.pages.frontier import FrontierPage, write_frontier_page
from tailwise.pages.report import write_report
from tailwise.pages.views import environment, printable, write_page
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
    portfolio = attacks.into(replace(bare, judged=replace(bare.judged, symbol="both")), "portfolio")
    outside = [attacks.text("outside")]
    write_report(file, accounts, gamma=0.9, background=Background(), portfolio=portfolio, outside=outside, **texts)


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
    report: r"paths\..*\.label|limits\.buy and hold\.(measure|statistic)|stressed\.momentum\[.\]\.label"
    r"|draws key|same_tail\..*\.tail",
    report_of_two_accounts: r"paths\..*\.(label|symbol key 'SP500')|limits\.buy and hold\.(measure|statistic)"
    r"|draws key|same_tail\..*\.tail",
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

    name = f'<a href="https://{HACKED}/">profit</a> &amp; <b>&lt;i&gt;</b>'
    figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 2], name=name)).update_layout(showlegend=True, height=300)
    file = tmp_path / "page.html"
    write_page(file, FrontierPage("t", [], figure, {}, ""))
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
        packed = re.findall(r'<script type="application/gzip" id="plotly">(.*?)</script>', text)
        scripts += [gzip.decompress(b64decode(one)).decode() for one in packed]  # what draw.js starts
        hashes = {f"'sha256-{b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts}
        rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
        assert rules["default-src"] == "'none'" and rules["base-uri"] == "'none'" and rules["form-action"] == "'none'"
        assert set(rules.get("script-src", "").split()) == hashes
        assert len(hashes) == (0 if write is audit else 2)
        assert "unsafe-eval" not in policy[1] and "http" not in policy[1].replace("http-equiv", "")


def test_whatever_a_template_is_given_is_text() -> None:
    """In an element, an attribute and a block of data; a name that it is not given is an error, not an empty place."""
    template = environment().from_string('<p class="{{ kind }}">{{ text }}</p>{{ data | tojson }}')
    assert template.render(kind='"x"', text="<b>&'\0", data={"a": "</script><!--"}) == (
        '<p class="&#34;x&#34;">&lt;b&gt;&amp;&#39;\ufffd</p>{"a":"\\u003c/script\\u003e\\u003c!--"}'
    )
    assert printable("a\0b\ud800c\x1bd\ne") == "a\ufffdb\ufffdc\ufffdd\ne"
    with pytest.raises(UndefinedError, match="'kind' is undefined"):
        template.render(text="", data=None)
    with pytest.raises(
        ValueError, match="Out of range float"
    ):  # NaN is no JSON: the script of the page could not read it
        template.render(kind="", text="", data=float("nan"))


# What no template may contain, looked for without comments, statements and, where it says so, quoted values.
FIGURE = "{{ figure | figure_data | tojson }}"
PACKED = ' type="application/gzip" id="plotly">{{ plots.packed }}'
SCRIPTS = rf'(?!(?:>{{{{ plots.draw }}}}|{re.escape(PACKED)}| type="application/json">{re.escape(FIGURE)})</script>)'
FORBIDDEN = {
    "escaping is switched off": r"\|\s*(?:safe|xmlattr|urlize)\b|\bautoescape\b|\bMarkup\b",
    "a script of its own": rf"<script{SCRIPTS}",
    "an attribute that runs a script": r"\son\w+\s*=",
    "an address beyond the page": r"\s(?:href|src|srcdoc|srcset|action|formaction|data|poster)\s*=\s*(?!\"#)",
    "an element that loads or sends": r"<(?:link|iframe|object|embed|form|base|img)\b",
}
UNQUOTED = re.compile(r"<[a-zA-Z/!]?[^<>]*\{\{")


def _complaints(template: str) -> list[str]:
    """What a template could do beyond showing text."""
    commentless = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    complaints = [name for name, pattern in FORBIDDEN.items() if re.search(pattern, commentless, re.IGNORECASE)]
    places = re.sub(r'"[^"]*"', '""', re.sub(r"\{%.*?%\}", "", commentless, flags=re.DOTALL))
    return complaints + (["a value in a tag without quotes"] if UNQUOTED.search(places) else [])


def test_no_template_can_run_load_or_leave_a_text_unescaped() -> None:
    folder = Path(tailwise.__file__).parent / "pages" / "templates"
    templates = sorted(folder.glob("*.html"))
    assert {file.name: _complaints(file.read_text(encoding="utf-8")) for file in templates} == {
        name: [] for name in ("audit.html", "blocks.html", "frontier.html", "layout.html", "report.html")
    }
    declared = tomllib.loads((folder.parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "pages/templates/*" in declared["tool"]["setuptools"]["package-data"]["tailwise"]  # they are in the wheel
    # What is included as it is holds no statement and no expression.
    others = [file.read_text(encoding="utf-8") for file in folder.iterdir() if file not in templates]
    assert len(others) == 4 and not any(re.search(r"\{[{%#]", text) for text in others)


@pytest.mark.parametrize(
    "template",
    [
        "<p>{{ text | safe }}</p>",
        "{% autoescape false %}{{ text }}{% endautoescape %}",
        "<script>{{ text }}</script>",
        '<script type="application/json">{{ text }}</script>',
        '<p onclick="{{ text }}"></p>',
        '<a href="{{ text }}"></a>',
        '<a href="https://x"></a>',
        '<img src="x">',
        "<p class={{ text }}></p>",
        '<p class="a" {{ text }}></p>',
        "<{{ text }}></p>",
    ],
)
def test_a_template_that_could_is_refused(template: str) -> None:
    assert _complaints(template) != []


NAMES = (
    "a b i p td tr th table tbody div span h[1-6] li ul ol dl dt dd section nav main header footer details summary pre"
)
NAMES += (
    " code svg path polyline script style link meta base small strong em img iframe form input button html head body br"
)
TAG = re.compile(rf"(?<!\?P)</?(?:{'|'.join(NAMES.split())})(?:\s|/?>)|<!doctype|<!--", re.IGNORECASE)


def test_no_module_writes_html(tmp_path: Path) -> None:
    """Rejects a tag in a string, `html.escape` at a place of its own, and a string that is declared to be HTML."""
    package = Path(tailwise.__file__).parent
    files = sorted(package.rglob("*.py"))
    assert len(files) > 200
    complaints = {file.name: lines for file in files if (lines := _written_html(file))}
    assert list(complaints) == ["views.py"]  # the policy and the scripts of a page, which nobody else writes
    assert len(complaints["views.py"]) == 3
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import html\nfrom markupsafe import Markup\na = f"<td>{html.escape(b)}</td>"\nc = Markup(a)\n')
    assert _written_html(wrong) == [f"wrong.py:{line}" for line in (1, 2, 4, 3, 3)]


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
            wrong = any(alias.name in ("html", "markupsafe") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            wrong = node.module in ("html", "markupsafe") or any(alias.name == "Markup" for alias in node.names)
        elif isinstance(node, ast.Call):
            wrong = isinstance(node.func, ast.Name) and node.func.id == "Markup"
        if wrong:
            complaints.append(f"{file.name}:{node.lineno}")
    return complaints

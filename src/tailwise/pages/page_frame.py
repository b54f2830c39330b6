"""What every page has in common: its frame and style, tables and plots, in one file that opens without a network."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plotly.offline import get_plotlyjs

from tailwise.pages.markup import Html, data_block, element, escape, join, plot_text

INK, GRID = "#1b2733", "#e6eaee"

_STYLE = """
:root { color-scheme: light; --ink: #1b2733; --quiet: #5b6874; --line: #e6eaee; --paper: #ffffff; --soft: #f5f7f9;
  --good: #2c6e45; --bad: #a8321c; --care: #8a4b00; }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: var(--paper); max-width: 1080px; margin: 2.5rem auto 5rem; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; line-height: 1.25; font-weight: 650; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; font-weight: 650; margin: 1.6rem 0 .2rem; }
h3 { font-size: 1rem; font-weight: 650; margin: 1.4rem 0 .2rem; }
a { color: inherit; text-underline-offset: .2em; text-decoration-color: var(--line); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
.wide td:first-child, .wide th:first-child { position: sticky; left: 0; background: var(--paper); }
.small { color: var(--quiet); font-size: .9rem; overflow-wrap: anywhere; }
.warning { color: var(--care); font-weight: 600; overflow-wrap: anywhere; }
.verdict { margin: .3rem 0; }
.kept, .better { color: var(--good); } .missed, .worse { color: var(--bad); font-weight: 600; }
"""

_REPORT_STYLE = """
header { margin-bottom: 2.2rem; }
.judgement { border-left: 4px solid var(--quiet); padding: .1rem 0 .1rem 1.2rem; margin: 1.8rem 0; max-width: 46rem; }
.judgement.good { border-color: var(--good); } .judgement.bad { border-color: var(--bad); }
.judgement .headline { font-size: 1.25rem; line-height: 1.4; font-weight: 650; margin: 0 0 .6rem; }
.judgement p { margin: .45rem 0; } .judgement ul { margin: .3rem 0 .6rem; padding-left: 1.1rem; }
.judgement li { margin: .1rem 0; } .judgement li b { font-weight: 600; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 1.2rem 1.5rem;
  margin: 1.8rem 0 1rem; padding: 0; }
.facts div { border-top: 1px solid var(--line); padding-top: .5rem; }
.facts dt { color: var(--quiet); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.3; }
.facts dd span { display: block; font-size: .8rem; font-weight: 400; color: var(--quiet); }
nav { font-size: .88rem; color: var(--quiet); line-height: 2; margin: 1.5rem 0 0; }
nav a { margin-right: 1.1rem; white-space: nowrap; }
section.panel { margin: 3.4rem 0 0; break-inside: avoid-page; }
section.panel > h2 { margin-top: 0; }
h1.symbol { font-size: 1.35rem; margin: 4.5rem 0 0; padding-top: 1.2rem; border-top: 2px solid var(--ink); }
.caption { color: var(--quiet); max-width: 46rem; margin: .1rem 0 .8rem; font-size: .95rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1.3rem; padding: 0; margin: .5rem 0 .2rem;
  font-size: .88rem; }
.legend i { display: inline-block; width: 1.4rem; vertical-align: .25em; margin-right: .45rem; border-top: 3px solid; }
.legend i.dot { border-top-style: dotted; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: .6rem 2rem; }
.plots > div, .plot { min-width: 0; overflow: hidden; }
.months { table-layout: fixed; width: 100%; border-collapse: separate; border-spacing: 2px; }
.months th, .months td { padding: .35rem 0; text-align: center; border: 0; font-size: .82rem; }
.months tr > :first-child { width: 3.2rem; } .months tr > :last-child { width: 3.2rem; }
.metrics td { vertical-align: top; } .metrics td:first-child { white-space: normal; min-width: 10rem; }
.metrics td span { color: var(--quiet); font-size: .8rem; display: block; }
.metrics td:first-child span { max-width: 22rem; font-size: .78rem; line-height: 1.35; }
.alert { margin: .5rem 0; } .alert b { font-weight: 600; }
details { margin: .8rem 0; } summary { cursor: pointer; font-weight: 600; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; font-size: .8rem; line-height: 1.45; }
pre, code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code { font-size: .8rem; overflow-wrap: anywhere; }
.hashes td { white-space: normal; text-align: left; }
@media (max-width: 640px) {
  body { margin-top: 1.2rem; padding: 0 1rem; } h1 { font-size: 1.35rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: .9rem 1rem; } .facts dd { font-size: 1.15rem; }
  section.panel { margin-top: 2.6rem; }
  .months tr > :first-child, .months tr > :last-child { width: 2rem; }
  .months { border-spacing: 1px; } .months th, .months td { font-size: .6rem; padding: .3rem 0; }
  .judgement { padding-left: .9rem; } .judgement .headline { font-size: 1.1rem; }
  .wide td:first-child { white-space: normal; min-width: 7rem; max-width: 9rem; }
  .metrics td:first-child span { display: none; }
}
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #dfe5ea; --quiet: #98a5b1; --line: #2c3640; --paper: #12171c; --soft: #1a2128;
    --good: #6cc08b; --bad: #ef8a74; --care: #e0a75a; }
  /* Plotly writes its colours into the picture: text and grid follow the page. */
  .js-plotly-plot .xtick text, .js-plotly-plot .ytick text, .js-plotly-plot .gtitle, .js-plotly-plot .xtitle,
  .js-plotly-plot .ytitle, .js-plotly-plot .x2title, .js-plotly-plot .y2title, .js-plotly-plot .annotation-text
    { fill: #c6cfd7 !important; }
  .js-plotly-plot .gridlayer path { stroke: #2c3640 !important; }
  .js-plotly-plot .zerolinelayer path { stroke: #55626e !important; }
}
@media print {
  @page { margin: 14mm; }
  :root { --ink: #000; --paper: #fff; }
  body { max-width: none; margin: 0; padding: 0; font-size: 10.5pt; }
  nav { display: none; }
  section.panel { margin-top: 1.6rem; }
  h2, .caption, .legend { break-after: avoid; }
  .wide, pre { overflow: visible; } pre { white-space: pre-wrap; font-size: 7.5pt; }
  table { font-size: 8pt; } th, td { padding-right: .5rem; white-space: normal; }
  tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; opacity: 1; }
  .wide td:first-child, .wide th:first-child { white-space: nowrap; position: static; }
  .metrics td:first-child { white-space: normal; }
  /* Pictures were drawn for the width of the screen, at most 1040 pixels; a page of paper has some 690. */
  .plot, .plots { zoom: .65; }
}
"""

# Scripts: those of the frame, by their hash, and no other. Plotly writes style attributes, hence inline styles.
_POLICY = (
    "default-src 'none'; {scripts}style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
)

_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style></head><body>
{body}
{scripts}</body></html>
"""

_DRAW = """"use strict";
for (const place of document.querySelectorAll(".plotly-graph-div")) {
  const figure = JSON.parse(place.nextElementSibling.textContent);
  Plotly.newPlot(place, figure.data, figure.layout, {displayModeBar: false, responsive: true});
}
"""


@dataclass(frozen=True)
class Panel:
    """A part of a report with one question: its HTML id is panel-<key>; what is missing is left out."""

    key: str
    title: str
    caption: str  # what to look for, plain text
    body: Html


def whole_page(
    title: str,
    *,
    facts: Sequence[str],
    warnings: Sequence[str] = (),
    parts: Html,
    legend: str,
    plots: bool = False,
    style: str = "",
) -> str:
    """The text of a page. plots: whether `parts` has any; style: CSS beside that of all pages."""
    before = paragraphs(facts, "small") + paragraphs(warnings, "warning")
    body = join([element("h1", title), before, parts, element("p", legend, class_="small")])
    return _framed(title, body, style=_STYLE + style, plots=plots)


def report_page(title: str, *, top: Html, parts: Html) -> str:
    """The text of a report: light or dark as the reader prefers, printable, plotly's own script once."""
    body = element("header", element("h1", title), top) + element("main", parts)
    return _framed(title, body, style=_STYLE + _REPORT_STYLE, plots=True)


def _framed(title: str, body: Html, *, style: str, plots: bool) -> str:
    scripts = [get_plotlyjs(), _DRAW] if plots else []
    hashes = [f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    allowed = f"script-src {' '.join(hashes)}; " if scripts else ""
    return _FRAME.format(
        policy=_POLICY.format(scripts=allowed),
        title=escape(title),
        style=style,
        body=body.text,
        scripts="".join(f"<script>{script}</script>\n" for script in scripts),
    )


def section(panel: Panel, suffix: str = "") -> Html:
    """The HTML of a panel; suffix: keeps the ids of several accounts apart."""
    content = (element("h2", panel.title), element("p", panel.caption, class_="caption"), panel.body)
    return element("section", *content, class_="panel", id=f"panel-{panel.key}{suffix}")


def contents(panels: Sequence[Panel], suffix: str = "") -> Html:
    """Links to panels."""
    links = [element("a", panel.title, href=f"#panel-{panel.key}{suffix}") for panel in panels]
    return element("nav", *(part for link in links for part in (link, " ")))


def paragraphs(sentences: Sequence[str], kind: str | None = None) -> Html:
    """A paragraph of the class `kind` for each sentence."""
    return join(element("p", sentence, class_=kind) for sentence in sentences)


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str | Html]], *, kind: str | None = None, marks: bool = False
) -> Html:
    """A table that scrolls by itself where it is too wide.

    marks: cells whose first word is a verdict (kept, missed, better, worse) are coloured.
    """
    first = element("tr", *(element("th", name) for name in heads))
    body = [element("tr", *(_cell(cell, marks) for cell in row)) for row in rows]
    return element("div", element("table", first, *body, class_=kind), class_="wide")


def _cell(content: str | Html, marks: bool) -> Html:
    word = content.partition(" ")[0].strip(",:") if marks and isinstance(content, str) else ""
    return element("td", content, class_=word if word in ("kept", "missed", "better", "worse") else None)


def plot(figure: Any, *, name: str | None = None) -> Html:
    """The place of a plotly figure and its data, which the script of the page draws; its texts are plain text."""
    data = plot_text(json.loads(figure.to_json()))
    place = element("div", id=name, class_="plotly-graph-div", style=f"height: {figure.layout.height}px; width: 100%")
    return place + data_block(data)

"""What a report shows, as plain data, and how it becomes HTML: a page has parts, a part has panels, a panel has blocks.

Names of symbols, fields of alerts and configurations come from files that others may have written. Every text is text:
templates escape every value (autoescape); characters that no page can hold become U+FFFD; texts of figures, in which
Plotly reads tags, become plain text. A page runs its own scripts, which its content security policy names by their
hash, and no other.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tailwise.core.atomic import write_text

Account = TypeVar("Account")
VERDICTS = ("kept", "missed", "better", "worse")  # words that a table may show in colour
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T00:00:00(?:\.0+)?")  # midnight: the day says the same in half the place
# Half of a surrogate pair, control characters.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Plotly writes style attributes, hence inline styles.
_POLICY = (
    "default-src 'none'; {scripts}style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Page:
    """A page. template: its file; plots: whether it draws figures."""

    template: ClassVar[str]
    plots: ClassVar[bool] = True
    title: str


class Block:
    """A piece of a panel; the macro of its name in templates/blocks.html shows it."""

    @property
    def macro(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Paragraphs(Block):
    """A paragraph for each sentence. kind: CSS class."""

    sentences: Sequence[str]
    kind: str | None = None


@dataclass(frozen=True)
class Cell:
    """One cell of a table. note: what stands below the text; kind: CSS class; code: whether the text is code."""

    text: str
    note: str | None = None
    kind: str | None = None
    code: bool = False


@dataclass(frozen=True)
class Table(Block):
    """A table that scrolls by itself where it is too wide.

    marks: whether cells whose first word is a verdict (kept, missed, better, worse) are coloured.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    kind: str | None = None
    marks: bool = False

    @property
    def cells(self) -> list[list[Cell]]:
        return [[one if isinstance(one, Cell) else Cell(one, kind=self._mark(one)) for one in row] for row in self.rows]

    def _mark(self, text: str) -> str | None:
        word = text.partition(" ")[0].strip(",:")
        return word if self.marks and word in VERDICTS else None


@dataclass(frozen=True)
class Months(Block):
    """Returns by month. rows: year, text and CSS colour of each month (empty without bars), return of the year."""

    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, str]], str]]


@dataclass(frozen=True)
class Plot(Block):
    """A plotly figure with a height, which the script of the page draws."""

    figure: Any


@dataclass(frozen=True)
class Plots(Block):
    """Small figures side by side."""

    figures: Sequence[Any]


@dataclass(frozen=True)
class Legend(Block):
    """What colours mean: name -> colour. dotted: names of dotted lines; signs: of what is drawn as points."""

    colours: Mapping[str, str]
    dotted: Sequence[str] = ()
    signs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Alerts(Block):
    """A line for each alert of a training: its rule, and what it says."""

    alerts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Folded(Block):
    """What is read on a click: a text with its line breaks, or a table."""

    summary: str
    text: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class Panel:
    """A part of a report with one question. key: its HTML id is panel-<key>; caption: what to look for."""

    key: str
    title: str
    caption: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Verdict:
    """The verdict before any picture.

    colour   good, bad or empty
    below    what stands under the box
    """

    headline: str
    colour: str
    sentences: Sequence[str]
    below: Sequence[Paragraphs] = ()


@dataclass(frozen=True)
class Tile:
    """One number that is looked at first. notes: what stands below it, a line each."""

    label: str
    value: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Top:
    """What stands before the panels of a page or of an account: the first screen.

    links   to panels: anchor and title
    tiles   numbers that are looked at first; with them the sentences of the verdict are folded
    lead    the panel that is looked at first
    """

    links: Sequence[tuple[str, str]]
    verdict: Verdict | None = None
    tiles: Sequence[Tile] = ()
    lead: Panel | None = None


@dataclass(frozen=True)
class Part:
    """The panels of one account, or of the run. suffix: keeps the ids of several accounts apart."""

    panels: Sequence[Panel]
    suffix: str = ""
    heading: str = ""
    anchor: str = ""
    top: Top | None = None

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(f"panel-{panel.key}{self.suffix}", panel.title) for panel in self.panels]


def with_suffixes(accounts: Sequence[Account], *, first: int = 1) -> list[tuple[str, Account]]:
    """Each account after the end of its HTML ids: nothing for number 1, then -2, -3, ...; first: number to begin at."""
    return [("" if number == 1 else f"-{number}", account) for number, account in enumerate(accounts, start=first)]


@dataclass(frozen=True)
class ReportPage(Page):
    """The report of runs, of a rule, of a comparison or of a walk-forward."""

    template = "report.html"
    top: Top
    parts: Sequence[Part]


def write_page(path: Path, page: Page) -> None:
    """Write the HTML of a page into a file that opens without a network."""
    write_text(path, page_text(page))


def page_text(page: Page) -> str:
    """Return the HTML of a page, with its scripts inside and the policy that admits them.

    Plotly is packed, which makes a page a third as large: small enough to be sent. draw.js unpacks and starts it.
    """
    scripts = [get_plotlyjs(), _draw_script()] if page.plots else []
    hashes = [f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    policy = _POLICY.format(scripts=f"script-src {' '.join(hashes)}; " if scripts else "")
    template = environment().get_template(page.template)
    plots = {"packed": _packed_plotly(), "draw": Markup(_draw_script())} if page.plots else None
    return template.render(page=page, policy=Markup(policy), plots=plots)


@cache
def _packed_plotly() -> str:
    """Plotly's script, compressed, in base64; the same bytes at any time."""
    return b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


@cache
def environment() -> Environment:
    """Build the environment of all templates."""
    built = Environment(
        loader=PackageLoader("tailwise.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    built.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    built.filters["figure_data"] = figure_data
    return built


def printable(value: object) -> str:
    """Replace characters that no page can hold by U+FFFD; the output of macros passes as it is."""
    return value if isinstance(value, Markup) else _UNPRINTABLE.sub("\ufffd", str(value))


def figure_data(figure: Any) -> Any:
    """Return a plotly figure as a JSON value whose texts are plain: Plotly reads <b>, <a href> and entities in them."""
    return _plain(json.loads(figure.to_json()))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        if moment := _MOMENT.fullmatch(value):
            return moment[1]
        return printable(value).replace("&", "&amp;").replace("<", "&lt;")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _draw_script() -> str:
    return (resources.files("tailwise.pages") / "templates" / "draw.js").read_text(encoding="utf-8")

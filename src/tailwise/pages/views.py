"""What a page shows, as plain data: a page has parts, a part has panels, a panel has blocks.

Every text is text: the templates escape it (`environment.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

VERDICTS = ("kept", "missed", "better", "worse")  # words that a table may show in colour


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
class Plot(Block):
    """A plotly figure, which the script of the page draws; its id is plot-<name>."""

    figure: Any
    name: str | None = None

    @property
    def height(self) -> int:
        """Pixels."""
        return int(self.figure.layout.height)


@dataclass(frozen=True)
class Plots(Block):
    """Small figures side by side."""

    plots: Sequence[Plot]


@dataclass(frozen=True)
class Legend(Block):
    """What colours mean: name -> colour. dotted: names of dotted lines; signs: of what is drawn as points."""

    colours: Mapping[str, str]
    dotted: Sequence[str] = ()
    signs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Month:
    """Return of one month; both are empty where there are no bars."""

    text: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Year:
    """Twelve months, and the return of the year."""

    year: str
    months: Sequence[Month]
    total: str


@dataclass(frozen=True)
class Months(Block):
    """Returns by month, a row per year."""

    heads: Sequence[str]
    rows: Sequence[Year]


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
class Link:
    """A link to a place on the page."""

    anchor: str
    title: str


@dataclass(frozen=True)
class Against:
    """Differences from each baseline. lines: words, name and difference of each."""

    title: str
    lines: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Verdict:
    """The verdict before any picture. colour: good, bad or empty; below: what stands under its box."""

    headline: str
    colour: str
    sentences: Sequence[str]
    against: Against | None = None
    below: Sequence[Paragraphs] = ()


@dataclass(frozen=True)
class Card:
    """A number that is looked at first, with what to hold it against."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class Overview:
    """The verdict on one of several accounts, with a link to it."""

    anchor: str
    symbol: str
    sentence: str


@dataclass(frozen=True)
class Top:
    """What stands before the panels of a page or of an account."""

    links: Sequence[Link]
    verdict: Verdict | None = None
    cards: Sequence[Card] = ()
    overview: Sequence[Overview] = ()


@dataclass(frozen=True)
class Part:
    """The panels of one account, or of the run. number: keeps the ids of several accounts apart."""

    panels: Sequence[Panel]
    number: int = 0
    heading: str = ""
    anchor: str = ""
    top: Top | None = None

    @property
    def suffix(self) -> str:
        return suffix_of(self.number)

    @property
    def links(self) -> list[Link]:
        return [Link(f"panel-{panel.key}{self.suffix}", panel.title) for panel in self.panels]


def suffix_of(number: int) -> str:
    """The end of the ids of the account with that number, from 0 on."""
    return "" if number == 0 else f"-{number + 1}"


@dataclass(frozen=True)
class Page:
    """A page. template: its file; plots: whether it draws figures."""

    template: ClassVar[str]
    plots: ClassVar[bool] = True
    title: str


@dataclass(frozen=True)
class ReportPage(Page):
    """The report of runs, of a rule, of a comparison or of a walk-forward."""

    template = "report.html"
    top: Top
    parts: Sequence[Part]


@dataclass(frozen=True)
class FrontierPage(Page):
    """A frontier. facts: with their warnings; tables: by heading; legend: what the numbers mean."""

    template = "frontier.html"
    facts: Sequence[Paragraphs]
    plot: Plot
    tables: Mapping[str, Table]
    legend: str


@dataclass(frozen=True)
class AuditRow:
    """A check. points: its course as the points of an SVG line; empty without two numbers."""

    name: str
    verdict: str
    evidence: str
    meaning: str
    advice: str
    points: str


@dataclass(frozen=True)
class AuditPage(Page):
    """An audit. width, height: of the small lines, pixels."""

    template = "audit.html"
    plots = False
    facts: Sequence[str]
    rows: Sequence[AuditRow]
    width: int
    height: int

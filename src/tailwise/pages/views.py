"""What a report shows, as plain data: a page has parts, a part has panels, a panel has blocks.

Every text is text: the templates escape it (`environment.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

Account = TypeVar("Account")
VERDICTS = ("kept", "missed", "better", "worse")  # words that a table may show in colour


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

    colour          good, bad or empty
    against         a line for each baseline: words, its name, the difference
    against_title   what the lines say
    below           what stands under the box
    """

    headline: str
    colour: str
    sentences: Sequence[str]
    against: Sequence[tuple[str, str, str]] = ()
    against_title: str = ""
    below: Sequence[Paragraphs] = ()


@dataclass(frozen=True)
class Top:
    """What stands before the panels of a page or of an account.

    links      to panels: anchor and title
    cards      numbers that are looked at first: name, value, and what to hold it against
    overview   the verdicts on several accounts: anchor, symbol and sentence
    """

    links: Sequence[tuple[str, str]]
    verdict: Verdict | None = None
    cards: Sequence[tuple[str, str, str]] = ()
    overview: Sequence[tuple[str, str, str]] = ()


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


def with_suffixes(accounts: Sequence[Account]) -> list[tuple[str, Account]]:
    """Each account after the end of its HTML ids: nothing for the first, then -2, -3, ..."""
    return [("" if number == 1 else f"-{number}", account) for number, account in enumerate(accounts, start=1)]


@dataclass(frozen=True)
class ReportPage(Page):
    """The report of runs, of a rule, of a comparison or of a walk-forward."""

    template = "report.html"
    top: Top
    parts: Sequence[Part]

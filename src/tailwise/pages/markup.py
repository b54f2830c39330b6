"""HTML that cannot be broken out of: text and HTML are two types, and text becomes HTML only through `escape`.

Names of symbols, fields of alerts and configurations come from files that others may have written. A page is put
together from `element`, which escapes every string that it is given; only `Html`, which it has built before, goes in
as it is. Nothing else in the package writes a tag, which a test holds.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NAME = re.compile(r"[a-z][a-z0-9]*")
_ATTRIBUTE = re.compile(r"(?!on)[a-zA-Z][a-zA-Z-]*")  # no onclick, onload, ...


@dataclass(frozen=True)
class Html:
    """HTML in which all text is escaped. Only this module and the frame of a page create it from a string."""

    text: str

    def __add__(self, other: Html) -> Html:
        if not isinstance(other, Html):
            return NotImplemented
        return Html(self.text + other.text)


NOTHING = Html("")


def escape(text: object) -> str:
    """The text as HTML, for the content of an element or an attribute in quotes.

    Characters that no page can hold (half of a surrogate pair, control characters) become U+FFFD.
    """
    return html.escape(_UNPRINTABLE.sub("\ufffd", str(text)), quote=True)


def element(name: str, *content: str | Html, **attributes: str | None) -> Html:
    """<name attributes>content</name>; strings are text.

    `class_` becomes class, `aria_label` becomes aria-label, an attribute that is None is left out. A link leads to a
    place on the page: no other address is accepted.
    """
    if not _NAME.fullmatch(name) or name == "script":
        raise ValueError(
            f"element '{name}': a name of an element is needed, and scripts belong to the frame of a page."
        )
    opening = name
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if not _ATTRIBUTE.fullmatch(attribute) or (attribute in ("href", "src") and not str(value).startswith("#")):
            raise ValueError(f"element '{name}': attribute {attribute}={value!r} could run a script or load a file.")
        if value is not None:
            opening += f' {attribute}="{escape(value)}"'
    return Html(f"<{opening}>") + join(content) + Html(f"</{name}>")


def join(parts: Iterable[str | Html]) -> Html:
    """One after the other; strings are text."""
    return Html("".join(part.text if isinstance(part, Html) else escape(part) for part in parts))


def data_block(value: Any) -> Html:
    """A JSON value for the script of the page; a block of data is never executed."""
    # Inside a script element nothing is unescaped, and "</script" or "<!--" would end or prolong it.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json">{text}</script>')


def plot_text(value: Any) -> Any:
    """A figure (a JSON value) with every string as plain text: Plotly reads <b>, <a href> and entities in its texts."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value).replace("&", "&amp;").replace("<", "&lt;")
    if isinstance(value, list):
        return [plot_text(one) for one in value]
    if isinstance(value, dict):
        return {key: plot_text(one) for key, one in value.items()}
    return value

"""From view data to HTML: the one place at which text becomes part of a page.

Names of symbols, fields of alerts and configurations come from files that others may have written. Templates escape
every value (autoescape); characters that no page can hold become U+FFFD; texts of figures, in which Plotly reads tags,
become plain text. A page runs its own scripts, which its content security policy names by their hash, and no other.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tailwise.core.atomic import write_text
from tailwise.pages.views import Page

# Half of a surrogate pair, control characters.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Plotly writes style attributes, hence inline styles.
_POLICY = (
    "default-src 'none'; {scripts}style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def write_page(path: Path, page: Page) -> None:
    """Write the HTML of a page into a file that opens without a network."""
    write_text(path, page_text(page))


def page_text(page: Page) -> str:
    """Return the HTML of a page, with its scripts inside and the policy that admits them."""
    scripts = [get_plotlyjs(), _draw_script()] if page.plots else []
    hashes = [f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    policy = _POLICY.format(scripts=f"script-src {' '.join(hashes)}; " if scripts else "")
    template = environment().get_template(page.template)
    return template.render(page=page, policy=Markup(policy), scripts=[Markup(script) for script in scripts])


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
        return printable(value).replace("&", "&amp;").replace("<", "&lt;")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _draw_script() -> str:
    return (resources.files("tailwise.pages") / "templates" / "draw.js").read_text(encoding="utf-8")

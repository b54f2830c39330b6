"""Texts that try to become part of a page, where they are put, and what a browser makes of the page."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.market.path import AccountPath
from tests.pages.browser import wait_until_drawn

HACKED = "hacked.example"


def attack(number: int) -> str:
    """A text that runs a script, loads a file or leaves an element in any place that takes it for HTML.

    The first ten characters alone leave an element with the attribute `hacked`, and the first eighty a link: some
    places cut their text.
    """
    return (
        f'<i hacked>{number}"\'`</script><a href="https://{HACKED}/{number}">y</a></style></title></textarea></pre>-->'
        f"<script>hacked({number})</script>"
        f'<img src="x" onerror="hacked({number})" hacked><svg onload="hacked({number})"></svg>'
        f'<a hacked href="javascript:hacked({number})">x</a>'
        f'<base href="https://{HACKED}/"><iframe srcdoc="<script>parent.hacked({number})</script>"></iframe>'
        f"' onmouseover='hacked({number})' \" onfocus=\"hacked({number})\" autofocus &lt;b hacked&gt;{number}."
    )


@dataclass
class Attacks:
    """Puts an attack of its own into every text of a structure, and remembers which field each stands in.

    keep: texts that are words of the program (names that it looks up) and stay as they are. A key of a mapping becomes
    the same attack wherever it occurs.
    """

    keep: Collection[str] = ()
    fields: dict[int, str] = field(default_factory=dict)  # number of the attack -> field
    _keys: dict[str, str] = field(default_factory=dict)

    def text(self, where: str) -> str:
        """A new attack for the field `where`."""
        number = 1001 + len(self.fields)
        self.fields[number] = where
        return attack(number)

    def key(self, name: str, where: str) -> str:
        if name in self.keep:
            return name
        if name not in self._keys:
            self._keys[name] = self.text(f"{where} key '{name}'")
        return self._keys[name]

    def into(self, value: Any, where: str) -> Any:
        """`value` with every text in it replaced."""
        if isinstance(value, str):
            return value if value in self.keep else self.text(where)
        if isinstance(value, AccountPath):
            name = self.key(value.symbol, f"{where}.symbol")
            return replace(value, symbol=name, label=self.into(value.label, f"{where}.label"), assets=(name,))
        if is_dataclass(value) and not isinstance(value, type):
            parts = {one.name: self.into(getattr(value, one.name), f"{where}.{one.name}") for one in fields(value)}
            return replace(value, **parts)
        if isinstance(value, Mapping):
            return {self._key_of(key, where): self.into(one, f"{where}.{key}") for key, one in value.items()}
        if isinstance(value, list | tuple) and not isinstance(value, np.ndarray):
            return type(value)(self.into(one, f"{where}[{k}]") for k, one in enumerate(value))
        return value

    def _key_of(self, key: Any, where: str) -> Any:
        return self.key(key, where) if isinstance(key, str) else key


@dataclass(frozen=True)
class Outcome:
    """What a browser made of a page."""

    ran: list[int]  # attacks whose script was executed
    elements: list[str]  # elements that attacks left in the document
    requests: list[str]
    errors: list[str]  # of the console
    texts: frozenset[int]  # attacks that a reader sees as they were written

    @property
    def harmless(self) -> bool:
        return not self.ran and not self.elements and not self.requests


PREPARE = "window.ran = []; window.hacked = number => { window.ran.push(number); };"
LOOK = """() => {
  // The italic text is what Plotly makes of <i>.
  const bad = "[hacked], iframe, base, [onerror], [onload], [onmouseover], [onfocus], [autofocus], object, embed, "
    + "svg text [style*='italic']";
  const texts = [document.title], elements = new Set();
  const read = (root) => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      if (!["SCRIPT", "STYLE"].includes(walker.currentNode.parentNode.nodeName)) {
        texts.push(walker.currentNode.data);
      }
    }
    for (const titled of root.querySelectorAll("[title], [aria-label]")) {
      texts.push(titled.getAttribute("title") || "", titled.getAttribute("aria-label") || "");
    }
    for (const text of root.querySelectorAll("svg text")) { texts.push(text.textContent); }
    const links = [...root.querySelectorAll("a, image, use")].filter(one =>
      [...one.attributes].some(a => a.name.includes("href") && !a.value.startsWith("#")));
    for (const one of [...root.querySelectorAll(bad), ...links]) { elements.add(one.outerHTML.slice(0, 200)); }
  };
  read(document.documentElement);
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    plot._fullData.forEach((trace, curveNumber) => {
      // What is under the pointer is named beside it.
      Plotly.Fx.hover(plot, [{curveNumber, pointNumber: 0}], (trace.xaxis || "x") + (trace.yaxis || "y"));
      read(plot);
    });
  }
  return {ran: window.ran, texts: texts, elements: [...elements]};
}"""


def judge(page: Any, numbers: Collection[int], errors: list[str], requests: list[str]) -> Outcome:
    """The outcome of an open page, into which PREPARE was put before it loaded."""
    seen = page.evaluate(LOOK)
    texts = frozenset(n for n in numbers if any(f"<i hacked>{n}\"'`</script>" in text for text in seen["texts"]))
    return Outcome(seen["ran"], seen["elements"], requests, errors, texts)


def outcome(running: Any, file: Path, numbers: Collection[int], *, policy: bool = True) -> Outcome:
    """Open a file in the browser; policy: with its content security policy, else with that taken out."""
    if not policy:
        text = file.read_text(encoding="utf-8")
        bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        assert len(bare) < len(text)
        file = file.with_suffix(".bare.html")
        file.write_text(bare, encoding="utf-8")
    page = running.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url) if request.url != file.as_uri() else None)
    try:
        page.add_init_script(PREPARE)
        page.goto(file.resolve().as_uri())
        wait_until_drawn(page)
        return judge(page, numbers, errors, [url for url in requests if not url.startswith(("data:", "blob:"))])
    finally:
        page.close()

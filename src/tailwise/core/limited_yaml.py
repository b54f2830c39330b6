"""YAML from a file or a command line: parsed within limits, or refused with a sentence.

A few lines of YAML can stand for billions of values: an alias repeats what its anchor names, a merge (`<<: *a`) copies
it, and both nest. The limit is therefore on the document as it would be *written out*: each alias counts as much, and
is as deep, as what it stands for. It is checked while the document is composed, before anything is copied.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.reader import ReaderError

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.limited_json import LARGEST_INT, MAX_DEPTH, SMALLEST_INT, limited_text

MAX_BYTES = 2**20
MAX_NODES = 20_000  # keys, values, lists and mappings of the document written out
_LONGEST_NUMBER = 100  # characters: YAML 1.1 reads 1:59:59:... to base 60, which takes quadratic time
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class LimitedLoader(yaml.SafeLoader):
    """Safe YAML without explicit tags, whose size and depth are limited; set the limits before loading."""

    max_nodes = MAX_NODES
    max_depth = MAX_DEPTH

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0  # of the document written out, so far
        self._heights: list[int] = []  # of the nodes that are being composed, outermost first
        self._anchored: dict[str | None, tuple[int, int]] = {}  # complete ones: nodes and height

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise _refused(event, "explicit tags (!...) are not used here")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self._anchored:
                raise _refused(event, f"*{event.anchor} stands for something that contains it")
            nodes, height = self._anchored.get(event.anchor, (0, 0))
        else:
            nodes, height = 1, int(isinstance(event, yaml.CollectionStartEvent))
        first = self._nodes
        self._nodes += nodes
        if self._nodes > self.max_nodes:
            raise _refused(event, f"written out, this has more than {self.max_nodes:,} values")
        if len(self._heights) + height > self.max_depth:
            raise _refused(event, f"lists and mappings are nested more than {self.max_depth} deep")
        self._heights.append(height)
        node = super().compose_node(parent, index)
        height = self._heights.pop()
        if self._heights:
            self._heights[-1] = max(self._heights[-1], 1 + height)
        if isinstance(event, yaml.NodeEvent) and not isinstance(event, yaml.AliasEvent) and event.anchor is not None:
            self._anchored[event.anchor] = self._nodes - first, height
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
            raise _refused(node, f"a number has {len(node.value):,} characters; at most {_LONGEST_NUMBER} are read")
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as error:  # the 31st of February; 0x_
            raise _refused(node, f"{node.value!r} cannot be read ({error})") from error
        if isinstance(value, int) and not SMALLEST_INT <= value <= LARGEST_INT:
            raise _refused(node, f"the whole number {node.value} does not fit into 64 bits")
        if isinstance(value, str) and not _is_unicode(value):
            raise _refused(node, "a text holds half of a surrogate pair, which is no character")
        return value


def parse_yaml(
    data: str | bytes, *, what: str, max_bytes: int = MAX_BYTES, loader: type[LimitedLoader] = LimitedLoader
) -> Any:
    """The value that the YAML text `data` (UTF-8 where it is bytes) holds; None for an empty one.

    `what` names the source and begins the sentence of the error. Refused with a ConfigError: more than `max_bytes`
    bytes, what is not YAML, and what exceeds the limits of `loader`.
    """
    try:
        text = limited_text(data, what=what, max_bytes=max_bytes)
    except DataError as error:
        raise ConfigError(str(error)) from error
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        # Some problems begin with "but found" and go on from their context.
        context = f"{error.context} " if str(error.problem).startswith("but ") else ""
        raise ConfigError(f"{what}{place}: this is not valid YAML: {context}{error.problem}.") from error
    except ReaderError as error:
        place = f"character {error.position + 1}"
        raise ConfigError(f"{what}, {place}: this is not valid YAML: U+{error.character:04X} is no text.") from error


def _refused(place: Any, problem: str) -> yaml.MarkedYAMLError:
    """`place`: an event or a node of the document."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

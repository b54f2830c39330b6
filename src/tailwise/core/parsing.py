"""Parse JSON and YAML strictly and within limits; anything else is refused with a sentence.

JSON: Python's reader accepts more than JSON: NaN and Infinity, whole numbers of any length, numbers that overflow to
infinity, keys that occur twice, and half of a surrogate pair (which no UTF-8 file can hold). On deep nesting it ends in
a RecursionError. `parse_json` refuses all of these; `as_stored` then checks types and keys.

YAML: a few lines can stand for billions of values: an alias repeats what its anchor names, a merge (`<<: *a`) copies
it, and both nest. `parse_yaml` therefore limits the document as it would be *written out*: each alias counts as much,
and is as deep, as what it stands for. The check runs while the document is composed, before anything is copied.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from functools import partial
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml.reader import ReaderError

from tailwise.core.config_keys import sentences, shortened
from tailwise.core.errors import ConfigError, DataError

MAX_DEPTH = 32  # lists and mappings within each other
SMALLEST_INT, LARGEST_INT = -(2**63), 2**64 - 1  # what fits into 64 bits, with or without a sign

# Half of a surrogate pair can only come from an escape; whole pairs match as well and are looked at more closely.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _Refused(ValueError):
    """Raised by the hooks of `json.loads`; its text completes "this is not valid JSON: ..."."""


def parse_json(
    data: str | bytes, *, what: str, max_bytes: int, max_depth: int = MAX_DEPTH, largest_int: int = LARGEST_INT
) -> Any:
    """Parse the JSON text `data` (UTF-8 if bytes).

    `what` names the source (a file, a line of it) and begins the sentence of the error. Refused with a DataError: more
    than `max_bytes` bytes, more than `max_depth` lists and mappings within each other, whole numbers beyond
    `largest_int`, and everything that the docstring of this module lists.
    """
    text = limited_text(data, what=what, max_bytes=max_bytes)
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=partial(_small_int, largest=largest_int),
            object_pairs_hook=_mapping,
        )
    except RecursionError as error:
        raise _too_deep(what, max_depth) from error
    except json.JSONDecodeError as error:
        place = f" (line {error.lineno}, column {error.colno})"
        raise DataError(f"{what}: this is not valid JSON: {error.msg}{place}; write or copy it again.") from error
    except _Refused as error:
        raise DataError(f"{what}: this is not valid JSON: {error}.") from error
    if text.count("[") + text.count("{") > max_depth and _depth(value) > max_depth:
        raise _too_deep(what, max_depth)
    if _SURROGATE.search(text) and not _is_unicode(value):
        raise DataError(
            f"{what}: this is not valid JSON: a text holds half of a surrogate pair, which is no character."
        )
    return value


def limited_text(data: str | bytes, *, what: str, max_bytes: int) -> str:
    """Decode `data`, at most `max_bytes` bytes of UTF-8; DataError for anything else."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        size = len(text.encode("utf-8"))
    except UnicodeError as error:
        raise DataError(f"{what}: this is not UTF-8 text ({error}); save it as UTF-8.") from error
    if size > max_bytes:
        raise DataError(f"{what}: this has more than {max_bytes:,} bytes, which is the most that is read.")
    return text


def _refuse_constant(name: str) -> Any:
    raise _Refused(f"{name} is no JSON number; a value that is not defined is null")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"the number {_shortened(text)} is too large")
    return value


def _small_int(text: str, largest: int) -> int:
    smallest = min(SMALLEST_INT, -largest - 1) if largest > LARGEST_INT else SMALLEST_INT
    if len(text) > 2 + largest.bit_length() // 3 or not smallest <= (value := int(text)) <= largest:
        bits = max(64, largest.bit_length())
        raise _Refused(f"the whole number {_shortened(text)} does not fit into {bits} bits")
    return value


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _Refused(f"key {_shortened(key)!r} occurs more than once")
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}... ({len(text):,} characters)"


def _too_deep(what: str, max_depth: int) -> DataError:
    return DataError(f"{what}: lists and mappings are nested more than {max_depth} deep, which nothing here writes.")


def _depth(value: Any) -> int:
    """Depth of nesting of lists and mappings, level by level: recursion could overflow the stack."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [below for one in level for below in (one.values() if isinstance(one, dict) else one)]
    return depth


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


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
            raise _yaml_error(event, "explicit tags (!...) are not used here")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self._anchored:
                raise _yaml_error(event, f"*{event.anchor} stands for something that contains it")
            nodes, height = self._anchored.get(event.anchor, (0, 0))
        else:
            nodes, height = 1, int(isinstance(event, yaml.CollectionStartEvent))
        first = self._nodes
        self._nodes += nodes
        if self._nodes > self.max_nodes:
            raise _yaml_error(event, f"written out, this has more than {self.max_nodes:,} values")
        if len(self._heights) + height > self.max_depth:
            raise _yaml_error(event, f"lists and mappings are nested more than {self.max_depth} deep")
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
            raise _yaml_error(node, f"a number has {len(node.value):,} characters; at most {_LONGEST_NUMBER} are read")
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as error:  # the 31st of February; 0x_
            raise _yaml_error(node, f"{node.value!r} cannot be read ({error})") from error
        if isinstance(value, int) and not SMALLEST_INT <= value <= LARGEST_INT:
            raise _yaml_error(node, f"the whole number {node.value} does not fit into 64 bits")
        if isinstance(value, str) and not _is_unicode(value):
            raise _yaml_error(node, "a text holds half of a surrogate pair, which is no character")
        return value


def parse_yaml(
    data: str | bytes, *, what: str, max_bytes: int = MAX_BYTES, loader: type[LimitedLoader] = LimitedLoader
) -> Any:
    """Parse the YAML text `data` (UTF-8 if bytes); None for an empty one.

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


def _yaml_error(place: Any, problem: str) -> yaml.MarkedYAMLError:
    """The error at `place`, an event or a node of the document."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


class Stored(BaseModel):
    """Base of records read back from our own files: strict types, finite numbers, further keys kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False, protected_namespaces=())


StoredType = TypeVar("StoredType", bound=BaseModel)


def as_stored(model: type[StoredType], data: Any, *, source: str) -> StoredType:
    """Validate the JSON value `data` as `model`; DataError with one sentence per line for what does not fit.

    A field `format` is checked first: another format has other fields.
    """
    if not isinstance(data, dict):
        raise DataError(f"{source}: a mapping of keys to values is needed, found {shortened(data)}.")
    field = model.model_fields.get("format")
    if field is not None and data.get("format") not in get_args(field.annotation):
        readable = " and ".join(str(number) for number in get_args(field.annotation))
        raise DataError(f"{source} has format {shortened(data.get('format'))}; this version reads format {readable}.")
    try:
        # As JSON, in which a list may become a tuple and a mapping a record without anything else being converted.
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise DataError("\n".join(f"{source}: {sentence}" for sentence in sentences(model, error))) from error

"""JSON from a file, a feed or a request: parsed strictly and within limits, or refused with a sentence.

Python's own reader takes more than JSON: NaN and Infinity, whole numbers of any length, numbers that overflow to
infinity, keys that occur twice, and half of a surrogate pair (which no UTF-8 file can hold). It ends in a
RecursionError on deep nesting. Each of these breaks somebody further down, so none gets past here.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from tailwise.core.errors import DataError

MAX_DEPTH = 32  # lists and mappings within each other
SMALLEST_INT, LARGEST_INT = -(2**63), 2**64 - 1  # what fits into 64 bits, with or without a sign
_LONGEST_INT = 20  # characters of either

# Half of a surrogate pair can only come from an escape; whole pairs match as well and are looked at more closely.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _Refused(ValueError):
    """Leaves the hooks of `json.loads`; the text completes "this is not valid JSON: ..."."""


def parse_json(data: str | bytes, *, what: str, max_bytes: int, max_depth: int = MAX_DEPTH) -> Any:
    """The value that the JSON text `data` (UTF-8 where it is bytes) holds.

    `what` names the source (a file, a line of it) and begins the sentence of the error. Refused with a DataError: more
    than `max_bytes` bytes, more than `max_depth` lists and mappings within each other, and everything that the head of
    this file lists.
    """
    text = limited_text(data, what=what, max_bytes=max_bytes)
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_small_int,
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
    """`data` as text of at most `max_bytes` bytes of UTF-8; DataError for anything else."""
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


def _small_int(text: str) -> int:
    if len(text) > _LONGEST_INT or not SMALLEST_INT <= (value := int(text)) <= LARGEST_INT:
        raise _Refused(f"the whole number {_shortened(text)} does not fit into 64 bits")
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
    """How many lists and mappings lie within each other; level by level, because recursion is what must not happen."""
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

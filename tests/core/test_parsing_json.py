"""JSON that Python's own reader takes and that breaks somebody later is refused with a sentence."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any

import pytest

from tailwise.core.errors import DataError
from tailwise.core.parsing import parse_json

MEGABYTE = 2**20


def parsed(data: str | bytes, **limits: int) -> Any:
    return parse_json(data, what="run/x.json", **{"max_bytes": MEGABYTE, **limits})


def refusal(data: str | bytes, **limits: int) -> str:
    with pytest.raises(DataError) as caught:
        parsed(data, **limits)
    return str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**64 - 1,
        -(2**63),
        0.1,
        -1e300,
        5e-324,
        "",
        "é 😀 \u2028 </script>",
        [],
        {},
        {"a": [{"b": 1}]},
    ],
)
def test_json_reads_back_as_it_was_written(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert parsed(text) == value == parsed(text.encode())
        assert type(parsed(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": NaN}', "NaN is no JSON number; a value that is not defined is null"),
        ('{"a": Infinity}', "Infinity is no JSON number"),
        ('{"a": -Infinity}', "-Infinity is no JSON number"),
        ('{"a": 1e400}', "the number 1e400 is too large"),
        ('{"a": -1e400}', "the number -1e400 is too large"),
        (f'{{"a": {2**64}}}', "the whole number 18446744073709551616 does not fit into 64 bits"),
        (f'{{"a": {-(2**63) - 1}}}', "the whole number -9223372036854775809 does not fit into 64 bits"),
        (f'{{"a": 1{"0" * 5000}}}', "0... (5,001 characters) does not fit into 64 bits"),
        ('{"a": 1, "b": 2, "a": 3}', "key 'a' occurs more than once"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"\\uDFFF": 1}', "half of a surrogate pair"),
        ('{"a": 1', "Expecting ',' delimiter (line 1, column 8)"),
        ("", "Expecting value (line 1, column 1)"),
    ],
)
def test_what_is_not_json_is_a_sentence_that_names_the_source(text: str, sentence: str) -> None:
    for data in (text, text.encode()):
        message = refusal(data)
        assert message.startswith("run/x.json: this is not valid JSON: ")
        assert sentence in message
        assert "\n" not in message


def test_python_would_have_taken_them() -> None:
    """The wrong implementation: `json.loads` alone. Its values break arithmetic, JSON for browsers, and UTF-8 files."""
    assert math.isnan(json.loads("NaN"))
    assert json.loads("1e400") == math.inf
    assert json.loads('{"a": 1, "a": 3}') == {"a": 3}
    with pytest.raises(UnicodeEncodeError):
        json.loads('"\\ud800"').encode()


def test_whole_surrogate_pairs_are_characters() -> None:
    assert parsed('"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize("data", [b"\xff\xfe{\x00}\x00", b'"\xed\xa0\x80"', '"\ud800"', "{}".encode("utf-32")])
def test_other_encodings_are_refused(data: str | bytes) -> None:
    assert "run/x.json: this is not " in refusal(data)


@pytest.mark.parametrize("shape", ["[" * 9 + "]" * 9, '{"a":' * 9 + "1" + "}" * 9, '[{"a":' * 5 + "1" + "}]" * 5])
def test_depth_is_counted_over_lists_and_mappings(shape: str) -> None:
    assert "nested more than 8 deep" in refusal(shape, max_depth=8)
    assert parsed(shape, max_depth=10) == json.loads(shape)


def test_many_shallow_lists_are_not_deep() -> None:
    assert parsed(json.dumps([[]] * 1000), max_depth=2) == [[]] * 1000


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("closed", [False, True])
def test_nesting_without_end_is_a_sentence(opening: str, closed: bool) -> None:
    count = 100_000
    closing = opening.translate({ord("["): "]", ord("{"): "}", ord('"'): "", ord("a"): "", ord(":"): ""})[::-1]
    assert "nested more than 32 deep" in refusal(opening * count + ("1" + closing * count if closed else ""))


def test_size_is_counted_in_bytes() -> None:
    assert parsed('"éé"', max_bytes=6) == "éé"
    for data in ('"ééé"', '"ééé"'.encode()):
        assert refusal(data, max_bytes=7) == ("run/x.json: this has more than 7 bytes, which is the most that is read.")


@pytest.mark.parametrize(
    "text",
    [
        "9" * (MEGABYTE - 1),
        "0." + "9" * (MEGABYTE - 2),
        "1e" + "9" * (MEGABYTE - 2),
        "[" + "1," * (MEGABYTE // 2 - 2) + "1]",
        "[" + "[]," * (MEGABYTE // 3 - 2) + "1]",
        "{" + ",".join(f'"{k}":0' for k in range(80_000)) + ',"79999":1}',
        '"' + "\\ud800" * 170_000 + '"',
        "[" * (MEGABYTE - 1),
    ],
    ids=["int", "float", "exponent", "ones", "lists", "keys", "surrogates", "deep"],
)
def test_a_hostile_megabyte_takes_no_longer_than_an_honest_one(text: str) -> None:
    """Rejects anything quadratic: a megabyte would take minutes."""
    began = time.process_time()
    with contextlib.suppress(DataError):
        parsed(text)
    assert time.process_time() - began < 3.0

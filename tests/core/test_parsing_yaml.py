"""YAML whose aliases, merges, depth or numbers would stall or break its reader is refused with a sentence."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailwise.core.config import apply_overrides, load_yaml
from tailwise.core.errors import ConfigError
from tailwise.core.parsing import MAX_BYTES, MAX_NODES, LimitedLoader, parse_yaml


def refusal(text: str | bytes, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, what="config.yaml", **options)
    return str(caught.value)


def merge_bomb(levels: int, width: int = 9) -> str:
    """width**levels pairs by merging: some 60 characters for each factor of nine."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * width)}]}}" for k in range(1, levels + 1)]
    return "\n".join(lines)


def laughs(levels: int, width: int = 9) -> str:
    """The billion laughs: lists of aliases of lists of aliases."""
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * width)}]" for k in range(1, levels + 1)]
    return "\n".join(lines)


def test_anchors_and_merges_of_a_usual_size_are_read() -> None:
    text = "base: &b {lr: 3, clip: 0.2}\nrun: {<<: *b, lr: 4}\nagain: *b\nboth: {<<: [*b, {seed: 1}]}\n"
    expected = {
        "base": {"lr": 3, "clip": 0.2},
        "run": {"lr": 4, "clip": 0.2},
        "again": {"lr": 3, "clip": 0.2},
        "both": {"lr": 3, "clip": 0.2, "seed": 1},
    }
    assert parse_yaml(text, what="config.yaml") == expected == yaml.safe_load(text)
    assert parse_yaml(text.encode(), what="config.yaml") == expected
    assert parse_yaml("# nothing\n", what="config.yaml") is None


def test_the_merge_bomb_is_refused_before_anything_is_copied() -> None:
    """The wrong implementation, PyYAML's safe loader, copies 9**levels pairs: 4 levels show how it grows."""
    node = yaml.compose(merge_bomb(4), Loader=yaml.SafeLoader)
    loader = yaml.SafeLoader("")
    for _, mapping in node.value:
        loader.flatten_mapping(mapping)
    assert len(node.value[-1][1].value) == 9**4
    began = time.process_time()
    assert f"written out, this has more than {MAX_NODES:,} values" in refusal(merge_bomb(40))
    assert time.process_time() - began < 1.0


def test_a_billion_laughs_are_refused_although_loading_them_alone_is_cheap() -> None:
    """They cost nothing until somebody copies, prints or writes what was read, and everybody does."""
    assert f"written out, this has more than {MAX_NODES:,} values" in refusal(laughs(9))


def test_the_size_of_a_document_is_the_number_of_its_nodes_written_out() -> None:
    class Small(LimitedLoader):
        max_nodes = 12

    # a mapping, four keys, [1, 2] three times (3 nodes each) would be 14; without the last alias 1 + 3 + 6 = 10.
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc: 3", what="c", loader=Small) == {"a": [1, 2], "b": [1, 2], "c": 3}
    assert "line 4, column 4" in refusal("a: &a [1, 2]\nb: *a\nc: 3\nd: *a", loader=Small)


def test_depth_counts_through_aliases() -> None:
    class Shallow(LimitedLoader):
        max_depth = 4

    assert parse_yaml("a: &a [[1]]\nb: [*a]", what="c", loader=Shallow) == {"a": [[1]], "b": [[[1]]]}
    for text in ("a: [[[[1]]]]", "a: &a [[1]]\nb: [[*a]]", "a: &a [[1]]\nb: &b [*a]\nc: [*b]"):
        assert "nested more than 4 deep" in refusal(text, loader=Shallow)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "? " * 100_000])
def test_nesting_without_end_is_a_sentence(text: str) -> None:
    """PyYAML alone ends in a RecursionError."""
    began = time.process_time()
    assert "nested more than 32 deep" in refusal(text)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: &a [*a]", "line 1, column 8: this is not valid YAML: *a stands for something that contains it"),
        ("a: &a {<<: *a}", "*a stands for something that contains it"),
        ("a: *b", "found undefined alias"),
        ("a: 2024-02-31", "'2024-02-31' cannot be read (day is out of range for month)"),
        ("a: 2024-01-01 00:00:00+99:99", "cannot be read"),
        ("a: 0x_", "'0x_' cannot be read"),
        ("a: " + "9" * 60, "does not fit into 64 bits"),
        ("a: 0x" + "f" * 17, "does not fit into 64 bits"),
        ("a: -9223372036854775809", "the whole number -9223372036854775809 does not fit into 64 bits"),
        ("a: 9223372036854775807:59", "does not fit into 64 bits"),
        ("a: " + "9" * 101, "a number has 101 characters; at most 100 are read"),
        ("a: 1" + ":59" * 200 + ".5", "a number has 603 characters"),
        ('a: "\\ud800"', "half of a surrogate pair"),
        ("a: !!int x", "explicit tags (!...) are not used here"),
        ("a: !!timestamp x", "explicit tags"),
        ("a: !!set {b, c}", "explicit tags"),
        ("a: b\0c", "config.yaml, character 5: this is not valid YAML: U+0000 is no text"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        (b"a: \xff", "config.yaml: this is not UTF-8 text"),
        ("a: " + "x" * MAX_BYTES, f"config.yaml: this has more than {MAX_BYTES:,} bytes"),
    ],
)
def test_what_breaks_the_reader_is_a_sentence(text: str | bytes, sentence: str) -> None:
    message = refusal(text)
    assert sentence in message
    assert message.startswith("config.yaml")
    assert "\n" not in message
    assert len(message) < 300


QUARTER = 2**18  # bytes; what is quadratic in PyYAML or here takes minutes at this size


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "1:1" * (QUARTER // 3),
        "a: 1" + ":59" * (QUARTER // 3),
        "a: " + "1" * QUARTER,
        "a: 1." + "1" * QUARTER,
        "a: " + "x" * QUARTER,
        "a: " + ":" * QUARTER,
        "a: " + "? " * (QUARTER // 2),
        "a: '" + "''" * (QUARTER // 2) + "'",
        'a: "' + "\\n" * (QUARTER // 2) + '"',
        "a: |\n" + "  x\n" * (QUARTER // 4),
        "# " + "x" * QUARTER,
        "#\n" * (QUARTER // 2),
        "\n" * QUARTER,
        "%\n" * (QUARTER // 2),
        "- a\n" * (QUARTER // 4),
        "{" + "a," * (QUARTER // 2),
        "&a " * (QUARTER // 3) + "b",
        "".join(f"a{k}: &a{k} {{<<: *a{max(k - 1, 0)}, k{k}: 1}}\n" for k in range(QUARTER // 30)),
        "".join(f"? [{k}]\n: {k}\n" for k in range(QUARTER // 18)),
    ],
)
def test_hostile_text_takes_seconds_at_most(text: str) -> None:
    """Rejects anything quadratic, and reading small values to the end of the text, however many they are."""
    began = time.process_time()
    with contextlib.suppress(ConfigError):
        parse_yaml(text, what="config.yaml")
    assert time.process_time() - began < 3.0


def test_configurations_and_overrides_have_these_limits(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(merge_bomb(40))
    with pytest.raises(ConfigError, match="written out, this has more than"):
        load_yaml(path)
    with pytest.raises(ConfigError, match=r"override .*nested more than 32 deep"):
        apply_overrides({}, ["a=" + "[" * 5000])
    path.write_text("a: " + "x" * MAX_BYTES)
    with pytest.raises(ConfigError, match="this has more than 1,048,576 bytes"):
        load_yaml(path)

"""Random choices of one fuzz case: a function of the case's number alone, so that any case can be run by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tailwise.core.streams import Streams

T = TypeVar("T")
_DRAWS = 400
_STREAMS = Streams(17)

# Texts that have broken parsers of numbers, names, paths, formats and markup.
TEXTS = [
    "", " ", ".", "..", "/", "-", "--", "~", "a\0b", "\n", "\t", "\udcff", "日本", "é" * 40, "x" * 300, "x" * 5000,
    "%s%n", "{}", "{0.__class__}", "[bold]", "[/]", "<b>&amp;", "'", '"', "\\", "$HOME", "`id`", "../../x", "CON",
    "nan", "inf", "-inf", "1e999", "1e300", "1e-300", "-1", "0", "-0", "1", "2", "3.5", "0x10", "1_000", "٣", "9" * 25,
    "9" * 5000, "-" + "9" * 30, "1,1", ",", "a:b:c", ":", "true", "null", "2020-02-31", "0000-00-00", "+99:99", "auto",
]  # fmt: skip

# YAML values that many keys take, at the edges of what they allow.
MILD = [
    "0", "1", "2", "3", "8", "-1", "0.0", "0.5", "0.99", "1.0", "-0.5", "1e-8", "1e-300", "1e8", "1e300", "null",
    "true", "false", "[]", "[8]", "{}", "auto", "none",
]  # fmt: skip

# YAML values, as they are written: numbers at the edges, wrong kinds, deep and odd structures.
VALUES = [
    "0", "1", "-1", "2", "7", "0.5", "-0.5", "1.5", "1e-300", "1e300", "-1e300", ".nan", ".inf", "-.inf",
    "1e999", "9007199254740993", "9223372036854775807", "9223372036854775808", "9" * 60, "9" * 5000,
    "0x" + "f" * 200, "1:59:59", "true", "false", "off", "null", "~", "''", "text", "'1'", "[]", "[1]",
    "[1, 2]", "[[1]]", "[null]", "['']", "[text]", "{}", "{a: 1}", "{kind: nope}", "{kind: null}", "{mode: []}",
    "{1: 2}", "{null: 1}", "2020-02-31", "2020-01-31", "0001-01-01", "9999-12-31", "2020-01-01T00:00:00+99:99",
    "!!int x", "!!binary eHg=", "!!set {a}", "!!python/name:os", "*a", "&a [*a]", "&a {<<: *a}",
    "[" * 60 + "]" * 60, "{a: " * 60 + "1" + "}" * 60, "[" * 3000, "\"\\0\"", '"\\ud800"', '"\\x07"', "'x",
    "x: y: z", "- 1", "%TAG", "@", "`", "|\n  a", "a\0b", "日本", "1" + " " * 3000, "{a: 1, a: 2}", "[0.1, 0.2]",
    "[64, 64]", "[8]", "auto", "none", "quantile", "lstm", "market", "gym", "files", "dates", "CartPole-v1",
]  # fmt: skip


class Dice:
    """Draws of case number `case` in the part of the fuzz called `part`."""

    def __init__(self, part: str, case: int) -> None:
        draws = _STREAMS.uniforms(f"fuzz/{part}", update=case, environments=1, steps=1, draws=_DRAWS)
        self._uniforms = iter(draws[0, 0].tolist())

    def below(self, limit: int) -> int:
        """A whole number from 0 to limit - 1."""
        return int(next(self._uniforms) * limit)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return next(self._uniforms) < probability

    def pick(self, choices: Sequence[T]) -> T:
        """One of `choices`."""
        return choices[self.below(len(choices))]

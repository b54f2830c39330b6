"""Hostile configurations: presets and toy problems with values, keys and characters that do not belong there."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.toy_configs import TOYS
from tailwise.core.config_keys import reference
from tailwise.run.config import Config, parse_config
from tailwise.run.presets import load_preset, load_source
from tests.fuzz.dice import MILD, VALUES, Dice

ENTRIES = reference(Config)
KEYS = sorted({entry.key for entry in ENTRIES})
# Key -> the words that it allows, and all of them: kinds, modes and other choices.
WORDS = {
    entry.key: [word.strip() for word in entry.allowed.split(",") if word.strip().isidentifier()] for entry in ENTRIES
}
CHOICES = sorted({word for words in WORDS.values() for word in words})
# What trains within a second or two: presets (the others differ from these in their environment alone) and toys.
SOURCES = ["cartpole", "cartpole-memory", "gru", "categorical", "scalar", "masked-bandit", "multi-bandit", "dict-reach",
           "pendulum", "ar1", "sine", "leak", "portfolio"]  # fmt: skip
# What a run is bounded by, whatever the configuration says: these come last on the command line.
BOUNDS = ["run.environments=4", "run.rollout_steps=8", "run.total_steps=64", "run.keep=1", "run.threads=1",
          "learner.epochs=1", "learner.minibatches=1", "evaluate.every=null", "evaluate.patience=null",
          "run.tensorboard=false", "notify.commands=[]", "notify.webhooks=[]"]  # fmt: skip
CHARACTERS = ["\0", "\ufeff", "\t", "\x07", "\r", "\x85", "\u2028", "\n  ", *"}]{:#&*!'\"-"]


def text_of(source: str) -> str:
    """The YAML of a preset or a toy problem."""
    return yaml.safe_dump(TOYS[source], sort_keys=False) if source in TOYS else load_preset(source).text


def argument_of(source: str) -> str:
    """What a command is given: the name of a preset, or the file of a toy problem, which is written here."""
    if source not in TOYS:
        return source
    file = Path(f"{source}.yaml")
    file.write_text(text_of(source))
    return str(file)


@lru_cache
def settings(source: str) -> list[tuple[str, Any]]:
    """Every key that is in force in a preset or a toy problem, with its value."""
    data = TOYS[source] if source in TOYS else load_source(source).data
    tree = parse_config(data, source=source).model_dump(mode="json", by_alias=True)

    def leaves(key: str, value: Any) -> list[tuple[str, Any]]:
        below = value.items() if isinstance(value, dict) else ()
        return [(key, value), *(pair for name, part in below for pair in leaves(f"{key}.{name}", part))]

    return [pair for name, part in tree.items() for pair in leaves(name, part)]


def value(dice: Dice, key: str = "", now: Any = None) -> str:
    """A YAML value: most are of the kind that is there `now`, so that a case also comes behind the first check."""
    if isinstance(now, bool) or not dice.chance(0.75):
        return dice.pick(dice.pick([MILD, CHOICES, VALUES]))
    if isinstance(now, int):
        return dice.pick(["0", "1", "2", "3", "4", "8", "100", "65536", "1000000", "9223372036854775807", "-1"])
    if isinstance(now, float):
        return dice.pick(["0.0", "1e-300", "1e-8", "0.1", "0.5", "0.9", "0.999", "1.0", "2.5", "1e3", "1e300", "-0.5"])
    return dice.pick(WORDS.get(key) or MILD)


def hostile_overrides(dice: Dice, source: str) -> list[str]:
    """Up to three `-s key=value`, most of them with a key that is in force in the source."""
    words = []
    for _ in range(dice.pick([1, 1, 1, 2, 3])):
        key, now = dice.pick(settings(source))
        if dice.chance(0.15):
            key = dice.pick([key + "x", key + ".x", key.upper(), "." + key, "", "=", "a.b.c.d", *[dice.pick(KEYS)] * 5])
        words += ["-s", f"{key}={value(dice, key, now)}"]
    return words


def hostile_text(dice: Dice) -> bytes:
    """The text of a source, damaged: lines doubled, moved or lost, keys added, characters and bytes put in."""
    lines = text_of(dice.pick(SOURCES)).splitlines()
    for _ in range(dice.pick([1, 1, 2])):
        at = dice.below(len(lines))
        what = dice.below(6)
        if what == 0:
            lines.insert(at, dice.pick(lines))
        elif what == 1:
            del lines[at]
        elif what == 2:
            lines[at] = " " * dice.below(5) + lines[at].lstrip()
        elif what == 3:
            lines[at] = lines[at].split(":")[0] + ": " + value(dice)
        elif what == 4:
            place = dice.below(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + dice.pick(CHARACTERS) + lines[at][place:]
        else:
            lines.append(dice.pick(KEYS).split(".")[0] + ": " + value(dice))
        lines = lines or [""]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    if dice.chance(0.15):
        place = dice.below(len(data) + 1)
        data = data[:place] + dice.pick([b"\xff", b"\xef\xbb\xbf", b"\0", b"\xc3", b"\r\n"]) + data[place:]
    return (
        dice.pick([b"", b"\xef\xbb\xbf", b"\xff\xfe", data[: dice.below(len(data) + 1)]]) if dice.chance(0.05) else data
    )

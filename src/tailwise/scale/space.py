"""The search space: which keys of a configuration are searched, within which bounds, on which scale.

    learner.learning_rate: {low: 1e-5, high: 1e-2, scale: log}
    learner.gamma: {low: 0.9, high: 0.999, scale: to_one}      # 1 - gamma on a logarithmic scale
    model.core.hidden: {choices: [32, 64, 128]}

Every value that is drawn, perturbed or proposed lies within its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from tailwise.core.config import Section, load_yaml, parse
from tailwise.core.config_keys import entries_below
from tailwise.core.errors import ConfigError
from tailwise.run.config import Config, parse_config
from tailwise.run.controllers import KEYS, Hyperparameters

Value = float | int | str | bool
Values = Mapping[str, Value]  # by key
MOST_KEYS = 32
TO_ONE = ("learner.gamma", "learner.lambda")  # keys whose distance from 1 is what counts


class Range(Section):
    """A range of numbers."""

    low: float = Field(description="smallest value")
    high: float = Field(description="largest value")
    scale: Literal["linear", "log", "to_one"] = Field(
        "linear", description="on which values are drawn evenly: the value, its logarithm, or that of 1 - value"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low is {self.low:g}, and a logarithmic scale needs values above 0; use scale linear")
        if self.scale == "to_one" and self.high >= 1:
            raise ValueError(f"high is {self.high:g}, and 1 - value on a logarithmic scale needs values below 1")
        return self

    def at(self, level: float) -> float:
        """The value at a level in [0, 1] of the scale."""
        if level in (0.0, 1.0):
            return self.high if level else self.low  # exactly, whatever the scale rounds to
        low, high = self._scaled(self.low), self._scaled(self.high)
        return self._within(self._value(low + level * (high - low)))

    def level(self, value: float) -> float:
        """The inverse of `at`."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return (self._scaled(value) - low) / (high - low)

    def moved(self, value: float, factor: float) -> float:
        """The value times a factor, within the bounds; of scale to_one it is 1 - value that is multiplied."""
        return self._within(1.0 - (1.0 - value) * factor if self.scale == "to_one" else value * factor)

    def grid(self, points: int) -> list[Value]:
        """So many values at even distances on the scale, both bounds included."""
        return [self.at(number / max(points - 1, 1)) for number in range(points)]

    def ends(self) -> list[Value]:
        """What a configuration has to accept."""
        return [self.low, self.high]

    def _scaled(self, value: float) -> float:
        if self.scale == "log":
            return math.log(value)
        return -math.log(1.0 - value) if self.scale == "to_one" else value

    def _value(self, scaled: float) -> float:
        if self.scale == "log":
            return math.exp(scaled)
        return 1.0 - math.exp(-scaled) if self.scale == "to_one" else scaled

    def _within(self, value: float) -> float:
        return min(max(value, self.low), self.high)


class Choice(Section):
    """Some values, in an order in which neighbours are similar."""

    choices: tuple[Value, ...] = Field(min_length=2, max_length=100, description="the values")

    @model_validator(mode="after")
    def _differ(self) -> Choice:
        if len(set(self.choices)) < len(self.choices):
            raise ValueError(f"choices {list(self.choices)} names one of them twice")
        return self

    def at(self, level: float) -> Value:
        """The choice at a level in [0, 1]."""
        return self.choices[min(int(level * len(self.choices)), len(self.choices) - 1)]

    def level(self, value: Value) -> float:
        """The middle of the levels of a choice."""
        return (self.choices.index(value) + 0.5) / len(self.choices)

    def moved(self, value: Value, factor: float) -> Value:
        """The neighbour above for a factor of more than 1, else the one below; the ends stay."""
        place = self.choices.index(value) + (1 if factor > 1 else -1)
        return self.choices[min(max(place, 0), len(self.choices) - 1)]

    def grid(self, points: int) -> list[Value]:
        """All choices, whatever `points`."""
        return list(self.choices)

    def ends(self) -> list[Value]:
        """What a configuration has to accept."""
        return list(self.choices)


@dataclass(frozen=True)
class Space:
    """What is searched, in the order of the keys. absent: keys that the configuration does not have, a sentence each"""

    entries: Mapping[str, Range | Choice]
    absent: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[tuple[str, Range | Choice]]:
        return iter(self.entries.items())

    def to_json(self) -> dict[str, Any]:
        """As in the file."""
        return {key: entry.model_dump(mode="json") for key, entry in self}


def default_space(config: Config) -> dict[str, Any]:
    """Step size, clip and entropy; the pull to the prior where there is one."""
    space: dict[str, Any] = {
        "learner.learning_rate": {"low": 3e-5, "high": 3e-3, "scale": "log"},
        "learner.clip": {"low": 0.1, "high": 0.3},
        "learner.entropy.weight": {"low": 1e-4, "high": 0.03, "scale": "log"},
    }
    if config.prior is not None:
        space["learner.prior.weight"] = {"low": 1e-3, "high": 0.1, "scale": "log"}
    return space


def read_space(space: Mapping[str, Any] | str | Path | None, config: Config) -> Space:
    """Read and check a search space for a configuration: a mapping, the path of a YAML file, None for the default one.

    A key that the configuration does not have (the weight of a prior where there is none) keeps its value, with a
    sentence in `absent`.
    """
    if space is None:
        source, tree = "the default space", default_space(config)
    elif isinstance(space, Mapping):
        source, tree = "space", dict(space)
    else:
        source, tree = str(space), load_yaml(space)
    if len(tree) > MOST_KEYS:
        raise ConfigError(f"{source} has {len(tree)} keys; at most {MOST_KEYS} can be searched.")
    entries: dict[str, Range | Choice] = {}
    absent = []
    for key in sorted(map(str, tree)):
        try:
            entries_below(Config, key)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
        why = why_absent(config, key)
        if why is None:
            entries[key] = _entry(key, tree[key], source=source)
        else:
            absent.append(f"{source}: {key} is not in this configuration ({why}); it keeps its value")
    if not entries:
        raise ConfigError("\n".join([*absent, f"{source}: nothing is left to search; name a key and its range."]))
    for key, entry in entries.items():
        for value in entry.ends():
            try:
                with_values(config, {key: value})
            except ConfigError as error:
                raise ConfigError(f"{source}: {key} may not be {value!r}: {error}") from error
    return Space(entries, tuple(absent))


def _entry(key: str, data: Any, *, source: str) -> Range | Choice:
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}: {key} is {data!r}; write {{low: 1e-5, high: 1e-2, scale: log}} or {{choices: [1, 2]}}."
        )
    if "choices" in data:
        return parse(Choice, data, source=f"{source}: {key}")
    if key in TO_ONE:
        data = {"scale": "to_one", **data}
    return parse(Range, data, source=f"{source}: {key}")


def why_absent(config: Config, key: str) -> str | None:
    """Why a key has no value in a configuration; None where it has one."""
    if key == "learner.prior.weight":
        return "there is no prior" if config.prior is None else None
    tree: Any = config.model_dump(mode="json")
    path = key.split(".")
    for depth, part in enumerate(path):
        parent = ".".join(path[:depth])
        if tree is None:
            return f"{parent} is null"
        if not isinstance(tree, dict) or part not in tree:
            kind = tree.get("kind", tree.get("mode")) if isinstance(tree, dict) else None
            return f"{parent} is {kind}" if kind is not None else f"{parent} has no such key"
        tree = tree[part]
    return f"{key} is null" if tree is None else None


def value_of(config: Config, key: str) -> Value | None:
    """The value that a configuration has under a key; None where it has no single one."""
    tree: Any = config.model_dump(mode="json")
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree if isinstance(tree, float | int | str | bool) else None


def with_values(config: Config, values: Values) -> Config:
    """The configuration with these values. What may change in a run goes through the setter that changes it there."""
    live = {key: float(value) for key, value in values.items() if key in KEYS}
    changed = Hyperparameters.of_keys(live).applied_to(config)
    tree = changed.model_dump(mode="json")
    for key in sorted(values.keys() - live.keys()):
        *parents, last = key.split(".")
        section = tree
        for parent in parents:
            section = section[parent]
        section[last] = values[key]
    return parse_config(tree, source="the searched values")

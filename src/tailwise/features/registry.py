"""All features by name, and the columns that names such as `return_5` or `1W:volatility_ratio_4_26` stand for.

The built-ins are a constant. Users' features come from the modules that the configuration lists: a registry is made
anew from them, so that nothing depends on what was imported before, or how often.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, ModuleType

from tailwise.core.errors import ConfigError
from tailwise.core.modules import load_module
from tailwise.features import builtin_price_volume, builtin_returns, builtin_volatility
from tailwise.features.contract import LONGEST_WINDOW, Column, Feature


def _declared_in(module: ModuleType) -> list[Feature]:
    """The features among a module's names, in their order, each once."""
    return list({id(value): value for value in vars(module).values() if isinstance(value, Feature)}.values())


_GROUPS = (builtin_returns, builtin_volatility, builtin_price_volume)
BUILTIN: Mapping[str, Feature] = MappingProxyType({one.name: one for group in _GROUPS for one in _declared_in(group)})
_PARTS = re.compile(r"(?P<base>.*?)(?P<numbers>(?:_\d+)*)")


class Registry:
    """The built-in features and the given ones, by name."""

    def __init__(self, features: Iterable[Feature] = ()) -> None:
        by_name = dict(BUILTIN)
        for one in features:
            if by_name.get(one.name) is one:
                continue  # the same feature, imported into two modules
            if one.name in BUILTIN:
                raise ConfigError(f"feature '{one.name}' has the name of a built-in feature; choose another name.")
            if one.name in by_name:
                raise ConfigError(f"two features are named '{one.name}'; rename one of them.")
            by_name[one.name] = one
        self.features: Mapping[str, Feature] = MappingProxyType(by_name)

    def column(self, text: str, timeframe: str | None = None) -> Column:
        """Parse the name of a column, such as 'return_5'."""
        match = _PARTS.fullmatch(text)
        base, digits = (match["base"], match["numbers"]) if match else (text, "")
        if base not in self.features:
            near = difflib.get_close_matches(base, self.features, n=1, cutoff=0.5)
            hint = f"did you mean '{_example(self.features[near[0]], digits)}'?" if near else "see docs/features.md."
            raise ConfigError(f"feature '{text}' is unknown; {hint}")
        one, parameters = self.features[base], tuple(int(part) for part in digits.split("_")[1:])
        _check_parameters(one, parameters, text)
        name = f"{timeframe}:{text}" if timeframe else text
        return Column(name, one, parameters, timeframe, own=BUILTIN.get(one.name) is not one)


def _example(one: Feature, digits: str) -> str:
    fitting = digits and digits.count("_") == len(one.parameters)
    return one.name + (digits if fitting else "".join(f"_{name.upper()}" for name in one.parameters))


def _check_parameters(one: Feature, parameters: tuple[int, ...], text: str) -> None:
    form = _example(one, "")
    if len(parameters) != len(one.parameters):
        what = f"with {' and '.join(one.parameters)} in bars" if one.parameters else "without a number"
        raise ConfigError(f"feature '{text}' must be written as {form}, {what}.")
    if one.name + "".join(f"_{number}" for number in parameters) != text:
        raise ConfigError(f"feature '{text}' must be written as {form}, with numbers that do not begin with 0.")
    for name, number, least in zip(one.parameters, parameters, one.smallest, strict=True):
        if not least <= number <= LONGEST_WINDOW:
            raise ConfigError(
                f"feature '{text}': {name} is {number}; it must be from {least} to {LONGEST_WINDOW} bars."
            )
    if any(a >= b for a, b in pairwise(parameters)):
        raise ConfigError(f"feature '{text}': {' must be below '.join(one.parameters)}, but they are {parameters}.")


def load_registry(modules: Iterable[str], folder: str | Path | None = None) -> Registry:
    """Collect built-ins and all features in the modules: Python files (relative to `folder`) or importable names."""
    features: list[Feature] = []
    for name in modules:
        module = load_module(name, folder, key="features.modules")
        here = _declared_in(module)
        if not here:
            raise ConfigError(
                f"features.modules: '{name}' declares no feature; decorate one with @feature, or remove it."
            )
        features += here
    return Registry(features)

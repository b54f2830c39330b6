"""Configuration sections: their base class, and YAML to a validated section.

A section is a frozen pydantic model in which an unknown key is an error. `parse` turns pydantic's errors into
sentences that name the key, the value and the fix; `core.config_keys` writes those sentences.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tailwise.core.config_keys import TRUTH_VALUE, fields_by_key, members, sentences, shortened
from tailwise.core.errors import ConfigError, text_problem
from tailwise.core.parsing import MAX_BYTES, LimitedLoader, parse_yaml


class Section(BaseModel):
    """Base of all configuration sections: frozen, keyword-only, unknown keys refused, numbers finite."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        arbitrary_types_allowed=False,
        allow_inf_nan=False,
        protected_namespaces=(),
        serialize_by_alias=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _kind_may_be_left_out(cls, data: Any) -> Any:
        """`critic: {quantiles: 32}` without `kind` means the default kind, so that one key can be overridden alone."""
        if not isinstance(data, dict):
            return data
        completed = dict(data)
        for key, field in fields_by_key(cls).items():
            given, tag = data.get(key), field.discriminator
            if (
                isinstance(given, dict)
                and isinstance(tag, str)
                and tag not in given
                and isinstance(field.default, Section)
            ):
                completed[key] = {tag: getattr(field.default, tag), **given}
        return completed

    @model_validator(mode="before")
    @classmethod
    def _truth_value_is_no_number(cls, data: Any) -> Any:
        """Refuse `max_grad_norm: off`: YAML reads it as false, which pydantic would take for the number 0."""
        if not isinstance(data, dict):
            return data
        fields = fields_by_key(cls)
        for name, value in data.items():
            field = fields.get(name)
            if isinstance(value, bool) and field is not None:
                kinds = set(members(field.annotation))
                if kinds & {int, float} and kinds <= {int, float}:
                    raise PydanticCustomError(TRUTH_VALUE, "a number is needed", {"field": name, "value": value})
        return data

    @model_validator(mode="before")
    @classmethod
    def _texts_are_text(cls, data: Any) -> Any:
        """Refuse what no file can be called and no configuration file can hold, in texts and lists of texts."""
        for name, value in data.items() if isinstance(data, dict) else ():
            for text in value if isinstance(value, list | tuple) else (value,):
                problem = text_problem(text) if isinstance(text, str) else None
                if problem is not None:
                    raise ValueError(f"{name} is {text!r}, which {problem}")
        return data


SectionType = TypeVar("SectionType", bound=BaseModel)


def parse(model: type[SectionType], data: dict[str, Any], *, source: str) -> SectionType:
    """Validate `data` as `model`.

    `source` says where the data come from (a file name, "command line"); every sentence of the error starts with it.
    Raises ConfigError with one sentence per line, one for each thing that is wrong.
    """
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}: a mapping of keys to values is needed, found {type(data).__name__} {shortened(data)}."
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [f"{source}: {sentence}" for sentence in sentences(model, error)]
        raise ConfigError("\n".join(lines)) from error


class _Loader(LimitedLoader):
    """Safe YAML in which `3e-4` is a number and a key that occurs twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is not a name", problem_mark=key_node.start_mark)
            if key in keys:
                raise yaml.MarkedYAMLError(problem=f"key '{key}' occurs twice", problem_mark=key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1, which PyYAML follows, reads off, on, yes and no as truth values; here `mode: off` is the word off.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)

# It also reads `3e-4` and `1e5` as strings; people write step sizes that way.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


class _Dumper(yaml.SafeDumper):
    """Block style for mappings, `[64, 64]` for lists of scalars."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    flow = not any(isinstance(item, dict | list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


_Dumper.add_representer(list, _represent_list)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping; an empty file is an empty mapping."""
    path = Path(path)
    problem = text_problem(str(path))
    if problem is not None:
        raise ConfigError(f"{str(path)!r} {problem}.")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file; give the path of a YAML configuration.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: this is a folder; give the path of a YAML file.") from error
    return parse_tree(data, source=str(path))


def parse_tree(data: bytes, *, source: str) -> dict[str, Any]:
    """Parse a YAML text whose top level is a mapping; an empty text is an empty mapping."""
    tree = parse_yaml(data, what=source, loader=_Loader)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: the top level must be a mapping of keys to values, found {type(tree).__name__}.")
    return tree


def dump_yaml(section: BaseModel) -> str:
    """Write the complete effective configuration as YAML, defaults included, in the order of the fields."""
    data = section.model_dump(mode="json", by_alias=True)
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Copy `data` with each `a.b=value` applied in order; values are read as YAML (`3e-4`, `null`, `[64, 64]`).

    Sections that are absent are created; whether the key exists is for `parse` to say.
    """
    result = copy.deepcopy(data)
    for override in overrides:
        key, separator, text = override.partition("=")
        key = key.strip()
        if not separator or not all(part.strip() for part in key.split(".")):
            raise ConfigError(f"override '{override}' is not key=value; write for example learner.clip=0.1.")
        *parents, last = (part.strip() for part in key.split("."))
        section = result
        for depth, parent in enumerate(parents):
            below = section.get(parent)
            if below is None:  # absent, or an empty `learner:` line
                below = section[parent] = {}
            if not isinstance(below, dict):
                path = ".".join(parents[: depth + 1])
                raise ConfigError(
                    f"override '{override}': '{path}' is {below!r}, which has no keys; set '{path}' as a whole."
                )
            section = below
        section[last] = parse_yaml(text, what=f"override '{override}'", loader=_Loader)
    return result


def differences(stored: Any, own: Any, key: str = "") -> list[str]:
    """Describe where two configuration values differ, key by key; `key` is that of the values themselves."""
    if isinstance(stored, dict) and isinstance(own, dict):
        names = sorted(stored.keys() | own.keys())
        return [
            text
            for name in names
            for text in differences(stored.get(name), own.get(name), f"{key}.{name}" if key else name)
        ]
    return [] if stored == own else [f"{key} {stored!r}, here {own!r}"]

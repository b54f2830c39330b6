"""Every key of the configuration as a flat list, read from the models: for `config explain` and the documentation."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tailwise.core.config_errors import fields_by_key, members
from tailwise.core.errors import ConfigError

_BOUNDS = (
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Ge, "ge", ">="),
    (annotated_types.Lt, "lt", "<"),
    (annotated_types.Le, "le", "<="),
)
_NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping", tuple: "list"}


@dataclass(frozen=True)
class Entry:
    """One key. `kind`: those kinds of its section that have it, empty without kinds, and `switch`: the key that chooses
    among them; `section`: keys lie below it."""

    key: str
    kind: str
    switch: str
    default: str
    allowed: str
    meaning: str
    section: bool


def reference(model: type[BaseModel]) -> list[Entry]:
    """All entries below `model`, in the order of the fields; what is the same in several kinds is one entry."""
    kinds: dict[Entry, list[str]] = {}
    for entry in _entries(model, prefix="", kind="", switch="", path=()):
        having = kinds.setdefault(replace(entry, kind=""), [])
        if entry.kind and entry.kind not in having:
            having.append(entry.kind)
    return [replace(entry, kind=", ".join(having)) for entry, having in kinds.items()]


def entries_below(model: type[BaseModel], key: str) -> list[Entry]:
    """The entries of a key in each kind that has it, or of all keys of a section; an unknown key is a ConfigError."""
    entries = reference(model)
    found = [entry for entry in entries if entry.key == key]
    if not found or any(entry.section for entry in found):
        found = [*found, *(entry for entry in entries if entry.key.startswith(f"{key}."))]
    if not found:
        keys = list(dict.fromkeys(entry.key for entry in entries))
        ending = [known for known in keys if known.rsplit(".", 1)[-1] == key]
        near = ending or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        quoted = " or ".join(f"'{known}'" for known in near)
        hint = f"did you mean {quoted}?" if near else "docs/configuration.md lists all keys."
        raise ConfigError(f"key '{key}' is unknown; {hint}")
    return found


def _entries(model: type[BaseModel], *, prefix: str, kind: str, switch: str, path: tuple[str, ...]) -> Iterator[Entry]:
    for name, field in fields_by_key(model).items():
        if path and _tag_field(model) == name:
            continue  # `kind` is told once, by the union
        key = f"{prefix}{name}"
        below = [member for member in members(field.annotation) if _is_model(member)]
        if field.discriminator is not None:
            tag = str(field.discriminator)
            kinds = [value for member in below for value in get_args(fields_by_key(member)[tag].annotation)]
            default = getattr(field.default, tag, None)
            yield Entry(f"{key}.{tag}", kind, switch, _text(default), ", ".join(kinds), field.description or "", False)
        elif below:
            yield Entry(key, kind, switch, "-", "a section", field.description or "", True)
        else:
            yield Entry(key, kind, switch, _default(field), _allowed(field), field.description or "", False)
        for member in below:
            tag_of_member = _tag(member)
            inner = (
                (tag_of_member, f"{key}.{field.discriminator}") if field.discriminator is not None else (kind, switch)
            )
            yield from _entries(member, prefix=f"{key}.", kind=inner[0], switch=inner[1], path=(*path, name))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tag_field(model: type[BaseModel]) -> str | None:
    """The key that tells the kinds of a union apart, when `model` is one of those kinds."""
    for name in ("kind", "mode"):
        field = model.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is Literal:
            return name
    return None


def _tag(model: type[BaseModel]) -> str:
    name = _tag_field(model)
    return "" if name is None else "|".join(get_args(model.model_fields[name].annotation))


def _default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "chosen_by" in extra:
        return f"by {extra['chosen_by']}"
    if field.default_factory is not None:
        return _text(field.get_default(call_default_factory=True, validated_data={}))
    return "required" if field.default is PydanticUndefined else _text(field.default)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _allowed(field: FieldInfo) -> str:
    kinds = members(field.annotation)
    words = [_word(kind) for kind in kinds]
    bounds = [
        f"{sign} {_bound(getattr(item, name))}"
        for item in field.metadata
        for cls, name, sign in _BOUNDS
        if isinstance(item, cls)
    ]
    text = " or ".join(dict.fromkeys(words))
    if bounds:
        text += " " + " and ".join(bounds)
    nullable = get_origin(field.annotation) in (Union, types.UnionType) and type(None) in get_args(field.annotation)
    return f"{text}, or null" if nullable else text


def _word(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(str(value) for value in get_args(kind))
    if origin is tuple:
        inner = members(get_args(kind)[0])[0]
        if get_origin(inner) is Literal:
            return f"list of {', '.join(str(value) for value in get_args(inner))}"
        return f"list of {_NAMES.get(members(get_args(kind)[0])[0], 'value')}s"
    return _NAMES.get(origin or kind, str(kind))


def _bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and value < 2**53 else "2^63" if value == 2**63 else f"{value:g}"

"""The keys of a configuration, read from its models: validation errors as sentences, and a reference of all keys.

`sentences` says which key is wrong, its value, what is allowed and what was probably meant. pydantic reports where an
error happened as a location such as ("model", "core", "lstm", "hiden"): field names, but also the tags of discriminated
unions and the positions in lists. `_walk` follows such a location through the types, so that the sentence can name the
key as the user wrote it (`model.core.hiden`) and the valid names beside it.
`reference` lists every key, for `config explain` and the documentation.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from tailwise.core.errors import ConfigError

# Type of the error that a section raises when a number was written as true, false, on or off.
TRUTH_VALUE = "truth_value"
_LONGEST_VALUE = 200  # characters of a value in a sentence
_MOST_SENTENCES = 20
_BOUNDS = (
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Ge, "ge", ">="),
    (annotated_types.Lt, "lt", "<"),
    (annotated_types.Le, "le", "<="),
)
_NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping", tuple: "list"}


def _strip_annotated(annotation: Any) -> Any:
    """`Annotated[X, ...]` -> X, everything else unchanged."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def members(annotation: Any) -> list[Any]:
    """The members of a union without None; a list of one for everything else."""
    annotation = _strip_annotated(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) if part is not type(None) for member in members(part)]
    return [annotation]


def fields_by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model under the keys that a user writes: `lambda`, although Python must call it otherwise."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _tags(model: Any) -> dict[str, list[str]]:
    """Field name -> the literals it may have, for each field of a model that is a Literal."""
    if not _is_model(model):
        return {}
    literals = {key: get_args(_strip_annotated(field.annotation)) for key, field in fields_by_key(model).items()}
    return {name: [v for v in values if isinstance(v, str)] for name, values in literals.items() if values}


@dataclass(frozen=True)
class _Choice:
    """A member of a union that was chosen by a tag: the name of the tag, its value, and all members by that value."""

    name: str
    value: str
    members: dict[str, Any]


@dataclass(frozen=True)
class _Place:
    """Where a location leads: the key as the user writes it, the model that owns its last part, and its field.

    choice: how that model was chosen, where it is a member of a union.
    """

    key: str
    owner: type[BaseModel] | None
    owner_key: str
    choice: _Choice | None
    field: FieldInfo | None


def _join(key: str, part: str | int) -> str:
    if isinstance(part, int):
        return f"{key}[{part}]"
    return f"{key}.{part}" if key else part


def _walk(root: type[BaseModel], location: tuple[str | int, ...]) -> _Place:
    here: list[Any] = [root]  # the types that the value at `key` may have
    place = _Place(key="", owner=root, owner_key="", choice=None, field=None)
    key: str = ""
    choice: _Choice | None = None
    for part in location:
        if len(here) > 1:  # a union: the part is a tag or the name of a member, not something the user wrote
            choice = _chosen(here, part)
            here = [Any if choice is None else choice.members[choice.value]]
            continue
        model = here[0]
        if _is_model(model):
            field = fields_by_key(model).get(str(part))
            place = _Place(_join(key, part), model, key, choice, field)
            here = members(field.annotation) if field is not None else [Any]
        else:  # an item of a list, tuple or dict
            place = _Place(_join(key, part), place.owner, place.owner_key, place.choice, place.field)
            items = [a for a in get_args(model) if a is not Ellipsis]
            here = members(items[-1]) if items else [Any]
        key, choice = place.key, None
    return place


def _chosen(union: list[Any], tag: str | int) -> _Choice | None:
    """The member of a union with this tag; None where the part of a location is not a tag."""
    # A discriminator is a Literal of one value; other Literals of a member may contain the same word.
    name = next((name for member in union for name, values in _tags(member).items() if values == [tag]), None)
    if name is None:
        return None
    return _Choice(name, str(tag), {value: member for member in union for value in _tags(member).get(name, [])})


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a configuration tree, with the keys of all kinds of its unions."""
    for name, field in fields_by_key(model).items():
        key = _join(prefix, name)
        yield key
        for member in members(field.annotation):
            if _is_model(member):
                yield from _all_keys(member, key)


def _unknown_key(root: type[BaseModel], place: _Place) -> str:
    name = place.key.removeprefix(place.owner_key).lstrip(".")
    choice = place.choice
    of_kind = "" if choice is None else f" where {_join(place.owner_key, choice.name)} is '{choice.value}'"
    siblings = list(fields_by_key(place.owner)) if place.owner is not None else []
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if near:
        return f"key '{place.key}' is unknown{of_kind}; did you mean '{_join(place.owner_key, near[0])}'?"
    others = [] if choice is None else [tag for tag, m in choice.members.items() if name in fields_by_key(m)]
    if choice is not None and others:
        switch = _join(place.owner_key, choice.name)
        return f"key '{place.key}' does not exist{of_kind}; remove it, or set {switch} to {' or '.join(others)}."
    elsewhere = [key for key in _all_keys(root) if key.rsplit(".", 1)[-1] == name]
    if elsewhere:
        return f"key '{place.key}' is unknown{of_kind}; did you mean '{elsewhere[0]}'?"
    allowed = ", ".join(siblings) if siblings else "none"
    return f"key '{place.key}' is unknown{of_kind}; keys allowed here: {allowed}."


def shortened(value: Any) -> str:
    """`repr` of a value, cut after 200 characters."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({len(text):,} characters)"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _sentence(root: type[BaseModel], error: ErrorDetails) -> str:
    place = _walk(root, error["loc"])
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "extra_forbidden":
        return _unknown_key(root, place)
    if kind == "union_tag_invalid":
        name = context["discriminator"].strip("'")
        expected = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        near = difflib.get_close_matches(str(context["tag"]), expected, n=1, cutoff=0.6)
        hint = f"; did you mean '{near[0]}'?" if near else "."
        return f"key '{_join(place.key, name)}' is '{context['tag']}'; allowed: {', '.join(expected)}{hint}"
    if kind == "union_tag_not_found":
        name = context["discriminator"].strip("'")
        kinds = [v for m in members(place.field.annotation) for v in _tags(m).get(name, [])] if place.field else []
        return f"key '{_join(place.key, name)}' is required; choose one of {', '.join(kinds)}."
    if kind == TRUTH_VALUE:
        owned = _walk(root, (*error["loc"], context["field"]))
        return f"key '{owned.key}' is {str(context['value']).lower()}; a number is needed here, not a truth value."
    meaning = f" ({place.field.description})" if place.field is not None and place.field.description else ""
    if kind == "missing":
        return f"key '{place.key}' is required{meaning}."
    if kind in ("value_error", "assertion_error"):
        # Raised by a validator of ours. One that judges a whole section already names its keys and values.
        message = str(context["error"]).rstrip(".")
        if isinstance(value, dict | BaseModel):
            return f"{place.key}: {message}." if place.key else f"{message}."
        return f"key '{place.key}' is {shortened(value)}; {message}{meaning}."
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"key '{place.key}' is {shortened(value)}; a mapping of keys to values is needed here{meaning}."
    allowed = _lower_first(error["msg"]).replace("input should", "it should")
    return f"key '{place.key}' is {shortened(value)}; {allowed}{meaning}."


def sentences(root: type[BaseModel], error: ValidationError) -> list[str]:
    """List one sentence per problem, in the order of the fields, without repetition; at most the first twenty."""
    problems = list(dict.fromkeys(_sentence(root, detail) for detail in error.errors(include_url=False)))
    more = len(problems) - _MOST_SENTENCES
    return problems if more <= 0 else [*problems[:_MOST_SENTENCES], f"{more} more of these were found."]


@dataclass(frozen=True)
class Entry:
    """One key of the configuration.

    key       full name: model.core.hidden
    kind      the kinds of its section that have it, separated by commas; empty where there are no kinds
    switch    key that chooses among those kinds
    default   default value as text, or "required"
    allowed   type and bounds in words
    meaning   description of the field
    section   whether it is a section with keys below it
    """

    key: str
    kind: str
    switch: str
    default: str
    allowed: str
    meaning: str
    section: bool


def reference(model: type[BaseModel]) -> list[Entry]:
    """List all keys below `model`, in the order of the fields; a key that several kinds share is one entry."""
    kinds: dict[Entry, list[str]] = {}
    for entry in _entries(model, prefix="", kind="", switch="", path=()):
        having = kinds.setdefault(replace(entry, kind=""), [])
        if entry.kind and entry.kind not in having:
            having.append(entry.kind)
    return [replace(entry, kind=", ".join(having)) for entry, having in kinds.items()]


def entries_below(model: type[BaseModel], key: str) -> list[Entry]:
    """Look up a key in each kind that has it, or all keys of a section; an unknown key is a ConfigError."""
    entries = reference(model)
    matching = [entry for entry in entries if entry.key == key]
    if not matching or any(entry.section for entry in matching):
        matching += [entry for entry in entries if entry.key.startswith(f"{key}.")]
    if not matching:
        keys = list(dict.fromkeys(entry.key for entry in entries))
        ending = [full for full in keys if full.rsplit(".", 1)[-1] == key]
        near = ending or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        quoted = " or ".join(f"'{full}'" for full in near)
        hint = f"did you mean {quoted}?" if near else "docs/configuration.md lists all keys."
        raise ConfigError(f"key '{key}' is unknown; {hint}")
    return matching


def _entries(model: type[BaseModel], *, prefix: str, kind: str, switch: str, path: tuple[str, ...]) -> Iterator[Entry]:
    for name, field in fields_by_key(model).items():
        if path and _tag_field(model) == name:
            continue  # `kind` is listed once, by the union
        key = f"{prefix}{name}"
        below = [member for member in members(field.annotation) if _is_model(member)]
        if field.discriminator is not None:
            tag = str(field.discriminator)
            kinds = [value for member in below for value in get_args(fields_by_key(member)[tag].annotation)]
            default = getattr(field.default, tag, None)
            yield Entry(f"{key}.{tag}", kind, switch, _text(default), ", ".join(kinds), field.description or "", False)
        elif below:
            plain = [_word(member) for member in members(field.annotation) if not _is_model(member)]
            default = _default(field) if plain else "-"
            yield Entry(key, kind, switch, default, " or ".join([*plain, "a section"]), field.description or "", True)
        else:
            yield Entry(key, kind, switch, _default(field), _allowed(field), field.description or "", False)
        for member in below:
            tag_of_member = _tag(member)
            inner = (
                (tag_of_member, f"{key}.{field.discriminator}") if field.discriminator is not None else (kind, switch)
            )
            yield from _entries(member, prefix=f"{key}.", kind=inner[0], switch=inner[1], path=(*path, name))


def _tag_field(model: type[BaseModel]) -> str | None:
    """Key that distinguishes the kinds of a union, if `model` is one of them."""
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

"""Validation errors of a configuration as sentences: which key, which value, what is allowed, what was meant.

pydantic reports where an error happened as a location such as ("model", "core", "lstm", "hiden"): field names, but
also the tags of discriminated unions and the positions in lists. `_walk` follows such a location through the types,
so that the sentence can name the key as the user wrote it (`model.core.hiden`) and the valid names beside it.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

# Type of the error that a section raises when a number was written as true, false, on or off.
TRUTH_VALUE = "truth_value"
_LONGEST_SHOWN = 200  # characters of a value
_MOST_SENTENCES = 20


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
    known = list(_all_keys(root))
    elsewhere = [key for key in known if key.rsplit(".", 1)[-1] == name]
    if elsewhere:
        return f"key '{place.key}' is unknown{of_kind}; did you mean '{elsewhere[0]}'?"
    allowed = ", ".join(siblings) if siblings else "none"
    return f"key '{place.key}' is unknown{of_kind}; keys allowed here: {allowed}."


def shown(value: Any) -> str:
    """`repr` of a value that somebody wrote, shortened: it may be of any length."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}... ({len(text):,} characters)"


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
        return f"key '{place.key}' is {shown(value)}; {message}{meaning}."
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"key '{place.key}' is {shown(value)}; a mapping of keys to values is needed here{meaning}."
    allowed = _lower_first(error["msg"]).replace("input should", "it should")
    return f"key '{place.key}' is {shown(value)}; {allowed}{meaning}."


def sentences(root: type[BaseModel], error: ValidationError) -> list[str]:
    """One sentence per thing that is wrong, in the order of the fields, each said once; the first twenty."""
    found = list(dict.fromkeys(_sentence(root, detail) for detail in error.errors(include_url=False)))
    more = len(found) - _MOST_SENTENCES
    return found if more <= 0 else [*found[:_MOST_SENTENCES], f"{more} more of these were found."]

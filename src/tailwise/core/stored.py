"""What is read back from files that this package wrote, once: the base of their shapes."""

from __future__ import annotations

import json
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tailwise.core.config_errors import sentences, shown
from tailwise.core.errors import DataError


class Stored(BaseModel):
    """Base of what is read back: types are not converted, numbers are finite, further keys are kept as they are."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False, protected_namespaces=())


StoredType = TypeVar("StoredType", bound=BaseModel)


def as_stored(model: type[StoredType], data: Any, *, source: str) -> StoredType:
    """The JSON value `data` in the shape of `model`; DataError with a sentence per line for what does not fit.

    A model with a field `format` is asked for that first: another format has another shape.
    """
    if not isinstance(data, dict):
        raise DataError(f"{source}: a mapping of keys to values is needed, found {shown(data)}.")
    field = model.model_fields.get("format")
    if field is not None and data.get("format") not in get_args(field.annotation):
        known = " and ".join(str(number) for number in get_args(field.annotation))
        raise DataError(f"{source} has format {shown(data.get('format'))}; this version reads format {known}.")
    try:
        # As JSON, in which a list may become a tuple and a mapping a record without anything else being converted.
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise DataError("\n".join(f"{source}: {sentence}" for sentence in sentences(model, error))) from error

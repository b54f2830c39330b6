"""Code of the user's that a configuration names: Python files, or modules that can be imported."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tailwise.core.errors import ConfigError


def load_module(name: str, folder: str | Path | None = None, *, key: str) -> ModuleType:
    """The module of a .py file (relative to `folder`) or of an importable name; key: what errors call it."""
    return _load_file(name, folder, key) if name.endswith(".py") else _import(name, key)


def load_function(text: str, *, key: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `module:name` names; key: what errors call it."""
    place, separator, name = text.rpartition(":")
    if not separator:
        raise ConfigError(f"{key} is '{text}'; write file.py:name or module:name.")
    found = getattr(load_module(place, key=key), name, None)
    if not callable(found):
        raise ConfigError(f"{key}: '{place}' has no function {name}; correct the name.")
    return found  # type: ignore[no-any-return]


def _import(name: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{key}: '{name}' cannot be imported ({error}); give the path of a .py file or the name of an "
            "installed module."
        ) from error


def _load_file(name: str, folder: str | Path | None, key: str) -> ModuleType:
    path = Path(folder or ".", name).resolve()
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file '{path}'; paths are relative to the configuration file.")
    # Python keeps the module under a name that follows from place and content: a second load is the same object, and an
    # edited file is a new module.
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]
    kept = f"tailwise_own_{digest}"
    if kept in sys.modules:
        return sys.modules[kept]
    spec = importlib.util.spec_from_file_location(kept, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[kept] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anything may go wrong in a user's file
        del sys.modules[kept]  # a module that failed half-way is not there
        raise ConfigError(f"{key}: '{path}' cannot be run: {type(error).__name__}: {error}") from error
    return module

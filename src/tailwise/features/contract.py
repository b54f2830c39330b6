"""The contract of a feature: a state (a plain float64 array) and `update(state, bar) -> value`, compiled by numba.

A table is that function in a loop over the bars and a stream is the same machine code, one bar at a time: the two
are equal bit for bit. The state is all that a feature remembers, so that it can be saved and restored.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numba import njit, types
from numba.extending import is_jitted
from numpy.typing import NDArray

from tailwise.core.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]
Sizes: TypeAlias = int | Callable[..., int]  # a number, or one that follows from the parameters

# What update gets as `bar`, float64 [6]: the open time in seconds since 1970 UTC, prices, volume.
TIME, OPEN, HIGH, LOW, CLOSE, VOLUME = range(6)
BAR_SIZE = 6
NANOSECONDS = 1e9  # per second
LONGEST_WINDOW = 10_000  # bars; an update looks at the whole window, so that its cost grows with it

_VECTOR = types.Array(types.float64, 1, "C")
UPDATE_SIGNATURE = types.float64(_VECTOR, _VECTOR)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, eq=False)
class Feature:
    """Declaration of a feature. A column is a feature with numbers for its parameters: `return_5`.

    kind        "stream": `update` in numba; "batch": `function` on a DataFrame, cannot be streamed
    warm_up     number of bars (of its own timeframe) whose values are not valid, given the parameters
    state_size  length of the state. It starts as the parameters followed by zeros, unless `init` makes it
    smallest    least value of each parameter; values must grow from the first parameter to the last
    fit         for features with fitted numbers: (bars float64 [T, 6], name of the data) -> numbers by name, which
                `init` receives in place of the parameters
    version     recorded in the FeatureSpec; raised when a built-in changes its values
    """

    name: str
    meaning: str
    unit: str
    kind: Literal["stream", "batch"]
    parameters: tuple[str, ...]
    smallest: tuple[int, ...]
    warm_up: Callable[..., int]
    state_size: Callable[..., int]
    update: Any = None
    init: Callable[..., Floats] | None = None
    function: Callable[..., Any] | None = None
    fit: Callable[[Floats, str], dict[str, float]] | None = None
    version: int = 1

    def new_state(self, parameters: tuple[int, ...], fitted: dict[str, float] | None = None) -> Floats:
        """The state before the first bar, float64."""
        if self.init is not None:
            initial = self.init(**fitted) if fitted is not None else self.init(*parameters)
            state = np.ascontiguousarray(initial, dtype=np.float64)
            if state.ndim != 1:
                raise ConfigError(
                    f"feature '{self.name}': init made a state of shape {state.shape}; a vector is needed."
                )
            return state
        state = np.zeros(max(self.state_size(*parameters), len(parameters), 1))
        state[: len(parameters)] = parameters
        return state

    def compile(self) -> Any:
        """`update` as machine code (from numba's cache where there is one)."""
        if is_jitted(self.update) and not self.update.overloads:  # with NUMBA_DISABLE_JIT a plain function
            self.update.compile(UPDATE_SIGNATURE)
        return self.update

    def source_hash(self) -> str:
        """sha256 of the source of the function and of `init`, without what these call: notices that a user's feature
        has changed since training."""
        function = self.function if self.kind == "batch" else getattr(self.update, "py_func", self.update)
        try:
            source = "".join(inspect.getsource(one) for one in (function, self.init) if one is not None)
        except OSError as error:
            raise ConfigError(
                f"feature '{self.name}': the source of its function cannot be read, so that a later change of it would "
                "go unnoticed; define it in a file."
            ) from error
        return hashlib.sha256(source.encode()).hexdigest()


@dataclass(frozen=True)
class Column:
    """One column of a table: a feature with its parameters, on the given bars or on longer ones."""

    name: str  # with the timeframe: "1W:return_4"
    feature: Feature
    parameters: tuple[int, ...]
    timeframe: str | None
    own: bool  # a user's feature, not a built-in one

    @property
    def warm_up(self) -> int:
        """Bars of the column's own timeframe whose values are not valid."""
        return self.feature.warm_up(*self.parameters)

    @property
    def identity(self) -> str:
        """What the FeatureSpec records to notice that a feature is no longer the one that was trained on."""
        if not self.own:
            return f"built-in, version {self.feature.version}"
        batch = "batch only, " if self.feature.kind == "batch" else ""
        return f"user, {batch}sha256 {self.feature.source_hash()}"


def feature(
    name: str,
    *,
    meaning: str,
    unit: str,
    warm_up: Sizes,
    state_size: Sizes,
    parameters: tuple[str, ...] = (),
    smallest: int | tuple[int, ...] = 1,
    init: Callable[..., Floats] | None = None,
    fit: Callable[[Floats, str], dict[str, float]] | None = None,
    version: int = 1,
) -> Callable[[Any], Feature]:
    """Declare a streaming feature: decorates `update(state, bar) -> value`, an njit function or a plain one.

    `bar` is float64 [6], read as bar[CLOSE] and so on. `state` begins with the parameters, then zeros, or is what
    `init(*parameters)` returns. `update` must be causal (it sees nothing else), should be scale-free, and returns a
    finite number for every bar after the first `warm_up`; what it returns before is ignored.
    """

    def declare(function: Any) -> Feature:
        update = function if is_jitted(function) else njit(error_model="numpy", nogil=True)(function)
        _check_declaration(name, meaning, unit, parameters)
        return Feature(
            name=name,
            meaning=meaning,
            unit=unit,
            kind="stream",
            parameters=parameters,
            smallest=_smallest(name, parameters, smallest),
            warm_up=_as_function(warm_up),
            state_size=_as_function(state_size),
            update=update,
            init=init,
            fit=fit,
            version=version,
        )

    return declare


def batch_feature(
    name: str,
    *,
    meaning: str,
    unit: str,
    warm_up: Sizes,
    parameters: tuple[str, ...] = (),
    smallest: int | tuple[int, ...] = 1,
) -> Callable[[Callable[..., Any]], Feature]:
    """Declare a feature by a pandas function `(frame, *parameters) -> Series`; batch only: it cannot be streamed.

    `frame` has the columns open, high, low, close, volume and a UTC index `time` of open times. Nothing keeps such a
    function from looking ahead: check it with `tailwise data leak-check`.
    """

    def declare(function: Callable[..., Any]) -> Feature:
        _check_declaration(name, meaning, unit, parameters)
        return Feature(
            name=name,
            meaning=meaning,
            unit=unit,
            kind="batch",
            parameters=parameters,
            smallest=_smallest(name, parameters, smallest),
            warm_up=_as_function(warm_up),
            state_size=_as_function(0),
            function=function,
        )

    return declare


def _as_function(value: Sizes) -> Callable[..., int]:
    if callable(value):
        return value
    number = int(value)

    def constant(*_: int) -> int:
        return number

    return constant


def _smallest(name: str, parameters: tuple[str, ...], smallest: int | tuple[int, ...]) -> tuple[int, ...]:
    given = (smallest,) * len(parameters) if isinstance(smallest, int) else smallest
    if len(given) != len(parameters):
        raise ConfigError(f"feature '{name}': smallest is {smallest}; one number for each of {parameters} is needed.")
    return given


def _check_declaration(name: str, meaning: str, unit: str, parameters: tuple[str, ...]) -> None:
    if not _NAME.fullmatch(name) or re.search(r"_\d+$", name):
        raise ConfigError(
            f"feature name {name!r} is not allowed: use small letters, digits and _, begin with a letter, and do not "
            "end in _ and a number, which is how a column states its parameters (return_5)."
        )
    if not isinstance(parameters, tuple):
        raise ConfigError(f"feature '{name}': parameters are {parameters!r}; write a tuple, such as ('window',).")
    for what, text in (("meaning", meaning), ("unit", unit)):
        if not text.strip():
            raise ConfigError(f"feature '{name}': its {what} is empty; say it in a few words.")

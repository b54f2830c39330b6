"""A device that is none: tensors sent to it stay in memory, but mixing them with others is an error and reading counts.

It judges every call of torch from Python, so a run on it shows what a GPU would refuse and what would cross to it and
back, and gives the numbers of the CPU. What C++ calls by itself (the backward pass) it does not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

PRETEND = torch.device("privateuseone", 0)
_READS = ("item", "tolist", "__float__", "__int__", "__bool__", "__len__", "numpy", "__array__")


class PretendDevice(TorchFunctionMode):
    """sent, read: numbers of entries that crossed, one entry per transfer; `marked` says "inside" while they count."""

    def __init__(self) -> None:
        super().__init__()
        self._there: dict[int, Any] = {}  # storages by address; kept alive, so that no address is used again
        self._host: dict[int, Any] = {}
        self.sent: list[tuple[str, int]] = []
        self.read: list[tuple[str, int]] = []
        self.phase = "outside"

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Say that these tensors are on the host."""
        for tensor in tensors:
            self._mark(tensor, self._host)

    @contextmanager
    def marked(self, phase: str) -> Iterator[None]:
        """Count transfers under this name meanwhile."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def is_there(self, tensor: Tensor) -> bool:
        return _address(tensor) in self._there

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = (resolve_name(func) or getattr(func, "__name__", "")).split(".")
        tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [tensor for tensor in tensors if self.is_there(tensor)]
        if name[-1] == "__get__" and name[-2] == "device":
            return PRETEND if there else func(*args, **kwargs)
        if name[-1] in ("to", "cpu") and isinstance(args[0], Tensor):
            return self._moved(name[-1], args, kwargs)
        if name[-1] in _READS and there and name[-1] != "__len__":
            if name[-1] == "numpy" and not kwargs.get("force"):
                raise TypeError("a tensor of the device was asked for its memory")
            self.read.append((self.phase, args[0].numel()))
            return func(*args, **kwargs)
        wanted = kwargs.get("device") == PRETEND
        if wanted:
            del kwargs["device"]
        if name[-1] == "copy_" and len(there) == 1:
            (self.sent if self.is_there(args[0]) else self.read).append((self.phase, args[0].numel()))
        elif there and name[-1] not in ("__set__", "__get__", "_has_compatible_shallow_copy_type"):
            strangers = [t for t in tensors if _address(t) in self._host and t.dim() and not self.is_there(t)]
            if strangers:
                raise RuntimeError(f"{'.'.join(name)} mixes the device with the host: {[t.shape for t in strangers]}")
        result = func(*args, **kwargs)
        known = self._there if there or wanted else self._host
        if known is self._there or not tensors or all(_address(t) in self._host for t in tensors):
            for leaf in _leaves(result):
                if isinstance(leaf, Tensor) and not (_address(leaf) in self._host or self.is_there(leaf)):
                    self._mark(leaf, known)
        return result

    def _moved(self, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """`to` and `cpu`: a copy where they change the device."""
        tensor, *rest = args
        given = [*rest, *kwargs.values()]
        target = next((torch.device(one) for one in given if isinstance(one, torch.device | str)), None)
        target = torch.device("cpu") if name == "cpu" else target
        dtype = next((one for one in given if isinstance(one, torch.dtype)), tensor.dtype)
        here, result = self.is_there(tensor), tensor.to(dtype)
        if target is None or (target.type == PRETEND.type) == here:
            if result is not tensor and (here or _address(tensor) in self._host):
                self._mark(result, self._there if here else self._host)
            return result
        (self.read if here else self.sent).append((self.phase, tensor.numel()))
        result = result.clone() if result is tensor else result
        self._mark(result, self._host if here else self._there)
        return result

    def _mark(self, tensor: Tensor, where: dict[int, Any]) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            where[storage.data_ptr()] = storage


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _leaves(value: Any) -> list[Any]:
    """The values inside of tuples, lists and dicts."""
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]

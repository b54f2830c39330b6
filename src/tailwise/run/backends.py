"""Which implementation of the learner a run takes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.fused.coverage import why_not_fused
from tailwise.learner.backend import Backend
from tailwise.learner.config import LearnerConfig
from tailwise.learner.device import DeviceBackend
from tailwise.learner.ppo import TorchBackend
from tailwise.model.actor_critic import ActorCritic

BackendName = Literal["auto", "torch", "fused"]
DeviceName = Literal["cpu", "cuda", "auto"]


def make_backend(
    wanted: BackendName,
    model: ActorCritic,
    config: LearnerConfig,
    streams: Streams,
    *,
    threads: int,
    device: DeviceName = "cpu",
    **options: Any,
) -> tuple[Backend, str]:
    """The backend, and a sentence that says which one and why; `options` are those of `TorchBackend`.

    fused is an error where it does not cover an option, so that nobody measures torch and believes it is fused.
    device cuda means torch, and auto takes a GPU where torch is taken anyway.
    """
    reason = why_not_fused(model.config, config, model.action, auxiliary=options.get("auxiliary", ()))
    if device == "cuda":
        if wanted == "fused":
            raise ConfigError("backend fused is compiled for the CPU and run.device is cuda; set one of them to auto")
        why = "as configured" if wanted == "torch" else "because run.device is cuda"
        return _torch_backend(model, config, streams, _gpu(options), options, why)
    if wanted == "torch" or reason is not None:
        if wanted == "fused":
            raise ConfigError(f"backend fused: {reason}")
        why = "as configured" if wanted == "torch" else f"because {reason}"
        if device == "cpu":
            return _torch_backend(model, config, streams, None, options, why)
        kept = _why_no_gpu(options)
        if kept is None:
            return _torch_backend(model, config, streams, _gpu(options), options, why)
        backend, sentence = _torch_backend(model, config, streams, None, options, why)
        return backend, f"{sentence}; on the CPU, because {kept}"
    # Here and not above: torch runs need not wait for the compiler.
    from tailwise.fused.backend import FusedBackend

    backend = FusedBackend(model, config, streams, threads=threads, **options)
    why = "as configured" if wanted == "fused" else "because it covers all options"
    workers = f"{threads} worker{'s' if threads > 1 else ''}"
    return backend, f"fused, {why} ({workers}){'' if device == 'cpu' else '; on the CPU, which it is compiled for'}"


def _torch_backend(
    model: ActorCritic,
    config: LearnerConfig,
    streams: Streams,
    device: torch.device | None,
    options: dict[str, Any],
    why: str,
) -> tuple[Backend, str]:
    """Plain torch with its epochs on a device, None: on the CPU."""
    if device is None:
        return TorchBackend(model, config, streams, **options), f"torch, {why}"
    backend = DeviceBackend(model, config, streams, device=device, **options)
    return backend, f"torch, {why}; epochs on {device} ({torch.cuda.get_device_name(device)})"


def _gpu(options: Mapping[str, Any]) -> torch.device:
    """The GPU, where there is one that can be used."""
    reason = _why_no_gpu(options)
    if reason is not None:
        raise ConfigError(f"run.device is cuda and cannot be used: {reason}; set run.device to cpu or auto")
    return torch.device("cuda", torch.cuda.current_device())


def _why_no_gpu(options: Mapping[str, Any]) -> str | None:
    """Why epochs cannot run on a GPU; None where they can."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    auxiliary = options.get("auxiliary", ())
    if auxiliary:
        return f"the auxiliary loss {auxiliary[0][0]} is computed on the CPU"
    return None

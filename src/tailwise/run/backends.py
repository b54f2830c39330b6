"""Which implementation of the learner a run takes, and why."""

from __future__ import annotations

from typing import Any, Literal

from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.fused.coverage import why_not_fused
from tailwise.learner.backend import Backend
from tailwise.learner.config import LearnerConfig
from tailwise.learner.ppo import TorchBackend
from tailwise.model.actor_critic import ActorCritic

BackendName = Literal["auto", "torch", "fused"]


def make_backend(
    wanted: BackendName, model: ActorCritic, config: LearnerConfig, streams: Streams, *, threads: int, **options: Any
) -> tuple[Backend, str]:
    """The backend, and a sentence that says which one and why; `options` are those of `TorchBackend`.

    fused is an error where it does not cover an option, so that nobody measures torch and believes it is fused.
    """
    if wanted == "torch":
        return TorchBackend(model, config, streams, **options), "torch, as configured"
    reason = why_not_fused(model.config, config, model.action, auxiliary=options.get("auxiliary", ()))
    if reason is not None:
        if wanted == "fused":
            raise ConfigError(f"backend fused: {reason}")
        return TorchBackend(model, config, streams, **options), f"torch, because {reason}"
    # Here and not above: torch runs need not wait for the compiler.
    from tailwise.fused.backend import FusedBackend

    backend = FusedBackend(model, config, streams, threads=threads, **options)
    why = "as configured" if wanted == "fused" else "because it covers all options"
    workers = f"{threads} worker{'s' if threads > 1 else ''}"
    return backend, f"fused, {why} ({workers})"

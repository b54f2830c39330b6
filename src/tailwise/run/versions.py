"""What the last digits of a run depend on beside its configuration: versions of packages and Python, and threads."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tailwise.core import VERSION
from tailwise.run.config import Config

_PACKAGES = ("torch", "numpy", "gymnasium", "numba", "safetensors")


def made_with(config: Config) -> dict[str, Any]:
    """What a manifest keeps: versions, Python, platform, threads of the learner."""
    return {
        # Its own version from the package itself, which may run from a source tree without being installed.
        "versions": {"tailwise": VERSION} | {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": config.run.threads,
    }


def made_otherwise(manifest: Mapping[str, Any], config: Config | None = None) -> list[str]:
    """What differs here from what a run was made with, a few words each; threads are compared with those of `config`.

    The platform is left out: its name changes with every update of the system.
    """
    stored: Mapping[str, Any] = manifest.get("versions", {})
    found = [
        f"{name} {then} (installed: {now or 'none'})"
        for name, then in stored.items()
        if (now := _installed(name)) != then
    ]
    python = manifest.get("python")
    if python is not None and python != platform.python_version():
        found.append(f"Python {python} (this is {platform.python_version()})")
    threads = manifest.get("threads")
    if config is not None and threads is not None and threads != config.run.threads:
        found.append(f"run.threads {threads} (it is {config.run.threads} now)")
    return found


def _installed(name: str) -> str | None:
    if name == "tailwise":
        return VERSION
    try:
        return version(name)
    except PackageNotFoundError:
        return None

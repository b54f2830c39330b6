"""From what a person names (a file, a preset, values in Python) to the checked configuration that is worked with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwise.core.config import apply_overrides
from tailwise.core.errors import ConfigError
from tailwise.run.config import Config, parse_config
from tailwise.run.presets import Source, load_source, with_full_paths

ConfigLike = Config | Mapping[str, Any] | str | Path  # a YAML file or the name of a preset is a text


@dataclass(frozen=True)
class Effective:
    """A configuration with every default. label: begins the sentences about it; name: names its runs."""

    label: str
    name: str
    config: Config


def effective_config(config: ConfigLike, overrides: Sequence[str] = ()) -> Effective:
    """Read and check a configuration.

    config      a `Config`, a nested dictionary of what differs from the defaults, the path of a YAML file, or the name
                of a preset
    overrides   "learner.clip=0.1" and the like, changes of it
    """
    if isinstance(config, Config):
        if not overrides:
            return Effective("config", "config", config)
        config = config.model_dump(mode="json")
    source = Source("config", "config", dict(config)) if isinstance(config, Mapping) else load_source(str(config))
    label = source.label if not overrides else f"{source.label} with -s"
    # Paths of a file are full by now; those on the command line, or in Python, are meant from here.
    data = with_full_paths(apply_overrides(source.data, list(overrides)), Path.cwd())
    return Effective(source.label, source.name, parse_config(data, source=label))


def require_environment(effective: Effective) -> None:
    """Raise for a configuration without environment, which can be used by `tailwise.PPO(env)` only."""
    if effective.config.env.from_python:
        raise ConfigError(
            f"{effective.label}: env.id is not set; write the id of an environment, e.g. -s env.id=CartPole-v1"
        )

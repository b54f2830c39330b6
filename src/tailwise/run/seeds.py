"""A run with several seeds: one folder, in it the run of each seed, `seed_0`, `seed_1` and so on, whole runs themselves.

runs/sp500-1/
  config.yaml      of all of them, with run.seeds
  manifest.json    bars, versions
  seed_0/          a run with this seed and run.seeds 1; every command works on it too
  seed_1/
  evaluations/     of all of them together
"""

from __future__ import annotations

from pathlib import Path

from tailwise.core.errors import ConfigError
from tailwise.run.config import Config


def several(config: Config) -> bool:
    """Whether a configuration trains several policies that decide together."""
    return config.run.seeds > 1


def seeds_of(config: Config) -> range:
    """The seeds that a configuration trains."""
    return range(config.seed, config.seed + config.run.seeds)


def member_config(config: Config, seed: int) -> Config:
    """The configuration of one seed."""
    if seed not in seeds_of(config):
        raise ConfigError(f"the seeds are {config.seed} to {seeds_of(config)[-1]}; {seed} is none of them.")
    return config.model_copy(update={"seed": seed, "run": config.run.model_copy(update={"seeds": 1})})


def members_of(run: Path, config: Config) -> list[Path]:
    """The folders of the runs of all seeds, those that have not begun included; a run with one seed is its own."""
    return [run / f"seed_{seed}" for seed in seeds_of(config)] if several(config) else [run]


def alone(config: Config) -> Config:
    """The configuration of a study, which names its seeds itself: run.seeds is 1."""
    return config.model_copy(update={"run": config.run.model_copy(update={"seeds": 1})}) if several(config) else config

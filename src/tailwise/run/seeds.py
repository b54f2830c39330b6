"""A run with several seeds: one folder, in it the run of each seed, `seed_0`, `seed_1` and so on, a whole run itself.

runs/sp500-1/
  config.yaml      of all of them, with run.seeds
  manifest.json    bars, versions
  seed_0/          a run with this seed and run.seeds 1; every command works on it too
  seed_1/
  evaluations/     of all of them together
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwise.core.errors import ConfigError, DataError
from tailwise.run.config import Config
from tailwise.run.metric_store import read
from tailwise.run.run_folder import CONFIG, read_alerts, read_config

if TYPE_CHECKING:
    import pandas


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


def metrics_of(run: Path) -> pandas.DataFrame:
    """The metrics of a run, one row per update; of several seeds their mean, over the seeds that came so far."""
    folders = members_of(run, read_config(run))
    if folders == [run]:
        return read(run)
    import pandas

    frames = [read(one) for one in folders if (one / CONFIG).exists()]
    if not frames:
        raise DataError(f"{run}: none of its seeds has begun, so there are no metrics.")
    mean = pandas.concat(frames).copy().groupby("update", as_index=False).mean()  # copied: many columns lie scattered
    return mean.astype({"steps": "int64"})


def alerts_of(run: Path) -> list[dict[str, Any]]:
    """All alerts that were raised in a run, oldest first; of several seeds with the seed in front of the evidence."""
    config = read_config(run)
    if not several(config):
        return read_alerts(run)
    alerts = []
    for seed, folder in zip(seeds_of(config), members_of(run, config), strict=True):
        for alert in read_alerts(folder):
            alerts.append({**alert, "seed": seed, "evidence": f"seed {seed}: {alert['evidence']}"})
    return sorted(alerts, key=lambda alert: int(alert["update"]))

"""Where a policy comes from, and how it was played: what its run wrote down, for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwise.core.config import dump_yaml
from tailwise.run.checkpoint import Training
from tailwise.run.config import Config
from tailwise.run.metric_store import read
from tailwise.run.run_folder import read_alerts, read_manifest
from tailwise.run.worlds import MarketWorld

if TYPE_CHECKING:
    import pandas as pd

CAVEAT = "One policy of one seed on one path of history: it shows that everything works, not that it earns."
PREFIX = "calibration/"


@dataclass(frozen=True)
class Playing:
    """How a policy was played."""

    checkpoint: str
    deterministic: bool
    seed: int
    members: tuple[str, ...] = ()  # of an ensemble: how they decide together, then run/checkpoint of each
    trained: Training | None = None  # of an ensemble: its least trained member

    @property
    def sentence(self) -> str:
        how = "the most likely action" if self.deterministic else f"sampled actions, seed {self.seed}"
        if self.members:
            return f"{len(self.members) - 1} policies together ({self.members[0]}): {how}"
        return f"checkpoint {self.checkpoint}: {how}"


@dataclass(frozen=True)
class Background:
    """Where a policy comes from; what is not known is empty."""

    facts: Sequence[str] = ()
    metrics: pd.DataFrame | None = None
    calibration: Mapping[str, float] | None = None
    alerts: Sequence[Mapping[str, Any]] | None = None  # None: it was not trained by a run
    configuration: str = ""  # YAML
    hashes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # purpose -> symbol -> sha256
    versions: Mapping[str, str] = field(default_factory=dict)


def background_of(config: Config, world: MarketWorld, played: Playing, run: Path) -> Background:
    """Where a policy comes from: what its run wrote down."""
    facts = [
        *world.dataset.describe(),
        f"Core {config.model.core.kind}, {config.model.critic.kind} critic, seed {config.seed}, "
        f"{config.run.total_steps:,} steps; fills: {world.settings.fill.replace('_', ' ')}; "
        f"costs of an order: {world.costs.taker_rate * 1e4:g} bps and impact. Played: {played.sentence}.",
        CAVEAT,
    ]
    return Background(
        facts=facts,
        metrics=read(run),
        calibration=newest_calibration(run),
        alerts=read_alerts(run),
        configuration=dump_yaml(config),
        hashes={str(purpose): codes for purpose, codes in world.dataset.hashes().items()},
        versions=read_manifest(run)["versions"],
    )


def how_played(config: Config, played: Playing) -> str:
    """Who decided, and how, as a sentence for the verdict."""
    how = "its most likely action" if played.deterministic else f"sampled actions, seed {played.seed}"
    if played.members:
        return f"{len(played.members) - 1} policies decide together ({played.members[0]}), by {how}."
    return f"Policy: checkpoint {played.checkpoint} of the run with seed {config.seed}, by {how}."


def newest_calibration(run_dir: str | Path) -> dict[str, float] | None:
    """The last calibration that the training of a run wrote, names without `calibration/`; None if it wrote none."""
    rows = read(run_dir)
    names = [name for name in rows if name.startswith(PREFIX)]
    if not names:
        return None
    known = rows[names].dropna()
    if known.empty:
        return None
    return {name.removeprefix(PREFIX): float(value) for name, value in known.iloc[-1].items()}

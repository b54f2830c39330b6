"""Charts of the live page: groups of metrics, each with its healthy band from the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailwise.core.metrics import METRICS, find_spec
from tailwise.watch.files import finite


@dataclass(frozen=True)
class Panel:
    """One chart: names of metrics in drawing order; the first one gives unit and band."""

    title: str
    names: tuple[str, ...]
    log: bool = False


PANELS: tuple[Panel, ...] = (
    Panel("Return of episodes", ("episode/return", "evaluate/return")),
    Panel(
        "Tail against its limit",
        ("risk/cvar_return", "risk/measure", "calibration/cvar_predicted", "calibration/cvar_realised", "risk/limit"),
    ),
    Panel("Explained variance of the critics", ("critic/explained_variance",)),
    Panel("KL of an update", ("policy/kl",)),
    Panel("Entropy of the policy", ("policy/entropy",)),
    Panel("Clipped samples", ("policy/clip_fraction",)),
    Panel("Risk multiplier", ("risk/multiplier",)),
    Panel("Loss of the critics", ("critic/loss",), log=True),
    Panel("Gradient norm before clipping", ("grad/norm_before",), log=True),
    Panel("Returns below the predicted 5%", ("calibration/coverage_05",)),
    Panel("Step size", ("step/learning_rate",)),
    Panel("Throughput", ("time/steps_per_second",)),
    Panel("Memory of the process", ("machine/memory",)),
)
CURVES: tuple[str, ...] = tuple(dict.fromkeys(name for panel in PANELS for name in panel.names))


def describe_metric(name: str) -> dict[str, Any] | None:
    """Unit, meaning and healthy range of a metric for the page; None for a name that is not declared."""
    spec = find_spec(name)
    if spec is None:
        return None
    return {"unit": spec.unit, "meaning": spec.meaning, "healthy": spec.healthy}


def describe_panels() -> list[dict[str, Any]]:
    """The panels as the page reads them; metrics that this version does not declare are left out."""
    panels = []
    for panel in PANELS:
        names = [name for name in panel.names if name in METRICS]
        if names:
            panels.append({"title": panel.title, "names": names, "log": panel.log})
    return panels


def metric_rows(latest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List every metric of the newest update with its range and whether it lies inside."""
    rows = []
    for name, value in latest.items():
        spec = find_spec(name)
        if spec is None:
            continue
        number = finite(value)
        healthy = None if spec.healthy is None else number is not None and spec.is_healthy(number)
        row = {"name": name, "value": number, "unit": spec.unit, "meaning": spec.meaning}
        rows.append({**row, "band": spec.healthy, "healthy": healthy})
    return rows

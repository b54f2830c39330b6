"""Runs in MLflow or Weights & Biases, as callbacks. Both packages are optional and imported on use.

A resumed run goes on in the same MLflow or W&B run: their ids are kept in RUN/tracking.json.
"""

from __future__ import annotations

import importlib
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailwise.core.atomic import write_json
from tailwise.core.errors import ConfigError
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config
from tailwise.run.run_files import TrackingIds, read_stored

FILE = "tracking.json"
TRACKERS = ("mlflow", "wandb")
_LONGEST_VALUE = 500  # characters of a parameter, what MLflow takes
_BATCH = 100  # parameters per call, what MLflow takes


class MlflowTracker(Callback):
    """Configuration as parameters and all metrics by environment steps, into one MLflow run.

    tracking_uri: default MLFLOW_TRACKING_URI, else RUN/mlruns, files that `mlflow ui` shows. A server that stops
    answering ends the tracking with a warning, not the training.
    """

    def __init__(
        self, config: Config, run_dir: Path, *, tracking_uri: str | None = None, experiment: str = "tailwise"
    ) -> None:
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"file://{run_dir.absolute()}/mlruns"
        if uri.startswith("file:"):
            # Newer versions want to be told that files are meant; a local folder needs no server and no database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        _import("mlflow", "pip install 'tailwise[mlflow]'")
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self.config, self.run_dir, self.experiment = config, run_dir, experiment
        self._metric, self._param, self._failure = Metric, Param, MlflowException
        self.client = MlflowClient(tracking_uri=uri)
        self.run_id: str | None = None

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        stored = _stored(self.run_dir).get("mlflow")
        if stored is not None:
            self.run_id = stored
            self.client.update_run(stored, status="RUNNING")
            return
        experiment = self.client.get_experiment_by_name(self.experiment)
        home = self.client.create_experiment(self.experiment) if experiment is None else experiment.experiment_id
        self.run_id = self.client.create_run(home, run_name=self.run_dir.name).info.run_id
        values = [
            self._param(key, str(value)[:_LONGEST_VALUE])
            for key, value in flattened(self.config.model_dump(mode="json"))
        ]
        for first in range(0, len(values), _BATCH):
            self.client.log_batch(self.run_id, params=values[first : first + _BATCH])
        _store(self.run_dir, "mlflow", self.run_id)

    def on_update(self, progress: Progress) -> bool | None:
        if self.run_id is None:
            return None
        now = int(time.time() * 1000)
        values = [self._metric(name, value, now, progress.steps) for name, value in _finite(progress.metrics)]
        try:
            self.client.log_batch(self.run_id, metrics=values)
        except (self._failure, OSError) as error:
            warnings.warn(f"MLflow does not answer ({error}); tracking ends, training goes on", stacklevel=2)
            self.run_id = None
        return None

    def on_end(self, reason: str) -> None:
        if self.run_id is not None:
            self.client.set_tag(self.run_id, "ended", reason)
            self.client.set_terminated(self.run_id)


class WandbTracker(Callback):
    """The same in Weights & Biases. mode: "online", "offline" or "disabled"; default: WANDB_MODE, else online."""

    def __init__(self, config: Config, run_dir: Path, *, project: str = "tailwise", mode: Any = None) -> None:
        self.wandb = _import("wandb", "pip install 'tailwise[wandb]'")
        self.config, self.run_dir, self.project, self.mode = config, run_dir, project, mode
        self.run: Any = None

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        run_id = _stored(self.run_dir).get("wandb")
        self.run = self.wandb.init(
            project=self.project,
            name=self.run_dir.name,
            id=run_id,
            resume=None if run_id is None else "allow",
            config=self.config.model_dump(mode="json"),
            dir=str(self.run_dir),
            mode=self.mode,
        )
        _store(self.run_dir, "wandb", self.run.id)

    def on_update(self, progress: Progress) -> bool | None:
        self.run.log(dict(_finite(progress.metrics)), step=progress.steps)
        return None

    def on_end(self, reason: str) -> None:
        self.run.summary["ended"] = reason
        self.run.finish()


def make_trackers(names: Sequence[str], config: Config, run_dir: Path) -> list[Callback]:
    """Callbacks by their names."""
    trackers: list[Callback] = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise ConfigError(f"--track is '{name}'; choose {' or '.join(TRACKERS)}.")
        trackers.append(MlflowTracker(config, run_dir) if name == "mlflow" else WandbTracker(config, run_dir))
    return trackers


def flattened(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """("learner.clip", 0.2), ... of nested mappings."""
    if not isinstance(value, Mapping):
        yield key, value
        return
    for name, part in value.items():
        yield from flattened(part, f"{key}.{name}" if key else name)


def _finite(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, float(value)) for name, value in metrics.items() if math.isfinite(value)]


def _import(name: str, how: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ConfigError(f"tracking with {name} needs the package {name}, which is not installed; {how}") from error


def _stored(run_dir: Path) -> dict[str, str]:
    path = run_dir / FILE
    if not path.exists():
        return {}
    return read_stored(path, TrackingIds, root=run_dir).root


def _store(run_dir: Path, name: str, value: str) -> None:
    write_json(run_dir / FILE, {**_stored(run_dir), name: value})

"""The folder of a run: what is written at its start and with each update, and what a killed writer left behind."""

from __future__ import annotations

import hashlib
import json
import platform
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tailwise.core import VERSION
from tailwise.core.atomic import recover_folders, remove_leftovers, sha256_file, write_bytes, write_json
from tailwise.core.config import dump_yaml, parse_tree
from tailwise.core.errors import ConfigError, DataError
from tailwise.core.parsing import as_stored, parse_json
from tailwise.core.signature import FILE as SIGNATURE
from tailwise.core.signature import Origin, origin_of, sign
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config, RunConfig, parse_config
from tailwise.run.health import Alert
from tailwise.run.lock import RunLock
from tailwise.run.metric_store import FILE as METRICS
from tailwise.run.metric_store import TABLE, MetricStore
from tailwise.run.run_files import LARGE, SMALL, Manifest, StoredAlert, check_links, read_file, read_stored

WriteCheckpoint = Callable[[Path], None]  # writes one into a folder, whole or not at all

CONFIG, MANIFEST, ALERTS = "config.yaml", "manifest.json", "alerts.jsonl"
DAMAGED_ALERTS = "alerts.damaged.jsonl"
DUMPS = "dumps"  # folder in which a stopping health rule leaves the numbers of its update
_PACKAGES = ("torch", "numpy", "gymnasium", "numba", "safetensors")
# Of the files beside them, only the owner of the run's lock writes these: `report` writes its page while a run trains.
_FILES = (CONFIG, MANIFEST, SIGNATURE, ALERTS, METRICS, TABLE)


def refuse_existing(run_dir: Path) -> None:
    """Raise DataError where there is a run already."""
    if (run_dir / CONFIG).exists():
        raise DataError(
            f"{run_dir} holds a run already; continue it with 'tailwise resume {run_dir}', or choose another folder."
        )


@contextmanager
def new_folder(out: Path | None, name: str) -> Iterator[Path]:
    """The folder to work in: `out`, or runs/<name>-<n> with the first free n, taken at once.

    Runs that start at the same moment get different folders; a folder that stayed empty is removed when the work
    cannot start.
    """
    if out is not None:
        yield out
        return
    number = 1
    while True:
        folder = Path("runs") / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        break
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # not empty: what is in it stays
            folder.rmdir()
        raise


def create_run_folder(
    run_dir: Path, config: Config, *, exact_resume: bool, exact_resume_reason: str, world: dict[str, Any]
) -> str | None:
    """Write config.yaml (complete), manifest.json and their signature into a new folder; an existing run is never
    overwritten. Returns why the run could not be signed as this user's own, None when it was."""
    refuse_existing(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    manifest = {
        "format": 1,
        "id": secrets.token_hex(8),  # tells this run from a later one in a folder of the same name
        "seed": config.seed,
        **software_versions(config),
        "git": _git_state(),
        "exact_resume": exact_resume,
        "exact_resume_reason": exact_resume_reason,
        **world,
    }
    write_json(run_dir / MANIFEST, manifest)
    return write_config(run_dir, config)


def write_config(run_dir: Path, config: Config) -> str | None:
    """Write config.yaml, complete, and sign it with the manifest as this user's own; why that was not possible, if so.

    config.yaml comes last, because it makes the folder a run: no kill leaves a run without its manifest or signature.
    """
    text = dump_yaml(config).encode()
    digests = {CONFIG: hashlib.sha256(text).hexdigest(), MANIFEST: sha256_file(run_dir / MANIFEST)}
    unsigned = None
    try:
        write_bytes(run_dir / SIGNATURE, sign("run", digests))
    except (ConfigError, OSError) as error:
        unsigned = f"{run_dir} is not signed as yours: {error}"
    write_bytes(run_dir / CONFIG, text)
    return unsigned


def origin_of_run(run_dir: Path) -> Origin:
    """Whether config.yaml and manifest.json are as this user's key signed them."""
    try:
        contents = {name: read_file(run_dir / name, root=run_dir, limit=SMALL) for name in (CONFIG, MANIFEST)}
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    except (DataError, OSError) as error:
        return Origin(False, f"it is not whole ({error})")
    return origin_of(run_dir, "run", digests)


def read_config(run_dir: Path) -> Config:
    """The configuration that a run was started with; a run with links that lead out of it is refused here."""
    path = run_dir / CONFIG
    if not path.exists():
        raise DataError(f"{run_dir} is not the folder of a run: it has no {CONFIG}; give the folder that train made.")
    check_links(run_dir)
    return parse_config(parse_tree(read_file(path, root=run_dir, limit=SMALL), source=str(path)), source=str(path))


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """What was written down when the run began."""
    path = run_dir / MANIFEST
    try:
        return read_stored(path, Manifest, root=run_dir).model_dump(exclude_unset=True)
    except (OSError, DataError) as error:
        raise DataError(f"{error}\n{path} cannot be read; restore it, the run's bars are checked by it.") from error


def append_alerts(run_dir: Path, alerts: list[Alert]) -> None:
    """Add alerts to alerts.jsonl, one JSON object a line."""
    if not alerts:
        return
    with open(run_dir / ALERTS, "a", encoding="utf-8") as file:
        for alert in alerts:
            file.write(json.dumps(alert.to_json()) + "\n")


def read_alerts(run_dir: Path) -> list[dict[str, Any]]:
    """All alerts that were raised in a run, oldest first; see `read_health_events` for what is left out."""
    return [event for event in read_health_events(run_dir).events if event["event"] == "raised"]


@dataclass(frozen=True)
class HealthEvents:
    """What alerts.jsonl holds. events: oldest first, raised and cleared alerts and actions ("acted"); damaged: what is
    wrong with the lines that are no alerts, a sentence each."""

    events: list[dict[str, Any]]
    damaged: list[str]


def read_health_events(run_dir: Path) -> HealthEvents:
    """Everything in alerts.jsonl; a torn last line is left out, and so is what is no alert."""
    path = run_dir / ALERTS
    log = HealthEvents([], [])
    if not path.exists():
        return log
    lines = read_file(path, root=run_dir, limit=LARGE).split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        source = f"{path} line {number}"
        if line:
            try:
                alert = as_stored(StoredAlert, parse_json(line, what=source, max_bytes=SMALL), source=source)
                log.events.append(alert.model_dump())
            except DataError as error:
                log.damaged.append(str(error).splitlines()[0])
    return log


def cut_back_alerts(run_dir: Path, update: int) -> str | None:
    """Drop alerts after `update`, as a resumed run will raise them again.

    Lines that are no alerts do not stop a run: they are set aside, and the sentence that says so is returned.
    """
    path = run_dir / ALERTS
    if not path.exists():
        return None
    log = read_health_events(run_dir)
    if log.damaged:
        write_bytes(run_dir / DAMAGED_ALERTS, read_file(path, root=run_dir, limit=LARGE))
    kept = [alert for alert in log.events if alert["update"] <= update]
    write_bytes(path, "".join(json.dumps(alert) + "\n" for alert in kept).encode())
    if not log.damaged:
        return None
    return (
        f"{len(log.damaged)} lines of {ALERTS} are no alerts and were left out ({log.damaged[0]}); the file as it "
        f"was is kept as {DAMAGED_ALERTS}"
    )


class RunWriter:
    """Writes what a run adds to its folder while it trains: metrics, alerts, checkpoints.

    saved: whether the newest checkpoint that was due could be written
    """

    def __init__(self, run_dir: Path, config: RunConfig, lock: RunLock | None) -> None:
        self.run_dir, self.config, self.lock = run_dir, config, lock
        self.store = MetricStore(run_dir, tensorboard=config.tensorboard)
        self.saved = True

    def record(
        self,
        update: int,
        steps: int,
        metrics: Mapping[str, float],
        alerts: list[Alert],
        *,
        best: bool,
        last: bool,
        write: WriteCheckpoint,
    ) -> str | None:
        """Write an update down; a sentence when the run cannot go on because its files cannot be written.

        best: its policy is the best so far; last: the run ends. An alert about a failed checkpoint joins `alerts`.
        """
        try:
            if self.lock is not None:
                self.lock.check()
            append_alerts(self.run_dir, alerts)
            # Who resumes after a roll-back must not continue from the states that it left.
            went_back = any(alert.event == "acted" and alert.action == "rollback" for alert in alerts)
            self.store.append(update, steps, metrics)
            if best:
                # After the line of this update: a run may be resumed from its best checkpoint, which relies on it.
                self.save(update, alerts, write, best=True)
            if last or went_back or update % self.config.checkpoint_every == 0 or not self.saved:
                self.save(update, alerts, write)
        except OSError as error:
            self.saved = False
            return f"the files of the run cannot be written ({error}); free the disk, then resume the run"
        return None

    def save(self, update: int, alerts: list[Alert], write: WriteCheckpoint, *, best: bool = False) -> None:
        """Write a checkpoint; a disk that does not take it is an alert, once, and the next update tries again."""
        try:
            self.store.sync()
            write(ckpt.checkpoint_path(self.run_dir, None if best else update))
            if not best:
                ckpt.prune(self.run_dir, self.config.keep)
            self.saved = True
        except OSError as error:
            first, self.saved = self.saved, False
            if first:
                evidence = f"the checkpoint was not written ({error}); the ones before it are untouched"
                advice = "free the disk; writing is tried again after every update"
                alerts.append(Alert(update, "checkpoint_failed", "error", evidence, advice))
                append_alerts(self.run_dir, alerts[-1:])

    def close(self, *, compact: bool) -> None:
        """Close the metrics; compact: write them as a table, too."""
        if compact:
            self.store.compact()
        self.store.close()


def _git_state() -> dict[str, Any] | None:
    """Commit of the current folder's repository and whether it has changes; None outside a repository."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        status = subprocess.run(
            ["git", "status", "--porcelain"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.stdout.strip(), "changed": bool(status.stdout.strip())}


def software_versions(config: Config) -> dict[str, Any]:
    """What a manifest keeps: versions, Python, platform, threads of the learner."""
    return {
        # Its own version from the package itself, which may run from a source tree without being installed.
        "versions": {"tailwise": VERSION} | {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": config.run.threads,
    }


def version_differences(manifest: Mapping[str, Any], config: Config | None = None) -> list[str]:
    """What differs here from what a run was made with, a few words each; threads are compared with those of `config`.

    The platform is left out: its name changes with every update of the system.
    """
    stored: Mapping[str, Any] = manifest.get("versions", {})
    differences = [
        f"{name} {then} (installed: {now or 'none'})"
        for name, then in stored.items()
        if (now := _installed(name)) != then
    ]
    python = manifest.get("python")
    if python is not None and python != platform.python_version():
        differences.append(f"Python {python} (this is {platform.python_version()})")
    threads = manifest.get("threads")
    if config is not None and threads is not None and threads != config.run.threads:
        differences.append(f"run.threads {threads} (it is {config.run.threads} now)")
    return differences


def _installed(name: str) -> str | None:
    if name == "tailwise":
        return VERSION
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def remove_unfinished(run_dir: Path) -> list[Path]:
    """Finish or undo what was cut short and remove the rest; returns what was removed.

    Only for the owner of the run's lock: the unfinished work of a living writer looks the same.
    """
    removed = remove_leftovers(run_dir, of=_FILES)
    for folder in (run_dir / "checkpoints", run_dir / DUMPS):
        if folder.is_dir() and not folder.is_symlink():
            recover_folders(folder)
            removed += remove_leftovers(folder)
            for half in sorted(folder.glob(f"{ckpt.DELETED}*")):
                shutil.rmtree(half)
                removed.append(half)
    return removed

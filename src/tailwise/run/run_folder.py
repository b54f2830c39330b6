"""The folder of a run: what is written once at its start, and its log of alerts."""

from __future__ import annotations

import hashlib
import json
import platform
import secrets
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tailwise.core.atomic import sha256_file, write_bytes, write_json
from tailwise.core.config import dump_yaml, load_yaml
from tailwise.core.errors import ConfigError, DataError
from tailwise.core.signature import FILE as SIGNATURE
from tailwise.core.signature import Origin, origin_of, sign
from tailwise.core.version import VERSION
from tailwise.run.config import Config, parse_config
from tailwise.run.health import Alert

CONFIG, MANIFEST, ALERTS = "config.yaml", "manifest.json", "alerts.jsonl"
_PACKAGES = ("torch", "numpy", "gymnasium", "numba", "safetensors")


def refuse_existing(run_dir: Path) -> None:
    """Raise DataError where there is a run already."""
    if (run_dir / CONFIG).exists():
        raise DataError(
            f"{run_dir} holds a run already; continue it with 'tailwise resume {run_dir}', or choose another folder."
        )


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
        # Its own version from the package itself, which may run from a source tree without being installed.
        "versions": {"tailwise": VERSION} | {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
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
        digests = {name: sha256_file(run_dir / name) for name in (CONFIG, MANIFEST)}
    except OSError as error:
        return Origin(False, f"it is not whole ({error})")
    return origin_of(run_dir, "run", digests)


def read_config(run_dir: Path) -> Config:
    """The configuration that a run was started with."""
    path = run_dir / CONFIG
    if not path.exists():
        raise DataError(f"{run_dir} is not the folder of a run: it has no {CONFIG}; give the folder that train made.")
    return parse_config(load_yaml(path), source=str(path))


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """What was written down when the run began."""
    path = run_dir / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); restore it, the run's bars are checked by it.") from error
    if not isinstance(manifest, dict):
        raise DataError(f"{path} does not hold a mapping; restore it, the run's bars are checked by it.")
    return manifest


def append_alerts(run_dir: Path, alerts: list[Alert]) -> None:
    """Add alerts to alerts.jsonl, one JSON object a line."""
    if not alerts:
        return
    with open(run_dir / ALERTS, "a", encoding="utf-8") as file:
        for alert in alerts:
            file.write(json.dumps(alert.to_json()) + "\n")


def read_alerts(run_dir: Path) -> list[dict[str, Any]]:
    """All alerts that were raised in a run, oldest first; a torn last line is left out."""
    return [event for event in read_health_events(run_dir) if event["event"] == "raised"]


def read_health_events(run_dir: Path) -> list[dict[str, Any]]:
    """Everything in alerts.jsonl, oldest first: raised and cleared alerts, and actions ("acted")."""
    path = run_dir / ALERTS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [{"event": "raised", **json.loads(line)} for line in lines[:-1] if line]


def cut_back_alerts(run_dir: Path, update: int) -> None:
    """Drop alerts after `update`, as a resumed run will raise them again."""
    path = run_dir / ALERTS
    if path.exists():
        kept = [alert for alert in read_health_events(run_dir) if alert["update"] <= update]
        write_bytes(path, "".join(json.dumps(alert) + "\n" for alert in kept).encode())


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

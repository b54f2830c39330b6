"""Checkpoint folders, format 1: whole, verified, and free of pickle.

    update-000012/
      checkpoint.json              {format: 1, kind: "tailwise-checkpoint", files: {path: {sha256, bytes}}, digest}
      policy/weights.safetensors   all that evaluation, paper trading and export read
      policy/spec.json
      training/tensors.safetensors optimiser, environment, hidden state: what only a resumed run needs
      training/state.json
      signature.json               says that checkpoint.json is this user's own, see core/signature.py

A folder of format 2 holds the policy alone: {format: 2, ...} and policy/, nothing to train on with.

A folder is written under a temporary name, synced and renamed, so a killed process leaves the old one or the new one.
Everything is checked on reading, and every way in which it can be broken is a sentence that names the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailwise.core.atomic import atomic_folder, recover_folder
from tailwise.core.errors import CheckpointError, ConfigError, DataError, NotFiniteError
from tailwise.core.parsing import parse_json
from tailwise.core.signature import FILE as SIGNATURE
from tailwise.core.signature import Origin, origin_of, sign
from tailwise.run.run_files import LARGE, LARGEST_TENSORS, SMALL, inside, read_file

if TYPE_CHECKING:
    import torch

FORMAT, POLICY_ALONE = 1, 2  # formats: of a whole checkpoint, of a policy without its training
KIND = "tailwise-checkpoint"
MANIFEST = "checkpoint.json"
POLICY_TENSORS, POLICY_JSON = "policy/weights.safetensors", "policy/spec.json"
TRAINING_TENSORS, TRAINING_JSON = "training/tensors.safetensors", "training/state.json"
FILES = (POLICY_TENSORS, POLICY_JSON, TRAINING_TENSORS, TRAINING_JSON)
FILES_OF = {FORMAT: FILES, POLICY_ALONE: (POLICY_TENSORS, POLICY_JSON)}
# Tensors that must be finite, by the beginning of their names. Environments and windows may hold NaN for "nothing yet".
FINITE = {POLICY_TENSORS: ("",), TRAINING_TENSORS: ("optimiser/", "collector/state", "collector/past_reward")}
BEST = "best"
_UPDATE = re.compile(r"update-(\d{6,})")
DELETED = ".deleted-"
LARGEST_INT = 2**256 - 1  # random generators of environments keep whole numbers of 128 bits


@dataclass(frozen=True)
class Part:
    """One half of a checkpoint: tensors by name, plain JSON values, and whether this user wrote them."""

    tensors: dict[str, torch.Tensor]
    json: dict[str, Any]
    origin: Origin


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that cannot be used, and the sentence that says why."""

    path: Path
    reason: str


def checkpoint_path(run_dir: str | Path, update: int | None) -> Path:
    """Where the checkpoint of an update lives; None is the best one so far."""
    return Path(run_dir) / "checkpoints" / (BEST if update is None else f"update-{update:06d}")


def write_checkpoint(
    folder: str | Path,
    *,
    policy_tensors: Mapping[str, torch.Tensor],
    policy_json: Mapping[str, Any],
    training_tensors: Mapping[str, torch.Tensor],
    training_json: Mapping[str, Any],
) -> None:
    """Write (or replace) a checkpoint; it is there whole or not at all. A policy that is not finite is not saved."""
    _check_finite(policy_tensors, Path(folder) / POLICY_TENSORS, POLICY_TENSORS)
    contents = {
        POLICY_TENSORS: _tensor_bytes(policy_tensors),
        POLICY_JSON: json_bytes(policy_json, POLICY_JSON),
        TRAINING_TENSORS: _tensor_bytes(training_tensors),
        TRAINING_JSON: json_bytes(training_json, TRAINING_JSON),
    }
    _write(folder, contents)


def write_policy(folder: str | Path, tensors: Mapping[str, torch.Tensor], spec: Mapping[str, Any]) -> None:
    """Write (or replace) a folder with the policy half alone; it is there whole or not at all."""
    _check_finite(tensors, Path(folder) / POLICY_TENSORS, POLICY_TENSORS)
    _write(folder, {POLICY_TENSORS: _tensor_bytes(tensors), POLICY_JSON: json_bytes(spec, POLICY_JSON)})


def _write(folder: str | Path, contents: Mapping[str, bytes]) -> None:
    """Write files by their names in the folder, with their digests and a signature."""
    entries = {name: {"sha256": _sha256(data), "bytes": len(data)} for name, data in contents.items()}
    with atomic_folder(folder) as temporary:
        for name, data in contents.items():
            target = temporary / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
        manifest = _manifest_bytes(entries)
        (temporary / MANIFEST).write_bytes(manifest)
        # Without a key (a home that cannot be written) there is no signature; whoever creates a run is told.
        with contextlib.suppress(ConfigError, OSError):
            (temporary / SIGNATURE).write_bytes(sign("checkpoint", {MANIFEST: _sha256(manifest)}))


def read_policy(folder: str | Path) -> Part:
    """The policy half, verified."""
    return _read_part(Path(folder), POLICY_TENSORS, POLICY_JSON)


def read_training(folder: str | Path) -> Part:
    """The training half, verified."""
    return _read_part(Path(folder), TRAINING_TENSORS, TRAINING_JSON)


@dataclass(frozen=True)
class Training:
    """The training behind a checkpoint.

    limit_acted: whether risk.limit acted in any update, None without a limit; a warm-up comes first, and a run may end
    before it is over
    """

    updates: int
    limit_acted: bool | None


def training_behind(folder: str | Path) -> Training:
    """What a checkpoint says about the training behind it, whatever its name."""
    folder = Path(folder)
    entries = _with_training(_read_manifest(folder), folder)
    state, spec = (
        _parse_json(_read_verified(folder, name, entries), folder / name) for name in (TRAINING_JSON, POLICY_JSON)
    )
    try:
        updates, limited = int(state["update"]), spec["config"]["risk"]["mode"] == "constraint"
        since = state["risk"]["constraint"]["active_since"] if limited else None
        acted = since is not None and int(since) < updates
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: what it says about its training cannot be read ({error!r}).") from error
    return Training(updates, acted if limited else None)


def least_trained(members: Sequence[Training]) -> Training:
    """Of several policies that decide together: the fewest updates, and whether the limit acted in all of them."""
    acted = [one.limit_acted for one in members]
    return Training(min(one.updates for one in members), None if None in acted else all(acted))


def verify(folder: str | Path) -> None:
    """Read and check every file of a checkpoint."""
    folder = Path(folder)
    entries = _with_training(_read_manifest(folder), folder)
    for name in FILES:
        data = _read_verified(folder, name, entries)
        if name.endswith(".json"):
            _parse_json(data, folder / name)
        else:
            _parse_tensors(data, folder, name)


def checkpoints_in(run_dir: str | Path) -> list[Path]:
    """The checkpoints of a run, newest update first; `best` (whose update its name does not tell) comes last."""
    root = Path(run_dir) / "checkpoints"
    if root.is_dir():
        _inside(root, Path(run_dir))
    return _siblings(root)


def latest_good(run_dir: str | Path) -> tuple[Path | None, list[Rejected]]:
    """The newest checkpoint that verifies (None if there is none) and the newer ones that do not."""
    rejected: list[Rejected] = []
    for path in checkpoints_in(run_dir):
        try:
            verify(path)
        except CheckpointError as error:
            rejected.append(Rejected(path, str(error)))
            continue
        return path, rejected
    return None, rejected


def prune(run_dir: str | Path, keep: int) -> list[Path]:
    """Delete all but the `keep` newest checkpoints; `best` always stays. Returns what was deleted."""
    if keep < 1:
        raise CheckpointError(f"keep is {keep}; at least one checkpoint must stay, or the run cannot be resumed.")
    root = Path(run_dir) / "checkpoints"
    old = [path for path in checkpoints_in(run_dir) if path.name != BEST][keep:]
    for path in old:
        # Renamed first: a process killed during the deletion must not leave half a checkpoint under a valid name.
        path.rename(root / f"{DELETED}{path.name}")
    if root.is_dir():
        for leftover in root.glob(f"{DELETED}*"):
            shutil.rmtree(leftover)
    return old


def match_tensors(
    loaded: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], *, source: str | Path
) -> None:
    """Check names, shapes and dtypes of loaded tensors against those of the model that is to receive them."""
    missing, foreign = sorted(expected.keys() - loaded.keys()), sorted(loaded.keys() - expected.keys())
    if missing or foreign:
        raise CheckpointError(
            f"{source}: missing tensors {missing}, unexpected tensors {foreign}; "
            "the checkpoint belongs to another model configuration, use the config.yaml of its run."
        )
    for name, tensor in expected.items():
        got = loaded[name]
        if got.shape != tensor.shape or got.dtype != tensor.dtype:
            raise CheckpointError(
                f"{source}: tensor '{name}' is {got.dtype} {tuple(got.shape)}, this model needs {tensor.dtype} "
                f"{tuple(tensor.shape)}; the checkpoint belongs to another model configuration, "
                "use the config.yaml of its run."
            )


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Split nested dicts of arrays and plain values into tensors (named by their path, "/" between keys) and JSON.

    A numpy scalar becomes the Python value that equals it.
    In the JSON an array is {"__tensor__": its name}; `join_state` puts both together again.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}

    def split(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            tensors[path] = torch.from_numpy(np.array(value, order="C"))
            return {"__tensor__": path, "numpy": True}
        if isinstance(value, torch.Tensor):
            tensors[path] = value.detach().cpu().contiguous().clone()
            return {"__tensor__": path, "numpy": False}
        if isinstance(value, Mapping):
            return {key: split(part, f"{path}/{key}" if path else str(key)) for key, part in value.items()}
        return _plain(value)

    return tensors, split(state, "")


def _plain(value: Any) -> Any:
    """Numpy scalars as Python values, also inside lists; everything else as it is (`json_bytes` judges it)."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value


def join_state(tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `split_state`."""

    def join(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if "__tensor__" in value:
            name = value["__tensor__"]
            if not isinstance(name, str) or name not in tensors:
                raise CheckpointError(
                    f"{TRAINING_JSON} refers to the tensor '{name}', which {TRAINING_TENSORS} does not hold."
                )
            return tensors[name].numpy() if value.get("numpy") else tensors[name]
        return {key: join(part) for key, part in value.items()}

    return {key: join(part) for key, part in data.items()}


def json_bytes(value: Mapping[str, Any], name: str) -> bytes:
    """JSON that reads back as the same values: floats in their exact shortest form, all finite; string keys."""
    _check_json(value, name, "")
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _check_json(value: Any, name: str, path: str) -> None:
    where = f"{name}: the value at '{path or 'top level'}'"
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}; JSON would turn it into text, use a string.")
            _check_json(part, name, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            _check_json(part, name, f"{path}[{index}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise CheckpointError(
                f"{where} is {value}; a state that is not finite is not saved, find out where it arose."
            )
    elif isinstance(value, int) and abs(value) > LARGEST_INT:
        raise CheckpointError(
            f"{where} is a whole number of more than {LARGEST_INT.bit_length()} bits; save it as text."
        )
    elif value is not None and not isinstance(value, str | int):
        raise CheckpointError(
            f"{where} is a {type(value).__name__}; save arrays as tensors and numbers as int or float."
        )


def _read_part(folder: Path, tensors: str, data: str) -> Part:
    recover_folder(folder)
    try:
        entries = _read_manifest(folder)
        if tensors == TRAINING_TENSORS:
            _with_training(entries, folder)
        return Part(
            tensors=_parse_tensors(_read_verified(folder, tensors, entries), folder, tensors),
            json=_parse_json(_read_verified(folder, data, entries), folder / data),
            origin=origin_of(folder, "checkpoint", {MANIFEST: _sha256(_manifest_bytes(entries))}),
        )
    except CheckpointError as error:
        raise type(error)(f"{error} {_offer(folder)}") from error


def _offer(broken: Path) -> str:
    """What to use instead of a checkpoint that was asked for by name: the newest good one before it, else any other."""
    try:
        others = [path for path in _siblings(broken.parent) if path.name != broken.name]
    except CheckpointError as error:
        return str(error)
    asked = _update_of(broken)
    before = [
        path for path in others if asked is not None and (update := _update_of(path)) is not None and update < asked
    ]
    for path in before + [path for path in others if path not in before]:
        try:
            verify(path)
        except CheckpointError:
            continue  # a broken one is not offered; its own reading tells why
        return f"The previous good checkpoint is {path}."
    return f"There is no other good checkpoint in {broken.parent}."


def _update_of(folder: Path) -> int | None:
    """The update in a checkpoint's name; None for `best` and for other folders."""
    match = _UPDATE.fullmatch(folder.name)
    return None if match is None else int(match[1])


def _siblings(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    recover_folder(root / BEST)
    numbered = [(update, path) for path in root.iterdir() if (update := _update_of(path)) is not None]
    newest_first = [path for _, path in sorted(numbered, reverse=True)]
    checkpoints = newest_first + ([root / BEST] if (root / BEST).exists() else [])
    for path in checkpoints:
        _inside(path, root, must_exist=False)
    return [path for path in checkpoints if os.path.lexists(path)]  # a run that trains deletes old ones meanwhile


def _inside(path: Path, root: Path, *, must_exist: bool = True) -> Path:
    """`inside` as a CheckpointError."""
    try:
        return inside(path, root, must_exist=must_exist)
    except DataError as error:
        raise CheckpointError(str(error)) from error


def _read(path: Path, folder: Path, limit: int) -> bytes:
    """`read_file` of a checkpoint folder as a CheckpointError."""
    try:
        return read_file(path, root=folder, limit=limit)
    except DataError as error:
        raise CheckpointError(str(error)) from error


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """The table of files from checkpoint.json."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: there is no such checkpoint folder; look into the run's checkpoints/ for its name."
        )
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(
            f"{path}: missing, so {folder} is no Tailwise checkpoint; pass a folder that Tailwise wrote."
        )
    raw = _read(path, folder, SMALL)
    data = _parse_json(raw, path)
    if data.get("kind") != KIND:
        raise CheckpointError(
            f"{path}: kind is {data.get('kind')!r}, expected '{KIND}'; this folder is something else."
        )
    files = FILES_OF.get(data["format"]) if type(data.get("format")) is int else None
    if files is None:
        raise CheckpointError(
            f"{path}: format is {data.get('format')!r}, this version of Tailwise reads format {FORMAT} or "
            f"{POLICY_ALONE}; use the version of Tailwise that wrote it (manifest.json of the run names it)."
        )
    entries = data.get("files")
    if not isinstance(entries, dict) or sorted(entries) != sorted(files) or raw != _manifest_bytes(entries):
        raise CheckpointError(f"{path}: the file was changed after it was written; do not use this checkpoint.")
    sizes = [entry.get("bytes") if isinstance(entry, dict) else None for entry in entries.values()]
    if not all(type(size) is int and 0 <= size <= LARGEST_TENSORS for size in sizes):
        raise CheckpointError(f"{path}: the file was changed after it was written; do not use this checkpoint.")
    return entries


def _with_training(entries: dict[str, dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of a whole checkpoint; raise for a folder that holds the policy alone."""
    if TRAINING_JSON not in entries:
        raise CheckpointError(
            f"{folder}: holds a policy without its training (format {POLICY_ALONE}); tailwise.load reads it, and a "
            "training is continued from a checkpoint of its run."
        )
    return entries


def _manifest_bytes(entries: Mapping[str, Any]) -> bytes:
    """The one exact text of checkpoint.json for these files; its digest makes any edit visible."""
    digest = _sha256(json.dumps(entries, sort_keys=True).encode())
    number = FORMAT if TRAINING_JSON in entries else POLICY_ALONE
    manifest = {"format": number, "kind": KIND, "files": entries, "digest": digest}
    return (json.dumps(manifest, indent=1) + "\n").encode()


def _read_verified(folder: Path, name: str, entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete, do not use it.")
    entry = entries[name]
    size = path.stat().st_size  # before it is read: a changed file may be larger than the memory
    if size != entry["bytes"]:
        raise CheckpointError(
            f"{path}: has {size} bytes, {entry['bytes']} were written; "
            "the file is truncated or was changed, do not use it."
        )
    data = _read(path, folder, LARGE if name.endswith(".json") else LARGEST_TENSORS)
    if _sha256(data) != entry["sha256"]:
        raise CheckpointError(
            f"{path}: its checksum is not the one it was written with; the file is corrupted, do not use it."
        )
    return data


def _parse_json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        value = parse_json(data, what=str(path), max_bytes=LARGE, largest_int=LARGEST_INT)
    except DataError as error:
        raise CheckpointError(f"{error} The file is damaged, do not use this checkpoint.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, expected a JSON object.")
    return value


def _tensor_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    from safetensors.torch import save

    # Cloned, because safetensors refuses tensors that share memory (the flat buffers of an optimiser do).
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in sorted(tensors.items())})


def _parse_tensors(data: bytes, folder: Path, name: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = folder / name
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: is not a valid safetensors file ({error}); do not use this checkpoint."
        ) from error
    _check_finite(tensors, path, name)
    return tensors


def _check_finite(tensors: Mapping[str, torch.Tensor], path: Path, name: str) -> None:
    """Refuse NaN and infinite entries in the tensors of the file `name` that must have none."""
    import torch

    for key, tensor in tensors.items():
        if key.startswith(FINITE[name]) and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise NotFiniteError(
                f"{path}: the tensor '{key}' has {bad} of {tensor.numel()} entries that are NaN or infinite; nothing "
                "that is computed with it means anything, use another checkpoint."
            )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

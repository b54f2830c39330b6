"""Run folders as somebody with an editor would leave them: hashes fit, contents do not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

WEIGHTS, SPEC = "policy/weights.safetensors", "policy/spec.json"
TENSORS, STATE = "training/tensors.safetensors", "training/state.json"


def reseal(checkpoint: Path, *, sizes: dict[str, int] | None = None) -> None:
    """Write checkpoint.json anew for the files as they are; `sizes` states other numbers of bytes than they have."""
    entries = {
        name: {
            "sha256": hashlib.sha256((checkpoint / name).read_bytes()).hexdigest(),
            "bytes": (sizes or {}).get(name, (checkpoint / name).stat().st_size),
        }
        for name in (WEIGHTS, SPEC, TENSORS, STATE)
    }
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    manifest = {"format": 1, "kind": "tailwise-checkpoint", "files": entries, "digest": digest}
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest, indent=1) + "\n")


def change_json(checkpoint: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Replace the JSON of a file by `change` of it (which may also change it in place and return None)."""
    data = json.loads((checkpoint / name).read_bytes())
    changed = change(data)
    (checkpoint / name).write_text(json.dumps(data if changed is None else changed))
    reseal(checkpoint)


def change_tensors(checkpoint: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of a file in place."""
    tensors = load((checkpoint / name).read_bytes())
    change(tensors)
    (checkpoint / name).write_bytes(save(tensors))
    reseal(checkpoint)

"""Checkpoint folders: exact round trip, and a sentence for every way in which they can be broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tailwise.core.errors import CheckpointError
from tailwise.run.checkpoint import (
    FILES,
    MANIFEST,
    checkpoint_path,
    checkpoints_in,
    join_state,
    latest_good,
    match_tensors,
    prune,
    read_policy,
    read_training,
    split_state,
    verify,
    write_checkpoint,
)

ALL_FILES = (*FILES, MANIFEST)
FLOATS = [0.1, 1 / 3, 1e-300, 5e-324, 1.7976931348623157e308, -0.0, 2.0**53 + 2]


def write(folder: Path, mark: float = 1.0) -> Path:
    write_checkpoint(
        folder,
        policy_tensors={"w": torch.arange(12.0).reshape(3, 4) * mark, "b": torch.tensor([], dtype=torch.float64)},
        policy_json={"spec": {"size": 3}, "name": "é"},
        training_tensors={"step": torch.tensor(7), "flag": torch.tensor([True, False])},
        training_json={"update": 12, "floats": FLOATS, "nothing": None, "yes": True},
    )
    return folder


def test_round_trip_is_exact(tmp_path: Path) -> None:
    """Rejects: floats written with a fixed number of digits."""
    folder = write(tmp_path / "c")
    verify(folder)
    policy, training = read_policy(folder), read_training(folder)
    assert policy.tensors["w"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert policy.tensors["b"].dtype == torch.float64 and policy.json == {"spec": {"size": 3}, "name": "é"}
    assert training.tensors["step"].dtype == torch.int64 and training.tensors["flag"].tolist() == [True, False]
    assert [np.float64(x).tobytes() for x in training.json["floats"]] == [np.float64(x).tobytes() for x in FLOATS]
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == sorted(
        [*ALL_FILES, "signature.json"]
    )
    assert json.loads((folder / MANIFEST).read_text())["format"] == 1


def test_tensors_that_share_memory_or_are_views_are_saved_whole(tmp_path: Path) -> None:
    flat = torch.arange(6.0)
    write_checkpoint(
        tmp_path / "c",
        policy_tensors={"a": flat[:4], "b": flat[2:], "t": flat.reshape(2, 3).T},
        policy_json={},
        training_tensors={},
        training_json={},
    )
    tensors = read_policy(tmp_path / "c").tensors
    assert tensors["a"].tolist() == [0, 1, 2, 3] and tensors["b"].tolist() == [2, 3, 4, 5]
    assert tensors["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert read_training(tmp_path / "c").tensors == {}


def test_replacing_keeps_a_whole_folder(tmp_path: Path) -> None:
    write(tmp_path / "best", 1.0)
    write(tmp_path / "best", 2.0)
    assert read_policy(tmp_path / "best").tensors["w"][0, 1] == 2.0
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def reading(folder: Path) -> None:
    read_policy(folder)
    read_training(folder)


@pytest.mark.parametrize("name", ALL_FILES)
def test_any_flipped_bit_or_truncation_names_the_file(tmp_path: Path, name: str) -> None:
    """40 random bit flips and 10 truncations per file, checkpoint.json included. Rejects: a manifest that vouches for
    the others but not for itself, and a check of sizes only."""
    folder = write(tmp_path / "c")
    path = folder / name
    good = path.read_bytes()
    generator = np.random.default_rng(sum(map(ord, name)))
    for _ in range(40):
        position, bit = int(generator.integers(len(good))), int(generator.integers(8))
        damaged = bytearray(good)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            reading(folder)
    for length in [0, *generator.integers(1, len(good), 9).tolist()]:
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            reading(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        reading(folder)
    path.write_bytes(good)
    reading(folder)


def _edit_manifest(folder: Path, **changes: Any) -> None:
    data = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**data, **changes}, indent=1) + "\n")


def test_foreign_and_unknown_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        read_policy(tmp_path / "absent")
    (tmp_path / "photos").mkdir()
    with pytest.raises(CheckpointError, match="no Tailwise checkpoint"):
        read_policy(tmp_path / "photos")
    folder = write(tmp_path / "c")
    _edit_manifest(folder, format=3)
    with pytest.raises(CheckpointError, match="format is 3, this version of Tailwise reads format 1 or 2"):
        read_training(folder)
    _edit_manifest(folder, format=1, kind="something")
    with pytest.raises(CheckpointError, match="kind is 'something'"):
        read_training(folder)
    for garbage in (b"\x80\x00not json", b"[1, 2]", b""):
        (folder / MANIFEST).write_bytes(garbage)
        with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
            read_training(folder)


def test_an_edited_file_with_a_recomputed_checksum_is_still_noticed(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    data = json.loads((folder / MANIFEST).read_text())
    data["files"]["policy/spec.json"]["bytes"] += 1
    (folder / MANIFEST).write_text(json.dumps(data, indent=1) + "\n")
    with pytest.raises(CheckpointError, match=r"checkpoint\.json: the file was changed"):
        read_policy(folder)


def test_not_finite_and_inexact_state_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Rejects: null for NaN, which would resume with another value than the run had."""
    for value, words in [
        (float("nan"), "'a.b\\[1\\]' is nan"),
        (float("inf"), "is inf"),
        (np.int64(3), "is a int64"),
        ({1: 2}, "has the key 1"),
    ]:
        with pytest.raises(CheckpointError, match=words):
            write_checkpoint(
                tmp_path / "c",
                policy_tensors={},
                policy_json={},
                training_tensors={},
                training_json={"a": {"b": [0.0, value]}},
            )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mark", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_before_anything_is_written(tmp_path: Path, mark: float) -> None:
    """Rejects finding out when the checkpoint is read, after it has replaced a good one."""
    with pytest.raises(CheckpointError, match="the tensor 'w' has"):
        write(tmp_path / "c", mark)
    assert list(tmp_path.iterdir()) == []


def test_match_tensors_names_tensor_and_shapes() -> None:
    expected = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
    match_tensors({"w": torch.ones(2, 3), "b": torch.ones(3)}, expected, source="policy")
    with pytest.raises(
        CheckpointError, match=r"'w' is torch.float32 \(3, 2\), this model needs torch.float32 \(2, 3\)"
    ):
        match_tensors({"w": torch.ones(3, 2), "b": torch.ones(3)}, expected, source="policy")
    with pytest.raises(CheckpointError, match=r"torch\.float64"):
        match_tensors({"w": torch.ones(2, 3).double(), "b": torch.ones(3)}, expected, source="policy")
    with pytest.raises(CheckpointError, match=r"missing tensors \['b'\], unexpected tensors \['c'\]"):
        match_tensors({"w": torch.ones(2, 3), "c": torch.ones(3)}, expected, source="policy")


def test_listing_latest_good_and_the_offer(tmp_path: Path) -> None:
    assert checkpoints_in(tmp_path) == [] and latest_good(tmp_path) == (None, [])
    for update in (9, 10, 1_000_000):
        write(checkpoint_path(tmp_path, update), float(update))
    write(checkpoint_path(tmp_path, None))
    (tmp_path / "checkpoints" / ".update-000011.tmp-ab").mkdir()  # what a killed writer leaves
    (tmp_path / "checkpoints" / "notes").mkdir()
    names = [path.name for path in checkpoints_in(tmp_path)]
    assert names == ["update-1000000", "update-000010", "update-000009", "best"]
    newest = checkpoint_path(tmp_path, 1_000_000)
    assert latest_good(tmp_path) == (newest, [])

    weights = newest / "policy/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    path, rejected = latest_good(tmp_path)
    assert path == checkpoint_path(tmp_path, 10)
    assert [r.path for r in rejected] == [newest] and "weights.safetensors" in rejected[0].reason
    with pytest.raises(CheckpointError, match=r"previous good checkpoint is .*update-000010"):
        read_policy(newest)
    shutil.rmtree(checkpoint_path(tmp_path, 10) / "training")
    with pytest.raises(CheckpointError, match=r"training.*previous good checkpoint is .*update-000009"):
        read_training(checkpoint_path(tmp_path, 10))
    (checkpoint_path(tmp_path, 9) / MANIFEST).unlink()
    assert latest_good(tmp_path)[0] == checkpoint_path(tmp_path, None)


def test_a_lonely_broken_checkpoint_offers_nothing(tmp_path: Path) -> None:
    folder = write(checkpoint_path(tmp_path, 3))
    (folder / "training/state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no other good checkpoint"):
        read_training(folder)


def test_prune_keeps_the_newest_and_best(tmp_path: Path) -> None:
    for update in range(1, 6):
        write(checkpoint_path(tmp_path, update))
    write(checkpoint_path(tmp_path, None))
    deleted = prune(tmp_path, 2)
    assert [path.name for path in deleted] == ["update-000003", "update-000002", "update-000001"]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["best", "update-000004", "update-000005"]
    assert prune(tmp_path, 2) == []
    with pytest.raises(CheckpointError, match="keep is 0"):
        prune(tmp_path, 0)


def test_split_and_join_state_round_trip() -> None:
    state = {
        "vector": {"episodes": np.array([1, 2]), "kind": "replay", "none": None, "elapsed": [1, 2]},
        "big": np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2],
        "tensor": torch.ones(2),
    }
    tensors, data = split_state(state)
    assert sorted(tensors) == ["big", "tensor", "vector/episodes"]
    again = join_state(tensors, json.loads(json.dumps(data)))
    assert isinstance(again["big"], np.ndarray) and again["big"].tolist() == [[0, 2], [3, 5]]
    assert again["vector"]["episodes"].dtype == np.int64 and isinstance(again["tensor"], torch.Tensor)
    assert again["vector"]["none"] is None and again["vector"]["elapsed"] == [1, 2]
    with pytest.raises(CheckpointError, match="'vector/episodes'"):
        join_state({}, data)


def test_the_offer_compares_updates_as_numbers(tmp_path: Path) -> None:
    """Rejects names compared as text, where update-1000000 comes before update-999999."""
    for update in (999_998, 999_999, 1_000_000):
        write(checkpoint_path(tmp_path, update))
    (checkpoint_path(tmp_path, 999_999) / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"previous good checkpoint is .*update-999998\."):
        read_policy(checkpoint_path(tmp_path, 999_999))
    (checkpoint_path(tmp_path, 1_000_000) / MANIFEST).unlink()
    write(checkpoint_path(tmp_path, 999_999))
    with pytest.raises(CheckpointError, match=r"previous good checkpoint is .*update-999999\."):
        read_policy(checkpoint_path(tmp_path, 1_000_000))


def test_numpy_scalars_of_a_state_become_python_values(tmp_path: Path) -> None:
    """Rejects passing them on: JSON refuses np.int64 and np.bool_, so the first checkpoint of a run would fail."""
    state = {
        "whole": np.int64(3),
        "real": np.float64(1 / 3),
        "single": np.float32(0.1),
        "flag": np.bool_(True),
        "list": [np.int32(4), (np.bool_(False), {"deep": np.uint8(5)})],
    }
    tensors, data = split_state(state)
    assert tensors == {}
    assert data == {
        "whole": 3,
        "real": 1 / 3,
        "single": float(np.float32(0.1)),
        "flag": True,
        "list": [4, [False, {"deep": 5}]],
    }
    assert [type(data[key]) for key in ("whole", "real", "single", "flag")] == [int, float, float, bool]
    write_checkpoint(tmp_path / "c", policy_tensors={}, policy_json={}, training_tensors={}, training_json=data)
    assert read_training(tmp_path / "c").json == data

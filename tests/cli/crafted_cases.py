"""Some 270 ways in which somebody with an editor, a full disk or bad intentions leaves a run folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tests.run.crafted import SPEC, STATE, TENSORS, WEIGHTS, change_json, change_tensors, reseal

Base = Literal["gym", "market", "folds"]
Craft = Callable[[Path, Path], None]  # (run folder, a folder outside of it)

NEWEST = Path("checkpoints/update-000003")
DEEP = 100_000
HUGE = "9" * 5000
VALUES: dict[str, Any] = {
    "null": None,
    "text": "x",
    "negative": -1,
    "1e300": 1e300,
    "list": [],
    "mapping": {},
    "nested": [[1]],
    "true": True,
    "fraction": 0.5,
    "large": 2**63,
}
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "list": b"[]",
    "null": b"null",
    "number": b"3",
    "text": b'"x"',
    "garbage": b"\xff\xfe\x00garbage",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep mappings": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "NaN": b'{"format": NaN, "update": NaN, "mean_return": NaN}',
    "1e999": b'{"format": 1e999, "update": 1e999, "mean_return": 1e999}',
    "huge number": b'{"format": ' + HUGE.encode() + b', "update": ' + HUGE.encode() + b"}",
    "half a surrogate": b'{"format": "\\ud800", "name": "\\udfff"}',
}


@dataclass(frozen=True)
class Case:
    """One way to leave a run of kind `base`."""

    name: str
    base: Base
    craft: Craft


def all_cases() -> list[Case]:
    """Every case, its name unique."""
    cases = [
        *_whole_files(),
        *_cut_files(),
        *_not_files(),
        *_manifests(),
        *_lines(),
        *_checkpoint_sizes(),
        *_states(),
        *_specs(),
        *_tensors(),
        *_links(),
        *_configurations(),
        *_tables(),
        *_folds(),
    ]
    assert len({case.name for case in cases}) == len(cases)
    return cases


def set_key(tree: Any, path: str, value: Any) -> None:
    """Set the value at a path such as "rows.0.statistics"; the value `...` deletes it."""
    *above, last = path.split(".")
    for part in above:
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    key: Any = int(last) if isinstance(tree, list) else last
    if value is ...:
        del tree[key]
    else:
        tree[key] = value


def edit(file: str, path: str, value: Any) -> Craft:
    """Set one value of a JSON file."""

    def craft(run: Path, outside: Path) -> None:
        tree = json.loads((run / file).read_text())
        set_key(tree, path, value)
        (run / file).write_text(json.dumps(tree))

    return craft


def edit_checkpoint(file: str, path: str, value: Any) -> Craft:
    """Set one value of a JSON file of the newest checkpoint, whose hashes then fit again."""

    def craft(run: Path, outside: Path) -> None:
        change_json(run / NEWEST, file, lambda tree: set_key(tree, path, value))

    return craft


def put(file: str, content: bytes) -> Craft:
    """Replace the content of a file."""

    def craft(run: Path, outside: Path) -> None:
        (run / file).write_bytes(content)

    return craft


def _only_checkpoint(run: Path) -> Path:
    """The newest checkpoint, with the others deleted: nothing else can be used instead."""
    for path in (run / "checkpoints").iterdir():
        if path.name != NEWEST.name:
            shutil.rmtree(path)
    return run / NEWEST


JSON_FILES: dict[Base, tuple[str, ...]] = {
    "gym": ("manifest.json", "evaluations/update-000003-1.json"),
    "market": ("manifest.json", "evaluations/update-000003-1/summary.json"),
    "folds": ("walk_forward.json",),
}


def _whole_files() -> Iterator[Case]:
    for base, files in JSON_FILES.items():
        for file in files:
            for word, content in CONTENTS.items():
                yield Case(f"{base} {file}: {word}", base, put(file, content))
    for word, content in CONTENTS.items():
        yield Case(f"gym checkpoint.json: {word}", "gym", put(str(NEWEST / "checkpoint.json"), content))
        for file in (STATE, SPEC):
            yield Case(f"gym {file}: {word}", "gym", _sealed(file, content))


def _sealed(file: str, content: bytes) -> Craft:
    def craft(run: Path, outside: Path) -> None:
        newest = _only_checkpoint(run)
        (newest / file).write_bytes(content)
        reseal(newest)

    return craft


def _cut_files() -> Iterator[Case]:
    def cut(file: str) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            path = run / file
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

        return craft

    def grow(file: str) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            os.truncate(run / file, 2**35)  # a hole: it takes no room on the disk, and all memory when it is read

        return craft

    for file in (
        "manifest.json",
        "config.yaml",
        "metrics.jsonl",
        "metrics.parquet",
        "alerts.jsonl",
        *(str(NEWEST / name) for name in ("checkpoint.json", WEIGHTS, SPEC, TENSORS, STATE)),
    ):
        yield Case(f"gym {file}: half of it", "gym", cut(file))
        yield Case(f"gym {file}: 32 GiB", "gym", grow(file))
    for file in ("evaluations/update-000003-1/equity.parquet", "evaluations/update-000003-1/summary.json"):
        yield Case(f"market {file}: half of it", "market", cut(file))
        yield Case(f"market {file}: 32 GiB", "market", grow(file))


def _not_files() -> Iterator[Case]:
    def folder(file: str) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            (run / file).unlink()
            (run / file).mkdir()

        return craft

    def pipe(file: str) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            (run / file).unlink()
            os.mkfifo(run / file)

        return craft

    def loop(file: str) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            (run / file).unlink()
            (run / file).symlink_to(run / file)

        return craft

    for file in ("manifest.json", "config.yaml", "metrics.jsonl", "alerts.jsonl", str(NEWEST / STATE)):
        yield Case(f"gym {file}: a folder", "gym", folder(file))
        yield Case(f"gym {file}: a pipe", "gym", pipe(file))
        yield Case(f"gym {file}: a link to itself", "gym", loop(file))


def _manifests() -> Iterator[Case]:
    for key in ("versions", "versions.numpy", "python", "exact_resume", "threads", "id", "git", "format"):
        for word in ("null", "list", "1e300", "nested"):
            yield Case(f"market manifest.json {key}: {word}", "market", edit("manifest.json", key, VALUES[word]))
    for key in ("data", "data.train", "data.train.SYNTHETIC-SINE", "data_hash"):
        for word in ("null", "list", "text"):
            yield Case(f"market manifest.json {key}: {word}", "market", edit("manifest.json", key, VALUES[word]))
        yield Case(f"market manifest.json {key}: missing", "market", edit("manifest.json", key, ...))


def _lines() -> Iterator[Case]:
    def last(file: str, content: bytes) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            path = run / file
            path.write_bytes(path.read_bytes() + content + b"\n")

        return craft

    for file in ("metrics.jsonl", "alerts.jsonl"):
        for word, content in CONTENTS.items():
            yield Case(f"gym {file}, a line: {word}", "gym", last(file, content))
    row = {"update": 4, "steps": 256, "loss/policy": 0.1, "episode/return": 1.0}
    for key in row:
        for word in ("text", "list", "large", "negative"):
            content = json.dumps({**row, key: VALUES[word]}).encode()
            yield Case(f"gym metrics.jsonl, {key}: {word}", "gym", last("metrics.jsonl", content))
    alert = {"update": 3, "rule": "r", "severity": "warn", "evidence": "e", "advice": "a", "signal": "loss/policy"}
    for key in alert:
        for word in ("null", "list", "1e300"):
            content = json.dumps({**alert, key: VALUES[word]}).encode()
            yield Case(f"gym alerts.jsonl, {key}: {word}", "gym", last("alerts.jsonl", content))
    yield Case("gym alerts.jsonl, not UTF-8", "gym", last("alerts.jsonl", b'{"update": 3, "rule": "\xff"}'))
    yield Case("gym alerts.jsonl, a long line", "gym", last("alerts.jsonl", b"[" + b"1," * 2**20 + b"1]"))


def _checkpoint_sizes() -> Iterator[Case]:
    sizes: dict[str, Any] = {"0": 0, "negative": -1, "1e300": 1e300, "text": "x", "null": None, "2**60": 2**60}
    for word, size in sizes.items():

        def craft(run: Path, outside: Path, size: Any = size) -> None:
            reseal(_only_checkpoint(run), sizes={WEIGHTS: size})

        yield Case(f"gym checkpoint.json, bytes of the weights: {word}", "gym", craft)


def _states() -> Iterator[Case]:
    keys = ("update", "steps", "total_steps", "kl_factor", "episodes", "health", "risk", "environment", "best_return")
    for key in keys:
        for word in ("text", "list", "1e300", "large"):
            if (key, word) != ("episodes", "list"):
                yield Case(f"gym {STATE} {key}: {word}", "gym", edit_checkpoint(STATE, key, VALUES[word]))
        yield Case(f"gym {STATE} {key}: missing", "gym", edit_checkpoint(STATE, key, ...))
    for key in (
        "episodes.0",
        "entropies",
        "health.rules",
        "health.rules.values",
        "health.signals.rollouts",
        "health.actions.counts",
        "health.actions.counts.skip",
        "health.evaluated",
        "risk.calibration",
        "risk.calibration.clock",
        "risk.constraint",
        "environment.vector",
        "environment.vector.lengths",
        "environment.vector.num_envs",
        "environment.obs",
        "environment.restarts",
        "environment.finished_returns",
    ):
        for word in ("text", "nested"):
            yield Case(f"gym {STATE} {key}: {word}", "gym", edit_checkpoint(STATE, key, VALUES[word]))
    for key in ("environment.vector", "environment.vector.row", "environment.vector.cash", "environment.pending"):
        yield Case(f"market {STATE} {key}: nested", "market", edit_checkpoint(STATE, key, VALUES["nested"]))


def _specs() -> Iterator[Case]:
    for key in (
        "observation",
        "observation.leaves",
        "observation.leaves.0.shape",
        "observation.leaves.0.kind",
        "action",
        "action.sizes",
        "action.dtype",
        "action.start",
        "model",
        "model.encoder.hidden",
        "masked",
        "config",
        "config.run",
    ):
        for word in ("text", "nested", "null"):
            if (key, word) != ("config.run", "null"):
                yield Case(f"gym {SPEC} {key}: {word}", "gym", _edit_only(SPEC, key, VALUES[word]))
    large = {
        "observation.leaves.0.shape": [2**40],
        "action.sizes": [2**40],
        "model.encoder.hidden": [4096] * 1000,
        "model.core": {"kind": "lstm", "hidden": 4096, "layers": 8},
        "config.run.total_steps": 1e300,
    }
    for key, value in large.items():
        yield Case(f"gym {SPEC} {key}: enormous", "gym", _edit_only(SPEC, key, value))
    for key in ("features", "features.columns", "features.columns.0.scale", "features.windows", "features.bar_ns"):
        for word in ("text", "nested"):
            yield Case(f"market {SPEC} {key}: {word}", "market", edit_checkpoint(SPEC, key, VALUES[word]))
    yield Case(
        f"market {SPEC} features.columns.0.scale: 0", "market", edit_checkpoint(SPEC, "features.columns.0.scale", 0.0)
    )


def _edit_only(file: str, key: str, value: Any) -> Craft:
    def craft(run: Path, outside: Path) -> None:
        change_json(_only_checkpoint(run), file, lambda tree: set_key(tree, key, value))

    return craft


def _tensors() -> Iterator[Case]:
    def change(file: str, how: Callable[[dict[str, torch.Tensor]], None]) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            change_tensors(_only_checkpoint(run), file, how)

        return craft

    def drop_first(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[min(tensors)]

    def add_one(tensors: dict[str, torch.Tensor]) -> None:
        tensors["stranger"] = torch.zeros(2)

    def to_text(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(torch.uint8)

    def to_other_shape(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].reshape(-1)[:1].clone()

    def to_nothing(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = torch.zeros(0)

    def minus_one(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = torch.full_like(tensors[name].to(torch.float32), -1.0).to(tensors[name].dtype)

    ways = {
        "one missing": drop_first,
        "one more": add_one,
        "of bytes": to_text,
        "of one entry": to_other_shape,
        "empty": to_nothing,
        "-1": minus_one,
    }
    for file in (WEIGHTS, TENSORS):
        for word, how in ways.items():
            if (file, word) != (WEIGHTS, "-1"):
                yield Case(f"gym {file}: {word}", "gym", change(file, how))
        for word, content in {
            "garbage": b"\xff" * 100,
            "nothing": b"",
            "a long header": b"\xff" * 7 + b"\x0f{}",
        }.items():
            yield Case(f"gym {file}: {word}", "gym", _sealed(file, content))
    for word, how in ways.items():
        yield Case(f"market {TENSORS}: {word}", "market", change(TENSORS, how))


def _links() -> Iterator[Case]:
    def move_out(name: str) -> Craft:
        """What is there lies outside now, and a link leads to it."""

        def craft(run: Path, outside: Path) -> None:
            shutil.move(run / name, outside / "moved")
            (run / name).symlink_to(outside / "moved")

        return craft

    def to_nowhere(name: str) -> Craft:
        """A link to what does not exist: whoever writes through it makes it."""

        def craft(run: Path, outside: Path) -> None:
            path = run / name
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            path.symlink_to(outside / "new")

        return craft

    for base in ("gym", "market"):
        for name in ("checkpoints", str(NEWEST), "metrics.jsonl", "alerts.jsonl", "evaluations", "config.yaml"):
            yield Case(f"{base} {name}: a link out of the run", base, move_out(name))
    for name in (
        "manifest.json",
        "metrics.parquet",
        str(NEWEST / "policy"),
        str(NEWEST / STATE),
        "checkpoints/update-000001",
    ):
        yield Case(f"gym {name}: a link out of the run", "gym", move_out(name))
    for name in ("alerts.jsonl", "metrics.jsonl", "evaluations", "checkpoints", "report.html", "tensorboard"):
        yield Case(f"gym {name}: a link to nowhere", "gym", to_nowhere(name))


def _configurations() -> Iterator[Case]:
    bomb = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + k)}: &{chr(98 + k)} [{', '.join(['*' + chr(97 + k)] * 8)}]\n" for k in range(10)
    )
    texts = {
        "empty": "",
        "a list": "[1, 2]",
        "deep": "a: " + "[" * DEEP,
        "a bomb": bomb,
        "a tag": "seed: !!python/object/apply:os.system [true]",
        "total_steps 1e300": "env: {id: CartPole-v1}\nrun: {total_steps: 1.0e300}",
        "total_steps text": "env: {id: CartPole-v1}\nrun: {total_steps: many}",
        "a huge number": f"seed: {HUGE}",
        "NUL": "seed: 0\x00",
        "many layers": f"env: {{id: CartPole-v1}}\nmodel: {{encoder: {{hidden: [{', '.join(['4096'] * 9000)}]}}}}",
        "an unknown environment": "env: {id: NoSuch-v9}",
        "a file of bars that is not there": "env: {kind: market}\ndata: {kind: files, paths: [/nonexistent.csv]}",
    }
    for word, text in texts.items():
        yield Case(f"gym config.yaml: {word}", "gym", put("config.yaml", text.encode()))


def _tables() -> Iterator[Case]:
    import pandas

    def without_lines(content: Callable[[Path], None]) -> Craft:
        def craft(run: Path, outside: Path) -> None:
            (run / "metrics.jsonl").unlink()
            content(run / "metrics.parquet")

        return craft

    def frame(columns: dict[str, Any]) -> Callable[[Path], None]:
        return lambda path: pandas.DataFrame(columns).to_parquet(path)

    tables: dict[str, Callable[[Path], None]] = {
        "garbage": lambda path: path.write_bytes(b"PAR1" + b"\xff" * 100 + b"PAR1") and None,
        "text": frame({"update": ["x"], "steps": ["y"]}),
        "no updates": frame({"loss/policy": [1.0]}),
        "1e300": frame({"update": [1e300], "steps": [1e300]}),
        "lists": frame({"update": [1], "steps": [[1]], "loss/policy": [[1.0]]}),
        "infinite": frame({"update": [1], "steps": [1], "loss/policy": [float("inf")]}),
        "negative": frame({"update": [-5], "steps": [-5]}),
    }
    for word, content in tables.items():
        yield Case(f"gym metrics.parquet alone: {word}", "gym", without_lines(content))

    def equity(run: Path, outside: Path) -> None:
        frame({"policy": ["x"], "symbol": ["y"]})(run / "evaluations/update-000003-1/equity.parquet")

    yield Case("market equity.parquet: other columns", "market", equity)


def _folds() -> Iterator[Case]:
    for key in (
        "stitched",
        "stitched.0.statistics",
        "stitched.0.statistics.policy",
        "stitched.0.statistics.policy.sharpe",
        "stitched.0.odds",
        "stitched.0.against",
        "stitched.0.evidence",
        "stitched.0.evaluation",
        "rows",
        "rows.0.windows",
        "headline",
        "headline.seed",
        "verdict",
        "facts",
        "config",
        "alpha",
        "across_seeds",
        "symbols",
    ):
        for word in ("text", "nested"):
            if (key, word) not in (("symbols", "nested"), ("facts", "nested")):
                yield Case(f"folds {key}: {word}", "folds", edit("walk_forward.json", key, VALUES[word]))
        yield Case(f"folds {key}: missing", "folds", edit("walk_forward.json", key, ...))
    yield Case(
        "folds evaluation outside", "folds", edit("walk_forward.json", "stitched.0.evaluation", "../outside/stitched")
    )

    def garbage(run: Path, outside: Path) -> None:
        (run / "stitched/seed_0/equity.parquet").write_bytes(b"garbage")

    yield Case("folds equity.parquet: garbage", "folds", garbage)

"""Train a run again and look for the first thing that is different."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailwise.core.errors import CheckpointError, DataError
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, StopWhen
from tailwise.run.config import Config
from tailwise.run.metric_store import FILE as METRICS
from tailwise.run.metric_store import differences_without_time
from tailwise.run.run_folder import read_manifest, version_differences
from tailwise.run.seeds import members_of, seeds_of, several
from tailwise.run.training import begin_seeds
from tailwise.run.trials import TrialBook
from tailwise.run.trust import Trust, open_config


@dataclass(frozen=True)
class Reproduction:
    """What came of it. first_difference: a sentence, None when everything is the same bit for bit."""

    run: str
    again: str
    updates: int
    checkpoint: str
    same_metrics: bool
    same_weights: bool
    first_difference: str | None
    threads: int  # of the learner, of which the last digits depend
    notes: tuple[str, ...]  # versions and the platform, where they are not those of the run

    @property
    def same(self) -> bool:
        return self.same_metrics and self.same_weights


def repeat(
    run: Path,
    again: Path,
    callbacks: Sequence[Callback] = (),
    *,
    trust: Trust = False,
    trials: TrialBook | None = None,
) -> Reproduction:
    """Train `run` again into the folder `again`, as many updates as its newest checkpoint has, and compare.

    trials: where the training is written down; None: beside `again`.
    """
    config = open_config(run, training=True, trust=trust)
    if several(config):
        return _repeat_seeds(run, again, config, callbacks)
    if config.env.from_python:
        raise DataError(
            f"{run}: its environment was passed from Python and cannot be built again by its configuration."
        )
    newest = next((path for path in ckpt.checkpoints_in(run) if path.name != ckpt.BEST), None)
    if newest is None:
        raise CheckpointError(f"{run} has no checkpoint yet to compare with.")
    ckpt.verify(newest)
    updates = int(ckpt.read_training(newest).json["update"])
    ends = StopWhen(lambda done: done.update >= updates)
    agent = PPO(config=config, run_dir=again, callbacks=[ends, *callbacks], trials=trials)
    try:
        agent.world().check_same_bars(read_manifest(run), run=str(run))
        agent.learn(progress=False)
    finally:
        agent.trainer.driver.close()
    notes = tuple(_other_versions(read_manifest(run), config))
    differences = differences_without_time(run / METRICS, again / METRICS)
    # Lines of the run after its newest checkpoint are of an update that was never completed on the disk.
    differences = [text for text in differences if not text.startswith(f"{run / METRICS} has ")]
    twin = again / "checkpoints" / newest.name
    if twin.is_dir():
        weights = _different_tensor(ckpt.read_policy(newest).tensors, ckpt.read_policy(twin).tensors)
    else:
        weights = f"the repetition ended after update {agent.trainer.update}, the run went on to update {updates}"
    return Reproduction(
        run=str(run),
        again=str(again),
        updates=updates,
        checkpoint=newest.name,
        same_metrics=not differences,
        same_weights=weights is None,
        first_difference=differences[0] if differences else weights,
        threads=config.run.threads,
        notes=notes,
    )


def _repeat_seeds(run: Path, again: Path, config: Config, callbacks: Sequence[Callback]) -> Reproduction:
    """Every seed of a run, one after the other; the first difference names the seed."""
    begin_seeds(config, again)
    book = TrialBook(TrialBook.beside(again).file, whole=config)
    parts = {
        seed: repeat(one, twin, callbacks, trust=config, trials=book)
        for seed, one, twin in zip(seeds_of(config), members_of(run, config), members_of(again, config), strict=True)
    }
    first = next(((seed, one.first_difference) for seed, one in parts.items() if not one.same), None)
    return Reproduction(
        run=str(run),
        again=str(again),
        updates=sum(one.updates for one in parts.values()),
        checkpoint=f"{', '.join(dict.fromkeys(one.checkpoint for one in parts.values()))} of {len(parts)} seeds",
        same_metrics=all(one.same_metrics for one in parts.values()),
        same_weights=all(one.same_weights for one in parts.values()),
        first_difference=None if first is None else f"seed {first[0]}: {first[1]}",
        threads=config.run.threads,
        notes=tuple(dict.fromkeys(note for one in parts.values() for note in one.notes)),
    )


def free_folder(run: Path) -> Path:
    """RUN-again-<n> beside a run, with the first n that is not taken."""
    number, named = 1, run if run.name else run.resolve()
    while (folder := named.with_name(f"{named.name}-again-{number}")).exists():
        number += 1
    return folder


def _different_tensor(mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> str | None:
    """The first tensor, by name, that is not the same bit for bit, as a sentence."""
    for name in sorted(mine.keys() | theirs.keys()):
        if name not in mine or name not in theirs:
            return f"only one of the two has the tensor {name}"
        one, two = mine[name], theirs[name]
        if one.shape != two.shape or one.dtype != two.dtype:
            return f"the tensor {name} is {one.dtype} {tuple(one.shape)} and {two.dtype} {tuple(two.shape)}"
        if one.numpy().tobytes() != two.numpy().tobytes():
            place = int(torch.nonzero((one != two).reshape(-1))[0]) if bool((one != two).any()) else 0
            values = one.reshape(-1)[place].item(), two.reshape(-1)[place].item()
            return f"the tensor {name} differs, first at entry {place}: {values[0]!r} and {values[1]!r}"
    return None


def _other_versions(manifest: Mapping[str, Any], config: Config) -> list[str]:
    sentences = [f"the run was made with {words}" for words in version_differences(manifest, config)]
    here = platform.platform()
    if manifest.get("platform") != here:
        sentences.append(f"the platform was {manifest.get('platform')}, it is {here} now")
    return sentences

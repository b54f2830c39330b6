"""Kernels are compiled once, before training, and it is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailwise.fused.layout import LSTM, NO_CORE
from tailwise.fused.warm_up import compile_kernels, kernels_are_kept, two_steps
from tests.support import learner_of, small_backend


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_second_warm_up_has_nothing_to_do(core: str) -> None:
    """Rejects a look for files that are never written, which would compile for show at every start."""
    fused = learner_of("fused", model={"core": {"kind": core}})
    told: list[str] = []
    fused.warm_up(told.append)
    assert len(told) in (0, 2)
    assert kernels_are_kept(core=NO_CORE if core == "none" else LSTM, particles=True)
    told.clear()
    fused.warm_up(told.append)
    assert told == []


@pytest.mark.parametrize("action", ["discrete", "box"])
def test_what_is_used_to_compile_is_a_whole_update(action: str) -> None:
    """Rejects a rollout that is refused before the kernels are reached: Adam has taken its steps."""
    fused = learner_of("fused", action=action)
    two_steps(fused)
    steps = [float(tensor) for name, tensor in fused.optimiser.tensors().items() if name.endswith("/step")]
    assert steps and set(steps) == {4.0}  # 2 epochs of 2 minibatches


def test_it_is_told_before_and_after() -> None:
    told: list[str] = []
    compile_kernels(learner_of("fused"), told.append)
    assert len(told) == 2 and "once per machine" in told[0] and "CPU-seconds" in told[1]


def test_torch_has_nothing_to_compile() -> None:
    told: list[str] = []
    small_backend().warm_up(told.append)
    assert told == []


RUN = """
import json, time
import numba.core.dispatcher as dispatcher
from tailwise.run.callbacks import Callback
from tests.support import small_trainer

class Watch(Callback):
    notes, first = [], None
    def on_note(self, sentence): self.notes.append(sentence)
    def on_update(self, progress): self.first = self.first or time.process_time()

watch = Watch()
trainer = small_trainer(backend="fused")
trainer.callbacks.append(watch)
trainer.train()
import gc
made = [d for d in gc.get_objects() if isinstance(d, dispatcher.Dispatcher)]
misses = sum(sum(d.stats.cache_misses.values()) for d in made)
print(json.dumps({"notes": watch.notes, "first": watch.first, "misses": misses}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_second_start_compiles_nothing(tmp_path: Path) -> None:
    """In processes of their own with an empty folder for machine code. Rejects a kernel that is not kept."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    found = []
    for _ in range(2):
        out = subprocess.run(
            [sys.executable, "-c", RUN], env=environment, cwd=root, capture_output=True, text=True, check=True
        )
        found.append(json.loads(out.stdout.splitlines()[-1]))
    assert len(found[0]["notes"]) == 2 and found[0]["misses"] > 10
    assert found[1]["notes"] == [] and found[1]["misses"] == 0
    assert found[1]["first"] < found[0]["first"] / 2

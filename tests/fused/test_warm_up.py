"""Kernels are compiled once, before training, and it is said."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailwise.fused.layout import LSTM, NO_CORE
from tailwise.fused.warm_up import compile_kernels, kernels_are_kept
from tailwise.run.agent import PPO
from tests.support import learner_of, small_backend


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_second_warm_up_has_nothing_to_do(core: str) -> None:
    """Rejects a look for files that are never written, which would compile for show at every start."""
    fused = learner_of("fused", model={"core": {"kind": core}})
    told: list[str] = []
    fused.warm_up(told.append)
    assert len(told) in (0, 4)
    assert kernels_are_kept(core=NO_CORE if core == "none" else LSTM, particles=True)
    told.clear()
    fused.warm_up(told.append)
    assert told == []


@pytest.mark.parametrize("action", ["discrete", "box"])
def test_what_is_used_to_compile_is_a_whole_update(action: str) -> None:
    """Rejects a rollout that is refused before the kernels are reached: Adam has taken its steps."""
    fused = learner_of("fused", action=action)
    compile_kernels(fused, lambda _: None)
    steps = [float(tensor) for name, tensor in fused.optimiser.tensors().items() if name.endswith("/step")]
    assert steps and set(steps) == {4.0}  # 2 epochs of 2 minibatches


def test_it_is_told_before_after_and_between() -> None:
    """Rejects a notice that comes when the work is done, and progress that counts stages which do not come."""
    fused = learner_of("fused")
    told: list[str] = []
    steps: list[int] = []

    def tell(sentence: str) -> None:
        told.append(sentence)
        steps.append(int(sum(float(v) for name, v in fused.optimiser.tensors().items() if name.endswith("/step"))))

    compile_kernels(fused, tell)
    assert "once per machine" in told[0]
    assert [sentence.split(",")[0] for sentence in told[1:3]] == ["compiled 1 of 2", "compiled 2 of 2"]
    assert "CPU-seconds; the next start will not" in told[3] and len(told) == 4
    assert steps[0] == steps[1] == 0 < steps[2], "the update is compiled between the second and the third sentence"


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_learn_says_something_within_two_seconds(backend: str) -> None:
    """In CPU time from the call to the first line, without a callback: what a user sees first."""
    seen: list[float] = []

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            seen.append(time.process_time())
            return super().write(text)

    agent = PPO("CartPole-v1", {"backend": backend, "run": {"total_steps": 64, "environments": 2, "rollout_steps": 16}})
    with contextlib.redirect_stderr(Screen()):
        began = time.process_time()
        agent.learn()
    assert seen and seen[0] - began < 2.0


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
    assert len(found[0]["notes"]) == 4 and found[0]["misses"] > 10
    assert found[1]["notes"] == [] and found[1]["misses"] == 0
    assert found[1]["first"] < found[0]["first"] / 2

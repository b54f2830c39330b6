"""How much memory a training run of ordinary size takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TRAIN = """
import resource, sys
from tailwise.run.agent import PPO
config = {
    "env": {"hide": [1, 3]},
    "model": {"core": {"kind": "lstm", "hidden": 64}},
    "run": {"geometry": "fixed", "total_steps": 3 * 64 * 128},
}
agent = PPO("CartPole-v1", config)
agent.learn()
assert len(agent.history) == 3
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
def test_peak_memory_of_an_lstm_run_is_below_700_megabytes() -> None:
    """64 environments x 128 steps, LSTM 64, 64 quantiles, twin: peak resident size of the whole process, in MiB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    done = subprocess.run([sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    peak = float(done.stdout.strip().splitlines()[-1])
    print(f"peak resident size: {peak:.0f} MiB")
    assert 100 < peak < 700

"""With NUMBA_DISABLE_JIT=1 the market is plain Python that a debugger steps through, as CONTRIBUTING.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, sys
import numpy as np
from tailwise.bars.synthetic import random_walk
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
from tailwise.market import engine
from tailwise.market.costs import CostConfig
from tailwise.market.env import MarketEnv, MarketEnvConfig
from tailwise.market.tables import SymbolTable

bars = random_walk(seed=1, length=200)
features = FeatureSpec.fit(FeaturesConfig(include=("return_5", "volatility_20")), [bars]).table(bars)
table = SymbolTable.from_bars(bars, features)
env = MarketEnv([table], MarketEnvConfig(episode_length=20, stop_loss=0.01), CostConfig(), num_envs=2)
obs, _ = env.reset(seed=7)
rewards = [env.step(np.array(actions))[1].tolist() for actions in ([2, 0], [2, 1], [0, 2], [1, 1])]
print(json.dumps({"kernel": type(engine.begin).__name__, "obs": obs.tolist(), "rewards": rewards}))
"""


def play(**variables: str) -> dict[str, object]:
    """What CODE prints in a process of its own with these environment variables."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", CODE]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    played: dict[str, object] = json.loads(done.stdout)
    return played


def test_without_compilation_the_market_gives_the_same_numbers() -> None:
    """Rejects a kernel that only numba can run: an intrinsic, or a record whose fields are no attributes in Python."""
    compiled, plain = play(), play(NUMBA_DISABLE_JIT="1")
    assert (compiled["kernel"], plain["kernel"]) == ("Kernel", "function")
    for name in ("obs", "rewards"):
        for expected, row in zip(compiled[name], plain[name], strict=True):  # type: ignore[call-overload]
            assert row == pytest.approx(expected, rel=1e-12, abs=1e-15)

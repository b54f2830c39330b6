"""NUMBA_DISABLE_JIT=1: the market runs as plain Python, which a debugger can step through, with the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tailwise.core.compiled import compiler_is_off, record_dtype
from tailwise.market.env import MarketEnv
from tests.market.test_account import CASES

ROOT = Path(__file__).parents[2]
STEPS = 12
STEP = "import sys; from tests.market.test_without_compiler import save; save(sys.argv[1])"


def played() -> dict[str, npt.NDArray[np.generic]]:
    """Observations, rewards, masks and all that is reported of a few steps of every case, by name."""
    numbers: dict[str, npt.NDArray[np.generic]] = {}
    for name, (assets, config, costs) in CASES.items():
        settings = config.model_copy(update={"report": True, "episode_length": 9})
        env = MarketEnv(assets, settings, costs, num_envs=2)
        env.reset(seed=5)
        rng = np.random.default_rng(2)
        for k in range(STEPS):
            shape = env.single_action_space.shape
            actions = rng.uniform(-2.0, 2.0, (2, *shape)) if shape else rng.integers(0, 3, 2)
            obs, reward, terminated, truncated, infos = env.step(actions)
            arrays = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, **infos["parts"]}
            if "action_mask" in infos:
                arrays["mask"] = infos["action_mask"]
            numbers |= {f"{name}/{k}/{field}": np.asarray(values) for field, values in arrays.items()}
        numbers |= {f"{name}/state/{field}": values for field, values in env.get_state().items()}
    return numbers


def save(path: str) -> None:
    assert compiler_is_off()
    np.savez(path, **played())


def test_the_market_has_the_same_numbers_without_the_compiler(tmp_path: Path) -> None:
    """Bit for bit, with every warning an error. Rejects a field that a record hides, which guards once had."""
    path = tmp_path / "plain.npz"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", STEP, str(path)], cwd=ROOT, env=environment, check=True, timeout=300
    )
    compiled = played()
    with np.load(path) as plain:
        assert set(plain.files) == set(compiled)
        assert [name for name in plain.files if not np.array_equal(plain[name], compiled[name])] == []
    assert len(compiled) > 100 * len(CASES)


def test_a_field_that_a_record_would_hide_is_refused() -> None:
    with pytest.raises(ValueError, match="attribute 'flatten' of its own"):
        record_dtype([("flatten", np.int64)])

"""Other people's trading environments, each in a process of its own, stepped on request.

    python -m benchmarks.environment_peers gym-trading-env bars.npz

reads one number of CPU-seconds per line and answers each with the steps that fitted into them, as JSON. A process per
peer because one of them turns every warning of its process into an error, and so that nobody shares a heap.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tailwise.bars.bars import Bars

FEATURES = 32
EPISODE = 256
FEE = 2e-4
BATCH = 64  # steps between two looks at the clock

MODULES = {"gym-trading-env": "gym_trading_env", "gym-anytrading": "gym_anytrading"}
HOW = {
    "gym-trading-env": "pip install --no-deps gym-trading-env==0.3.5 (its pins conflict with ours)",
    "gym-anytrading": "pip install '.[bench]'",
}
WHAT = {
    "gym-trading-env": "32 features, fee and borrow interest, positions -1, 0, 1, episodes of 256 bars",
    "gym-anytrading": "32 features, window of 1 bar, its fixed fee, long or short",
}


def installed(peer: str) -> bool:
    return importlib.util.find_spec(MODULES[peer]) is not None


# ------------------------------------------------------------------------------------------------ in the main process


class Peer:
    """A running peer; `measure` gives its steps per CPU-second in a slot."""

    def __init__(self, name: str, bars: Path) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.environment_peers", name, str(bars)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def measure(self, seconds: float) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; the empty answer below says so
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended with code {self._process.wait()}; its message stands above.")
        result = json.loads(answer)
        return float(result["steps"] / result["cpu_seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@contextlib.contextmanager
def running(names: list[str], bars: Bars) -> Iterator[list[Peer]]:
    """The peers over `bars`, until the block is left."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars.npz"
        columns = {name: getattr(bars, name) for name in ("time", "open", "high", "low", "close", "volume")}
        np.savez(path, **columns)
        peers = [Peer(name, path) for name in names]
        try:
            yield peers
        finally:
            for peer in peers:
                peer.close()


# ------------------------------------------------------------------------------------------------ in the peer's process


def make(name: str, path: Path) -> Any:
    """The peer over the stored bars with 32 features, without rendering and without printing."""
    import pandas as pd

    with np.load(path) as stored:
        columns = {column: stored[column] for column in stored.files}
    index = pd.DatetimeIndex(columns.pop("time"))
    frame = pd.DataFrame(columns, index=index)
    features = np.random.default_rng(0).standard_normal((len(frame), FEATURES)).astype(np.float32)
    if name == "gym-trading-env":
        named = pd.DataFrame(features, index=frame.index, columns=[f"feature_{k}" for k in range(FEATURES)])
        from gym_trading_env.environments import TradingEnv

        return TradingEnv(
            pd.concat([frame, named], axis=1),
            positions=[-1, 0, 1],
            trading_fees=FEE,
            borrow_interest_rate=0.01 / 252,
            max_episode_duration=EPISODE,
            verbose=0,
        )
    from gym_anytrading.envs import StocksEnv

    class WithFeatures(StocksEnv):  # type: ignore[misc]
        """Its own way of giving it other features."""

        def _process_data(self) -> tuple[Any, Any]:
            prices = self.df["Close"].to_numpy()
            return prices.astype(np.float32), features

    # It cannot start anywhere but at the first bar; its episodes run to the end of the data.
    return WithFeatures(df=frame.rename(columns=str.capitalize), window_size=1, frame_bound=(1, len(frame)))


def serve(name: str, path: Path) -> None:
    env = make(name, path)
    actions = np.random.default_rng(1).integers(0, env.action_space.n, 4096).tolist()
    env.reset(seed=0)
    step = 0
    for line in sys.stdin:
        seconds, steps = float(line), 0
        clock = time.process_time()
        while time.process_time() - clock < seconds:
            for _ in range(BATCH):
                _, _, terminated, truncated, _ = env.step(actions[step % 4096])
                step += 1
                if terminated or truncated:
                    env.reset()
            steps += BATCH
        print(json.dumps({"steps": steps, "cpu_seconds": time.process_time() - clock}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))

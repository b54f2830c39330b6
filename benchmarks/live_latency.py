"""What a bar costs in a paper session: from the bar to the order, with features, guards and journal, in CPU time.

Three ways to decide take turns, block by block, in sessions of their own on the same bars: torch as every evaluation
uses it, the fused kernels and onnxruntime. Only the first one is bit-identical to `evaluate`; the others say what a
decision would cost.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from benchmarks.live_world import session_of, trained
from tailwise.bars.bars import Bars, load_bars, save_bars
from tailwise.core.streams import Streams
from tailwise.fused.backend import FusedBackend
from tailwise.live.feeds import BarsFeed
from tailwise.live.journal import JOURNAL
from tailwise.live.lines import Said
from tailwise.live.paper import Paper
from tailwise.live.session import Ticked
from tailwise.run.play import Decide, ModelPlayer
from tailwise.run.policy import Policy

HIDDEN = 64
TRAINED_ON = 3000  # bars
WEEK = 7 * 86_400
WARM = 200  # bars that are not counted


class Action(NamedTuple):
    """What a player reads of a decision."""

    action: Tensor
    params: Tensor
    state: Tensor


def one_second_bars(count: int, seed: int = 0) -> Bars:
    """A random walk of seconds."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 1e-4, count)))
    opened = np.concatenate([[100.0], close[:-1]])
    spread = np.exp(np.abs(rng.normal(0.0, 5e-5, count)))
    frame = pd.DataFrame(
        {
            "open": opened,
            "high": np.maximum(opened, close) * spread,
            "low": np.minimum(opened, close) / spread,
            "close": close,
            "volume": rng.uniform(100.0, 1000.0, count),
        },
        index=pd.date_range("2024-01-01", periods=count, freq="s", tz="UTC", name="time"),
    )
    return load_bars(frame, symbol="SECONDS")


def policy_of(bars: Bars, folder: Path) -> Any:
    """LSTM 64 with the default features and networks, trained on the first of these bars."""
    file = folder / "SECONDS.parquet"
    save_bars(bars.slice(0, TRAINED_ON), file)
    return trained(
        0,
        {},
        base={
            "data": {"kind": "files", "paths": [str(file)]},
            "env": {"kind": "market", "episode_length": 64},
            "model": {"core": {"kind": "lstm", "hidden": HIDDEN}},
            "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "tensorboard": False},
        },
    )


def fused(policy: Policy) -> Decide:
    """Decisions by the fused kernels."""
    return FusedBackend(policy.model, policy.config.learner, Streams(0)).play


def onnxruntime(policy: Policy, folder: Path) -> Decide:
    """Decisions by onnxruntime."""
    from tailwise.live.export import export_onnx, session_of

    export_onnx(policy, folder / "policy.onnx", steps=200)
    session = session_of(str(folder / "policy.onnx"))

    def decide(obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Action:
        given = {"obs": obs.numpy(), "state": state.numpy(), "start": start.numpy()}
        action, chances, after = session.run(["action", "probabilities", "next_state"], given)
        return Action(torch.from_numpy(action)[:, None], torch.from_numpy(chances), torch.from_numpy(after))

    return decide


class Stopwatch:
    """CPU time from a bar to the end of its tick, ns."""

    def __init__(self) -> None:
        self.since, self.spent = 0, list[int]()

    def stop(self, _: Ticked) -> None:
        """The tick is over."""
        self.spent.append(time.process_time_ns() - self.since)


class Timed:
    """A feed that starts a stopwatch when it says a bar."""

    live = False

    def __init__(self, feed: BarsFeed, watch: Stopwatch) -> None:
        self._feed, self._watch = feed, watch

    def said(self) -> Iterator[Said | None]:
        for bar in self._feed.said():
            self._watch.since = time.process_time_ns()
            yield bar

    def go_on_after(self, time: int) -> None:
        self._feed.go_on_after(time)

    def history(self, symbol: str, after: int, before: int) -> list[Any]:
        return []


@dataclass(frozen=True)
class Latency:
    """CPU-milliseconds per bar of one way to decide."""

    name: str
    per_bar: npt.NDArray[np.float64]

    @property
    def p50(self) -> float:
        return float(np.median(self.per_bar))

    @property
    def p99(self) -> float:
        return float(np.quantile(self.per_bar, 0.99))


def latencies(bars: Bars, folder: Path, *, blocks: int, block: int) -> list[Latency]:
    """Sessions that take turns over blocks of bars, after a warm-up."""
    policy = policy_of(bars, folder)
    ways: dict[str, Decide | None] = {"torch": None, "fused": fused(policy), "onnxruntime": onnxruntime(policy, folder)}
    papers, watches = {}, {name: Stopwatch() for name in ways}
    for name, decide in ways.items():
        session = session_of(policy, [bars], folder / name)
        session.open()
        player = session.desks[0].follower.player
        assert isinstance(player, ModelPlayer)
        if decide is not None:
            player.decide = decide
        papers[name] = Paper(session, told=watches[name].stop)
        papers[name].run(BarsFeed([bars.slice(0, WARM)]))
    for k in range(blocks):
        for name, paper in papers.items():
            feed = BarsFeed([bars.slice(0, WARM + (k + 1) * block)], after=paper.session.time)
            paper.run(Timed(feed, watches[name]))
    for paper in papers.values():
        paper.session.close()
    return [Latency(name, np.array(watch.spent[WARM:]) / 1e6) for name, watch in watches.items()]


@dataclass(frozen=True)
class Replay:
    """A replay of one-second bars. minutes: CPU-minutes of a week at its pace; grown: MB between a tenth of the way and
    the end; bytes: of journal per bar."""

    bars: int
    minutes: float
    grown: float
    bytes: float


def replay(bars: Bars, folder: Path) -> Replay:
    """Play bars as fast as they are read."""
    policy = policy_of(bars, folder)
    session = session_of(policy, [bars], folder / "replay")
    session.open()
    sizes: list[float] = []
    every = max(1, len(bars) // 10)
    paper = Paper(session, told=lambda _: sizes.append(resident()) if paper.progress.bars % every == 0 else None)
    since = time.process_time()
    paper.run(BarsFeed([bars]))
    spent = time.process_time() - since
    session.close()
    written = (folder / "replay" / JOURNAL).stat().st_size
    return Replay(len(bars), spent / len(bars) * WEEK / 60, sizes[-1] - sizes[0], written / len(bars))


def resident() -> float:
    """MB of memory that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6

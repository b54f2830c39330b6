"""Small policies of every kind and paper sessions with them, for `benchmarks.live`."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tailwise
from benchmarks.healthy import merged
from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigWarning
from tailwise.live.feeds import BarsFeed
from tailwise.live.journal import JOURNAL
from tailwise.live.lines import RawBar, Said
from tailwise.live.paper import Beginning, Paper, frequency_of, terms_of, ticks_in
from tailwise.live.session import Session
from tailwise.live.settings import LiveGuards
from tailwise.run.ensemble import Ensemble
from tailwise.run.policy import Trader

# Hardly trained: weights of a large gain decide differently bar by bar.
MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "ar1", "seeds": [3], "parameters": {"length": 420}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 64},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "tensorboard": False},
    "model": {
        "encoder": {"hidden": [8]},
        "actor": {"hidden": [8], "gain": 10.0},
        "critic": {"hidden": [8], "quantiles": 16, "minibatch_particles": 4},
    },
    "risk": {"mode": "constraint", "alpha": 0.1, "limit": -0.05},
}
LSTM: dict[str, Any] = {"model": {"core": {"kind": "lstm", "hidden": 8}}}
KINDS: dict[str, dict[str, Any]] = {
    "MLP": {},
    "LSTM": LSTM,
    "ensemble": LSTM,
    "two symbols": merged(LSTM, {"data": {"seeds": [3, 4]}, "evaluate": {"deterministic": False}}),
    "portfolio": merged(
        LSTM, {"data": {"seeds": [3, 4]}, "env": {"action": {"kind": "weights", "low": -1.0, "high": 1.0}}}
    ),
}
MEMBERS = (1, 2, 3)  # seeds of an ensemble


def trained(seed: int, changes: dict[str, Any], *, base: dict[str, Any] = MARKET) -> tailwise.PPO:
    """A policy after one update, so that all scales are known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # the run is far too small, and meant to be
        agent = tailwise.PPO(config=merged(base, {"seed": seed, **changes}))
        agent.learn(64)
    return agent


def trader_of(kind: str) -> Trader:
    """The policy, or the policies that decide together, of a kind."""
    if kind == "ensemble":
        return Ensemble([trained(seed, KINDS[kind]) for seed in MEMBERS], "vote")
    return trained(MEMBERS[0], KINDS[kind])


def session_of(
    trader: Trader,
    bars: list[Bars],
    folder: Path,
    *,
    since: np.datetime64 | None = None,
    clock: Callable[[], float] | None = None,
    **guards: Any,
) -> Session:
    """A session that is not open yet; clock: of the wall, in seconds."""
    begin = Beginning(None if since is None else f"{since.astype('datetime64[s]')}Z")
    terms = terms_of(trader, [one.symbol for one in bars], frequency_of(trader, bars, None), begin, folder)
    return Session(trader, terms, folder, LiveGuards(**guards), clock=clock or time.time)


def first_tested(bars: Bars, trader: Trader) -> np.datetime64:
    """Open time of the first bar of the test window."""
    return np.datetime64(bars.time[trader.market().dataset.window("test")[0].first])


def play(trader: Trader, bars: list[Bars], folder: Path, since: np.datetime64, speed: float | None = None) -> None:
    """Play a session from where it is to the last bar; speed: bars per second once it trades."""
    session = session_of(trader, bars, folder, since=since)
    session.state_every = 16  # so that killed ones go on from states of their middle
    session.open()
    paper, after = Paper(session), session.time
    if after is None:  # the warm-up at once, however slowly the rest comes
        paper.run(BarsFeed([one.between(None, since) for one in bars]))
        after = session.time
    paper.run(BarsFeed(bars, speed=speed, after=after))
    session.close()


def ticks(folder: Path) -> list[dict[str, Any]]:
    """All ticks in the journal of a folder."""
    return list(ticks_in(folder / JOURNAL))


def killed(run: Callable[[], None], journal: Path, more: int, delay: float) -> bool:
    """Run in a child process, killed when the journal has grown by `more` bytes, and `delay` seconds later; whether it
    was still running."""
    before = journal.stat().st_size if journal.exists() else 0
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size >= before + more):
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise RuntimeError(f"{journal}: the session did not go on for two minutes")
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


class Script:
    """A feed that says what is listed. live: its clock counts; kept: bars that its history still has."""

    def __init__(self, said: Sequence[Said | None], *, live: bool = False, kept: Sequence[RawBar] = ()) -> None:
        self._said, self.live, self._kept = said, live, kept

    def said(self) -> Iterator[Said | None]:
        yield from self._said

    def go_on_after(self, time: int) -> None:
        return None

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        return [bar for bar in self._kept if bar.symbol == symbol and after < bar.time < before]

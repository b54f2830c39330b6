"""Policies that hold what they are told to, and bars on which that is right until it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tailwise
from tailwise.bars.bars import Bars
from tailwise.bars.synthetic import random_walk
from tailwise.live.feeds import BarsFeed
from tailwise.live.journal import JOURNAL
from tailwise.live.paper import Beginning, Paper, frequency_of, terms_of, ticks_in
from tailwise.live.session import Session, Ticked
from tailwise.live.settings import LiveGuards
from tailwise.online.jobs import AtOnce, ChallengerJob, Worker
from tailwise.online.learner import Learner, Learning
from tailwise.online.settings import LearnSettings
from tailwise.run.policy import Policy
from tests.live.markets import LSTM, MARKET
from tests.support import merged

BEFORE = 420  # bars that the policies were trained on
CONFIG = merged(
    MARKET,
    {
        "data": {"market": "random_walk", "parameters": {"length": BEFORE}},
        "env": {"action": {"kind": "exposure", "low": -1.0, "high": 1.0}},
    },
) | {"risk": {"mode": "off"}}
SETTINGS = {"window": 200, "every": 50, "lead": 2, "updates": 2, "patience": 400, "kl": 100.0}


def holder(exposure: float, changes: dict[str, Any] | None = None) -> Policy:
    """A policy that holds this exposure whatever it observes."""
    agent = tailwise.PPO(config=merged(CONFIG, changes or {}))
    agent.learn(64)
    with torch.no_grad():
        agent.model.actor.head.weight.zero_()
        agent.model.actor.head.bias.fill_(exposure)
    return Policy(agent.model, agent.config, masked=agent.needs_mask(), features=agent.features)


def bars_with(policy: Policy, drifts: list[tuple[int, float]], *, seed: int = 5) -> tuple[Bars, Bars]:
    """Bars from before, and as many more with these drifts per bar (bars, drift) and a volatility of 1%."""
    before = policy.market().dataset.bars[0]
    draw = np.random.default_rng(seed)
    moves = np.concatenate([drift + 0.01 * draw.standard_normal(count) for count, drift in drifts])
    close = before.close[-1] * np.exp(np.cumsum(moves))
    begin = np.concatenate([before.close[-1:], close[:-1]])
    step = before.time[1] - before.time[0]
    more = replace(
        random_walk(seed=0, length=len(close)),
        symbol=before.symbol,
        time=before.time[-1] + step * np.arange(1, len(close) + 1),
        open=begin,
        high=np.maximum(begin, close),
        low=np.minimum(begin, close),
        close=close,
    )
    return before, more


class Planted:
    """A worker whose challengers are given; a real training is `AtOnce`."""

    def __init__(self, policies: Callable[[int], Policy]) -> None:
        self._policies = policies
        self._trains = AtOnce()

    def begin(self, job: ChallengerJob) -> None:
        from tailwise.core.atomic import atomic_folder, write_json

        if job.out.exists():
            return
        with atomic_folder(job.out) as draft:
            self._policies(job.number).save(draft / "policy")
            write_json(draft / "facts.json", {"updates": 0, "kl": 0.0})

    def finish(self) -> None:
        self._trains.finish()

    def close(self) -> None:
        self._trains.close()


def played(
    policy: Policy,
    before: Bars,
    more: Bars,
    folder: Path,
    *,
    worker: Worker | None,
    speed: float | None = None,
    **settings: Any,
) -> tuple[Session, Learning | None, list[dict[str, Any]]]:
    """A session on `more`, with online learning unless worker is None; (session, learning, ticks of the journal)."""
    frequency = frequency_of(policy, [before], None)
    since = f"{more.time[0].astype('datetime64[s]')}Z"
    terms = terms_of(policy, [before.symbol], frequency, Beginning(since), folder)
    beside = None
    if worker is not None:
        chosen = LearnSettings(**{**SETTINGS, **settings})
        beside = Learning(Learner(policy, terms, folder, chosen, [before], worker))
    session = Session(policy, terms, folder, LiveGuards(), deployed=None if beside is None else beside.learner.find)
    known = session.open()
    if beside is not None:
        beside.go_on(session)

    def told(_: Ticked) -> None:
        if beside is not None:
            beside.after(session)

    paper = Paper(session, told=told)
    if not known:
        paper.warm_up([before])
    paper.run(BarsFeed([more], speed=speed, after=session.time if known else None))
    session.close()
    return session, beside, list(ticks_in(folder / JOURNAL))


RECURRENT = LSTM

"""Rollouts that a compiled market and the policy make by themselves are those that they make step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tailwise.kernels.ahead import ahead_of
from tailwise.kernels.backend import FusedBackend
from tailwise.kernels.layout import NO_CORE
from tailwise.kernels.warm_up import kernels_are_kept
from tailwise.learner.rollout import Rollout
from tailwise.market.costs import CostConfig
from tailwise.market.env import MarketEnv, MarketEnvConfig
from tailwise.market.plain_market import PlainMarket
from tailwise.run.trainer import Trainer
from tests.market.worlds import random_walk, table_of
from tests.support import bits, small_trainer, started

ENVS, STEPS = 7, 24  # an odd number, so that two workers have unequal parts


class SlowMarket(MarketEnv):
    """Another class, so that it is driven step by step."""


class SlowPlainMarket(PlainMarket):
    """The same for the plain one."""


def market(kind: type[MarketEnv] = MarketEnv, **changes: Any) -> MarketEnv:
    walk = random_walk(80, seed=3)
    features = np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)
    costs = CostConfig(**changes.pop("costs", {}))
    table = table_of(walk.open, walk.high, walk.low, walk.close, walk.volume, features=features, first_valid=2)
    return kind([table], MarketEnvConfig(**{"episode_length": 9, **changes}), costs, num_envs=ENVS, seed=1)


def plain(kind: type[PlainMarket] = PlainMarket, *, broken: bool = False, wild: bool = False) -> PlainMarket:
    env = kind(ENVS)
    if broken:  # numbers that no market shows: they must be kept, counted and kept away from the policy
        env.features[::7, 3], env.features[3::11, 0] = np.nan, np.inf
        env.returns[::97] = np.nan
    if wild:
        env.returns *= 30.0  # episodes end by drawdown every few steps
    return env


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "plain": (lambda: plain(wild=True), lambda: plain(SlowPlainMarket, wild=True)),
    "broken": (lambda: plain(broken=True, wild=True), lambda: plain(SlowPlainMarket, broken=True, wild=True)),
    "market": (market, lambda: market(SlowMarket)),
    "starts used up": (lambda: market(episode_length=2), lambda: market(SlowMarket, episode_length=2)),
    "latency": (lambda: market(costs={"latency": 2}), lambda: market(SlowMarket, costs={"latency": 2})),
}


def trainer_of(env: Any, *, core: str = "none", workers: int = 1) -> Trainer:
    model = {"core": {"kind": core}, "actor": {"gain": 1.0}}
    run = {"environments": 4 if isinstance(env, str) else ENVS, "rollout_steps": STEPS, "threads": workers}
    return started(small_trainer(env, backend="fused", model=model, run=run, learner={"minibatches": 1}))


def content(rollout: Rollout) -> dict[str, bytes]:
    """Every number of a rollout, NaN too."""
    parts = {**vars(rollout), **{f"critic.{name}": value for name, value in vars(rollout.critic).items()}}
    return {name: bits(value) for name, value in parts.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("case", list(CASES))
def test_the_same_rollouts_as_step_by_step(case: str, core: str, workers: int) -> None:
    """Rejects a row or a step too early, episodes out of order or counted twice, hidden states that are kept or cleared
    at the wrong end, starts that are used again, and workers that write to one another's memory."""
    fast, slow = (
        trainer_of(make(), core=core, workers=count) for make, count in zip(CASES[case], (workers, 1), strict=True)
    )
    ended = anomalies = 0
    for update in range(4):
        (ours, odd), (theirs, theirs_odd) = (one.collector.collect(update) for one in (fast, slow))
        assert fast.collector.ahead is not None and slow.collector.ahead is None
        ours_content, wanted = content(ours), content(theirs)
        assert [name for name in wanted if ours_content[name] != wanted[name]] == []
        assert odd == theirs_odd
        done = fast.driver.pop_episodes()
        assert np.array(done).tobytes() == np.array(slow.driver.pop_episodes()).tobytes()  # NaN too
        ended, anomalies = ended + len(done), anomalies + odd
    assert ended > 4
    assert (anomalies > 0) == (case == "broken")
    states = [one.driver.get_state() for one in (fast, slow)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        if isinstance(value, np.ndarray):
            assert value.tobytes() == states[1][name].tobytes(), name
    if case not in ("plain", "broken"):
        for name, value in states[0]["vector"].items():
            assert np.array_equal(value, states[1]["vector"][name]), name


def test_a_run_learns_the_same_either_way() -> None:
    """Bit for bit, over the whole run."""
    weights = []
    for make in CASES["market"]:
        run = {"environments": ENVS, "rollout_steps": STEPS, "total_steps": 5 * ENVS * STEPS}
        trainer = small_trainer(make(), backend="fused", run=run)
        trainer.train()
        weights.append([bits(parameter.detach()) for parameter in trainer.model.parameters()])
    assert weights[0] == weights[1]


def test_whatever_says_more_is_driven_step_by_step() -> None:
    """Rejects a fast path that leaves out what a step says, or that overlooks a step that somebody replaced."""
    replaced = market()
    replaced.step = replaced.step  # type: ignore[method-assign]
    slow = {
        "report": market(report=True),
        "exposure": market(action={"kind": "exposure"}),
        "mask": market(costs={"minimum_notional": 100.0}),
        "guards": market(guards={"max_exposure": 0.5}),
        "inherited": market(SlowMarket),
        "replaced": replaced,
        "gymnasium's": "CartPole-v1",
    }
    for name, env in slow.items():
        trainer = trainer_of(env)
        trainer.collector.collect(0)
        assert trainer.collector.ahead is None, name


def test_it_is_compiled_before_training_and_only_once() -> None:
    env = market()
    backend = trainer_of(env).backend
    assert isinstance(backend, FusedBackend)
    ahead = ahead_of(backend, env)
    assert ahead is not None and ahead.kernel == "ahead.market_ahead"
    before = env.get_state()
    told: list[str] = []
    backend.warm_up(told.append, env)
    assert kernels_are_kept(core=NO_CORE, more=(ahead.kernel,))
    assert all(np.array_equal(value, before[name]) for name, value in env.get_state().items())
    told.clear()
    backend.warm_up(told.append, env)
    assert told == []

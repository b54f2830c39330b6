"""Rollouts that a compiled market and the policy make by themselves are those that they make step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.plain_market import PlainMarket
from tailwise.core.errors import EnvironmentContractError
from tailwise.fused.ahead import FusedAhead, ahead_of
from tailwise.fused.backend import FusedBackend
from tailwise.learner.rollout import Rollout
from tailwise.market.costs import CostConfig
from tailwise.market.env import MarketEnv, MarketEnvConfig
from tailwise.run.trainer import Trainer
from tests.market.worlds import random_walk
from tests.support import bits, small_trainer, started

ENVS, STEPS, UPDATES = 7, 24, 5  # an odd number of environments, so that two workers have unequal parts
VOLATILITY = {"kind": "volatility_target", "target": 0.3, "largest": 1.5}
EXPOSURE = {"kind": "exposure"}
RUIN = {"action": {"kind": "positions", "positions": [-20.0, 0.0, 20.0]}, "maintenance_margin": 0.0}


class SlowMarket(MarketEnv):
    """Another class, so that it is driven step by step."""


class SlowPlainMarket(PlainMarket):
    """The same for the plain one."""


def market(kind: type[MarketEnv] = MarketEnv, *, broken: bool = False, **changes: Any) -> MarketEnv:
    """Accounts of different ages, which end by age one after the other."""
    table = random_walk(400, seed=3, gap=0.02, inside=0.02, features=3)
    if "base" in changes:
        table = replace(table, base=np.random.default_rng(4).uniform(-0.5, 1.5, 400))
    table = replace(table, unit=changes.pop("unit", 1.0))
    costs = CostConfig(**changes.pop("costs", {}))
    env = kind([table], MarketEnvConfig(**{"episode_length": 9, **changes}), costs, num_envs=ENVS, seed=1)
    if broken:  # a number that no table would be made with
        env.simulator.table.features[::150, 1], env.simulator.table.bars["close"][::197] = np.nan, np.nan
    env.spread_first_episodes()
    return env


def plain(kind: type[PlainMarket] = PlainMarket, *, broken: bool = False) -> PlainMarket:
    """Episodes end by drawdown every few steps."""
    env = kind(ENVS)
    env.returns *= 30.0
    if broken:  # they must be kept, counted and kept away from the policy
        env.features[::53, 3], env.features[100::211, 0], env.returns[::997] = np.nan, np.inf, np.nan
    return env


CASES: dict[str, tuple[Callable[..., Any], type[Any], type[Any], dict[str, Any]]] = {
    "plain": (plain, PlainMarket, SlowPlainMarket, {}),
    "plain, broken": (plain, PlainMarket, SlowPlainMarket, {"broken": True}),
    "market": (market, MarketEnv, SlowMarket, {}),
    "market, broken": (market, MarketEnv, SlowMarket, {"broken": True}),
    "ruin": (market, MarketEnv, SlowMarket, RUIN),
    "starts used up": (market, MarketEnv, SlowMarket, {"episode_length": 2}),
    "latency": (market, MarketEnv, SlowMarket, {"costs": {"latency": 2}}),
    "units": (market, MarketEnv, SlowMarket, {"unit": 0.3}),
    "exposure": (market, MarketEnv, SlowMarket, {"action": {"kind": "exposure", "low": -0.3, "high": 1.7}}),
    "exposure, broken": (market, MarketEnv, SlowMarket, {"broken": True, "action": EXPOSURE}),
    "exposure, ruin": (
        market,
        MarketEnv,
        SlowMarket,
        {"action": {"kind": "exposure", "low": -40, "high": 40}, "maintenance_margin": 0.0},
    ),
    "exposure of a base": (
        market,
        MarketEnv,
        SlowMarket,
        {
            "action": {"kind": "exposure", "low": -1, "high": 2},
            "base": VOLATILITY,
            "costs": {"latency": 1},
            "unit": 0.3,
        },
    ),
    "exposure, margin": (
        market,
        MarketEnv,
        SlowMarket,
        {
            "action": {"kind": "exposure", "low": -1, "high": 2},
            "base": VOLATILITY,
            "costs": {"impact_bps": 2000.0, "minimum_notional": 30_000.0},
        },
    ),
    "exposure, margin, broken": (
        market,
        MarketEnv,
        SlowMarket,
        {"broken": True, "action": {"kind": "exposure", "high": 3.5}, "costs": {"impact_bps": 2000.0}},
    ),
}


def pair_of(case: str) -> tuple[Any, Any]:
    """The same market twice, compiled as a whole and step by step."""
    make, fast, slow, changes = CASES[case]
    return make(fast, **changes), make(slow, **changes)


def trainer_of(env: Any, *, core: str = "none", workers: int = 1, actor: dict[str, Any] | None = None) -> Trainer:
    model = {"core": {"kind": core}, "actor": {"gain": 1.0, **(actor or {})}}
    run = {"environments": 4 if isinstance(env, str) else ENVS, "rollout_steps": STEPS, "threads": workers}
    return started(small_trainer(env, backend="fused", model=model, run=run, learner={"minibatches": 1}))


def content(rollout: Rollout) -> dict[str, bytes]:
    """Every number of a rollout, NaN too."""
    parts = {**vars(rollout), **{f"critic.{name}": value for name, value in vars(rollout.critic).items()}}
    return {name: bits(value) for name, value in parts.items() if isinstance(value, torch.Tensor)}


def runs_ahead(trainer: Trainer) -> bool:
    return trainer.backend.ahead(trainer.driver.venv) is not None


def assert_same_rollout(fast: Trainer, slow: Trainer, update: int) -> Rollout:
    (ours, odd), (theirs, theirs_odd) = (one.collector.collect(update) for one in (fast, slow))
    found, wanted = content(ours), content(theirs)
    assert [name for name in wanted if found[name] != wanted[name]] == []
    assert odd == theirs_odd
    assert fast.driver.obs_is_finite == slow.driver.obs_is_finite
    episodes = [np.array(one.driver.pop_episodes()).tobytes() for one in (fast, slow)]  # NaN too
    assert episodes[0] == episodes[1]
    return ours


@pytest.mark.parametrize("workers", [1, 2, 9])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("case", list(CASES))
def test_the_same_rollouts_as_step_by_step(case: str, core: str, workers: int) -> None:
    """Rejects a row or a step too early, episodes out of order or counted twice, hidden states that are kept or cleared
    at the wrong end, starts that are used again, and what is broken in one step and treated so in another."""
    env, plain_env = pair_of(case)
    fast, slow = trainer_of(env, core=core, workers=workers), trainer_of(plain_env, core=core)
    assert runs_ahead(fast) and not runs_ahead(slow)
    rollouts, sound = [], []
    for update in range(UPDATES):
        sound.append(fast.driver.obs_is_finite)
        rollouts.append(assert_same_rollout(fast, slow, update))
    states = [one.driver.get_state() for one in (fast, slow)]
    for name, value in states[0].items():
        if isinstance(value, np.ndarray):
            assert value.tobytes() == states[1][name].tobytes(), name
    for name, value in (states[0]["vector"] or {}).items():
        assert np.array_equal(value, states[1]["vector"][name]), name
    terminated, truncated = (
        torch.cat([getattr(one, name) for one in rollouts]).sum(1) for name in ("terminated", "truncated")
    )
    if "plain" in case or "ruin" in case:
        assert bool((terminated > 0).any())
    if "plain" not in case:
        assert bool(((truncated > 0) & (truncated < ENVS)).any())
    finite = torch.cat([torch.isfinite(one.obs).all(-1).all(-1) for one in rollouts])
    assert bool(finite.any()) and bool(finite.all()) == ("broken" not in case)


@pytest.mark.parametrize("workers", [1, 2])
def test_driving_on_in_either_way(workers: int) -> None:
    """After a rollout ahead: a step by hand, a reset, and a state that is restored. Rejects memory that is kept from
    before, and a driver that was left behind."""
    fast, slow = (trainer_of(env, core="lstm", workers=workers) for env in pair_of("market"))
    assert_same_rollout(fast, slow, 0)
    for one in (fast, slow):
        one.driver.step(np.zeros(ENVS, dtype=np.int64))
    assert_same_rollout(fast, slow, 1)
    kept = [one.driver.get_state() for one in (fast, slow)]
    for one in (fast, slow):
        one.driver.reset()
    assert_same_rollout(fast, slow, 2)
    for one, state in zip((fast, slow), kept, strict=True):
        one.driver.set_state(state)
    assert_same_rollout(fast, slow, 3)


def test_workers_share_nothing_that_they_write_to() -> None:
    """Two threads that overlap would spoil one another's numbers now and then; this sees it without the luck."""
    for case in ("plain", "market"):
        env = pair_of(case)[0]
        backend = trainer_of(env, core="lstm", workers=2).backend
        assert isinstance(backend, FusedBackend)
        ahead = ahead_of(backend, env)
        assert ahead is not None
        taken: list[dict[str, np.ndarray]] = []
        for memory in ahead._backend.workers.step_memories(ENVS):
            arrays = {f"memory.{name}": part for name, part in memory._asdict().items() if name != "order"}
            scratch = ahead._loop.arrays()._asdict()
            names = ("reward", "done", "targets", "terminated", "truncated", "ledgers")
            taken.append(arrays | {name: scratch[name] for name in names if name in scratch})
        assert len(taken) == 2 and len(taken[0]) > 8
        assert [name for name in taken[0] if np.shares_memory(taken[0][name], taken[1][name])] == []


def test_a_run_learns_the_same_either_way() -> None:
    """Bit for bit, over the whole run."""
    weights = []
    for env in pair_of("market"):
        run = {"environments": ENVS, "rollout_steps": STEPS, "total_steps": 5 * ENVS * STEPS}
        trainer = small_trainer(env, backend="fused", run=run)
        trainer.train()
        weights.append([bits(parameter.detach()) for parameter in trainer.model.parameters()])
    assert weights[0] == weights[1]


def test_whatever_says_more_is_driven_step_by_step() -> None:
    """Rejects a fast path that leaves out what a step says, or that overlooks a step that somebody replaced."""
    slow = {
        "report": market(report=True),
        "exposure, guards": market(action=EXPOSURE, guards={"max_exposure": 0.5}),
        "mask": market(costs={"minimum_notional": 100.0}),
        "guards": market(guards={"max_exposure": 0.5}),
        "inherited": market(SlowMarket),
        "gymnasium's": "CartPole-v1",
    }
    for name, env in slow.items():
        assert not runs_ahead(trainer_of(env)), name
    squashed = trainer_of(market(action=EXPOSURE), actor={"box": "squashed"})
    assert not runs_ahead(squashed)
    trainer = trainer_of(market())
    trainer.collector.collect(0)
    env, seen = trainer.driver.venv, []
    original = env.step

    def watched(actions: Any) -> Any:
        seen.append(actions)
        return original(actions)

    env.step = watched  # type: ignore[method-assign]
    trainer.collector.collect(1)
    assert len(seen) == STEPS


def test_a_broken_action_is_the_sentence_of_a_step() -> None:
    """Rejects an order that nobody named, and workers that name an account which is not the first."""
    sentences = []
    for workers, env in ((2, market(action=EXPOSURE)), (1, market(SlowMarket, action=EXPOSURE))):
        trainer = trainer_of(env, workers=workers)
        trainer.collector.collect(0)
        with torch.no_grad():
            trainer.model.actor.head.bias.fill_(torch.nan)
        with pytest.raises(EnvironmentContractError) as caught:
            trainer.collector.collect(1)
        sentences.append(str(caught.value))
        assert trainer.collector.broken_off
    assert sentences == ["Action of account 0 is NaN."] * 2


class _Stop(BaseException):
    """Like Ctrl-C."""


def test_a_rollout_that_is_broken_off_begins_anew() -> None:
    """Accounts have moved on and nobody knows how far: rejects training on, or saving, a step that never happened."""
    trainer = trainer_of(market(), core="lstm")
    backend, env = trainer.backend, trainer.driver.venv
    assert isinstance(backend, FusedBackend) and isinstance(env, MarketEnv)
    ahead = backend.ahead(env)
    assert isinstance(ahead, FusedAhead)

    def stop(rows: np.ndarray) -> None:
        raise _Stop

    trainer.collector.collect(0)
    ahead._loop = ahead._loop._replace(ended=stop)
    with pytest.raises(_Stop):
        trainer.collector.collect(1)
    assert not np.array_equal(trainer.driver.obs, env.simulator.observe())
    trainer.training_state()
    assert np.array_equal(trainer.driver.obs, env.simulator.observe())
    assert trainer.driver.episode_start.all()


def test_it_is_compiled_before_training_without_a_step() -> None:
    env = market()
    backend = trainer_of(env).backend
    before = env.get_state()
    told: list[str] = []
    backend.warm_up(told.append, env)
    assert all(np.array_equal(value, before[name]) for name, value in env.get_state().items())
    told.clear()
    backend.warm_up(told.append, env)
    assert told == []
    ahead = backend.ahead(env)
    assert isinstance(ahead, FusedAhead) and ahead._compiled is not None

"""`env.base`: actions multiply a rule's exposure; the untrained policy is the rule; the pull keeps it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailwise
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.backtest import backtest_portfolio, play_rule
from tailwise.market.base import base_exposures
from tailwise.market.env_config import FunctionBase, MomentumBase, VolatilityTargetBase
from tailwise.run.config import Config, parse_config
from tailwise.run.limits import rule_returns
from tailwise.run.worlds import MarketWorld, make_world

DATA = {"kind": "synthetic", "market": "heston", "seeds": [3], "parameters": {"length": 1500}}
BASES = [{"kind": "buy_and_hold"}, {"kind": "volatility_target"}, {"kind": "momentum", "look_back": [10, 40]}]
ACTIONS = [
    {"kind": "positions", "positions": [0, 0.5, 1, 1.5]},
    {"kind": "exposure", "low": 0, "high": 2},
    {"kind": "exposure", "low": -0.5, "high": 1.5},
]


FAST = {"learning_rate": 3e-3, "schedule": {"kind": "constant"}}  # so that noise alone moves a policy


def config(base: dict[str, Any] | None, action: dict[str, Any], **sections: Any) -> Config:
    tree: dict[str, Any] = {
        "data": DATA,
        "env": {"kind": "market", "action": action, "base": base, "episode_length": 100},
        "run": {"total_steps": 4096, "environments": 8, "rollout_steps": 64},
        "learner": {"minibatches": 2, "epochs": 2},
        "costs": {"taker_fee_bps": 2.0},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section} if isinstance(section, dict) else section
    return parse_config(tree, source="test")


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("backend", ["torch", "fused"])
@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("base", BASES, ids=lambda base: base["kind"])
def test_the_untrained_policy_is_the_rule_bit_for_bit(
    base: dict[str, Any], action: dict[str, Any], backend: str, core: str
) -> None:
    """Rejects a policy that starts anywhere near the rule only: its equity is that of the rule, bar by bar."""
    agent = tailwise.PPO(None, config(base, action, model={"core": {"kind": core}}, backend=backend))
    (path,) = agent.trade("test", deterministic=True)
    world = agent.world().market()
    bars, (window,) = world.dataset.bars[0], world.dataset.window("test")
    settings = world.settings.model_copy(update={"guards": world.settings.guards})
    rule = play_rule(
        base_exposures(world.settings.base, bars), bars, world.costs, config=settings, first=window.first - 1
    )
    assert np.array_equal(path.equity, rule.equity)
    assert np.abs(path.target).max() > 0


def test_the_untrained_portfolio_is_the_rule_bit_for_bit() -> None:
    data = {"kind": "synthetic", "market": "heston", "seeds": [1, 2], "parameters": {"length": 900}}
    tree = config({"kind": "volatility_target"}, {"kind": "weights", "low": 0, "high": 2, "gross": 2}, data=data)
    agent = tailwise.PPO(None, tree)
    (path,) = agent.trade("test", deterministic=True)
    world = agent.world().market()
    tables = world.dataset.tables("test", together=True)
    first = int(max(table.first_valid for table in tables))
    weights = np.stack([table.base for table in tables if table.base is not None], axis=1)[first:-1] / 2
    plain = [
        type(table)(**{**{name: getattr(table, name) for name in table.__dataclass_fields__}, "base": None})
        for table in tables
    ]
    rule = backtest_portfolio(weights, plain, world.costs, config=world.settings, label="rule")
    assert np.array_equal(path.equity, rule.equity)


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_without_evidence_the_pull_keeps_the_policy_near_the_rule(action: dict[str, Any]) -> None:
    """On a random walk nothing can be learnt. Rejects a pull of the wrong sign, which leaves the rule further than no
    pull at all."""
    away = {}
    for weight in (0.0, 1.0):
        walk = {"kind": "synthetic", "market": "random_walk", "seeds": [1], "parameters": {"length": 1500}}
        prior = {"kind": "base", "weight": weight}
        tree = config(
            {"kind": "buy_and_hold"}, action, data=walk, learner={**FAST, "prior": prior}, run={"total_steps": 32 * 512}
        )
        agent = tailwise.PPO(None, tree)
        agent.learn()
        away[weight] = agent.trainer.history[-1]["policy/prior_kl"]
    assert away[1.0] < 0.5 * away[0.0]


def test_a_uniform_prior_is_an_entropy_bonus() -> None:
    """The same weight gives the same policy, to rounding. Rejects a pull to anything but the uniform law."""
    agents = []
    for learner in (
        {"prior": {"kind": "uniform", "weight": 0.05}, "entropy": {"kind": "constant", "weight": 0.0}},
        {"entropy": {"kind": "constant", "weight": 0.05}},
    ):
        tree = config(None, ACTIONS[0], learner=learner, backend="torch", run={"total_steps": 4 * 512})
        agent = tailwise.PPO(None, tree)
        with torch.no_grad():  # a uniform prior starts uniform; the bonus starts from random weights
            agent.model.actor.head.weight.zero_()
        agent.learn()
        agents.append(agent)
    first, second = (agent.model.state_dict() for agent in agents)
    for name, values in first.items():
        assert torch.allclose(values.double(), second[name].double(), rtol=1e-3, atol=1e-5), name


def test_weight_nothing_changes_nothing_without_a_base() -> None:
    runs = []
    for prior in ({"kind": "off"}, {"kind": "auto"}):
        agent = tailwise.PPO(None, config(None, ACTIONS[1], learner={"prior": prior}))
        agent.learn()
        runs.append(agent.model.state_dict())
    assert all(torch.equal(values, runs[1][name]) for name, values in runs[0].items())


def test_a_target_in_nats_is_met() -> None:
    """The weight rises while the policy is too far from the prior. Rejects a controller of the wrong sign."""
    walk = {"kind": "synthetic", "market": "random_walk", "seeds": [1], "parameters": {"length": 1500}}
    kept = []
    for target in (0.002, None):
        prior = {"kind": "base", "weight": 0.001, "target": target}
        tree = config(
            {"kind": "buy_and_hold"},
            ACTIONS[0],
            data=walk,
            learner={**FAST, "prior": prior},
            run={"total_steps": 120 * 512},
        )
        agent = tailwise.PPO(None, tree)
        agent.learn()
        kept.append(np.mean([row["policy/prior_kl"] for row in agent.trainer.history[-20:]]))
    assert 0.002 / 3 < kept[0] < 0.002 * 3 and kept[1] > 0.002 * 5


def test_the_base_is_scaled_to_the_limit_on_the_train_bars() -> None:
    """A third of the tail of buy and hold: the rule at its scale has just that tail. Rejects a scale by the share of
    the wrong rule, or one that forgets the costs."""
    tree = config(
        {"kind": "volatility_target", "target": 0.5, "largest": 1.2},
        ACTIONS[1],
        risk={"mode": "constraint", "limit": {"of": "buy_and_hold", "share": 1 / 3}},
    )
    world = make_world(tree)
    assert isinstance(world, MarketWorld)
    resolved = world.config
    assert isinstance(resolved.risk.limit, float) and resolved.risk.limit < 0  # type: ignore[union-attr]
    scale = world.settings.base.scale  # type: ignore[union-attr]
    assert scale is not None and 0.05 < scale < 0.9
    ((returns, ruined),) = rule_returns(world.dataset.tables("train"), world.settings, world.costs)
    weights = tree.learner.gamma ** np.arange(300)
    forward = np.array([weights @ returns[t : t + 300] for t in range(len(returns) - 299)])
    worst = np.sort(forward)[: round(0.05 * len(forward))].mean()
    assert not ruined and worst == pytest.approx(resolved.risk.limit, rel=0.02)  # type: ignore[union-attr]
    assert make_world(resolved).config == resolved  # numbers stay


def test_a_function_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    module = tmp_path / "rules.py"
    module.write_text(
        "import numpy as np\n"
        "def good(bars):\n    return np.where(bars.close > bars.open, 1.0, 0.5)\n"
        "def ahead(bars):\n    return np.where(bars.close < bars.close[-1], 1.0, 0.0)\n"
        "def large(bars):\n    return np.full(len(bars), 7.0)\n"
        "def short(bars):\n    return np.ones(3)\n"
    )
    bars = random_walk(length=300, seed=1)
    good = base_exposures(FunctionBase(kind="function", function=f"{module}:good"), bars)
    assert set(good) == {0.5, 1.0}
    for name, words in (("ahead", "looks ahead"), ("large", "at most"), ("short", "one exposure for each bar")):
        with pytest.raises(DataError, match=words):
            base_exposures(FunctionBase(kind="function", function=f"{module}:{name}"), bars)
    with pytest.raises(ConfigError, match="no function"):
        base_exposures(FunctionBase(kind="function", function=f"{module}:nothing"), bars)


@pytest.mark.parametrize("base", [VolatilityTargetBase(kind="volatility_target"), MomentumBase(kind="momentum")])
def test_built_in_rules_do_not_look_ahead(base: Any) -> None:
    bars = random_walk(length=900, seed=2)
    whole = base_exposures(base, bars)
    for end in (50, 300, 600):
        assert np.array_equal(base_exposures(base, bars.slice(0, end)), whole[:end])
    assert np.abs(whole).max() <= base.largest and whole.any()


def test_actions_without_a_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no 1"):
        config({"kind": "buy_and_hold"}, {"kind": "positions", "positions": [0, 0.5]})

"""Terms that training adds to the log-return: their arithmetic, that they add up, and that no function of one's own
looks ahead, remembers or mixes accounts.

Wrong terms that are rejected: a drawdown of the new episode in the step that ends one, a turnover over the equity after
the trade, terms in the returns of an evaluation, a bonus that losing earns, features of the bar after the close.
"""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.attack_learned import train_adversary
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import MarketEnv, MarketEnvConfig, SingleMarketEnv
from tailwise.market.env_config import RewardConfig, WeightsAction
from tailwise.market.records import ACCOUNT, LEDGER
from tailwise.market.rewards import RewardStep, RewardTerms
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config
from tailwise.run.worlds import MarketWorld
from tests.market.worlds import flat_bars, random_walk
from tests.support import merged

ALL = {"drawdown_penalty": 0.5, "recovery_bonus": 0.25, "turnover_penalty": 0.1}
TINY = {
    "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0], "parameters": {"length": 500}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 40, "action": {"kind": "positions", "positions": [0, 1]}},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128},
}


def own(folder: Path, body: str, name: str = "reward") -> str:
    """A file with one function `name` of a step; the reward as the configuration names it."""
    path = folder / f"{name}.py"
    path.write_text(f"import numpy as np\n\n{body}\n")
    return f"{path}:{name}"


def test_golden_numbers_of_each_term() -> None:
    """100 -> 110 -> 99 -> 104.5, all of the equity held, without costs; the fill is at the open, which is the close
    before, so that the account moves as the price does from the second step on."""
    table = flat_bars([100.0, 100.0, 110.0, 99.0, 104.5])
    config = MarketEnvConfig(start="first", action={"positions": (0.0, 1.0)}, fill="close", reward=ALL)  # type: ignore[arg-type]
    env = MarketEnv([table], config, NO_COSTS, num_envs=1)
    env.reset()
    rows = [env.step(np.array([1])) for _ in range(4)]
    parts = [{name: float(part[0]) for name, part in row[4]["reward_parts"].items()} for row in rows]
    drawdowns = [0.0, 0.0, 1 - 99 / 110, 1 - 104.5 / 110]
    assert [one["base"] for one in parts] == pytest.approx(np.log([1, 1.1, 0.9, 104.5 / 99]).tolist())
    assert [one["drawdown_penalty"] for one in parts] == pytest.approx([-0.5 * d for d in drawdowns])
    assert [one["recovery_bonus"] for one in parts] == pytest.approx([0, 0, 0, 0.25 * (drawdowns[2] - drawdowns[3])])
    assert [one["turnover_penalty"] for one in parts] == pytest.approx([-0.1, 0, 0, 0])
    assert [float(row[1][0]) for row in rows] == pytest.approx([sum(one.values()) for one in parts], abs=1e-15)


def played(reward: dict[str, Any], steps: int = 60, **changes: Any) -> list[tuple[Any, ...]]:
    """Random positions over several short episodes of 5 accounts."""
    config = MarketEnvConfig(episode_length=9, report=True, reward=reward, **changes)  # type: ignore[arg-type]
    env = MarketEnv([random_walk(80, seed=1)], config, CostConfig(taker_fee_bps=7), num_envs=5)
    env.reset(seed=3)
    return [env.step(np.random.default_rng(k).integers(0, 3, 5)) for k in range(steps)]


def test_the_parts_add_up_and_the_base_is_the_reward_without_them() -> None:
    plain, shaped = played({}), played(ALL)
    for (obs, base, *_ends, infos), (same, reward, *_same_ends, told) in zip(plain, shaped, strict=True):
        parts = told["reward_parts"]
        assert "reward_parts" not in infos
        assert np.array_equal(obs, same) and np.array_equal(parts["base"], base)
        np.testing.assert_allclose(sum(parts.values()), reward, rtol=0, atol=1e-15)
        traded = np.abs(told["parts"]["order_units"]) * told["parts"]["order_price"]
        traded = traded + np.abs(told["parts"]["exit_units"]) * told["parts"]["exit_price"]
        np.testing.assert_allclose(parts["turnover_penalty"], -0.1 * traded / told["parts"]["equity_before"])


def test_the_step_that_ends_an_episode_counts_the_drawdown_of_that_episode() -> None:
    """Rejects terms made of the account after its reset, whose drawdown is 0."""
    ends = 0
    for _obs, _reward, terminated, truncated, infos in played({"drawdown_penalty": 1.0}):
        ended = terminated | truncated
        if ended.any():
            seen = infos["final_obs"][:, -1]  # the account's drawdown is the last entry of an observation
            np.testing.assert_allclose(infos["reward_parts"]["drawdown_penalty"][ended], -seen[ended], atol=1e-7)
            ends += int((seen[ended] > 0).sum())
    assert ends >= 10, "ends of episodes with a drawdown"


def test_accounts_with_several_assets_count_the_turnover_of_all() -> None:
    config = MarketEnvConfig(
        action=WeightsAction(low=0, high=1), start="first", reward=RewardConfig(turnover_penalty=1)
    )
    clock = {"time": np.arange(6).astype("datetime64[D]").astype("datetime64[ns]"), "bar": np.timedelta64(1, "D")}
    tables = [flat_bars([100.0] * 6, symbol=name, **clock) for name in "AB"]
    env = MarketEnv(tables, config, NO_COSTS, num_envs=2)
    env.reset()
    *_, infos = env.step(np.array([[0.25, 0.5], [0.0, 0.0]]))
    assert infos["reward_parts"]["turnover_penalty"] == pytest.approx([-0.75, 0.0])
    assert "parts" not in infos, "what is reported is what was asked for"


def test_the_environment_for_other_libraries_pays_the_same() -> None:
    config = MarketEnvConfig(start="first", reward=RewardConfig(drawdown_penalty=1))
    env = SingleMarketEnv([flat_bars([100.0, 100.0, 90.0])], config.model_copy(update={"fill": "close"}), NO_COSTS)
    env.reset()
    env.step(2)
    _obs, reward, *_ends, info = env.step(2)
    assert info["reward_parts"] == pytest.approx({"base": np.log(0.9), "drawdown_penalty": -0.1})
    assert reward == pytest.approx(np.log(0.9) - 0.1)


@settings(max_examples=200, deadline=None)
@given(
    moves=st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=20),
    penalty=st.floats(0.01, 10),
    share=st.floats(0, 1),
)
def test_losing_and_winning_back_never_pays(moves: list[float], penalty: float, share: float) -> None:
    """On any path that ends where its drawdown began, both terms together cost. Rejects a bonus above the penalty,
    which the configuration refuses."""
    equity = 100 * np.exp(np.concatenate([[0.0], np.cumsum(moves)]))
    equity = np.append(equity, equity.max())  # back at the top: drawdown 0 at both ends
    terms = RewardTerms(RewardConfig(drawdown_penalty=penalty, recovery_bonus=share * penalty), ())
    total, peak = 0.0, equity[0]
    for before, after in pairwise(equity):
        records, ledger = np.zeros(1, dtype=ACCOUNT), np.zeros(1, dtype=LEDGER)
        records["equity"], records["peak"], ledger["equity"] = before, peak, after
        parts = terms.parts(np.zeros(1), terms.before(records), ledger, np.zeros((1, 0), dtype=np.float32))
        total += sum(float(part[0]) for part in parts.values())
        peak = max(peak, after)
    assert total <= 1e-9
    with pytest.raises(ConfigError, match="losing and winning back would pay"):
        parse_config(merged(TINY, {"env": {"reward": {"drawdown_penalty": 0.1, "recovery_bonus": 0.2}}}), source="t")


def test_a_function_of_ones_own_sees_the_observation_that_ends_the_step(tmp_path: Path) -> None:
    """Its `drawdown` is the one that the policy sees, also in the step that ends an episode."""
    body = "def reward(step):\n    return -step.seen('drawdown') * 1.0 + step.drawdown * 0.5"
    for *_, infos in played({"function": own(tmp_path, body), "drawdown_penalty": 0.5}):
        parts = infos["reward_parts"]
        np.testing.assert_allclose(parts["own"], parts["drawdown_penalty"], atol=1e-7)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("def reward(step):\n    return 1.0", r"returned shape \(\) for 5 accounts"),
        ("def reward(step):\n    return step.log_return / 0", r"returned (nan|inf|-inf) for account 0"),
        ("def reward(step):\n    return step.sharpe", "AttributeError.*sharpe"),
        ("def reward(step):\n    return step.seen('rsi')", "no observation 'rsi'; there are feature_0, feature_1"),
        ("def reward(step):\n    return step.equity - step.equity.mean() + 1", "depend on the step of that account"),
        (
            "calls = [0]\ndef reward(step):\n    calls[0] += 1\n    return np.full(len(step.equity), calls[0])",
            "without random numbers or memory",
        ),
        ("def other(step):\n    return 0", "has no function reward"),
        ("def reward(step):\n    step.log_return[:] = 1\n    return step.log_return", "ValueError: .*read-only"),
        ("def reward(step):\n    return np.clip(step.observation, 0, 1, out=step.observation)[:, 0]", "read-only"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_a_function_that_cannot_be_used_gets_a_sentence(tmp_path: Path, body: str, sentence: str) -> None:
    with pytest.raises((DataError, ConfigError), match=sentence):
        played({"function": own(tmp_path, body)}, steps=3)


@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # far too small a run
def test_terms_train_in_both_backends_and_playback_has_none(tmp_path: Path) -> None:
    """The first rollout is the same in both; its rewards are those without terms and the terms, and a window that is
    played pays log-returns."""
    reward = {**ALL, "function": own(tmp_path, "def reward(step):\n    return 0.01 * step.turnover")}
    first = {}
    for backend in ("torch", "fused"):
        for name, terms in (("plain", {}), ("shaped", reward)):
            folder = tmp_path / f"{backend}-{name}"
            agent = PPO(config=merged(TINY, {"env": {"reward": terms}, "backend": backend}), run_dir=folder)
            agent.learn(progress=False)
            first[backend, name] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
            driver = agent.world().eval_env("train", episodes=1, seed=0)
            driver.reset()
            assert "reward_parts" not in driver.step(np.array([[1]])).infos
            driver.close()
    for backend in ("torch", "fused"):
        plain, shaped = first[backend, "plain"], first[backend, "shaped"]
        sizes = {name: shaped[f"reward/part/{name}"] for name in (*ALL, "own")}
        total = sizes["recovery_bonus"] + sizes["own"] - sizes["drawdown_penalty"] - sizes["turnover_penalty"]
        assert min(sizes.values()) > 0 and "reward/part/own" not in plain
        assert shaped["reward/mean"] == pytest.approx(plain["reward/mean"] + total, abs=1e-8)  # a mean of float32
        assert shaped["loss/policy"] != plain["loss/policy"]
    for name in ("reward/mean", "reward/part/base", "reward/part/own"):
        assert first["torch", "shaped"][name] == pytest.approx(first["fused", "shaped"][name], abs=1e-8)


def test_a_market_with_terms_says_what_they_mean_for_the_limit() -> None:
    limited = merged(TINY, {"risk": {"mode": "constraint", "limit": -0.05}, "learner": {"gamma": 0.9}})
    with_terms = merged(limited, {"env": {"reward": {"turnover_penalty": 0.25}}})
    (sentence,) = MarketWorld(parse_config(with_terms, source="t")).warnings()
    assert "turnover_penalty 0.25" in sentence and "risk.limit steers its tail" in sentence
    assert MarketWorld(parse_config(limited, source="t")).warnings() == []


def test_a_reward_that_looks_ahead_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the wrong step, whose observation is that of one bar later, the check finds it; with ours it passes."""
    function = own(tmp_path, "def reward(step):\n    return step.seen('return_1')")
    world = MarketWorld(parse_config(merged(TINY, {"env": {"reward": {"function": function}}}), source="t"))
    world.check_before_training()
    right = RewardTerms.parts
    table = world.dataset.tables("train", together=False)[0]

    def ahead(self: RewardTerms, base: Any, before: Any, ledger: Any, observation: Any) -> Any:
        later = copy.copy(observation)
        rows = np.minimum(ledger["row"] + 1, _features_of(self).shape[0] - 1)
        later[:, : table.features.shape[1]] = _features_of(self)[rows]
        return right(self, base, before, ledger, later)

    from tailwise.market import simulator

    class Wrong(RewardTerms):
        parts = ahead

    def _features_of(terms: Any) -> Any:
        return terms.features

    init = simulator.Simulator.__init__

    def with_features(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._terms.features = self.table.features

    monkeypatch.setattr(simulator, "RewardTerms", Wrong)
    monkeypatch.setattr(simulator.Simulator, "__init__", with_features)
    with pytest.raises(DataError, match=r"env\.reward\.function .* looks ahead, so nothing is trained on it: .*reward"):
        world.check_before_training()


def test_a_function_that_mixes_accounts_is_found_once_they_differ(tmp_path: Path) -> None:
    """With a latency all accounts are flat in the first step, and a mean over them is that of each: rejects a look at
    the first step alone."""
    function = own(tmp_path, "def reward(step):\n    return step.log_return - step.log_return.mean()")
    config = MarketEnvConfig(start="random", reward=RewardConfig(function=function))
    env = MarketEnv([random_walk(60, seed=5)], config, CostConfig(latency=1, impact_bps=0), num_envs=5)
    env.reset(seed=3)

    def trade() -> None:
        for _ in range(5):
            env.step(np.full(5, 2))

    with pytest.raises(DataError, match="depend on the step of that account"):
        trade()


def test_a_product_in_single_precision_is_a_function_of_the_account(tmp_path: Path) -> None:
    """Rejects a comparison to the last bit: a product of many rows is added up in another order than that of one."""
    body = (
        "w = np.linspace(-1, 2, 3).astype(np.float32)\n\n"
        "def reward(step):\n    return (np.tile(step.observation[:, :1], 300) @ np.tile(w, 100)).astype(float)"
    )
    for *_, infos in played({"function": own(tmp_path, body)}, steps=3):
        assert infos["reward_parts"]["own"].any()


def test_an_attack_calls_no_function_of_the_run(tmp_path: Path) -> None:
    """It needs no trust, so it must not import what a stranger's run names. Rejects an adversary that is trained on the
    reward of the training."""
    mark = tmp_path / "executed"
    function = own(tmp_path, f"open({str(mark)!r}, 'w').close()\n\ndef reward(step):\n    return step.log_return")
    policy = PPO(config=TINY)
    world = MarketWorld(parse_config(merged(TINY, {"env": {"reward": {"function": function}}}), source="t"))
    budget = torch.full((policy.model.observation.size,), 0.1)
    train_adversary(policy, world, budget, steps=128, seed=0, deterministic=True)
    assert not mark.exists()
    world.training().close()
    assert mark.exists()


@pytest.mark.parametrize(
    "action", [{"kind": "exposure", "low": 0, "high": 1}, {"kind": "positions", "positions": [0.5, 1]}]
)
def test_what_does_not_concern_the_reward_is_not_held_against_it(tmp_path: Path, action: dict[str, Any]) -> None:
    """The age of a position that is never closed depends on no bar: rejects a verdict on it beside the reward."""
    function = own(tmp_path, "def reward(step):\n    return step.log_return * 0.5")
    env = {"action": action, "reward": {"function": function}}
    MarketWorld(parse_config(merged(TINY, {"env": env}), source="t")).check_before_training()


def test_the_step_of_some_accounts_is_theirs() -> None:
    numbers = np.arange(3.0)
    step = RewardStep(*[numbers] * 6, np.arange(6, dtype=np.float32).reshape(3, 2), ("a", "b"))
    assert step.of(np.array([2])).seen("b").tolist() == [5.0] and step.of(np.array([2])).equity.tolist() == [2.0]

"""Attacks on frozen policies: they stay in their budget, go where they should, and bounds hold for all of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from benchmarks.toy_envs import DICT_REACH, MASKED_BANDIT
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.evaluate.attack import ATTACKS, AttackPlan, attack_policy, attack_run
from tailwise.evaluate.attack_bounds import bound_of, why_not_certified
from tailwise.evaluate.attack_learned import AttackEnv, move_of, situation, train_adversary
from tailwise.evaluate.attack_moves import (
    AttackedPlayer,
    Moment,
    RandomAttack,
    change_of_action,
    decide_at,
    searches,
)
from tailwise.learner.adversary import EXCESS, Box
from tailwise.model.action_spec import ActionSpec
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.observation import ObservationSpec
from tailwise.run.agent import PPO, Policy
from tailwise.run.config import parse_config
from tailwise.run.worlds import play_world
from tests.support import ACTIONS, SMALL_MODEL, SMALL_RUN, merged, small_model, small_run

BUDGET = torch.tensor([0.3, 0.0, 0.1])
MODELS = {
    "tanh": {},
    "relu": {"encoder": {"activation": "relu"}},
    "silu": {"encoder": {"activation": "silu"}},
    "lstm": {"core": {"kind": "lstm", "hidden": 6}},
    "two lstm": {"core": {"kind": "lstm", "hidden": 6, "layers": 2}},
    "gru": {"core": {"kind": "gru", "hidden": 6}},
}


def model_of(action: str, **changes: Any) -> ActorCritic:
    box = {"box": "squashed"} if action == "squashed" else {}
    return ActorCritic(
        small_model(**merged({"actor": {"gain": 1.0, **box}}, changes)),
        ObservationSpec.from_space(spaces.Box(-np.inf, np.inf, (3,), np.float32)),
        ActionSpec.from_space(ACTIONS["box" if action == "squashed" else action]),
        init_seed=5,
    )


def moment_of(model: ActorCritic, *, rows: int = 32, budget: torch.Tensor = BUDGET, masked: bool = False) -> Moment:
    g = torch.Generator().manual_seed(0)
    obs, state = torch.randn(rows, 3, generator=g), 0.5 * torch.randn(rows, *model.state_shape, generator=g)
    start = torch.zeros(rows, dtype=torch.bool)
    start[:4] = True
    mask = None
    if masked:
        mask = torch.rand(rows, model.action.logits, generator=g) < 0.6
        mask[:, 0] = True

    def draw(name: str, draws: int) -> torch.Tensor:
        return torch.from_numpy(Streams(0).uniforms(name, update=0, environments=rows, steps=1, draws=draws))

    clean = decide_at(model, obs, state, start, mask, None)
    return Moment(Box.around(model, obs, budget), state, start, mask, clean, draw)


# ------------------------------------------------------------------ attacks


@pytest.mark.parametrize("core", ["tanh", "lstm"])
@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box", "squashed"])
def test_attacks_do_what_they_are_for(action: str, core: str) -> None:
    """Each search beats chance at its own objective, within the budget, and leaves the model as it was. Rejects a
    sign that is turned and an attack that moves entries without a budget."""
    model = model_of(action, **MODELS[core])
    moment = moment_of(model, masked=action == "discrete")
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    by_chance = RandomAttack().shown(model, moment)
    for attack in searches(10):
        shown = attack.shown(model, moment)
        moves = (shown - moment.box.centre).abs()
        assert float((moves - BUDGET).max()) <= EXCESS and float(moves[:, 1].max()) == 0.0
        scores = []
        for place in (moment.box.centre, by_chance, shown):
            features = model.latent_of(place[None], moment.state, moment.start[None]).features[0]
            scores.append(float(attack.objective(model, moment, features).detach().mean()))
        assert scores[2] > scores[1] + 0.3 * abs(scores[1] - scores[0]), (attack.name, scores)
        assert scores[2] > scores[0], (attack.name, scores)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_changes_of_actions() -> None:
    discrete, box = model_of("discrete"), model_of("box")
    clean, moved = torch.tensor([[0.0, 1.0, 0.0, 0.0]] * 2), torch.tensor([[0.0, 0.9, 0.0, 0.0], [2.0, 1.0, 0.0, 0.0]])
    assert change_of_action(discrete, clean, moved).tolist() == [0.0, 1.0]
    clean, moved = torch.tensor([[0.5, 0.9, 0.0, 0.0]]), torch.tensor([[0.3, 3.0, 0.0, 0.0]])
    assert change_of_action(box, clean, moved)[0] == pytest.approx((0.2 + 0.1) / 2)  # the bound cuts at 1


def trained(**changes: Any) -> Policy:
    agent = PPO(config=small_run(**merged({"env": {"id": "CartPole-v1"}}, changes)))
    agent.learn()
    return agent


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_without_an_attack_it_is_the_evaluation(core: str) -> None:
    policy = trained(model={"core": {"kind": core}, "actor": {"gain": 1.0}})
    player = AttackedPlayer(policy.model, None, torch.zeros(4), deterministic=True, seed=3)
    played = play_world(player, policy.world(), episodes=5, seed=3)
    assert played.returns.tolist() == policy.evaluate(episodes=5, deterministic=True, seed=3).returns.tolist()
    assert len(player.seen) >= played.lengths.max()


@pytest.mark.parametrize("env", ["CartPole-v1", MASKED_BANDIT, DICT_REACH])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_whole_result(env: str, core: str) -> None:
    """Every attack on every kind of action, memory and mask; budgets are kept; numbers are finite."""
    policy = trained(env={"id": env}, model={"core": {"kind": core}, "actor": {"gain": 1.0}})
    shares = {"*": 1.0} if env == MASKED_BANDIT else None  # all it observes is a one-hot
    plan = AttackPlan(budgets=(0.5, 0.1), entries=shares, steps=3, adversary_steps=64, episodes=4)
    result = attack_policy(policy, plan)
    assert [(one.budget, one.attack) for one in result.outcomes] == [(b, a) for b in (0.1, 0.5) for a in ATTACKS]
    for one in result.outcomes:
        assert len(one.returns) == 4 and np.isfinite(one.returns).all()
        assert one.excess <= EXCESS and 0.0 < one.largest_move <= one.budget + EXCESS
    assert result.clean.returns == tuple(policy.evaluate(episodes=4).returns)
    assert result.not_certified is None and len(result.certificates) == 2
    assert json.loads(json.dumps(result.to_json()))["environment"] == env
    again = attack_policy(policy, dataclasses.replace(plan, attacks=("random", "pgd"), budgets=(0.5,)))
    wanted = [one for one in result.outcomes if one.budget == 0.5 and one.attack in ("random", "pgd")]
    assert [one.returns for one in again.outcomes] == [one.returns for one in wanted]  # the same noise again


def test_plans_are_checked() -> None:
    for plan, words in (
        ({"attacks": ("fgsm",)}, "choose from random, critic"),
        ({"budgets": (0.0,)}, "not above 0"),
        ({"unit": "bps", "entries": {"x": 1.0}}, "leave them out with unit bps"),
        ({"steps": 0}, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            AttackPlan(**plan)  # type: ignore[arg-type]


# ------------------------------------------------------------------ the learned adversary


def test_moves_of_the_adversary() -> None:
    """Its actions are shares of the budget of the entries that have one, in their order."""
    model = model_of("box")
    box = moment_of(model, rows=2).box
    shown = move_of(torch.tensor([[1.0, -0.5], [7.0, 0.0]]), box)
    assert (shown - box.centre).tolist() == [
        pytest.approx([0.3, 0.0, -0.05], abs=1e-6),
        pytest.approx([0.3, 0.0, 0.0], abs=1e-6),
    ]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_frozen_policy_is_the_environment(core: str) -> None:
    """Rewards are turned, hidden states go on from what was shown and are forgotten at the end of an episode. The plain
    twin steps the driver by hand."""
    policy = trained(model={"core": {"kind": core}, "actor": {"gain": 1.0}})
    model, world, budget = policy.model, policy.world(), torch.full((4,), 0.2)
    driver, twin = world.training(), world.training()
    env = AttackEnv(model, driver, budget, deterministic=True, seed=0)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    seen, _ = env.reset()
    obs, _ = twin.reset()
    state, rng, ended = model.initial_state(4), np.random.default_rng(0), 0
    for _ in range(60):
        start = torch.from_numpy(twin.episode_start)
        box = Box.around(model, model.normaliser(torch.from_numpy(obs)), budget)
        clean = decide_at(model, box.centre, state, start, None, None)
        forgotten = torch.where(start[:, None, None], torch.zeros_like(state), state)
        assert np.allclose(seen, situation(box, forgotten, clean), atol=1e-6)
        actions = rng.uniform(-1, 1, (4, 4)).astype(np.float32)
        decision = decide_at(model, move_of(torch.from_numpy(actions), box), state, start, None, None)
        result = twin.step(model.action.to_env(decision.action.numpy(), squashed=False))
        state, obs = decision.state, result.obs
        seen, reward, terminated, truncated, infos = env.step(actions)
        assert (reward == -result.reward).all() and (terminated == result.terminated).all()
        done = terminated | truncated
        ended += int(done.sum())
        if done.any():
            last = Box.around(model, model.normaliser(torch.from_numpy(result.final_obs)), budget)
            after = situation(last, state, decide_at(model, last.centre, state, torch.zeros(4).bool(), None, None))
            assert np.allclose(infos["final_obs"][done], after[done], atol=1e-6)
    assert ended > 0
    driver.close()
    twin.close()


class Follow(gym.Env[Any, Any]):
    """Four steps; the reward is minus the squared distance of the action from the one number that is observed."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = -float((action[0] - self.place[0]) ** 2)
        return self._next(), reward, False, False, {}

    def _next(self) -> Any:
        self.place = self.np_random.uniform(-0.9, 0.9, 1).astype(np.float32)
        return self.place


FOLLOW = "tests/Follow-v0"
gym.register(id=FOLLOW, entry_point=Follow, max_episode_steps=4)


def test_a_trained_adversary_is_stronger_than_chance_and_than_an_untrained_one() -> None:
    """A policy that answers with what it sees: moving it by the whole budget costs budget^2 a step, a third of that
    by chance. Rejects a reward with the wrong sign, under which the adversary stands still."""
    settings = {"env": {"id": FOLLOW}, "model": {"observations": {"kind": "none"}}, "evaluate": {"episodes": 32}}
    policy = PPO(config=small_run(**settings))
    with torch.no_grad():  # the mean of the action is its observation
        for parameter in policy.model.parameters():
            parameter.zero_()
        policy.model.encoder[0].weight[0, 0] = 1e-2
        policy.model.actor.body[0].weight[0, 0] = 1.0
        policy.model.actor.head.weight[0, 0] = 50.0  # actions are in units of half the range, which is 2
    budget, found = torch.tensor([0.4]), {}
    for steps in (64, 6000):
        attack = train_adversary(policy, policy.world(), budget, steps=steps, seed=1, deterministic=True)
        player = AttackedPlayer(policy.model, attack, budget, deterministic=True, seed=1)
        found[steps] = play_world(player, policy.world(), episodes=32, seed=1).mean
    by_chance = AttackedPlayer(policy.model, RandomAttack(), budget, deterministic=True, seed=1)
    chance = play_world(by_chance, policy.world(), episodes=32, seed=1).mean
    assert chance == pytest.approx(-4 * 0.16 / 3, rel=0.25)
    assert found[6000] < -4 * 0.16 * 0.9 and found[64] > found[6000]


# ------------------------------------------------------------------ bounds


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box", "squashed"])
def test_no_move_breaks_the_bounds(action: str, kind: str) -> None:
    """200 corners and places per observation and the searches never change more than is certain, and with a budget of 0
    the bound is 0. Rejects bounds that follow the middle alone, forget the sign of a weight or the hidden state."""
    model = model_of(action, **MODELS[kind])
    for size in (0.02, 0.1):
        moment = moment_of(
            model, budget=BUDGET * size / 0.3, masked=action in ("discrete", "multidiscrete") and size > 0.05
        )
        bound = bound_of(model, moment)
        rng, largest = torch.Generator().manual_seed(1), np.zeros(32)
        places = [attack.shown(model, moment) for attack in searches(10)]
        for k in range(200):
            uniform = 2 * torch.rand(32, 3, generator=rng) - 1
            places.append(moment.box.moved((torch.sign(uniform) if k % 2 else uniform) * moment.box.budget)[0])
        for place in places:
            moved = decide_at(model, place, moment.state, moment.start, moment.mask, None)
            largest = np.maximum(largest, change_of_action(model, moment.clean.params, moved.params))
        assert (largest <= bound + 1e-6).all()
        if model.law.discrete:
            assert (bound == 0).any() and largest.max() <= 1.0
        else:
            assert 0.0 < bound.mean() < 60 * largest.mean()  # loose, and not empty
    still = bound_of(model, moment_of(model, budget=torch.zeros(3)))
    assert np.allclose(still, 0.0, atol=1e-6)


def test_bounds_of_a_linear_policy_are_exact() -> None:
    """|w| . eps, for a Gaussian without hidden layers."""
    model = model_of("box", encoder={"hidden": []}, actor={"hidden": []}, observations={"kind": "none"})
    moment = moment_of(model, budget=BUDGET * 0.1)
    reach = (model.actor.head.weight.detach().abs() * BUDGET * 0.1).sum(-1)
    inside = (moment.clean.params[:, :2].abs() + reach < 1.0).all(-1)
    assert int(inside.sum()) > 3
    assert np.allclose(bound_of(model, moment)[inside.numpy()], float(reach.mean()), rtol=1e-4)


def test_what_is_not_certified_says_so() -> None:
    assert why_not_certified(model_of("discrete")) is None
    words = why_not_certified(model_of("discrete", norm="layer"))
    assert words == "its encoder has a LayerNorm, through which no interval is carried"


# ------------------------------------------------------------------ runs


MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0], "parameters": {"length": 600}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 60, "action": {"kind": "exposure"}},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "tensorboard": False},
    "model": merged(SMALL_MODEL, {"actor": {"gain": 1.0}}),
    "learner": {"epochs": 2, "minibatches": 2, "gamma": 0.9},
    "risk": {"mode": "report", "alpha": 0.25},
}


@pytest.mark.parametrize("unit", ["std", "bps"])
def test_a_market_is_attacked_on_its_test_bars_with_costs(unit: Any) -> None:
    """The clean row is what `trade` makes of the test window; the account is never moved."""
    agent = PPO(config=parse_config(MARKET, source="test"))
    agent.learn()
    plan = AttackPlan(budgets=(5.0 if unit == "bps" else 0.3,), unit=unit, adversary_steps=64, steps=3)
    result = attack_policy(agent, plan)
    (path,) = agent.trade("test")
    assert result.clean.mean_return == pytest.approx(float(np.log(path.wealth[-1])), abs=1e-12)
    assert result.entries == ("return_1", "volatility_20") and result.clean.tail is not None
    assert all(one.changed > 0 and one.tail is not None and one.excess <= EXCESS for one in result.outcomes)
    (certificate,) = result.certificates
    assert certificate.held is None and certificate.largest is not None
    assert max(one.changed for one in result.outcomes) <= 2.0


def test_a_run_keeps_its_result_and_page(tmp_path: Path) -> None:
    import tailwise

    run = tmp_path / "run"
    PPO("CartPole-v1", SMALL_RUN, run_dir=run).learn()
    page = tmp_path / "attack.html"
    result = tailwise.attack(run, budgets=[0.1], attacks=["random", "mad"], episodes=3, page=page)
    assert result.file == run / "evaluations" / "attack-1.json"
    stored = json.loads(result.file.read_text())
    assert [one["attack"] for one in stored["outcomes"]] == ["random", "mad"]
    assert stored["clean"]["returns"] == list(result.clean.returns)
    text = page.read_text()
    assert "Return under attack" in text and "observation.3" in text
    assert attack_run(run, AttackPlan(budgets=(0.1,), attacks=("random",), episodes=3)).file != result.file

"""Demonstrations: where they come from, what is refused, what they do to a run, and that it resumes bit for bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from gymnasium import spaces

from benchmarks.robust_rules import lean_and_turn
from benchmarks.toy_envs import DICT_REACH, MASKED_BANDIT
from tailwise.core.config import parse
from tailwise.core.errors import CheckpointError, ConfigError, DataError
from tailwise.learner.config import Demonstrations, LearnerConfig
from tailwise.learner.imitation import (
    BURN_IN,
    STRETCH,
    Chosen,
    Demos,
    Episode,
    ImitationLoss,
    choose,
    log_likelihood,
)
from tailwise.model.action_spec import ActionSpec
from tailwise.model.observation import ObservationSpec
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config
from tailwise.run.demonstrations import from_files, raw_actions, write_episodes
from tailwise.run.trust import code_named_by
from tests.support import SMALL_MODEL, SMALL_RUN, bits, merged, small_backend, small_run

RULE = {"kind": "rule", "rule": "benchmarks.robust_rules:lean_and_turn", "steps": 400}
CARTPOLE = (
    ObservationSpec.from_space(spaces.Box(-np.inf, np.inf, (4,), np.float32)),
    ActionSpec.from_space(spaces.Discrete(2)),
)


def imitation(**values: Any) -> dict[str, Any]:
    return {"learner": {"imitation": {"kind": "demonstrations", "source": RULE, "rows": 32, **values}}}


def settings(**values: Any) -> Demonstrations:
    config = parse(LearnerConfig, imitation(**values)["learner"], source="test").imitation
    assert isinstance(config, Demonstrations)
    return config


def episode(steps: int, *, terminated: bool = True, first: int = 0) -> Episode:
    """Observations that count, actions 0 and 1 in turn, a reward of 1 each step."""
    obs = np.zeros((steps, 3), dtype=np.float32)
    obs[:, 0] = np.arange(first, first + steps)
    return Episode(obs, np.arange(steps)[:, None] % 2, np.ones(steps), None, terminated)


# ------------------------------------------------------------------ mathematics


def test_returns_by_hand() -> None:
    """1 + .5 + .25 to the end; of an episode that was cut off .5^(n - t) of the rest is unknown."""
    demos = Demos.of([episode(3), episode(2, terminated=False)], gamma=0.5)
    assert demos.following.tolist() == [1.75, 1.5, 1.0, 1.5, 1.0]
    assert demos.rest.tolist() == [0.0, 0.0, 0.0, 0.25, 0.5]
    assert demos.start.tolist() == [True, False, False, True, False] and len(demos) == 5
    with pytest.raises(DataError, match="have no steps"):
        Demos.of([], gamma=0.5)
    masked = dataclasses.replace(episode(3), mask=np.ones((3, 2), dtype=np.bool_))
    with pytest.raises(DataError, match="give all or none"):
        Demos.of([episode(3), masked], gamma=0.5)


def test_what_is_unknown_is_worth_what_the_critics_expect() -> None:
    """A = G + (rest - 1) V, over sigma. Rejects a cut that counts as an end: its last steps would look bad."""
    backend = small_backend(model={"critic": {"twin": False}})
    model = backend.model
    with torch.no_grad():
        for critic in model.critic_heads():
            critic.mean_head.weight.zero_()  # type: ignore[union-attr]
            critic.mean_head.bias.fill_(1.0)  # type: ignore[union-attr]
    model.return_scale.absorb(torch.tensor([1.0, 5.0]))  # mu 3, sigma 2: the critic says 5 everywhere
    demos = Demos.of([episode(3), episode(2, terminated=False)], gamma=0.5)
    loss = ImitationLoss(settings(), demos)
    chosen = Chosen(torch.arange(5), torch.zeros(5, model.features))
    wanted = [(1.75 - 5) / 2, (1.5 - 5) / 2, (1.0 - 5) / 2, (1.5 - 0.75 * 5) / 2, (1.0 - 0.5 * 5) / 2]
    assert loss.advantage(model, chosen).tolist() == pytest.approx(wanted)
    plain = ImitationLoss(settings(beta=None), demos)
    assert plain.advantage(model, chosen).tolist() == [0.0] * 5


def test_the_weight_falls_to_nothing() -> None:
    loss = ImitationLoss(settings(weight=2.0, until=0.5), Demos.of([episode(3)], gamma=0.5))
    assert [loss.weight(p) for p in (0.0, 0.25, 0.5, 1.0)] == [2.0, 1.0, 0.0, 0.0]


def test_the_width_of_box_actions_is_left_alone() -> None:
    """Rejects the plain likelihood, which would make a policy certain of what a rule without width does."""
    model = small_backend(action="box").model
    params = torch.zeros(4, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(-log_likelihood(model, params, torch.full((4, 2), 0.3)).mean(), params)
    assert float(slope[:, :2].max()) < 0.0 and slope[:, 2:].tolist() == [[0.0, 0.0]] * 4


def test_stretches_fill_the_memory_first() -> None:
    """Steps count from the beginning of an episode on, or after 16; their features are those of the whole episode's
    end as far as memory reaches. Rejects stretches that run over from one episode into the next."""
    model = small_backend(model={"core": {"kind": "lstm"}}).model
    demos = Demos.of([episode(40), episode(200, first=1000)], gamma=0.9)
    levels = torch.tensor([0.0, 0.5] + [0.0] * (2 * STRETCH - 2))  # two stretches
    chosen = choose(model, demos, levels)
    first = list(range(STRETCH))
    begin = int(0.5 * (240 - STRETCH + 1))
    assert sorted(row for row in chosen.rows.tolist() if row >= begin) == list(range(begin + BURN_IN, begin + STRETCH))
    assert sorted(row for row in chosen.rows.tolist() if row < STRETCH) == first
    # Row 40 begins an episode: its features are those of an empty memory.
    alone = model.latent(demos.obs[40:41][None], model.initial_state(1), torch.ones(1, 1, dtype=torch.bool)).features
    at = chosen.rows.tolist().index(40)
    assert torch.allclose(chosen.features[at], alone[0, 0], atol=1e-6)


# ------------------------------------------------------------------ sources


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "demos.parquet"
    written = [(rng.normal(size=(n, 4)), rng.integers(0, 2, n), rng.normal(size=n), n == 3) for n in (3, 5)]
    write_episodes(path, written)
    read = from_files([str(path)], *CARTPOLE, squashed=False)
    for (obs, action, reward, terminated), one in zip(written, read, strict=True):
        assert np.allclose(one.obs, obs, atol=1e-6) and one.action[:, 0].tolist() == action.tolist()
        assert one.reward.tolist() == reward.tolist() and one.terminated == terminated


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"action": [[0.0], [2.0]]}, "is none of the environment's"),
        ({"action": [[0.0], [0.5]]}, "is none of the environment's"),
        ({"reward": [1.0, float("nan")]}, "reward has a missing, NaN"),
        ({"reward": ["a", "b"]}, "reward does not hold 1 numbers"),
        ({"observation": [[0.0] * 4, [0.0] * 3]}, "observation of row 1 has 3 numbers; expected 4"),
        ({"observation": None}, "the column observation is missing"),
        ({"episode": [0, None]}, "episode has a missing"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    columns: dict[str, Any] = {"episode": [0, 0], "observation": [[0.0] * 4] * 2, "action": [[0.0], [1.0]]}
    columns |= {"reward": [1.0, 1.0], **change}
    pq.write_table(pa.table({name: c for name, c in columns.items() if c is not None}), tmp_path / "demos.parquet")
    with pytest.raises(DataError, match=words):
        from_files([str(tmp_path / "demos.parquet")], *CARTPOLE, squashed=False)


def test_no_parquet_and_mixed_episodes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(DataError, match="no Parquet file that can be read"):
        from_files([str(tmp_path / "text.parquet")], *CARTPOLE, squashed=False)
    table = {"episode": [0, 1, 0], "observation": [[0.0] * 4] * 3, "action": [0.0] * 3, "reward": [0.0] * 3}
    pq.write_table(pa.table(table), tmp_path / "mixed.parquet")
    with pytest.raises(DataError, match="do not stand together"):
        from_files([str(tmp_path / "mixed.parquet")], *CARTPOLE, squashed=False)
    with pytest.raises(ConfigError, match="paths is empty"):
        from_files([], *CARTPOLE, squashed=False)


@pytest.mark.parametrize("squashed", [False, True])
def test_actions_come_back_from_their_stored_form(squashed: bool) -> None:
    box = ActionSpec.from_space(spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64))
    values = np.array([[-1.0, 0.25], [1.5, 0.9]])
    raw = raw_actions(box, values, 2, squashed=squashed, where="test")
    assert np.allclose(box.to_env(raw, squashed=squashed), values, atol=1e-5)
    edge = raw_actions(box, [[2.0, 1.0]], 1, squashed=squashed, where="test")
    assert np.isfinite(edge).all() and np.allclose(box.to_env(edge, squashed=squashed), [[2.0, 1.0]], atol=0.01)
    with pytest.raises(DataError, match="of row 0 is outside"):
        raw_actions(box, [[2.1, 0.5]], 1, squashed=squashed, where="test")


def test_minari_is_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match="needs the package minari, which is not installed"):
        PPO("CartPole-v1", merged(SMALL_RUN, imitation(source={"kind": "minari", "dataset": "x/y-v0"})))


def test_minari_data_sets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's interface as its page documents it (version 0.5): observations have one row more than actions."""
    (tmp_path / "minari.py").write_text(
        "import numpy as np\n"
        "class One:\n"
        "    observations = np.arange(12.0).reshape(3, 4)\n"
        "    actions, rewards = np.array([1, 0]), np.array([1.0, 2.0])\n"
        "    terminations, truncations = np.array([False, True]), np.array([False, False])\n"
        "class Set:\n"
        "    def iterate_episodes(self):\n        yield One()\n"
        "def load_dataset(name):\n    return Set()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = {"kind": "minari", "dataset": "x/y-v0"}
    demos = PPO("CartPole-v1", merged(SMALL_RUN, imitation(source=source))).trainer.extra.demos
    assert demos is not None and demos.obs.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert demos.action.tolist() == [[1], [0]] and demos.rest.tolist() == [0.0, 0.0]


def test_code_that_a_run_names_needs_trust() -> None:
    config = small_run(env={"id": "CartPole-v1"}, **imitation())
    named = "learner.imitation.source.rule 'benchmarks.robust_rules:lean_and_turn'"
    assert named in code_named_by(config, training=True) and code_named_by(config, training=False) == ()


def test_rules_that_do_not_fit_are_refused() -> None:
    for rule, words in (
        ("base", "there is no base rule"),
        ("nobody", "write base, or module.py:function"),
        ("benchmarks.robust_rules:nothing", "has no function nothing"),
        ("benchmarks.robust_rules:swing", "is none of the environment's"),
        ("math:sin", r"rule: TypeError"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            PPO("CartPole-v1", merged(SMALL_RUN, imitation(source={"kind": "rule", "rule": rule})))


def test_a_base_rule_of_a_market_is_demonstrated() -> None:
    market = {
        "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0], "parameters": {"length": 600}},
        "features": {"include": ["return_1"]},
        "env": {
            "kind": "market",
            "episode_length": 60,
            "base": {"kind": "volatility_target"},
            "action": {"kind": "exposure", "low": 0, "high": 2},
        },
        "run": {"environments": 4, "rollout_steps": 16, "total_steps": 64},
        "model": SMALL_MODEL,
        "risk": {"mode": "report", "alpha": 0.25},
    }
    source = {"kind": "rule", "rule": "base", "steps": 100}
    agent = PPO(config=parse_config(merged(market, imitation(source=source)), source="test"))
    demos = agent.trainer.extra.demos
    assert demos is not None and len(demos) == 100
    assert demos.action.unique().tolist() == [0.0]  # 1 of 0 to 2, in units of half the range: the rule itself
    agent.learn()
    assert agent.history[0]["loss/imitation"] != 0.0


# ------------------------------------------------------------------ runs


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("env", ["CartPole-v1", DICT_REACH, MASKED_BANDIT])
def test_every_action_space_trains_on_files(tmp_path: Path, env: str, core: str) -> None:
    """Actions that the environment has, in its own units; masks where it has them."""
    plain = PPO(env, merged(SMALL_RUN, {"model": {"core": {"kind": core}}}))
    plain.learn()
    spec, rng = plain.trainer.driver.spaces, np.random.default_rng(0)
    obs = rng.normal(size=(40, spec.observation.size))
    raw = (
        rng.uniform(-0.5, 0.5, (40, spec.action.components))
        if spec.action.kind == "box"
        else rng.integers(0, 2, (40, 1))
    )
    write_episodes(tmp_path / "d.parquet", [(obs, spec.action.to_env(raw, squashed=False), np.ones(40), True)])
    source = {"kind": "files", "paths": [str(tmp_path / "d.parquet")]}
    agent = PPO(env, merged(SMALL_RUN, merged({"model": {"core": {"kind": core}}}, imitation(source=source))))
    agent.learn()
    rows = agent.history
    assert [row["update/committed"] for row in rows] == [1.0] * 3
    assert 0.0 < rows[0]["loss/imitation_share"] < 1.0 and np.isfinite(rows[0]["imitation/log_prob"])
    assert "loss/imitation" not in rows[2]  # progress 2/3 is beyond `until`
    assert weights(agent) != weights(plain)
    assert agent.trainer.backend_choice == "torch, as configured"


def weights(agent: PPO) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in agent.model.state_dict().items()}


def test_cloning_makes_the_rule() -> None:
    """Before the first rollout the policy does what the rule does. Rejects a sign that is turned (it would do the
    opposite) and a normaliser that has not seen what the policy learnt from."""
    agree = {}
    for clone in (0, 300):
        changes = imitation(clone=clone, rows=64, source={**RULE, "steps": 2000})
        agent = PPO("CartPole-v1", merged(SMALL_RUN, merged(changes, {"learner": {"learning_rate": 0.01}})))
        agent.trainer.begin()
        demos = agent.trainer.extra.demos
        assert demos is not None
        action, _ = agent.predict(demos.obs.numpy(), deterministic=True)
        agree[clone] = float((action == lean_and_turn(demos.obs.numpy(), ())).mean())
    assert agree[300] > 0.95 > 0.75 > agree[0]
    assert agent.model.normaliser.count == len(demos)
    assert all(parameter.grad is None for parameter in agent.model.parameters())


def test_better_steps_weigh_more() -> None:
    """Two halves with opposite actions, one paid: the policy goes to the paid one, without weights to neither."""
    share = {}
    for beta in (0.2, None):
        backend = small_backend(learner={"target_kl": None})
        model = backend.model
        model.return_scale.absorb(torch.tensor([-1.0, 1.0]))
        good, bad = episode(50), episode(50)
        halves = [
            Episode(one.obs * 0, np.full((50, 1), action), np.full(50, reward), None, True)
            for one, action, reward in ((good, 1, 1.0), (bad, 2, -1.0))
        ]
        loss = ImitationLoss(settings(beta=beta, rows=64), Demos.of(halves, gamma=0.1))
        optimiser = torch.optim.Adam(model.actor.parameters(), lr=0.01)
        for step in range(100):
            levels = torch.rand(64, generator=torch.Generator().manual_seed(step))
            term = loss._terms(model, choose(model, loss.demos, levels), _Nobody())  # type: ignore[arg-type]
            optimiser.zero_grad()
            term.backward()
            optimiser.step()
        p = model.policy(choose(model, loss.demos, torch.tensor([0.1])).features, None).softmax(-1)[0]
        share[beta] = float(p[1] / (p[1] + p[2]))
    assert share[0.2] > 0.9 and 0.3 < share[None] < 0.7


class _Nobody:
    """What a view takes metrics with."""

    def __init__(self) -> None:
        self.means: dict[str, float] = {}


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_resumes_bit_for_bit(tmp_path: Path, core: str) -> None:
    """Cloning happens once, the same steps are chosen again; other demonstrations are refused."""
    changes = merged(imitation(clone=5, until=1.0), {"model": {"core": {"kind": core}}, "run": {"checkpoint_every": 1}})
    whole, part = (PPO("CartPole-v1", merged(SMALL_RUN, changes), run_dir=tmp_path / n) for n in ("whole", "part"))
    whole.learn(160)
    part.trainer.total_steps = 160
    for _ in range(2):
        part.trainer.begin()
        metrics, alerts = part.trainer._one_update(160, 0.0)
        part.trainer._record(metrics, alerts, last=False)
    resumed, notes = PPO.resume(tmp_path / "part", trust=True)
    assert notes == [] and resumed.trainer.update == 2
    resumed.learn()
    assert resumed.trainer.steps == 160 and weights(resumed) == weights(whole)
    other = PPO("CartPole-v1", merged(SMALL_RUN, merged(changes, imitation(source={**RULE, "steps": 100}))))
    checkpoint = sorted((tmp_path / "part" / "checkpoints").iterdir())[-1]
    with pytest.raises(CheckpointError, match=r"demonstrations of learner\.imitation are not those"):
        other.restore(checkpoint)


def test_a_checkpoint_before_the_first_update_is_cloned_once(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", merged(SMALL_RUN, imitation(clone=5)))
    agent.save(tmp_path / "saved")
    kept = weights(agent)
    assert agent.model.normaliser.count > 0
    other = PPO("CartPole-v1", merged(SMALL_RUN, imitation(clone=5)))
    other.restore(tmp_path / "saved")
    other.trainer.begin()
    assert weights(other) == kept
    agent.learn()
    other.learn()
    assert weights(agent) == weights(other)

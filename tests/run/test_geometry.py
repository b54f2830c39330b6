"""`run.geometry: auto`: rollouts that fit the budget, explicit values that win, and runs that keep what was chosen."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks.toy_envs import RewardProcessParams
from benchmarks.toy_vector import RewardProcessVector
from tailwise.core.config import dump_yaml, load_yaml
from tailwise.core.errors import ConfigError
from tailwise.run.agent import PPO
from tailwise.run.config import Config, parse_config
from tailwise.run.geometry import FEWEST_ROWS, FEWEST_STEPS, UPDATES, Geometry, Task, choose_geometry, largest_divisor
from tests.support import SMALL_MODEL, merged

MARKET = {"env": {"kind": "market"}, "data": {"kind": "builtin", "names": ["sp500"]}}
LSTM = {"model": {"core": {"kind": "lstm", "hidden": 8}}}
LIMIT = {"risk": {"mode": "constraint", "limit": -1.0}}
TINY: dict[str, Any] = {
    "backend": "torch",
    "model": SMALL_MODEL,
    "risk": {"mode": "report", "alpha": 0.25},
    "run": {"tensorboard": False},
}


def config(*changes: dict[str, Any]) -> Config:
    data: dict[str, Any] = {}
    for change in changes:
        data = merged(data, change)
    return parse_config(data, source="test")


def budget(steps: int, **run: Any) -> dict[str, Any]:
    return {"run": {"total_steps": steps, **run}}


def same_weights(first: PPO, second: PPO) -> None:
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("changes", "steps", "expected"),
    [
        # With 64 x 128 rows, which was the default whatever the budget, 200,000 steps are 24 updates.
        ({}, 50_000, (8, 64, 10, 8)),
        ({}, 100_000, (8, 128, 10, 16)),
        ({}, 200_000, (8, 256, 10, 32)),
        ({}, 10_000_000, (8, 256, 10, 32)),
        (LSTM, 50_000, (16, 32, 10, 4)),
        (LSTM, 500_000, (16, 128, 10, 4)),
        (MARKET, 100_000, (8, 128, 4, 4)),
        (MARKET, 200_000, (16, 128, 4, 4)),
        (MARKET, 800_000, (64, 128, 4, 4)),
        (MARKET, 10_000_000, (64, 128, 4, 4)),
        (merged(MARKET, LSTM), 400_000, (32, 128, 4, 4)),
        # A tail that acts on the policy is read from the worst rows of a rollout, as on a market.
        (LIMIT, 1_000_000, (64, 128, 4, 4)),
    ],
)
def test_geometry_follows_from_budget_and_task(
    changes: dict[str, Any], steps: int, expected: tuple[int, int, int, int]
) -> None:
    chosen = config(changes, budget(steps))
    assert chosen.geometry == Geometry(*expected)
    assert chosen.run.environments == expected[0] and chosen.learner.minibatches == expected[3]


def test_every_budget_has_its_updates_and_minibatches_that_divide() -> None:
    """Rejects a rule with rollouts of a fixed size, and one that the configuration then refuses."""
    tasks = [Task(recurrent, noisy) for recurrent in (False, True) for noisy in (False, True)]
    budgets = [int(1.7**k) for k in range(1, 40)]
    for task, steps, environments in itertools.product(tasks, budgets, (None, 1, 3, 8, 100)):
        chosen = choose_geometry(task, total_steps=steps, environments=environments)
        rows = chosen.environments * chosen.rollout_steps
        assert (chosen.environments if task.recurrent else rows) % chosen.minibatches == 0
        assert chosen.rollout_steps >= (8 if environments is None else FEWEST_STEPS)
        if steps >= UPDATES * max(FEWEST_ROWS, FEWEST_STEPS * (environments or 0)):
            assert steps / rows >= UPDATES
        if task.recurrent and chosen.environments > 1:
            assert chosen.environments // chosen.minibatches >= 2


@pytest.mark.parametrize("key", ["run.environments", "run.rollout_steps", "learner.epochs", "learner.minibatches"])
def test_an_explicit_value_wins_and_the_rest_goes_with_it(key: str) -> None:
    """Rejects a rule that takes all or nothing, and one that takes a value equal to some default for one left out."""
    section, name = key.split(".")
    for value in {"environments": (64, 3), "rollout_steps": (128, 50), "epochs": (4, 1), "minibatches": (4, 2)}[name]:
        chosen = config(budget(100_000), {section: {name: value}})
        assert getattr(getattr(chosen, section), name) == value
        assert getattr(getattr(chosen.fitted(total_steps=1_000_000), section), name) == value
    assert config({"run": {"environments": 4096, "rollout_steps": 256}}).learner.minibatches == 32
    if name == "environments":
        assert chosen.run.rollout_steps == 256, "the rows of the budget, 1024, are shared among 3"


def test_fixed_is_what_it_says_whatever_the_budget() -> None:
    assert config(budget(1_000, geometry="fixed")).geometry == Geometry(64, 128, 4, 4)
    assert config(budget(10**9, geometry="fixed"), LSTM).geometry == Geometry(64, 128, 4, 4)


def test_recurrent_minibatches_that_are_given_get_environments_that_they_divide() -> None:
    assert config(LSTM, budget(100_000), {"learner": {"minibatches": 16}}).geometry == Geometry(16, 64, 10, 16)
    assert config(LSTM, budget(100_000), {"learner": {"minibatches": 3}}).run.environments == 18
    with pytest.raises(ConfigError, match=r"minibatches 7 does not divide the 1024 environments x rollout_steps"):
        config(budget(100_000), {"learner": {"minibatches": 7}})


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("environments", [5, 10, 14])
def test_minibatches_of_sequences_divide_environments_that_are_given(environments: int, noisy: bool) -> None:
    """Rejects a divisor of the rows: 4 divides the rows of 10 environments, but not their sequences."""
    geometry = choose_geometry(Task(recurrent=True, noisy=noisy), total_steps=1_000_000, environments=environments)
    assert geometry.environments == environments and environments % geometry.minibatches == 0


def test_many_named_environments_leave_rollouts_their_length() -> None:
    """Rejects rollouts of a single step, whose advantages look one reward ahead."""
    assert config(budget(100_000), {"run": {"environments": 1024}}).run.rollout_steps == FEWEST_STEPS


def test_a_written_configuration_keeps_its_geometry(tmp_path: Path) -> None:
    """Rejects a geometry that is chosen again when the file of a run is read, maybe by the rule of a later version."""
    chosen = config({"env": {"id": "CartPole-v1"}}, budget(100_000))
    (tmp_path / "config.yaml").write_text(dump_yaml(chosen))
    data = load_yaml(tmp_path / "config.yaml")
    assert (data["run"]["geometry"], data["run"]["rollout_steps"], data["learner"]["epochs"]) == ("auto", 128, 10)
    assert parse_config(data, source="test") == chosen
    longer = parse_config(merged(data, budget(1_000_000)), source="test")
    assert longer.geometry == chosen.geometry == longer.fitted(total_steps=10**7).geometry


def test_learn_fits_the_geometry_to_its_steps_before_the_first_update(tmp_path: Path) -> None:
    """Rejects an agent that learns 12,000 steps in the rollouts of the million that the configuration did not name."""
    agent = PPO("CartPole-v1", TINY, run_dir=tmp_path / "run")
    assert agent.config.geometry == Geometry(8, 256, 10, 32)
    agent.learn(512)
    assert agent.config.geometry == Geometry(8, 16, 10, 2)
    assert (agent.trainer.update, agent.trainer.steps) == (4, 512)
    assert load_yaml(tmp_path / "run" / "config.yaml")["run"]["rollout_steps"] == 16
    agent.learn(1)  # one more step: the geometry of a run that has begun stays
    assert (agent.config.geometry, agent.trainer.update) == (Geometry(8, 16, 10, 2), 5)

    direct = PPO("CartPole-v1", merged(TINY, budget(512)))
    direct.learn()
    direct.learn(1)
    same_weights(direct, agent)


def test_learn_in_pieces_keeps_the_geometry_of_the_budget_that_is_named() -> None:
    """Rejects rollouts for the first of many short calls, in a run whose whole length is known."""
    agent = PPO("CartPole-v1", merged(TINY, budget(100_000)))
    agent.learn(1)
    assert agent.config.geometry == Geometry(8, 128, 10, 16)
    assert agent.trainer.steps == 1024


def test_learn_keeps_the_weights_it_finds() -> None:
    """Rejects an agent that is built anew for its steps and forgets what somebody put into its model."""
    agent = PPO("CartPole-v1", merged(TINY, {"learner": {"learning_rate": 1e-30}}))
    with torch.no_grad():
        for parameter in agent.model.parameters():
            parameter.add_(0.125)
    before = {name: tensor.detach().clone() for name, tensor in agent.model.named_parameters()}
    old = agent.trainer
    agent.learn(128)
    assert agent.trainer is not old
    for name, tensor in agent.model.named_parameters():
        if not name.startswith("critics"):  # their heads follow the scale of returns
            assert torch.equal(tensor, before[name]), name


def test_a_run_that_learn_fitted_resumes_in_the_same_rollouts(tmp_path: Path) -> None:
    """Rejects a run folder whose config.yaml has the rollouts of before `learn`: the stored state does not fit it."""
    whole = PPO("CartPole-v1", TINY, run_dir=tmp_path / "whole")
    whole.learn(512)
    shutil.copytree(tmp_path / "whole", tmp_path / "copy")
    again, notes = PPO.resume(tmp_path / "copy")
    assert notes == []
    assert (again.config.geometry, again.trainer.update) == (whole.config.geometry, 4)
    for agent in (whole, again):
        agent.learn(256)
    same_weights(whole, again)


def test_a_run_with_edited_rollouts_goes_on_in_those_of_its_checkpoint(tmp_path: Path) -> None:
    """config.yaml lost its geometry. Rejects a resume that waits for the lock that it holds itself."""
    agent = PPO("CartPole-v1", merged(TINY, budget(512, checkpoint_every=1)), run_dir=tmp_path)
    agent.learn()
    path = tmp_path / "config.yaml"
    data = load_yaml(path)
    data["run"] = {key: value for key, value in data["run"].items() if key not in ("environments", "rollout_steps")}
    data["run"]["total_steps"] = 100_000
    path.write_text(yaml.safe_dump(data))
    again, _ = PPO.resume(tmp_path)
    assert again.config.run.rollout_steps == agent.config.run.rollout_steps
    again.learn(128)
    assert again.trainer.steps == 640


def test_restore_takes_over_the_geometry_of_the_checkpoint(tmp_path: Path) -> None:
    """Rejects an agent that goes on in other rollouts than those it was saved in, and calls that exact."""
    first = PPO("CartPole-v1", TINY)
    first.learn(512)
    first.save(tmp_path / "saved")
    second = PPO("CartPole-v1", TINY)
    assert second.config.geometry != first.config.geometry
    assert second.restore(tmp_path / "saved") is None
    assert second.config.geometry == first.config.geometry
    for agent in (first, second):
        agent.learn(256)
    same_weights(first, second)


def test_a_vector_environment_brings_its_own_number() -> None:
    """It had to be repeated in run.environments; what is set there must still agree."""
    params = RewardProcessParams.build(means=[0.0], sds=[1.0])
    assert PPO(RewardProcessVector(params, 6), merged(TINY, budget(40_000))).config.geometry == Geometry(6, 32, 10, 3)
    agent = PPO(RewardProcessVector(params, 6), TINY)
    agent.learn(200)
    assert agent.config.geometry == Geometry(6, 16, 10, 1)
    assert agent.trainer.driver.num_envs == 6
    with pytest.raises(ConfigError, match=r"has 6 copies and run.environments is 8; leave run.environments out"):
        PPO(RewardProcessVector(params, 6), merged(TINY, budget(40_000, environments=8)))


def test_largest_divisor() -> None:
    assert [largest_divisor(n, k) for n, k in ((1024, 16), (1536, 24), (7, 4), (12, 5), (3, 100))] == [16, 24, 1, 4, 3]

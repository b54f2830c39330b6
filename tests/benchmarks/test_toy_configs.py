"""Every toy configuration trains, and shows the ability that its name says."""

from __future__ import annotations

import gymnasium as gym
import pytest
from gymnasium import spaces

from benchmarks.toy_configs import TOYS
from tailwise.run.config import parse_config
from tests.run.three_updates import assert_trains


@pytest.mark.parametrize("name", TOYS)
def test_every_toy_trains(name: str) -> None:
    assert_trains(TOYS[name], source=name)


def test_what_a_toy_promises_is_in_its_configuration() -> None:
    """Rejects a configuration whose name says one thing and that trains another."""
    parsed = {name: parse_config(data, source=name) for name, data in TOYS.items()}
    made = {name: gym.make(config.env.id, **config.env.kwargs) for name, config in parsed.items()}
    assert parsed["recall-masked"].model.core.kind == "lstm"
    assert parsed["dict-reach"].model.actor.box == "squashed"
    assert {name for name, env in made.items() if "action_mask" in env.reset(seed=0)[1]} == {
        "masked-bandit",
        "recall-masked",
    }
    assert isinstance(made["dict-reach"].observation_space, spaces.Dict)
    assert isinstance(made["multi-bandit"].action_space, spaces.MultiDiscrete)

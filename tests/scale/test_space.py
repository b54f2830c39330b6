"""The search space: bounds, scales, and keys that a configuration does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise.core.config import parse
from tailwise.core.errors import ConfigError
from tailwise.run.config import Config, parse_config
from tailwise.scale.space import Choice, Range, read_space, with_values

RATE = {"low": 1e-5, "high": 1e-2, "scale": "log"}


def config(**changes: Any) -> Config:
    return parse_config({"env": {"id": "CartPole-v1"}, **changes}, source="test")


@pytest.mark.parametrize(
    ("data", "middle"),
    [
        ({"low": 0.1, "high": 0.3}, 0.2),
        ({"low": 1e-5, "high": 1e-3, "scale": "log"}, 1e-4),
        ({"low": 0.9, "high": 0.999, "scale": "to_one"}, 0.99),
        ({"low": -0.1, "high": -0.02}, -0.06),
    ],
)
def test_values_are_even_on_their_scale_and_never_leave_their_bounds(data: dict[str, Any], middle: float) -> None:
    """Rejects a perturbation beyond a bound, and gamma drawn evenly (0.95 in the middle) instead of 1 - gamma."""
    entry = parse(Range, data, source="test")
    assert entry.at(0.5) == pytest.approx(middle)
    assert (entry.at(0.0), entry.at(1.0)) == (pytest.approx(entry.low), pytest.approx(entry.high))
    levels = np.linspace(0, 1, 101)
    assert [entry.level(entry.at(level)) for level in levels] == pytest.approx(list(levels), abs=1e-9)
    value, seen = entry.at(0.5), []
    for factor in [1.2] * 60 + [0.8] * 120:
        value = entry.moved(value, factor)
        seen.append(value)
    assert entry.low == min(seen) and max(seen) == entry.high


def test_gamma_moves_by_its_distance_from_one() -> None:
    """0.99 x 1.2 would be 1.188; the horizon of 100 steps becomes 83 or 125."""
    entry = read_space({"learner.gamma": {"low": 0.9, "high": 0.999}}, config()).entries["learner.gamma"]
    assert isinstance(entry, Range) and entry.scale == "to_one"
    assert entry.moved(0.99, 1.2) == pytest.approx(0.988) and entry.moved(0.99, 0.8) == pytest.approx(0.992)


def test_choices_move_to_their_neighbours() -> None:
    entry = parse(Choice, {"choices": [32, 64, 128]}, source="test")
    assert [entry.at(level) for level in (0.0, 0.4, 0.999, 1.0)] == [32, 64, 128, 128]
    assert (entry.moved(64, 1.2), entry.moved(64, 0.8), entry.moved(128, 1.2), entry.moved(32, 0.8)) == (
        128,
        32,
        128,
        32,
    )
    assert [entry.at(entry.level(value)) for value in entry.choices] == [32, 64, 128]


def test_a_key_that_is_not_there_keeps_its_value_with_a_warning() -> None:
    """Ledger 002-4. Rejects an absent key that stops the search, and one that is dropped without a word."""
    space = read_space({"learner.learning_rate": RATE, "learner.prior.weight": {"low": 0.01, "high": 0.1}}, config())
    assert list(space.entries) == ["learner.learning_rate"]
    (sentence,) = space.absent
    assert (
        sentence == "space: learner.prior.weight is not in this configuration (there is no prior); it keeps its value"
    )
    wide = {"learner.learning_rate": RATE, "risk.limit": {"low": -0.1, "high": -0.01}}
    assert "risk is report" in read_space(wide, config()).absent[0]
    limited = config(risk={"mode": "constraint", "limit": -0.05})
    assert read_space(wide, limited).absent == () and "risk.limit" in read_space(wide, limited).entries
    off = config(learner={"target_kl": None})
    target = {"learner.learning_rate": RATE, "learner.target_kl": {"low": 0.01, "high": 0.1}}
    assert "learner.target_kl is null" in read_space(target, off).absent[0]
    with pytest.raises(ConfigError, match="nothing is left to search"):
        read_space({"learner.prior.weight": {"low": 0.01, "high": 0.1}}, config())


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({"learner.learning_rat": RATE}, "did you mean 'learner.learning_rate'"),
        (
            {"learner.learning_rate": {"low": 0.0, "high": 1e-2, "scale": "log"}},
            "logarithmic scale needs values above 0",
        ),
        ({"learner.clip": {"low": 0.3, "high": 0.1}}, "low 0.3 is not below high 0.1"),
        ({"learner.clip": {"low": 0.1, "high": 1.5}}, r"learner\.clip may not be 1\.5"),
        ({"learner.gamma": {"low": 0.9, "high": 1.0}}, "1 - value on a logarithmic scale needs values below 1"),
        ({"learner.clip": 0.2}, "write {low: 1e-5, high: 1e-2, scale: log}"),
        ({"learner.clip": {"low": 0.1, "hi": 0.2}}, "key 'hi' is unknown"),
        ({"model.core.kind": {"choices": ["none", "rnn"]}}, r"model\.core\.kind may not be 'rnn'"),
    ],
)
def test_a_wrong_space_is_a_sentence(space: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_space(space, config())


def test_a_space_is_read_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("learner.learning_rate: {low: 1e-5, high: 1e-2, scale: log}\nlearner.epochs: {choices: [1, 2]}\n")
    space = read_space(file, config())
    assert space.to_json() == {
        "learner.epochs": {"choices": [1, 2]},
        "learner.learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
    }


def test_values_reach_the_configuration() -> None:
    """Also those that go through the setter of a run, and those below a section of some kind."""
    base = config(model={"core": {"kind": "lstm", "hidden": 16}}, risk={"mode": "constraint", "limit": -0.05})
    values = {
        "learner.learning_rate": 1e-3,
        "learner.lambda": 0.8,
        "learner.entropy.weight": 0.02,
        "model.core.hidden": 32,
        "risk.limit": -0.03,
    }
    changed = with_values(base, values)
    assert (changed.learner.learning_rate, changed.learner.lam, changed.learner.entropy.weight) == (1e-3, 0.8, 0.02)
    assert changed.model.core.model_dump()["hidden"] == 32 and changed.risk.model_dump()["limit"] == -0.03
    assert with_values(base, {}).model_dump() == base.model_dump()

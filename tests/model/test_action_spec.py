"""ActionSpec: raw policy outputs to environment actions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from gymnasium import Space, spaces

from tailwise.core.errors import EnvironmentContractError, ShapeError
from tailwise.model.action_spec import ActionSpec
from tailwise.model.distributions import law_for


def test_discrete_adds_its_start() -> None:
    """Rejects: passing the index on as the action."""
    spec = ActionSpec.from_space(spaces.Discrete(3, start=-1))
    action = spec.to_env(np.array([[0], [1], [2]]), squashed=False)
    assert action.dtype == np.int64 and action.tolist() == [-1, 0, 1]
    assert (spec.components, spec.logits, spec.sizes) == (1, 3, (3,))


def test_multidiscrete_restores_shape_start_and_dtype() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [0, -2]]), dtype=np.int32)
    spec = ActionSpec.from_space(space)
    action = spec.to_env(np.array([[1, 2, 3, 4], [0, 0, 0, 0]]), squashed=False)
    assert action.tolist() == [[[1, 3], [3, 2]], [[0, 1], [0, -2]]]
    assert action.dtype == np.int32 and space.contains(action[0])
    assert (spec.components, spec.logits) == (4, 14)


def test_raw_actions_are_shares_of_half_the_range() -> None:
    """Range 0 to 4, and 10 to 10.2: raw 0 is the middle, a raw half is a quarter of the range. Rejects raw actions in
    the environment's own units, whose exploration is the whole range here and nothing there. Unbounded ones, and those
    of policies from before, are in their own units."""
    spec = ActionSpec.from_space(spaces.Box(np.array([0.0, 10.0]), np.array([4.0, 10.2]), dtype=np.float64))
    raw = np.array([[0.0, 0.0], [0.5, -0.5], [3.0, -3.0]])
    assert spec.to_env(raw, squashed=False).ravel().tolist() == pytest.approx([2.0, 10.1, 3.0, 10.05, 4.0, 10.0])
    stored = spec.to_json()
    assert ActionSpec.from_json(stored) == spec
    del stored["scaled"]
    before = ActionSpec.from_json(stored)
    assert before.to_env(np.array([[3.0, 10.1]]), squashed=False).ravel().tolist() == pytest.approx([3.0, 10.1])
    for bound in (np.inf, float(np.finfo(np.float64).max)):  # half of "any float" is no unit
        wide = ActionSpec.from_space(spaces.Box(-bound, bound, (1,), dtype=np.float64))
        assert wide.to_env(np.array([[0.5]]), squashed=False).ravel().tolist() == [0.5]


def test_box_clips_and_keeps_shape_and_dtype() -> None:
    space = spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 4.0]]), dtype=np.float32)
    spec = ActionSpec.from_space(space)
    action = spec.to_env(np.array([[-3.0, 9.0], [0.25, 1.5], [np.inf, -np.inf]]), squashed=False)
    assert action.dtype == np.float32 and action.shape == (3, 1, 2)
    assert action.reshape(3, 2).tolist() == [[-1.0, 4.0], [0.25, 4.0], [1.0, 0.0]]


def test_squashed_box_by_hand() -> None:
    """low + (tanh(x) + 1) / 2 * (high - low). Rejects: tanh clipped to the bounds without the affine map."""
    spec = ActionSpec.from_space(spaces.Box(np.array([0.0]), np.array([4.0]), dtype=np.float64))
    raw = np.array([[0.0], [0.5], [-50.0], [50.0]])
    expected = [2.0, (math.tanh(0.5) + 1) * 2, 0.0, 4.0]
    np.testing.assert_allclose(spec.to_env(raw, squashed=True)[:, 0], expected, rtol=1e-15)
    wrong = np.clip(np.tanh(raw[:, 0]), 0.0, 4.0)
    assert not np.allclose(wrong, expected)


def test_squashed_actions_lie_in_the_space_for_extreme_bounds() -> None:
    space = spaces.Box(np.float32([-0.1, 0.3]), np.float32([0.7, 1e6]), dtype=np.float32)
    spec = ActionSpec.from_space(space)
    raw = np.random.default_rng(0).normal(size=(500, 2)) * 20
    assert all(space.contains(action) for action in spec.to_env(raw, squashed=True))


def test_unbounded_box_is_refused_only_when_squashed() -> None:
    spec = ActionSpec.from_space(spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, 2.0])))
    assert spec.to_env(np.array([[5.0, -1e9]]), squashed=False).tolist() == [[1.0, -1e9]]
    with pytest.raises(EnvironmentContractError, match="component 1 is unbounded"):
        spec.to_env(np.array([[0.0, 0.0]]), squashed=True)


def test_integer_box_rounds_and_refuses_nan() -> None:
    spec = ActionSpec.from_space(spaces.Box(0, 10, (1,), np.int32))
    action = spec.to_env(np.array([[-0.28], [99.0]]), squashed=False)  # 5 - 0.28 x 5 = 3.6
    assert action.dtype == np.int32 and action.tolist() == [[4], [10]]
    with pytest.raises(EnvironmentContractError, match="NaN"):
        spec.to_env(np.array([[np.nan]]), squashed=False)


def test_wrong_shapes_dtypes_and_indices_are_sentences() -> None:
    spec = ActionSpec.from_space(spaces.MultiDiscrete([2, 3]))
    with pytest.raises(ShapeError, match=r"shape \(2,\)"):
        spec.to_env(np.array([0, 1]), squashed=False)
    with pytest.raises(ShapeError, match="dtype float64"):
        spec.to_env(np.array([[0.0, 1.0]]), squashed=False)
    with pytest.raises(ShapeError, match="row 1 component 0 is 2"):
        spec.to_env(np.array([[1, 1], [2, 0]]), squashed=False)
    with pytest.raises(EnvironmentContractError, match="MultiBinary"):
        ActionSpec.from_space(spaces.MultiBinary(2))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=2),
        spaces.MultiDiscrete([[2, 3]]),
        spaces.Box(-0.1, np.inf, (2, 2), np.float32),
        spaces.Box(np.array([-np.inf, 1 / 3]), np.array([1e-300, np.inf]), dtype=np.float64),
    ],
)
def test_json_round_trip(space: Space) -> None:
    spec = ActionSpec.from_space(space)
    text = json.dumps(spec.to_json(), allow_nan=False)
    again = ActionSpec.from_json(json.loads(text))
    assert again == spec and hash(again) == hash(spec)
    assert again != ActionSpec.from_space(spaces.Discrete(4, start=1))


@pytest.mark.parametrize(
    ("low", "high", "scaled", "cut"),
    [
        ([-1.0, 0.0], [1.0, 5.0], True, True),
        ([-1.0, -np.inf], [1.0, np.inf], True, False),
        ([-1.0, -1e30], [1.0, 1e30], True, False),
        ([-1.0, 0.0], [1.0, 5.0], False, False),
    ],
)
def test_means_have_bounds_only_where_raw_actions_are_cut(
    low: list[float], high: list[float], scaled: bool, cut: bool
) -> None:
    """All bounded; one unbounded; bounds that mean any number; units of an earlier version. Rejects a pull to [-1, 1]
    of policies whose actions lie elsewhere."""
    spec = ActionSpec("box", (2,), "float32", (), (), np.array(low), np.array(high), scaled)
    assert spec.unit_range is cut
    assert law_for(spec, squashed=False).cut is cut and not law_for(spec, squashed=True).cut

"""ObservationSpec: one conversion path for every form in which an observation can arrive."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.core.errors import EnvironmentContractError, ShapeError
from tailwise.model.observation import ObservationSpec, check_mask

BOX = spaces.Box(-10, 10, (2, 3), np.float64)


def test_every_form_of_the_same_numbers_gives_the_same_float32() -> None:
    """Ledger 004-5 and 004-7. Rejects: a path that upcasts np.float64, or reads a transposed array in memory order."""
    spec = ObservationSpec.from_space(BOX)
    values = np.arange(24, dtype=np.float64).reshape(4, 2, 3) / 7
    wide = np.zeros((4, 2, 6))
    wide[:, :, ::2] = values
    expected = values.astype(np.float32).reshape(4, 6)
    forms = {
        "list": values.tolist(),
        "list of arrays": list(values),
        "f64": values,
        "f32": values.astype(np.float32),
        "fortran": np.asfortranarray(values),
        "strided": wide[:, :, ::2],
        "tensor": torch.tensor(values),
        "tensor f32 with grad": torch.tensor(values, dtype=torch.float32, requires_grad=True),
    }
    for name, form in forms.items():
        flat = spec.flatten(form, 4)
        assert flat.dtype == np.float32 and flat.flags.c_contiguous, name
        np.testing.assert_array_equal(flat, expected, err_msg=name)


def test_result_never_aliases_the_input() -> None:
    """Rejects: returning a view of a float32 array, which the environment overwrites in its next step."""
    spec = ObservationSpec.from_space(spaces.Box(-1, 1, (2,), np.float32))
    source = np.zeros((3, 2), dtype=np.float32)
    flat = spec.flatten(source, 3)
    source[:] = 9
    assert flat.tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("shape", [(3, 3), (4,), (4, 2), (4, 2, 3, 1), (3, 2, 3)])
def test_wrong_shape_names_key_got_and_expected(shape: tuple[int, ...]) -> None:
    spec = ObservationSpec.from_space(spaces.Dict({"price": BOX}))
    with pytest.raises(ShapeError) as caught:
        spec.flatten({"price": np.zeros(shape)}, 4)
    assert "'price'" in str(caught.value) and str(shape) in str(caught.value) and "(4, 2, 3)" in str(caught.value)


def test_ragged_and_textual_observations_are_refused() -> None:
    spec = ObservationSpec.from_space(spaces.Box(-1, 1, (2,)))
    with pytest.raises(ShapeError, match="regular array"):
        spec.flatten([[1.0, 2.0], [3.0]], 2)
    with pytest.raises(ShapeError, match="dtype"):
        spec.flatten([["a", "b"]], 1)


def test_not_finite_and_huge_values_pass_through_without_warning(recwarn: pytest.WarningsRecorder) -> None:
    spec = ObservationSpec.from_space(spaces.Box(-np.inf, np.inf, (4,), np.float64))
    flat = spec.flatten(np.array([[np.nan, np.inf, -np.inf, 1e300]]), 1)
    np.testing.assert_array_equal(flat, np.array([[np.nan, np.inf, -np.inf, np.inf]], dtype=np.float32))
    assert len(recwarn) == 0


def test_discrete_respects_its_start() -> None:
    """Rejects: one-hot of the value itself, which for start=-1 writes the wrong column."""
    spec = ObservationSpec.from_space(spaces.Discrete(3, start=-1))
    assert spec.flatten(np.array([-1, 0, 1]), 3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    for bad in (2, -2, 0.5, np.nan):
        with pytest.raises(EnvironmentContractError, match="from -1 to 1"):
            spec.flatten(np.array([bad]), 1)


def test_multidiscrete_and_multibinary() -> None:
    spec = ObservationSpec.from_space(spaces.MultiDiscrete([2, 3], start=[5, 0]))
    assert spec.flatten([[6, 2], [5, 0]], 2).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]
    assert spec.scaled.tolist() == [False] * 5
    bits = ObservationSpec.from_space(spaces.MultiBinary(3))
    assert bits.flatten(np.array([[1, 0, 1]], dtype=np.int8), 1).tolist() == [[1, 0, 1]]
    assert bits.scaled.tolist() == [False] * 3


def test_dict_and_tuple_are_read_in_sorted_order_with_scaling_flags() -> None:
    space = spaces.Dict(
        z=spaces.Discrete(2),
        a=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(1))),
        action_mask=spaces.MultiBinary(3),
    )
    spec = ObservationSpec.from_space(space)
    batch = {
        "z": np.array([1, 0]),
        "a": (np.array([[0.25, 0.5], [0.75, 1.0]]), np.array([[1], [0]])),
        "action_mask": np.array([[1, 0, 1], [0, 1, 0]], dtype=np.int8),
    }
    assert spec.size == 5
    assert spec.flatten(batch, 2).tolist() == [[0.25, 0.5, 1, 0, 1], [0.75, 1.0, 0, 1, 0]]
    assert spec.scaled.tolist() == [True, True, False, False, False]
    mask = spec.mask_from(batch)
    assert mask is not None and mask.dtype == np.bool_
    assert mask.tolist() == [[True, False, True], [False, True, False]]
    single = {"z": 1, "a": (np.array([0.25, 0.5]), np.array([1])), "action_mask": np.array([1, 0, 1])}
    assert spec.flatten_one(single).tolist() == [[0.25, 0.5, 1, 0, 1]]


def test_missing_and_unexpected_keys_are_named() -> None:
    spec = ObservationSpec.from_space(spaces.Dict(a=spaces.Box(-1, 1, (1,)), b=spaces.Discrete(2)))
    with pytest.raises(ShapeError, match="'b' is missing"):
        spec.flatten({"a": [[0.0]]}, 1)
    with pytest.raises(ShapeError, match="unexpected key 'c'"):
        spec.flatten({"a": [[0.0]], "b": [0], "c": [0]}, 1)


def test_mask_must_be_zero_or_one_and_of_the_declared_width() -> None:
    spec = ObservationSpec.from_space(
        spaces.Dict(a=spaces.Box(-1, 1, (1,)), action_mask=spaces.Box(0, 1, (2,), np.int8))
    )
    with pytest.raises(EnvironmentContractError, match="0 and 1"):
        spec.mask_from({"a": [[0.0]], "action_mask": np.array([[2, 0]])})
    with pytest.raises(ShapeError, match="action_mask"):
        spec.mask_from({"a": [[0.0]], "action_mask": np.array([[1, 0, 1]])})
    assert ObservationSpec.from_space(BOX).mask_from(np.zeros((1, 2, 3))) is None


def test_unsupported_and_empty_spaces_are_sentences() -> None:
    with pytest.raises(EnvironmentContractError, match="'words' is a Text space"):
        ObservationSpec.from_space(spaces.Dict(words=spaces.Text(5)))
    with pytest.raises(EnvironmentContractError, match="no features"):
        ObservationSpec.from_space(spaces.Dict(action_mask=spaces.MultiBinary(2)))


LEAF_SPACES = st.one_of(
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: spaces.Box(-1, 1, tuple(shape))),
    st.tuples(st.integers(1, 5), st.integers(-3, 3)).map(lambda n: spaces.Discrete(n[0], start=n[1])),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
)
SPACES = st.recursive(
    LEAF_SPACES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(space=SPACES, seed=st.integers(0, 1000))
def test_json_round_trip_and_agreement_with_gymnasium(space: spaces.Space, seed: int) -> None:
    """The flat size and values agree with gymnasium.spaces.flatten (which also sorts Dict keys and uses one-hots)."""
    spec = ObservationSpec.from_space(space)
    again = ObservationSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    space.seed(seed)
    sample = space.sample()
    expected = np.asarray(spaces.flatten(space, sample), dtype=np.float32)
    np.testing.assert_array_equal(again.flatten_one(sample)[0], expected)
    assert spec.scaled.shape == (spec.size,) == expected.shape


def test_check_mask_names_the_row_and_component_without_a_choice() -> None:
    """Rejects: any() over the whole row, which lets a second component without choices pass."""
    good = np.array([[1, 0, 0, 0, 1], [0, 1, 1, 1, 0]], dtype=np.bool_)
    check_mask(good, (2, 3))
    bad = good.copy()
    bad[1, 2:] = False
    assert bad.any(axis=1).all()  # what the wrong implementation looks at
    with pytest.raises(EnvironmentContractError, match="environment 1 forbids every choice of action component 1"):
        check_mask(bad, (2, 3))
    for wrong in (good[:, :4], good[0]):
        with pytest.raises(ShapeError, match=r"expected \(rows, 5\)"):
            check_mask(wrong, (2, 3))

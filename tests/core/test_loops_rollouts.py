"""What is counted in one compiled pass over a rollout, against the same in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.core.loops import rollouts

FORBIDDEN = float(np.finfo(np.float32).min)


def counted(
    sizes: list[int], *, masked: bool, rows: int = 700, seed: int = 0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(what the kernel found, its arguments) on random transitions, of which a tenth are not real."""
    draws = np.random.default_rng(seed)
    width = sum(sizes)
    given = {
        "valid": draws.random(rows) < 0.9,
        "reward": draws.normal(size=rows).astype(np.float32),
        "params": draws.normal(size=(rows, width)).astype(np.float32),
        "action": np.stack([draws.integers(0, size, rows) for size in sizes], axis=1),
        "mask": np.zeros((0, width), dtype=np.bool_),
    }
    if masked:
        mask = draws.random((rows, width)) < 0.5
        ends = np.cumsum(sizes)
        for end, size in zip(ends, sizes, strict=True):
            mask[np.arange(rows), end - size + draws.integers(0, size, rows)] = True  # at least one is allowed
        given["mask"] = mask
        given["params"][~mask] = FORBIDDEN
    found = np.empty(rollouts.FOUND)
    scratch = np.empty(width, dtype=np.int64)
    rollouts.count_rollout(*given.values(), np.array(sizes), 128, FORBIDDEN, scratch, found)
    return found, given


@pytest.mark.parametrize("sizes", [[3], [2, 4]])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_same_in_numpy(sizes: list[int], masked: bool) -> None:
    """Rejects counting rows that only reset, forbidden logits, and rows without a choice."""
    found, given = counted(sizes, masked=masked)
    valid = given["valid"]
    reward, params, action = (given[name][valid].astype(np.float64) for name in ("reward", "params", "action"))
    assert found[rollouts.KEPT] == valid.sum()
    assert (found[rollouts.SMALLEST], found[rollouts.LARGEST]) == (reward.min(), reward.max())
    assert found[rollouts.TOTAL] == pytest.approx(reward.sum(), rel=1e-12)
    looked = params[:: max(1, len(params) // 128)]
    ends = np.cumsum(sizes)[:-1]
    square = np.zeros(len(looked))
    for part in np.split(looked, ends, axis=1):
        logits = np.where(part > FORBIDDEN, part, np.nan)
        square += np.nansum((logits - np.nanmean(logits, axis=1, keepdims=True)) ** 2, axis=1)
    assert found[rollouts.LOGIT_NORM] == pytest.approx(np.sqrt(square).mean(), rel=1e-12)
    chooses, entropy = np.ones(len(action), dtype=bool), np.nan
    if masked:
        allowed = [part.sum(axis=1) for part in np.split(given["mask"][valid], ends, axis=1)]
        entropy = sum(np.log(number).mean() for number in allowed)
        chooses = allowed[0] > 1 if len(sizes) == 1 else chooses
    shares = [np.bincount(part.astype(int)).max() / chooses.sum() for part in action[chooses].T]
    assert found[rollouts.TOP_SHARE] == pytest.approx(min(shares), rel=1e-12)
    np.testing.assert_allclose(found[rollouts.ENTROPY], entropy, rtol=1e-12)


@pytest.mark.parametrize("count", ["compiled", "plain"])
def test_actions_that_are_not_categorical_have_rewards_alone(count: str) -> None:
    """No component, and no choice anywhere: nothing is divided by 0, which plain Python does not survive."""
    kernel = rollouts.count_rollout
    if count == "plain":
        kernel = getattr(kernel, "py_func", kernel)
    reward, valid = np.array([1.0, 3.0], dtype=np.float32), np.ones(2, dtype=bool)
    params, none = np.zeros((2, 4), dtype=np.float32), np.empty((0, 0), dtype=np.int64)
    nothing, found = np.empty(0, dtype=np.int64), np.empty(rollouts.FOUND)
    kernel(valid, reward, params, none, np.empty((0, 0), dtype=bool), nothing, 128, FORBIDDEN, nothing, found)
    assert found[rollouts.KEPT] == 2 and found[rollouts.TOTAL] == 4.0 and np.isnan(found[rollouts.TOP_SHARE])
    mask, sizes = np.array([[True, False], [False, True]]), np.array([2])
    action, scratch = np.array([[0], [1]]), np.empty(2, dtype=np.int64)
    kernel(valid, reward, params[:, :2], action, mask, sizes, 128, FORBIDDEN, scratch, found)
    assert np.isnan(found[rollouts.TOP_SHARE]) and found[rollouts.LOGIT_NORM] == 0.0


def test_numbers_that_are_not_finite_are_seen() -> None:
    """A reward that is NaN, and a logit. Rejects comparisons by which NaN counts as forbidden."""
    _, given = counted([3], masked=False)
    given["valid"][:] = True
    given["reward"][5], given["params"][0, 1] = np.nan, np.nan
    found = np.empty(rollouts.FOUND)
    rollouts.count_rollout(*given.values(), np.array([3]), 128, FORBIDDEN, np.empty(3, dtype=np.int64), found)
    assert np.isnan(found[rollouts.TOTAL]) and np.isnan(found[rollouts.LOGIT_NORM])


def test_an_action_out_of_range_writes_nowhere() -> None:
    """Actions 7 and -1 of 3: the scratch beside the counts keeps its contents."""
    _, given = counted([3], masked=False)
    given["action"][0, 0], given["action"][1, 0] = 7, -1
    memory = np.full(12, 99, dtype=np.int64)
    found = np.empty(rollouts.FOUND)
    rollouts.count_rollout(*given.values(), np.array([3]), 128, FORBIDDEN, memory[4:7], found)
    assert (memory[:4] == 99).all() and (memory[7:] == 99).all()

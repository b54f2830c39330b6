"""Several policies that decide together: the rules of the vote, and what must be the same as one policy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tailwise
from tailwise.core.errors import ConfigError
from tailwise.evaluate.judgement import judge_policy
from tailwise.run.ensemble import Ensemble, nearest_position, vote
from tests.support import merged

SCALE = np.array([-1.0, 0.0, 1.0])
MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "sine", "parameters": {"length": 400, "noise": 0.002}},
    "features": {"include": ["return_1", "return_5"]},
    "env": {"kind": "market", "episode_length": 64, "action": {"kind": "positions", "positions": [-1, 0, 1]}},
    "costs": {"impact_bps": 0},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 64, "tensorboard": False},
    "model": {"encoder": {"hidden": [8]}},
}


def agent(seed: int, **changes: Any) -> tailwise.PPO:
    """Not trained: the first weights of different seeds decide differently."""
    return tailwise.PPO(config=merged(MARKET, {"seed": seed, **changes}))


def test_most_votes_win_and_ties_go_to_the_middle() -> None:
    """Rejects a median (0 of -1, 1, 1) and a tie that always goes to the lowest action, which would be short."""
    answers = np.array([[0, 0, 2, 0], [2, 1, 2, 2], [2, 2, 0, 0]])
    assert vote(answers, SCALE).tolist() == [2, 1, 2, 0]
    two = np.array([[0, 1], [2, 2]])
    assert vote(two, SCALE).tolist() == [0, 1]  # as near to the mean: the first of the list
    assert vote(np.array([[5], [3], [3], [5]])).tolist() == [5]  # no positions: the earliest member


def test_votes_of_several_components_are_counted_one_by_one() -> None:
    answers = np.array([[[0, 1]], [[0, 2]], [[1, 2]]])
    assert vote(answers).tolist() == [[0, 2]]


def test_the_nearest_position_to_the_mean() -> None:
    wanted = np.array([-0.6, 1 / 3, 0.5, 0.51, 2.0])
    assert nearest_position(wanted, SCALE).tolist() == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("how", ["vote", "average"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_one_member_plays_as_it_does_alone(how: Any, deterministic: bool) -> None:
    one = agent(1)
    alone = one.trade(deterministic=deterministic)[0]
    together = Ensemble([one], how).trade(deterministic=deterministic)[0]
    assert np.array_equal(alone.target, together.target) and np.array_equal(alone.equity, together.equity)


def test_the_majority_decides_bar_by_bar() -> None:
    """Two that agree outvote a third, whatever it does; judged like one policy, beside the same baselines."""
    one, other = agent(1), agent(4)
    alone, different = one.trade()[0], other.trade()[0]
    assert not np.array_equal(alone.target, different.target)
    team = Ensemble([other, one, one], "vote")
    judged = judge_policy(team)[0]
    assert np.array_equal(judged.paths["policy"].target, alone.target)
    assert "buy and hold" in judged.statistics


def test_a_mean_of_continuous_actions_is_their_mean() -> None:
    action = {"env": {"action": {"kind": "exposure", "low": -1.0, "high": 1.0}}}
    one, other = agent(1, **action), agent(4, **action)
    first = [path.trade()[0].target[0, 0] for path in (one, other)]
    together = Ensemble([one, other], "average").trade()[0].target[0, 0]
    assert first[0] != first[1] and together == pytest.approx(np.mean(first), abs=1e-6)
    with pytest.raises(ConfigError, match="continuous actions cannot vote"):
        Ensemble([one, other], "vote")


def test_policies_of_different_markets_do_not_decide_together() -> None:
    with pytest.raises(ConfigError, match="other bars, another environment or other costs"):
        Ensemble([agent(1), agent(1, costs={"impact_bps": 5})], "vote")
    with pytest.raises(ConfigError, match="of no policies"):
        Ensemble([], "vote")

"""The market of the speed comparison: its arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.plain_market import (
    COST,
    EARLIER,
    EPISODE,
    EQUITY,
    FEATURES,
    OBSERVATION,
    PEAK,
    POSITION,
    PlainMarket,
)

SHORT, FLAT, LONG = 0, 1, 2


def _market(accounts: int = 3) -> PlainMarket:
    market = PlainMarket(accounts)
    market.reset(seed=1)
    market.place[:, 1] = 0
    return market


def test_a_step_earns_the_return_of_the_next_bar_after_the_fee() -> None:
    """Rejects a reward from the bar that was already seen, and a fee on the position instead of its change."""
    market = _market()
    at = market.place[:, 0].copy()
    actions = np.array([SHORT, FLAT, LONG])
    _, first, _, _, _ = market.step(actions)
    returns = market.returns[at + 1].astype(np.float64)
    target = np.array([-1.0, 0.0, 1.0])
    assert first == pytest.approx(np.log((1 - COST * np.abs(target)) * (1 + target * returns)), rel=1e-4, abs=1e-7)
    _, second, _, _, _ = market.step(actions)
    later = market.returns[at + 2].astype(np.float64)
    assert second == pytest.approx(np.log(1 + target * later), rel=1e-4, abs=1e-7)


def test_an_observation_has_this_bar_the_bar_before_and_the_account() -> None:
    market = _market()
    obs, reward, _, _, _ = market.step(np.array([LONG, LONG, FLAT]))
    at = market.place[:, 0]
    assert obs.shape == (3, OBSERVATION)
    assert np.array_equal(obs[:, :FEATURES], market.features[at])
    assert np.array_equal(obs[:, FEATURES : FEATURES + EARLIER], market.features[at - 1, :EARLIER])
    account = obs[:, FEATURES + EARLIER :]
    assert account[:, 0].tolist() == [1.0, 1.0, 0.0]
    assert account[:, 1] == pytest.approx(np.log(market.account[:, EQUITY]), abs=1e-6)
    assert account[:, 3] == pytest.approx(1 / EPISODE)
    assert account[:, 5] == pytest.approx(100 * reward, rel=1e-5)


def test_drawdown_and_age_end_an_episode_and_the_last_observation_is_kept() -> None:
    """Rejects a final observation that already shows the next episode."""
    market = _market()
    market.account[0, PEAK] = 2.0  # a loss of a half
    market.place[1, 1] = EPISODE - 1
    before = market.place[:, 0].copy()
    obs, _, terminated, truncated, infos = market.step(np.array([LONG, LONG, LONG]))
    assert terminated.tolist() == [True, True, False]
    assert not truncated.any()
    assert np.array_equal(infos["final_obs"][:2, :FEATURES], market.features[before[:2] + 1])
    assert infos["final_obs"][1, FEATURES + EARLIER + 3] == 1.0
    assert market.account[:, POSITION].tolist() == [0.0, 0.0, 1.0]
    assert market.place[:, 1].tolist() == [0, 0, 1]
    assert np.array_equal(obs[:2, :FEATURES], market.features[market.place[:2, 0]])
    assert (market.place[:2, 0] != before[:2] + 1).any()


def test_what_a_step_returned_is_not_overwritten_by_the_next() -> None:
    """A learner keeps the observation until it has stored it; memory used twice would give it the following one."""
    market = _market()
    first, *_ = market.step(np.array([FLAT, FLAT, FLAT]))
    kept = first.copy()
    market.step(np.array([FLAT, FLAT, FLAT]))
    assert np.array_equal(first, kept)

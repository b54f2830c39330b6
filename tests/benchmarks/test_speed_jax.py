"""The JAX contender: its market is ours, its memory is cleared, its gradient points the right way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed (it is in the extra bench)")
pytest.importorskip("optax", reason="optax is not installed (it is in the extra bench)")

import jax
import jax.numpy as jnp

from benchmarks import speed_jax, speed_jax_market
from tailwise.market.plain_market import ACTIONS, COLUMNS, OBSERVATION, PlainMarket
from tailwise.run.speed.contenders import Done
from tailwise.run.speed.work import Work

TINY = Work("lstm", hidden=8, environments=4, steps=4, epochs=2, minibatches=2)


def _accounts(market: PlainMarket) -> speed_jax_market.Accounts:
    columns = (jnp.array(market.account[:, k]) for k in range(COLUMNS))
    return speed_jax_market.Accounts(jnp.array(market.place[:, 0]), jnp.array(market.place[:, 1]), *columns)


def test_both_markets_are_one() -> None:
    """From the same accounts with the same actions: rewards, ends and, until an account restarts, observations."""
    market = PlainMarket(32)
    market.reset(seed=3)
    market.place[:4, 1] = 1020  # ends within the test
    bars, rng = speed_jax_market.load(), np.random.default_rng(0)
    ended = 0
    for _ in range(12):
        state = _accounts(market)
        action = rng.integers(0, ACTIONS, 32)
        obs, reward, done, _, _ = market.step(action)
        following, their_reward, their_done = speed_jax_market.step(bars, state, jnp.array(action), jax.random.key(0))
        assert np.array_equal(np.asarray(their_done), done)
        np.testing.assert_allclose(np.asarray(their_reward), reward, rtol=1e-4, atol=1e-6)
        seen = np.asarray(speed_jax_market.observe(bars, following))
        np.testing.assert_allclose(seen[~done], obs[~done], rtol=1e-4, atol=1e-5)
        assert seen.shape[1] == OBSERVATION
        ended += int(done.sum())
    assert ended >= 4


def _batch(rng: np.random.Generator, advantage: float, target: float) -> speed_jax.Batch:
    shape = (TINY.steps, TINY.environments)
    begins = jnp.zeros(shape, bool).at[2, 1].set(True)
    return speed_jax.Batch(
        obs=jnp.array(rng.standard_normal((*shape, OBSERVATION)), jnp.float32),
        action=jnp.zeros(shape, int),
        log_prob=jnp.full(shape, -np.log(3.0), jnp.float32),
        # Half of the rows take another action with the opposite advantage, since advantages are centred.
        advantage=jnp.full(shape, advantage, jnp.float32),
        target=jnp.full(shape, target, jnp.float32),
        begins=begins,
    )


def test_a_minibatch_is_the_rollout_again() -> None:
    """Steps one by one and all at once agree. Rejects an LSTM that keeps its memory across episodes: without the start
    in the middle the last steps differ."""
    p = speed_jax.make_parameters(jax.random.key(1), TINY)
    batch = _batch(np.random.default_rng(1), 1.0, 0.0)
    memory: Any = (jnp.full((4, 8), 0.5), jnp.full((4, 8), -0.5))
    together = speed_jax.all_steps(TINY, p, batch, memory)
    carried, outputs = memory, []
    for t in range(TINY.steps):
        out, carried = speed_jax.one_step(TINY, p, batch.obs[t], carried, batch.begins[t])
        outputs.append(out)
    np.testing.assert_allclose(np.asarray(together), np.stack(outputs), rtol=1e-5, atol=1e-6)
    forgetful = speed_jax.all_steps(TINY, p, batch._replace(begins=jnp.zeros_like(batch.begins)), memory)
    assert float(jnp.abs(forgetful - together)[2:, 1].max()) > 1e-4


def test_the_gradient_points_to_what_paid_and_to_the_return() -> None:
    """By the heads' biases: descending raises the logit of the action that paid, and every quantile towards a return
    above it, the higher levels more."""
    p = speed_jax.make_parameters(jax.random.key(1), TINY)
    p["heads"] = jnp.zeros_like(p["heads"])
    batch = _batch(np.random.default_rng(2), 0.0, 0.5)
    half = jnp.arange(TINY.environments) < 2
    batch = batch._replace(
        action=jnp.where(half, 0, 2) * jnp.ones((TINY.steps, 1), int),
        advantage=jnp.where(half, 1.0, -1.0) * jnp.ones((TINY.steps, 1)),
    )
    memory: Any = (jnp.zeros((4, 8)), jnp.zeros((4, 8)))
    slope = np.asarray(jax.grad(speed_jax.loss_of)(p, TINY, batch, memory)["heads_bias"])
    assert slope[0] < 0 < slope[2]
    quantiles = slope[ACTIONS:].reshape(2, speed_jax.QUANTILES)
    assert (quantiles < 0).all()
    assert (np.diff(quantiles, axis=1) < 0).all()


def test_it_does_the_same_work() -> None:
    """As its optimiser counts; and the parameters move."""
    contender = speed_jax.make(TINY)
    before = np.asarray(contender.state.parameters["w_hidden"]).copy()
    contender.iterate(2)
    assert contender.done() == Done(2 * TINY.samples, 2 * TINY.gradient_steps)
    assert np.abs(np.asarray(contender.state.parameters["w_hidden"]) - before).max() > 1e-4

"""The JAX contender: its market is ours, its memory is cleared, its gradient points the right way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed (it is in the extra bench)")
pytest.importorskip("optax", reason="optax is not installed (it is in the extra bench)")

import jax

from benchmarks import speed_jax, speed_jax_market
from benchmarks.plain_market import ACTIONS, COLUMNS, OBSERVATION, PlainMarket
from benchmarks.speed_contenders import Done
from benchmarks.speed_work import Work

TINY = Work("lstm", hidden=8, environments=4, steps=4, epochs=2, minibatches=2)
SHAPE = (TINY.steps, TINY.environments)

# Compiled as wholes: JAX would otherwise compile every small operation on its own.
step, observe = jax.jit(speed_jax_market.step), jax.jit(speed_jax_market.observe)
make_parameters = jax.jit(speed_jax.make_parameters, static_argnums=1)
one_step = jax.jit(speed_jax.one_step, static_argnums=0)
all_steps = jax.jit(speed_jax.all_steps, static_argnums=0)
gradient = jax.jit(jax.grad(speed_jax.loss_of), static_argnums=1)


def _accounts(market: PlainMarket) -> speed_jax_market.Accounts:
    columns: Any = [market.account[:, k].copy() for k in range(COLUMNS)]
    places: Any = [market.place[:, k].astype(np.int32) for k in range(2)]
    return speed_jax_market.Accounts(*places, *columns)


def test_both_markets_are_one() -> None:
    """From the same accounts with the same actions: rewards, ends and, until an account restarts, observations."""
    market = PlainMarket(32)
    market.reset(seed=3)
    market.place[:4, 1] = 1020  # ends within the test
    bars, rng, key = speed_jax_market.load(), np.random.default_rng(0), jax.random.key(0)
    ended = 0
    for _ in range(12):
        state = _accounts(market)
        action = rng.integers(0, ACTIONS, 32)
        obs, reward, done, _, _ = market.step(action)
        following, their_reward, their_done = step(bars, state, action, key)
        assert np.array_equal(np.asarray(their_done), done)
        np.testing.assert_allclose(np.asarray(their_reward), reward, rtol=1e-4, atol=1e-6)
        seen = np.asarray(observe(bars, following))
        np.testing.assert_allclose(seen[~done], obs[~done], rtol=1e-4, atol=1e-5)
        assert seen.shape[1] == OBSERVATION
        ended += int(done.sum())
    assert ended >= 4


def _batch(rng: np.random.Generator) -> speed_jax.Batch:
    """The first two environments took action 0 and were paid for it, the others action 2 and were not; all returned a
    half. An episode begins in the middle of environment 1."""
    paid = np.broadcast_to(np.arange(TINY.environments) < 2, SHAPE)
    begins = np.zeros(SHAPE, dtype=bool)
    begins[2, 1] = True
    fields: Any = {
        "obs": rng.standard_normal((*SHAPE, OBSERVATION)).astype(np.float32),
        "action": np.where(paid, 0, 2).astype(np.int32),
        "log_prob": np.full(SHAPE, -np.log(3.0), dtype=np.float32),
        "advantage": np.where(paid, 1.0, -1.0).astype(np.float32),
        "target": np.full(SHAPE, 0.5, dtype=np.float32),
        "begins": begins,
    }
    return speed_jax.Batch(**fields)


def _memory(value: float) -> Any:
    return tuple(np.full((TINY.environments, TINY.hidden), sign * value, dtype=np.float32) for sign in (1, -1))


def test_a_minibatch_is_the_rollout_again() -> None:
    """Steps one by one and all at once agree. Rejects an LSTM that keeps its memory across episodes: without the start
    in the middle the later steps differ."""
    p = make_parameters(jax.random.key(1), TINY)
    batch, memory = _batch(np.random.default_rng(1)), _memory(0.5)
    together = np.asarray(all_steps(TINY, p, batch, memory))
    carried, outputs = memory, []
    for t in range(TINY.steps):
        out, carried = one_step(TINY, p, batch.obs[t], carried, batch.begins[t])
        outputs.append(np.asarray(out))
    np.testing.assert_allclose(together, np.stack(outputs), rtol=1e-5, atol=1e-6)
    never: Any = np.zeros(SHAPE, dtype=bool)
    remembering = np.asarray(all_steps(TINY, p, batch._replace(begins=never), memory))
    assert np.abs(remembering - together)[2:, 1].max() > 1e-4


def test_the_gradient_points_to_what_paid_and_to_the_return() -> None:
    """By the heads' biases: descending raises the logit of the action that paid, lowers that of the other one, and
    moves every quantile towards a return above it, the higher levels more."""
    p = make_parameters(jax.random.key(1), TINY)
    p = {**p, "heads": np.zeros(p["heads"].shape, dtype=np.float32)}
    slope = np.asarray(gradient(p, TINY, _batch(np.random.default_rng(2)), _memory(0.0))["heads_bias"])
    assert slope[0] < 0 < slope[2]
    quantiles = slope[ACTIONS:].reshape(2, speed_jax.QUANTILES)
    assert (quantiles < 0).all()
    assert (np.diff(quantiles, axis=1) < 0).all()


def test_it_does_the_same_work() -> None:
    """As its optimiser counts; and the parameters move. Without memory, which compiles in half the time; with one, the
    benchmark itself counts."""
    work = replace(TINY, network="mlp")
    contender = speed_jax.make(work)
    before = np.asarray(contender.state.parameters["encoder_0"]).copy()
    contender.iterate(2)
    assert contender.done() == Done(2 * work.samples, 2 * work.gradient_steps)
    assert np.abs(np.asarray(contender.state.parameters["encoder_0"]) - before).max() > 1e-4

"""`PlainMarket` a second time, as pure functions of JAX; a test holds the two against each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.plain_market import BARS, COST, DRAWDOWN, EARLIER, EPISODE, make_bars

Array = jax.Array


class Accounts(NamedTuple):
    """The state of N accounts; every field [N]."""

    at: Array
    age: Array
    position: Array
    equity: Array
    peak: Array
    paid: Array
    last: Array


class Market(NamedTuple):
    """features [BARS, F], returns [BARS]."""

    features: Array
    returns: Array


def load() -> Market:
    features, returns = make_bars()
    return Market(jnp.asarray(features), jnp.asarray(returns))


def fresh(at: Array) -> Accounts:
    """Accounts that begin at bars `at`."""
    zero, one = jnp.zeros(at.shape, jnp.float32), jnp.ones(at.shape, jnp.float32)
    return Accounts(at, jnp.zeros(at.shape, jnp.int32), zero, one, one, zero, zero)


def random_bars(key: Any, accounts: int) -> Array:
    """Bars from which a whole episode fits."""
    return jax.random.randint(key, (accounts,), 1, BARS - EPISODE - 2)


def observe(market: Market, state: Accounts) -> Array:
    """[N, OBSERVATION]."""
    account = jnp.stack(
        [
            state.position,
            jnp.log(state.equity),
            1.0 - state.equity / state.peak,
            state.age.astype(jnp.float32) / EPISODE,
            state.paid * 100.0,
            state.last * 100.0,
            state.position * state.position,
            jnp.ones_like(state.position),
        ],
        axis=-1,
    )
    return jnp.concatenate([market.features[state.at], market.features[state.at - 1, :EARLIER], account], axis=-1)


def step(market: Market, state: Accounts, action: Array, key: Any) -> tuple[Accounts, Array, Array]:
    """(next state, with finished accounts started again; reward [N]; done [N])."""
    target = (action - 1).astype(jnp.float32)
    cost = jnp.abs(target - state.position) * COST
    at, age = state.at + 1, state.age + 1
    growth = (1.0 - cost) * (1.0 + target * market.returns[at])
    reward = jnp.log(growth)
    equity = state.equity * growth
    peak = jnp.maximum(state.peak, equity)
    done = (equity < (1.0 - DRAWDOWN) * peak) | (age >= EPISODE)
    lived = Accounts(at, age, target, equity, peak, state.paid + cost, reward)
    restarted = fresh(random_bars(key, action.shape[0]))
    following = jax.tree.map(lambda new, old: jnp.where(done, new, old), restarted, lived)
    return following, reward, done

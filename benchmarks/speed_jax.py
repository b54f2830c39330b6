"""A JAX contender: PPO with market, rollout, advantages, epochs and minibatches in one compiled function.

The fastest plain way of JAX on a CPU: nothing leaves the compiled code, buffers are donated, one thread. Its critic is
two times 32 quantiles on the scalar lambda-return, which is less than ours does (64 on particles); or one mean, where
everybody has one.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

# Before jax is imported: one thread, as all contenders have.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import speed_jax_market as market
from benchmarks.plain_market import ACTIONS, EPISODE, OBSERVATION
from benchmarks.speed_contenders import Done
from benchmarks.speed_work import GATES, Work

QUANTILES = 32  # of each of two critics
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM, RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 3e-4

Array = jax.Array
Parameters = dict[str, Array]
Memory = tuple[Array, Array]  # hidden state and cell [N, H]
OPTIMISER = optax.chain(optax.clip_by_global_norm(NORM), optax.adam(RATE, eps=1e-5))


class Batch(NamedTuple):
    """What is learnt from; fields [T, b, ...], or [n, ...] without memory. begins: the row starts an episode."""

    obs: Array
    action: Array
    log_prob: Array
    advantage: Array
    target: Array
    begins: Array


class State(NamedTuple):
    """Everything that goes from one iteration to the next."""

    parameters: Parameters
    moments: Any
    accounts: market.Accounts
    memory: Memory
    begins: Array
    key: Any


# ------------------------------------------------------------------------------------------------ network


def outputs_of(work: Work) -> int:
    """Columns of the heads: the policy, then the critics."""
    return ACTIONS + (1 if work.critic == "scalar" else 2 * QUANTILES)


def make_parameters(key: Any, work: Work) -> Parameters:
    """Weights of size 1/sqrt(inputs); the heads smaller."""
    width, made = OBSERVATION, {}
    keys = iter(jax.random.split(key, 8))

    def weight(rows: int, columns: int, scale: float = 1.0) -> Array:
        return scale * jax.random.normal(next(keys), (rows, columns)) / np.sqrt(rows)

    for k, units in enumerate(work.encoder):
        made[f"encoder_{k}"], made[f"encoder_bias_{k}"] = weight(width, units), jnp.zeros(units)
        width = units
    if work.network == "lstm":
        gates = GATES * work.hidden
        made |= {"w_in": weight(width, gates), "w_hidden": weight(work.hidden, gates), "b_gates": jnp.zeros(gates)}
        width = work.hidden
    return made | {"heads": weight(width, outputs_of(work), 0.1), "heads_bias": jnp.zeros(outputs_of(work))}


def encode(work: Work, p: Parameters, obs: Array) -> Array:
    for k in range(len(work.encoder)):
        obs = jnp.tanh(obs @ p[f"encoder_{k}"] + p[f"encoder_bias_{k}"])
    return obs


def cell(p: Parameters, inputs: Array, memory: Memory) -> Memory:
    """One step of the LSTM; inputs [b, 4H] are already multiplied with their weights."""
    hidden, inner = memory
    i, f, g, o = jnp.split(inputs + hidden @ p["w_hidden"], GATES, axis=-1)
    inner = jax.nn.sigmoid(f) * inner + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(inner), inner


def forget(memory: Memory, begins: Array) -> Memory:
    """Zeros where an episode begins."""
    keep = (1.0 - begins.astype(jnp.float32))[:, None]
    return memory[0] * keep, memory[1] * keep


def one_step(work: Work, p: Parameters, obs: Array, memory: Memory, begins: Array) -> tuple[Array, Memory]:
    """Outputs [N, columns] for one step of all accounts, and the memory after it."""
    features = encode(work, p, obs)
    if work.network == "lstm":
        memory = cell(p, features @ p["w_in"] + p["b_gates"], forget(memory, begins))
        features = memory[0]
    return features @ p["heads"] + p["heads_bias"], memory


def all_steps(work: Work, p: Parameters, batch: Batch, memory: Memory) -> Array:
    """Outputs for a whole minibatch."""
    features = encode(work, p, batch.obs)
    if work.network == "lstm":

        def walk(memory: Memory, row: tuple[Array, Array]) -> tuple[Memory, Array]:
            memory = cell(p, row[0], forget(memory, row[1]))
            return memory, memory[0]

        _, features = jax.lax.scan(walk, memory, (features @ p["w_in"] + p["b_gates"], batch.begins))
    return features @ p["heads"] + p["heads_bias"]


def value_of(work: Work, outputs: Array) -> Array:
    """The critic's mean, the lower one of two."""
    if work.critic == "scalar":
        return outputs[..., ACTIONS]
    laws = outputs[..., ACTIONS:].reshape((*outputs.shape[:-1], 2, QUANTILES))
    return laws.mean(-1).min(-1)


# ------------------------------------------------------------------------------------------------ losses


def loss_of(p: Parameters, work: Work, batch: Batch, memory: Memory) -> Array:
    """Clipped surrogate, entropy, and the squared error or the quantile Huber loss on the lambda-return."""
    outputs = all_steps(work, p, batch, memory).reshape(-1, outputs_of(work))
    action, old, advantage, target = (
        x.reshape(-1) for x in (batch.action, batch.log_prob, batch.advantage, batch.target)
    )
    log_probs = jax.nn.log_softmax(outputs[:, :ACTIONS])
    ratio = jnp.exp(jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0] - old)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantage).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    error = target[:, None] - outputs[:, ACTIONS:]
    if work.critic == "scalar":
        return policy - ENTROPY * entropy + VALUE * jnp.square(error).mean()
    levels = jnp.tile((jnp.arange(QUANTILES) + 0.5) / QUANTILES, 2)
    inside = jnp.clip(error, -1.0, 1.0)
    critic = (jnp.abs(levels - (error < 0)) * inside * (error - 0.5 * inside)).sum(-1).mean() / QUANTILES
    return policy - ENTROPY * entropy + VALUE * critic


def advantages(reward: Array, done: Array, value: Array, last: Array) -> Array:
    """GAE [T, N]."""

    def back(carry: tuple[Array, Array], row: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        following, trace = carry
        r, ended, v = row
        goes_on = 1.0 - ended.astype(jnp.float32)
        trace = r + GAMMA * goes_on * following - v + GAMMA * LAMBDA * goes_on * trace
        return (v, trace), trace

    _, found = jax.lax.scan(back, (last, jnp.zeros_like(last)), (reward, done, value), reverse=True)
    return found


# ------------------------------------------------------------------------------------------------ iteration


def collect(work: Work, bars: market.Market, state: State) -> tuple[State, Batch, Array]:
    """One rollout: (state after it, what is learnt from [T, N, ...], mean reward)."""
    p = state.parameters

    def walk(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], tuple[Array, ...]]:
        accounts, memory, begins, key = carry
        key, for_action, for_market = jax.random.split(key, 3)
        obs = market.observe(bars, accounts)
        outputs, memory = one_step(work, p, obs, memory, begins)
        logits = outputs[:, :ACTIONS]
        action = jax.random.categorical(for_action, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        accounts, reward, done = market.step(bars, accounts, action, for_market)
        return (accounts, memory, done, key), (obs, action, log_prob, value_of(work, outputs), reward, done, begins)

    carry = (state.accounts, state.memory, state.begins, state.key)
    (accounts, memory, begins, key), rows = jax.lax.scan(walk, carry, None, work.steps)
    obs, action, log_prob, value, reward, done, began = rows
    last, _ = one_step(work, p, market.observe(bars, accounts), memory, begins)
    advantage = advantages(reward, done, value, value_of(work, last))
    batch = Batch(obs, action, log_prob, advantage, advantage + value, began)
    return State(p, state.moments, accounts, memory, begins, key), batch, reward.mean()


def split(work: Work, batch: Batch, memory: Memory, key: Any) -> tuple[Batch, Memory]:
    """Shuffled minibatches, [minibatches, ...]: whole accounts with a memory, rows without."""
    parts, accounts = work.minibatches, work.environments
    if work.network == "lstm":
        order = jax.random.permutation(key, accounts)

        def cut(x: Array) -> Array:
            return jnp.swapaxes(x[:, order].reshape((work.steps, parts, accounts // parts, *x.shape[2:])), 0, 1)

        rows = jax.tree.map(cut, batch)
        return rows, jax.tree.map(lambda x: x[order].reshape(parts, accounts // parts, work.hidden), memory)
    order = jax.random.permutation(key, work.samples)

    def shuffle(x: Array) -> Array:
        return x.reshape((work.samples, *x.shape[2:]))[order].reshape((parts, -1, *x.shape[2:]))

    return jax.tree.map(shuffle, batch), jax.tree.map(lambda _: jnp.zeros(parts), memory)


@partial(jax.jit, static_argnames="work", donate_argnames="state")
def iterate(state: State, bars: market.Market, work: Work) -> tuple[State, Array]:
    """A rollout and all epochs over it; the mean reward."""
    memory = state.memory
    state, batch, reward = collect(work, bars, state)

    def minibatch(carry: tuple[Parameters, Any], rows: tuple[Batch, Memory]) -> tuple[tuple[Parameters, Any], None]:
        p, moments = carry
        gradient = jax.grad(loss_of)(p, work, *rows)
        change, moments = OPTIMISER.update(gradient, moments, p)
        return (optax.apply_updates(p, change), moments), None

    def epoch(carry: tuple[Parameters, Any, Any], _: None) -> tuple[tuple[Parameters, Any, Any], None]:
        p, moments, key = carry
        key, mine = jax.random.split(key)
        (p, moments), _ = jax.lax.scan(minibatch, (p, moments), split(work, batch, memory, mine))
        return (p, moments, key), None

    (p, moments, key), _ = jax.lax.scan(epoch, (state.parameters, state.moments, state.key), None, work.epochs)
    return state._replace(parameters=p, moments=moments, key=key), reward


@partial(jax.jit, static_argnames=("work", "seed"))
def begin(work: Work, seed: int = 0) -> State:
    """Accounts at random bars with random ages, as in `PlainMarket.reset`."""
    for_weights, for_bars, for_ages, key = jax.random.split(jax.random.PRNGKey(seed), 4)
    p = make_parameters(for_weights, work)
    accounts = market.fresh(market.random_bars(for_bars, work.environments))
    accounts = accounts._replace(age=jax.random.randint(for_ages, (work.environments,), 0, EPISODE - 1))
    shape = (work.environments, work.hidden if work.network == "lstm" else 1)
    memory = (jnp.zeros(shape), jnp.zeros(shape))
    return State(p, OPTIMISER.init(p), accounts, memory, jnp.ones(work.environments, bool), key)


class InOneJit:
    """See `benchmarks.speed_contenders.Contender`."""

    def __init__(self, work: Work) -> None:
        self.work, self.bars = work, market.load()
        self.state = jax.tree.map(jnp.copy, begin(work))  # what shares memory cannot be given away
        self.rewards: list[float] = []

    def iterate(self, times: int) -> None:
        found = []
        for _ in range(times):
            self.state, reward = iterate(self.state, self.bars, self.work)
            found.append(reward)
        self.rewards += [float(reward) for reward in jax.block_until_ready(found)]
        jax.block_until_ready(self.state.parameters)

    def done(self) -> Done:
        return Done(len(self.rewards) * self.work.samples, int(optax.tree_utils.tree_get(self.state.moments, "count")))

    def facts(self) -> dict[str, float]:
        return {"parameters": float(sum(x.size for x in jax.tree.leaves(self.state.parameters)))}


def make(work: Work) -> InOneJit:
    return InOneJit(work)

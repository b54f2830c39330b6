"""Forward passes without a way back: decisions, critic outputs, and the KL of the policy over a rollout.

The twins are `tailwise.model.actor_critic.decide`, `TorchBackend.encode` and `ppo.record`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.fused.dense import forward
from tailwise.fused.layout import LSTM, Network, Parameters, aligned_zeros
from tailwise.fused.policy_loss import FORBIDDEN, HALF_LOG_2PI, log_jacobian, log_softmax
from tailwise.fused.products import REPEATED, Matrix, multiply
from tailwise.fused.recurrent import add_row, gru_cells, lstm_cells
from tailwise.fused.rows import BLOCK, Rows, Scratch, Standard, gather, standardise
from tailwise.fused.vectors import clear, copy

_ZERO = np.float32(0.0)


class StepMemory(NamedTuple):
    """Workspaces of one vector step of `rows` rows, flat float32; policy [3, rows * K]; order: 0 to rows - 1."""

    trunk: np.ndarray
    heads: np.ndarray
    gates: np.ndarray
    hidden: np.ndarray
    before: np.ndarray
    inner: np.ndarray
    policy: np.ndarray
    order: np.ndarray


def step_memory(network: Network, rows: int) -> StepMemory:
    """Allocate the memory of `act` on up to `rows` rows."""

    def floats(width: int) -> np.ndarray:
        return aligned_zeros(rows * width).numpy()

    gates = (4 if network.core == LSTM else 3) * network.hidden
    return StepMemory(
        trunk=floats(network.trunk_width),
        heads=floats(network.policy_width),
        gates=floats(gates),
        hidden=floats(gates),
        before=floats(network.hidden),
        inner=floats(network.hidden),
        policy=np.zeros((3, rows * network.actor), dtype=np.float32),
        order=np.arange(rows),
    )


@kernel(inline=True)
def core_step(
    parameters: Parameters,
    read: np.ndarray,
    state: np.ndarray,
    start: np.ndarray,
    memory: StepMemory,
    features: np.ndarray,
    after: np.ndarray,
) -> None:
    """features [n, H] and the state after [n, S, H] of one step of LSTM or GRU from read [n, I+H], flat: what the trunk
    encoded, and room for the state beside it."""
    network, flat, panels = parameters.network, parameters.flat, parameters.panels
    rows, inputs, lead = features.shape[0], network.encoded_width, network.encoded_lead
    size, lstm = network.hidden, network.core == LSTM
    wide = (4 if lstm else 3) * size
    for i in range(rows):
        h, c = read[i * lead + inputs : (i + 1) * lead], memory.before[i * size : (i + 1) * size]
        if start[i]:
            clear(h)
            clear(c)
        else:
            copy(state[i, 0], h)
            if lstm:
                copy(state[i, 1], c)
    gates, hidden = memory.gates[: rows * wide], memory.hidden[: rows * wide]
    bias, bias_hidden = flat[network.b_in : network.b_in + wide], flat[network.b_hidden : network.b_hidden + wide]
    if lstm:
        copy(bias, hidden)
        bias = hidden[:wide]
        add_row(bias, bias_hidden)
    to_gates, flat_after, h = panels[network.in_panels :], after.reshape(-1), features.reshape(-1)
    encoded, entering, next_h = Matrix(read, lead), Matrix(gates, wide), Matrix(flat_after, after.shape[1] * size)
    if lstm:
        multiply((rows, wide, lead), encoded, to_gates, Matrix(bias, REPEATED), entering)
        next_c = Matrix(flat_after[size:], next_h.lead)
        lstm_cells((rows, size), gates, memory.before, memory.inner, h, next_c, next_h)
    else:
        multiply((rows, wide, inputs), encoded, to_gates, Matrix(bias, REPEATED), entering)
        before_h, to_hidden = Matrix(read[inputs:], lead), panels[network.hidden_panels :]
        multiply((rows, wide, size), before_h, to_hidden, Matrix(bias_hidden, REPEATED), Matrix(hidden, wide))
        gru_cells((rows, size), gates, hidden, before_h, memory.inner, h, next_h)


@kernel(inline=True)
def _choose(p: np.ndarray, uniform: float) -> int:
    """The action whose cumulative probability first exceeds `uniform`; never one of probability 0."""
    total, last = 0.0, 0
    for k in range(p.shape[0]):
        total += p[k]
        if p[k] > 0.0:
            last = k
    running, index = 0.0, 0
    for k in range(p.shape[0]):
        running += p[k]
        if running <= uniform * total:
            index += 1
    return min(index, last)


class Inputs(NamedTuple):
    """What one vector step decides on.

    obs float32 [n, D]; start bool [n]; mask bool [n, K] or [0, 0]; noise float64: uniforms [n, 1] (Discrete) or normals
    [n, A], [0, 0] for the most likely action.
    """

    obs: np.ndarray
    start: np.ndarray
    mask: np.ndarray
    noise: np.ndarray


class Outputs(NamedTuple):
    """What one vector step writes: choice int64 [n] (Discrete) or action [n, A] (Box), log_prob [n], params [n, P],
    features [n, H], the new state [n, S, H]; float32 but for choice."""

    choice: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray
    params: np.ndarray
    features: np.ndarray
    state: np.ndarray


@kernel
def act(
    parameters: Parameters,
    log_std: np.ndarray | None,
    standard: Standard,
    inputs: Inputs,
    state: np.ndarray | None,
    memory: StepMemory,
    outputs: Outputs,
) -> None:
    """Decide in one vector step; the panels are those of `Laid.to_act`.

    log_std [A] of a Box policy, None for Discrete; state [n, S, H], None without a core: arguments of their own,
    because what is done with an argument that is None is not compiled.
    """
    network, flat, panels = parameters.network, parameters.flat, parameters.panels
    rows, size, features = inputs.obs.shape[0], network.actor, outputs.features
    width = features.shape[1]
    standardise(inputs.obs, standard, memory.trunk, network.input_lead)
    forward(network.trunk, flat, panels, memory.trunk, rows)
    encoded = memory.trunk[network.encoded * rows :]
    if state is None:
        for i in range(rows):
            copy(encoded[i * width : (i + 1) * width], features[i])
    else:
        core_step(parameters, encoded, state, inputs.start, memory, features, outputs.state)
    for i in range(rows):
        copy(features[i], memory.heads[i * width :])
    forward(network.policy, flat, panels, memory.heads, rows)
    out = memory.heads[network.policy_output * rows : (network.policy_output + size) * rows]
    if log_std is None:
        log_softmax(out, size, memory.order[:rows], size, inputs.mask, memory.policy)
        _act_discrete(out, inputs, memory.policy, outputs)
    else:
        for i in range(rows):
            mean = out[i * size : (i + 1) * size]
            outputs.log_prob[i] = _act_box(mean, log_std, network.squashed, inputs.noise, i, outputs)


@kernel(inline=True)
def _act_discrete(logits: np.ndarray, inputs: Inputs, policy: np.ndarray, outputs: Outputs) -> None:
    """Actions of all rows, their parameters and log-probabilities; logits flat [n * K], policy [3, n * K]: as from
    `log_softmax`."""
    mask, noise, params = inputs.mask, inputs.noise, outputs.params
    size = params.shape[1]
    for i in range(params.shape[0]):
        log_p, p = policy[0, i * size : (i + 1) * size], policy[1, i * size : (i + 1) * size]
        best = 0
        for k in range(size):
            params[i, k] = logits[i * size + k] if mask.shape[0] == 0 or mask[i, k] else FORBIDDEN
            if log_p[k] > log_p[best]:
                best = k
        outputs.choice[i] = _choose(p, noise[i, 0]) if noise.shape[0] else best
        outputs.log_prob[i] = log_p[outputs.choice[i]]


@kernel(inline=True)
def _act_box(
    mean: np.ndarray, log_std: np.ndarray, squashed: int, noise: np.ndarray, i: int, outputs: Outputs
) -> float:
    """Row i of a Gaussian policy with means [A]: its action, its parameters, and the log-probability as result."""
    action, params = outputs.action, outputs.params
    size, total = mean.shape[0], 0.0
    for a in range(size):
        spread = log_std[a]
        drawn = np.float32(noise[i, a]) if noise.shape[0] else _ZERO
        action[i, a] = mean[a] + np.exp(spread) * drawn
        params[i, a], params[i, size + a] = mean[a], spread
        # From the stored action, as the update will see it.
        z = (np.float64(action[i, a]) - np.float64(mean[a])) * np.exp(-np.float64(spread))
        total += -0.5 * z * z - np.float64(spread) - HALF_LOG_2PI
        if squashed:
            total -= log_jacobian(np.float64(action[i, a]))
    return total


@kernel
def values(parameters: Parameters, features: np.ndarray, work: np.ndarray, mean: np.ndarray, law: np.ndarray) -> None:
    """Critic outputs at features [n, H]: mean [n, C], law [n, C, N], N = 0 without one; work: BLOCK rows of the values'
    workspace; the panels are those of `Laid.to_value`."""
    network = parameters.network
    width, quantiles, critics = features.shape[1], network.quantiles, network.critics
    outputs = critics * (1 + quantiles)
    for first in range(0, features.shape[0], BLOCK):
        n = min(BLOCK, features.shape[0] - first)
        for i in range(n):
            copy(features[first + i], work[i * width :])
        forward(network.values, parameters.flat, parameters.panels, work, n)
        for i in range(n):
            at = network.values_output * n + i * outputs
            mean[first + i, 0] = work[at]
            mean[first + i, critics - 1] = work[at + outputs - 1] if critics == 2 else work[at]
            for c in range(critics if quantiles > 0 else 0):
                copy(work[at + 1 + c * quantiles : at + 1 + (c + 1) * quantiles], law[first + i, c])


@kernel(inline=True)
def _discrete_kl(log_p: np.ndarray, r: int, old: np.ndarray) -> float:
    """KL of row r with the new log-probabilities log_p [K]; old [R, 2K] as in `Rows`."""
    size, kl = log_p.shape[0], 0.0
    for k in range(size):
        p = np.float64(old[r, size + k])
        if p > 0.0:
            kl += p * (np.float64(old[r, k]) - np.float64(log_p[k]))
    return kl


@kernel(inline=True)
def _box_kl(out: np.ndarray, log_std: np.ndarray, r: int, rows: Rows) -> float:
    """KL of row r with means out [A]."""
    size, kl = out.shape[0], 0.0
    for a in range(size):
        spread = np.float64(log_std[a])
        twice = 2.0 * (np.float64(rows.old[r, size + a]) - spread)
        moved = (np.float64(rows.old[r, a]) - np.float64(out[a])) * np.exp(-spread)
        kl += 0.5 * (np.expm1(twice) - twice + moved * moved)
    return kl


@kernel(inline=True)
def _sum_rows(out: np.ndarray, part: np.ndarray, log_std: np.ndarray | None, rows: Rows, policy: np.ndarray) -> float:
    """Sum of KL over the valid ones of the rows `part` [n] whose outputs are out [n * K], flat; policy: as in
    `log_softmax`."""
    n, total = part.shape[0], 0.0
    size = out.shape[0] // n
    if log_std is None:
        log_softmax(out, size, part, size, rows.mask, policy)
    for i in range(n):
        if rows.valid[part[i]]:
            mine = slice(i * size, (i + 1) * size)
            if log_std is None:
                total += _discrete_kl(policy[0, mine], part[i], rows.old)
            else:
                total += _box_kl(out[mine], log_std, part[i], rows)
    return total


@kernel
def sum_kl(
    parameters: Parameters, log_std: np.ndarray | None, rows: Rows, index: np.ndarray, scratch: Scratch
) -> float:
    """Sum of KL(old || new) of the policy over the valid rows among `index` [n], without a core; log_std [A] of a Box
    policy or None."""
    network, flat, panels = parameters.network, parameters.flat, parameters.panels
    width, total = network.features_width, 0.0
    for first in range(0, index.shape[0], BLOCK):
        part = index[first : first + BLOCK]
        n = part.shape[0]
        gather(rows.obs, part, scratch.work, network.input_lead)
        forward(network.trunk, flat, panels, scratch.work, n)
        copy(scratch.work[network.features * n : (network.features + width) * n], scratch.back)
        forward(network.policy, flat, panels, scratch.back, n)
        out = scratch.back[network.policy_output * n : (network.policy_output + network.actor) * n]
        total += _sum_rows(out, part, log_std, rows, scratch.policy)
    return total


@kernel
def sum_kl_along(
    parameters: Parameters,
    log_std: np.ndarray | None,
    rows: Rows,
    order: np.ndarray,
    state: np.ndarray,
    memory: StepMemory,
) -> float:
    """Sum of KL(old || new) over the valid steps of some neighbouring environments, step by step as they were decided:
    nothing is kept for a way back.

    order [T, n]: their rows; state [n, S, H] before step 0, in place; log_std [A] of a Box policy or None.
    """
    network, flat, panels = parameters.network, parameters.flat, parameters.panels
    steps, n = order.shape
    width, total = network.features_width, 0.0
    features = memory.heads[: n * width].reshape(n, width)
    out = memory.heads[network.policy_output * n : (network.policy_output + network.actor) * n]
    read = memory.trunk[network.encoded * n :]
    for t in range(steps):
        part = order[t]
        gather(rows.obs, part, memory.trunk, network.input_lead)
        forward(network.trunk, flat, panels, memory.trunk, n)
        start = rows.start[part[0] : part[0] + n]
        core_step(parameters, read, state, start, memory, features, state)
        forward(network.policy, flat, panels, memory.heads, n)
        total += _sum_rows(out, part, log_std, rows, memory.policy)
    return total

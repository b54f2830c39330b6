"""Forward and backward of a share of a minibatch in one call: rows go through in blocks that fit into the cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.fused.critic_loss import critic_rows
from tailwise.fused.dense import backward, forward
from tailwise.fused.layout import Network
from tailwise.fused.memory import copy
from tailwise.fused.policy_loss import box_rows, discrete_rows
from tailwise.fused.recurrent import Tape, core_backward, core_forward
from tailwise.fused.rows import Draws, Rows, Weights

BLOCK = 256  # rows: their activations and gradients fill half a megabyte; 64 to 192 were measured, and no faster


class Scratch(NamedTuple):
    """Memory of one worker; float32 unless said.

    work, back: activations and their gradients of a block; grad: of all parameters, [size of flat]; sums: float64;
    policy: [3, BLOCK * K]; totals: [C, TOTALS] of `particle_loss`; log_std_grad: float64 [A] or [0].
    """

    work: np.ndarray
    back: np.ndarray
    grad: np.ndarray
    sums: np.ndarray
    policy: np.ndarray
    totals: np.ndarray
    log_std_grad: np.ndarray


class Trunk(NamedTuple):
    """Memory of one worker for the trunk over whole sequences: activations and their gradients; places int64: the
    rows that the sequences are."""

    work: np.ndarray
    back: np.ndarray
    places: np.ndarray


@kernel
def gather(obs: np.ndarray, index: np.ndarray, target: np.ndarray, lead: int) -> None:
    """Rows `index` [n] of obs [R, D] into target, flat, `lead` floats apart."""
    width = obs.shape[1]
    for i in range(index.shape[0]):
        source, row = obs[index[i]], target[i * lead : i * lead + width]
        for j in range(width):
            row[j] = source[j]


@kernel
def learn_rows(
    network: Network, flat: np.ndarray, panels: np.ndarray, log_std: np.ndarray | None, rows: Rows, index: np.ndarray,
    draws: Draws, weights: Weights, features: np.ndarray | None, back_features: np.ndarray | None, scratch: Scratch,
) -> None:  # fmt: skip
    """Add losses and gradients of the rows `index` [n] to the scratch's sums and grad.

    Without a core (features None) the trunk runs here as well. With one, features [n * H] are its results and
    back_features receives the gradient by them; copies in and out of a block are cheap beside products. panels: what
    `Laid.to_learn` lists of `flat`; log_std [A] of a Box policy, None for Discrete. What is None here is not
    compiled at all.
    """
    work, back, width = scratch.work, scratch.back, network.features_width
    lead, per_row = network.output_width, weights.per_row
    shape = (network.actor, network.critics, network.quantiles, lead)
    policy = (weights.clip, weights.dual_clip, weights.entropy * per_row, per_row)
    for first in range(0, index.shape[0], BLOCK):
        part = index[first : first + BLOCK]
        n = part.shape[0]
        if features is None:
            gather(rows.obs, part, work, network.input_lead)
            forward(network.trunk, flat, panels, work, n)
        else:
            copy(features[first * width : (first + n) * width], work)
        forward(network.heads, flat, panels, work, n)
        out, above = work[network.output * n :], back[network.output * n :]
        critic_rows(
            part, rows.valid, draws.particles, rows.scalars, shape, weights.kappa, weights.value * per_row,
            weights.lean, out, scratch.totals, above, scratch.sums,
        )  # fmt: skip
        if log_std is None:
            discrete_rows(
                part, rows.valid, rows.mask, rows.choice, rows.old, rows.scalars, policy, lead, out, scratch.policy,
                above, scratch.sums,
            )  # fmt: skip
        else:
            box_rows(
                part, rows.valid, rows.action, draws.noise, rows.old, rows.scalars, policy, weights.bounds * per_row,
                lead, out, log_std, above, scratch.log_std_grad, scratch.sums,
            )  # fmt: skip
        backward(network.heads, panels, work, back, n, scratch.grad)
        if back_features is None:
            backward(network.trunk, panels, work, back, n, scratch.grad)
        else:
            copy(back[: n * width], back_features[first * width :])
    # Summed in float64 beside the other gradients, because every row adds to the same few numbers.
    for a in range(scratch.log_std_grad.shape[0]):
        scratch.grad[network.log_std + a] += scratch.log_std_grad[a]
        scratch.log_std_grad[a] = 0.0


@kernel
def learn_sequences(
    network: Network, flat: np.ndarray, panels: np.ndarray, log_std: np.ndarray | None, rows: Rows, envs: np.ndarray,
    draws: Draws, weights: Weights, scratch: Scratch, trunk: Trunk, tape: Tape,
) -> None:  # fmt: skip
    """With a core: add losses and gradients of all steps of the environments `envs` [b]."""
    b = envs.shape[0]
    steps = rows.valid.shape[0] // rows.envs
    n = steps * b
    index = trunk.places[:n]
    for t in range(steps):
        for i in range(b):
            index[t * b + i] = t * rows.envs + envs[i]
    gather(rows.obs, index, trunk.work, network.input_lead)
    forward(network.trunk, flat, panels, trunk.work, n)
    read, back = trunk.work[network.encoded * n :], trunk.back[network.encoded * n :]
    core_forward(network, flat, panels, read, steps, envs, rows.state, rows.start, rows.envs, tape)
    learn_rows(
        network, flat, panels, log_std, rows, index, draws, weights, tape.features, tape.back_features, scratch
    )  # fmt: skip
    core_backward(network, panels, read, steps, envs, rows.start, rows.envs, tape, back, scratch.grad)
    backward(network.trunk, panels, trunk.work, trunk.back, n, scratch.grad)

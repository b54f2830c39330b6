"""Forward and backward of a share of a minibatch in one call: the rows go through in blocks that fit into the cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.dense import backward, forward
from tailwise.kernels.layout import Network
from tailwise.kernels.losses import losses
from tailwise.kernels.recurrent import Tape, core_backward, core_forward
from tailwise.kernels.rows import Rows, Weights

BLOCK = 256  # rows: with the usual widths their activations and gradients fill half a megabyte


class Scratch(NamedTuple):
    """Memory of one worker; float32 unless said.

    work, back: activations and their gradients of a block; grad: of all parameters, [size of flat]; sums: float64;
    policy: float64 [K]; loss: [C*N]; particles: [m]; log_std_grad: float64 [A] or [0].
    """

    work: np.ndarray
    back: np.ndarray
    grad: np.ndarray
    sums: np.ndarray
    policy: np.ndarray
    loss: np.ndarray
    particles: np.ndarray
    log_std_grad: np.ndarray


class Trunk(NamedTuple):
    """Memory of one worker for whole sequences: activations of the trunk and their gradients, and row numbers."""

    work: np.ndarray
    back: np.ndarray
    index: np.ndarray


@kernel
def gather(rows: Rows, index: np.ndarray, target: np.ndarray) -> None:
    """Normalised observations of the rows `index` [n] into target, flat [n * D]."""
    width = rows.obs.shape[1]
    for i in range(index.shape[0]):
        source, row = rows.obs[index[i]], target[i * width : (i + 1) * width]
        for j in range(width):
            row[j] = source[j]


@kernel
def learn_rows(
    network: Network, flat: np.ndarray, rows: Rows, index: np.ndarray, chosen: np.ndarray, weights: Weights,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Without a core: add losses and gradients of the rows `index` to the scratch's sums and grad."""
    shape = (network.actor, network.critics, network.quantiles)
    spread = _log_std(network, flat)
    for first in range(0, index.shape[0], BLOCK):
        part = index[first : first + BLOCK]
        n = part.shape[0]
        gather(rows, part, scratch.work)
        forward(network.trunk, flat, scratch.work, n)
        forward(network.heads, flat, scratch.work, n)
        at = network.output * n
        losses(
            *(part, rows, chosen, weights, shape, spread, scratch.policy, scratch.loss, scratch.particles),
            *(scratch.work[at:], scratch.back[at:], scratch.log_std_grad, scratch.sums),
        )
        backward(network.heads, flat, scratch.work, scratch.back, n, scratch.grad)
        backward(network.trunk, flat, scratch.work, scratch.back, n, scratch.grad)
    _keep_log_std(network, scratch)


@kernel
def learn_sequences(
    network: Network, flat: np.ndarray, rows: Rows, envs: np.ndarray, chosen: np.ndarray, weights: Weights,
    scratch: Scratch, trunk: Trunk, tape: Tape,
) -> None:  # fmt: skip
    """With a core: add losses and gradients of all steps of the environments `envs` [b]."""
    shape = (network.actor, network.critics, network.quantiles)
    steps, width = rows.log_prob.shape[0] // rows.envs, network.hidden
    spread, n = _log_std(network, flat), steps * envs.shape[0]
    index = sequence_rows(rows, envs, trunk)
    encode(network, flat, rows, index, envs, trunk, tape)
    for first in range(0, n, BLOCK):
        part = index[first : first + BLOCK]
        m = part.shape[0]
        # The heads run block by block, like everything without a core: copies in and out are cheap beside products.
        scratch.work[: m * width] = tape.features[first * width : (first + m) * width]
        forward(network.heads, flat, scratch.work, m)
        at = network.output * m
        losses(
            *(part, rows, chosen, weights, shape, spread, scratch.policy, scratch.loss, scratch.particles),
            *(scratch.work[at:], scratch.back[at:], scratch.log_std_grad, scratch.sums),
        )
        backward(network.heads, flat, scratch.work, scratch.back, m, scratch.grad)
        tape.back_features[first * width : (first + m) * width] = scratch.back[: m * width]
    encoded, back = network.encoded * n, trunk.back[network.encoded * n :]
    core_backward(*(network, flat, trunk.work[encoded:], steps, envs, rows.start, rows.envs, tape, back, scratch.grad))
    backward(network.trunk, flat, trunk.work, trunk.back, n, scratch.grad)
    _keep_log_std(network, scratch)


@kernel
def sequence_rows(rows: Rows, envs: np.ndarray, trunk: Trunk) -> np.ndarray:
    """Flat rows of the rollout [T*b] of the sequences `envs` [b], step by step."""
    b = envs.shape[0]
    steps = rows.log_prob.shape[0] // rows.envs
    index = trunk.index[: steps * b]
    for t in range(steps):
        for i in range(b):
            index[t * b + i] = t * rows.envs + envs[i]
    return index


@kernel
def encode(
    network: Network, flat: np.ndarray, rows: Rows, index: np.ndarray, envs: np.ndarray, trunk: Trunk, tape: Tape
) -> None:
    """Trunk and core forward over whole sequences; the features are tape.features."""
    n, steps = index.shape[0], rows.log_prob.shape[0] // rows.envs
    gather(rows, index, trunk.work)
    forward(network.trunk, flat, trunk.work, n)
    core_forward(network, flat, trunk.work[network.encoded * n :], steps, envs, rows.state, rows.start, rows.envs, tape)


@kernel
def _log_std(network: Network, flat: np.ndarray) -> np.ndarray:
    return flat[network.log_std : network.log_std + network.actor] if network.log_std >= 0 else flat[:0]


@kernel
def _keep_log_std(network: Network, scratch: Scratch) -> None:
    """Summed in float64 beside the other gradients, because every row adds to the same few numbers."""
    for a in range(scratch.log_std_grad.shape[0]):
        scratch.grad[network.log_std + a] += scratch.log_std_grad[a]
        scratch.log_std_grad[a] = 0.0

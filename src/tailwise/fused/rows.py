"""What kernels read and write beside the network: observations normalised, rows of the rollout, weights of the loss,
sums and scratch memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tailwise.core.compiled import kernel
from tailwise.learner.batches import Prepared
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.scales import ObservationNormaliser, has_spread

BLOCK = 256  # rows: their activations and gradients fill half a megabyte; 64 to 192 were measured, and no faster


class Standard(NamedTuple):
    """The normaliser as it is during a rollout: x -> clamp((x - mean) * scale, +-clip) where scaled; float32 [D].

    clip: infinite where observations pass as they are.
    """

    mean: np.ndarray
    scale: np.ndarray
    scaled: np.ndarray
    clip: float


def standard_of(normaliser: ObservationNormaliser) -> Standard:
    """What `ObservationNormaliser.forward` computes with, read once."""
    if normaliser.clip is None:
        size = normaliser.mean.shape[0]
        return Standard(np.zeros(size, np.float32), np.ones(size, np.float32), np.zeros(size, np.bool_), float("inf"))
    mean, variance = normaliser.mean.numpy(), normaliser.variance.numpy()
    signal = has_spread(mean, variance)
    scale = np.divide(1.0, np.sqrt(variance), out=np.zeros_like(variance), where=signal)
    return Standard(
        mean.astype(np.float32), scale.astype(np.float32), normaliser.scaled.numpy(), float(normaliser.clip)
    )


@kernel(fuse=True)
def standardise(obs: np.ndarray, standard: Standard, target: np.ndarray, lead: int) -> None:
    """obs [n, D] raw -> target, flat, `lead` floats apart; NaN passes."""
    size, clip = obs.shape[1], np.float32(standard.clip)
    for i in range(obs.shape[0]):
        row, out = obs[i], target[i * lead : i * lead + size]
        for j in range(size):
            x = (row[j] - standard.mean[j]) * standard.scale[j]
            x = -clip if x < -clip else x
            x = clip if x > clip else x
            out[j] = x if standard.scaled[j] else row[j]


class Rows(NamedTuple):
    """A rollout by flat row r = t*B + b; float32 unless said. Arrays that do not apply have no rows.

    obs [R, D] normalised; choice int64 [R] (Discrete); action [R, A] (Box); mask bool [R, K]; scalars [R, 3]: the
    log-probability of the action, its advantage, the target of the means, together because minibatches read rows at
    random; old: of the policy that acted, log-probabilities and probabilities [R, 2K] (Discrete) or means and ln(std)
    [R, 2A] (Box); valid bool [R]; start bool [R]; state [B, S, H] before step 0; envs: B.
    """

    obs: np.ndarray
    choice: np.ndarray
    action: np.ndarray
    mask: np.ndarray
    scalars: np.ndarray
    old: np.ndarray
    valid: np.ndarray
    start: np.ndarray
    state: np.ndarray
    envs: int


class Draws(NamedTuple):
    """Random numbers of one epoch, float32: particles [R, m] that each row looks at, side by side so that a row reads
    one cache line instead of m; noise [R, A]: normals for the sampled entropy of a squashed policy, else [0, 0]."""

    particles: np.ndarray
    noise: np.ndarray


class Weights(NamedTuple):
    """Numbers of the loss. per_row: 1 / rows of the minibatch; bounds: of the means' overshoot; prior: of the pull to
    prior_law, float64 [P], log-probabilities or means and ln(std), [0] without one; value: weight of each critic's
    terms; dual_clip: inf is off; kappa: of the Huber function; tau_weight: 2 tau - 1 of a critic's quantiles, float32
    [N]."""

    clip: float
    dual_clip: float
    entropy: float
    bounds: float
    prior: float
    value: float
    kappa: float
    per_row: float
    tau_weight: np.ndarray
    prior_law: np.ndarray


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


# Sums over rows, float64 [SUMS + 2 * critics]; the four extremes are not summed.
POLICY, ENTROPY, KL, CLIPPED, DUAL, CLAMPED, NAN, INFINITE, LOGIT_RANGE, DISAGREEMENT, CROSSINGS, MEAN_GAP = range(12)
LOG_RATIO_MAX, RATIO_MAX, ENTROPY_MAX, ENTROPY_MIN, COUNT, BOUNDS, PRIOR = range(12, 19)
SUMS = 19  # then mean loss and law loss of critic 0, of critic 1
_LARGEST = slice(LOG_RATIO_MAX, ENTROPY_MAX + 1)


def empty_sums(critics: int) -> np.ndarray:
    """Before any row."""
    sums = np.zeros(SUMS + 2 * critics)
    sums[_LARGEST] = -np.inf
    sums[ENTROPY_MIN] = np.inf
    return sums


def merged(shares: Sequence[np.ndarray] | Sequence[list[float]]) -> list[float]:
    """The sums of some shares as one; NaN where one of them is."""
    table = np.array(shares)
    with np.errstate(invalid="ignore"):
        result = table.sum(0)
        result[_LARGEST], result[ENTROPY_MIN] = table[:, _LARGEST].max(0), table[:, ENTROPY_MIN].min()
    return result.tolist()  # type: ignore[no-any-return]


@torch.no_grad()
def rows_of(model: ActorCritic, standard: Standard, rollout: Rollout, prepared: Prepared) -> Rows:
    """Views where the layout allows it; standard: the model's normaliser, which stays the same during an update."""
    discrete = model.law.discrete
    rows = prepared.log_prob.shape[0]
    action = prepared.action
    scalars = np.empty((rows, 3), dtype=np.float32)
    for column, part in enumerate((prepared.log_prob, prepared.advantage, prepared.mean_target)):
        scalars[:, column] = part.numpy()
    obs = np.empty((rows, prepared.obs.shape[-1]), dtype=np.float32)
    standardise(prepared.obs.reshape(rows, -1).contiguous().numpy(), standard, obs.reshape(-1), obs.shape[1])
    return Rows(
        obs=obs,
        choice=action[:, 0].contiguous().numpy() if discrete else np.zeros(0, dtype=np.int64),
        action=np.zeros((0, 0), dtype=np.float32) if discrete else action.contiguous().numpy(),
        mask=np.zeros((0, 0), dtype=np.bool_) if prepared.mask is None else prepared.mask.contiguous().numpy(),
        scalars=scalars,
        old=_log_probabilities(prepared.params) if discrete else prepared.params.contiguous().numpy(),
        valid=prepared.valid.reshape(-1).contiguous().numpy(),
        start=rollout.start.reshape(-1).contiguous().numpy(),
        state=rollout.state.contiguous().numpy(),
        envs=rollout.envs,
    )


def _log_probabilities(logits: Tensor) -> np.ndarray:
    """Log-probabilities and probabilities [R, 2K] of logits [R, K].

    A masked logit is the smallest finite number: its log-probability stays that small, its probability is 0. Actions as
    rows: sums over a few of them are then sums of long rows, a third of the time.
    """
    log_p = torch.log_softmax(logits.t().contiguous(), 0)
    both = torch.empty(logits.shape[0], 2 * logits.shape[1])
    both[:, : logits.shape[1]] = log_p.t()
    both[:, logits.shape[1] :] = log_p.exp_().t()
    return both.numpy()  # type: ignore[no-any-return]


@kernel
def gather(obs: np.ndarray, index: np.ndarray, target: np.ndarray, lead: int) -> None:
    """Rows `index` [n] of obs [R, D] into target, flat, `lead` floats apart."""
    width = obs.shape[1]
    for i in range(index.shape[0]):
        source, row = obs[index[i]], target[i * lead : i * lead + width]
        for j in range(width):
            row[j] = source[j]

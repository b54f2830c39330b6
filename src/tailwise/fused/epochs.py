"""The passes over one rollout with compiled kernels: same draws, steps, KL stop and metrics as `TorchEpochs`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from tailwise.core.loops.philox import choose_particles
from tailwise.fused import rows as numbers
from tailwise.fused.adam import AdamSettings, Decay, add
from tailwise.fused.coverage import kernel_of
from tailwise.fused.inference import sum_kl, sum_kl_along
from tailwise.fused.layout import NO_CORE
from tailwise.fused.recurrent import Tape
from tailwise.fused.rows import SUMS, Draws, Rows, Weights, rows_of
from tailwise.learner import batches
from tailwise.learner.backend import Knobs
from tailwise.learner.batches import Prepared, sequence_rows
from tailwise.learner.optimisers import ADAM_EPSILON, CRITIC_EPSILON
from tailwise.learner.ppo import TorchEpochs, kl_is_used_up
from tailwise.learner.rollout import Rollout
from tailwise.learner.tally import Tally
from tailwise.learner.variance_scaling import GradientNoise
from tailwise.model.actor_critic import ActorCritic

if TYPE_CHECKING:
    from tailwise.fused.backend import FusedBackend


class FusedEpochs:
    """See `Epochs`. Gradients of single terms are measured by torch's graph."""

    def __init__(self, backend: FusedBackend, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> None:
        self.backend, self.rollout, self.prepared, self.knobs = backend, rollout, prepared, knobs
        self.stopped = False
        self.done = 0
        self.first_log_ratio = 0.0
        self.term_gradients: dict[str, dict[str, float]] = {}
        self.noise: GradientNoise | None = None  # variance scaling is not covered
        self._first = True
        self._recurrent = backend.model.core is not None
        self.rows = rows_of(backend.model, backend.standard(), rollout, prepared)
        given = prepared.particles
        self._particles: np.ndarray = (
            np.zeros((len(self.rows.valid), 0), dtype=np.float32) if given is None else given.contiguous().numpy()
        )
        law = kernel_of(backend.model.config.critic)
        self._sampled, self._ids = law.sampled, rollout.environment.numpy()
        config, network = backend.config, backend.bound.network
        self._read = (backend.parameters, backend.log_std, self.rows)
        self._weights = Weights(
            clip=config.clip,
            dual_clip=math.inf if config.dual_clip is None else config.dual_clip,
            entropy=float(knobs.entropy_weight),
            bounds=float(knobs.bounds_weight) if backend.model.law.cut else 0.0,
            value=config.value_weight / network.critics,
            kappa=law.kappa,
            per_row=math.nan,  # each minibatch has its own
            tau_weight=backend.tau_weight,
            prior=float(knobs.prior_weight),
            prior_law=_prior_of(backend.model),
        )
        self._adam = AdamSettings(
            learning_rate=float(knobs.step_size.value),
            clip=math.inf if config.max_grad_norm is None else config.max_grad_norm,
            epsilon=ADAM_EPSILON,
            critic_epsilon=CRITIC_EPSILON,
            beta1=backend.optimiser.betas[0],
            beta2=backend.optimiser.betas[1],
        )
        self._decay = Decay(backend.optimiser.decay, backend.optimiser.anchor)
        # Of each minibatch; and at each step, the gradient's norm before and after clipping, and squares by parameter.
        self._sums: list[list[float]] = []
        self._norms: list[tuple[float, float]] = []
        self._squares = np.zeros((config.epochs * config.minibatches, len(backend.bound.segments)))
        self._rows_seen = 0

    def draws(self, epoch: int) -> Draws:
        """The numbers of `Prepared.draws`, and what they choose."""
        streams, law, rows = self.backend.streams, self.backend.model.law, len(self._particles)
        update, ids = self.rollout.update, self._ids
        particles, noise = self._particles, _NO_NOISE
        if particles.shape[1] > self._sampled:
            particles = np.empty((rows, self._sampled), dtype=np.float32)
            key, sampled = streams.key("particle"), particles

            def work(part: np.ndarray, k: int) -> None:
                choose_particles(key, update, epoch, ids, self._particles, part[0], part[-1] + 1, sampled)

            self.backend.workers.run(np.arange(rows), work)
        if law.squashed:
            steps, draws = self.rollout.steps, law.noise
            normal = streams.normals("entropy", update=update, epoch=epoch, environments=ids, steps=steps, draws=draws)
            noise = normal.astype(np.float32).reshape(rows, -1)
        return Draws(particles, noise)

    def minibatch(self, parts: list[list[batches.Part]], draws: Draws) -> str | None:
        """See `Epochs.minibatch`."""
        backend, config = self.backend, self.backend.config
        total = sum(part.size for own in parts for part in own)
        if self._first and self.knobs.measure_terms and 0 in backend.shards.mine and parts[0]:
            self._measure_terms(parts[0][0])
        grad, sums = self._gradients(parts, draws, total)
        finite = sums[numbers.POLICY] + sums[numbers.ENTROPY] + self._weights.bounds * sums[numbers.BOUNDS]
        finite += self._weights.prior * sums[numbers.PRIOR]
        if not math.isfinite(finite + sum(sums[SUMS:])):
            names = ", ".join(f"{name} {value:g}" for name, value in self._terms(sums, total).items())
            return f"a loss became NaN or infinite ({names}); the update was rolled back"
        self._sums.append(sums)
        self._rows_seen += total
        kl = sums[numbers.KL] / total
        if self._first:
            self.first_log_ratio, self._first = sums[numbers.LOG_RATIO_MAX], False
        if kl_is_used_up(kl, config):
            self.stopped = True
            return None
        moments, step, squares = backend.optimiser.moments, backend.optimiser.count_step(), self._squares
        norms = backend.adam_step(
            backend.flat,
            grad,
            moments,
            backend.bound.segments,
            self._adam,
            self._decay,
            step,
            squares[len(self._norms)],
        )
        self._norms.append(norms)
        if not norms[0] < math.inf:
            return f"the gradient norm became {norms[0]}; the update was rolled back"
        if backend.bound.network.log_std >= 0:
            backend.model.project()
        return None

    def _gradients(self, parts: list[list[batches.Part]], draws: Draws, total: int) -> tuple[np.ndarray, list[float]]:
        """Gradient of the minibatch's loss [size] and its sums, added up in the order of the shards."""
        shards = self.backend.shards
        if shards.count == 1:
            return self._gradient(parts[0], draws, total)
        mine = []
        for shard in shards.mine:
            grad, sums = self._gradient(parts[shard], draws, total)
            mine.append((grad.copy(), sums))  # the next shard's is written to the same memory
        every = shards.exchange(mine)
        whole = every[0][0]
        for other, _ in every[1:]:
            add(whole, other)
        return whole, numbers.merged([sums for _, sums in every])

    def _gradient(self, parts: list[batches.Part], draws: Draws, total: int) -> tuple[np.ndarray, list[float]]:
        """Gradient of the minibatch's loss [size] and its sums; as numbers: after a kernel arrays are slow to touch."""
        backend, workers, weights = self.backend, self.backend.workers, self._weights._replace(per_row=1.0 / total)
        backend.lay_out(backend.bound.laid.to_learn)
        workers.begin()
        for units in _units_of(parts):
            tapes = workers.tapes(self.rollout.steps, len(units)) if self._recurrent else []

            def work(mine: np.ndarray, k: int, tapes: list[Tape] = tapes) -> None:
                arguments, scratch = (*self._read, mine, draws, weights), workers.scratches[k]
                if tapes:
                    backend.learn_sequences(*arguments, tapes[k], scratch)
                else:
                    backend.learn_rows(*arguments, scratch)

            workers.run(units, work)
        return workers.result()

    def _measure_terms(self, part: batches.Part) -> None:
        """Gradients of single terms are measured now and then: torch's graph does it, before the first step."""
        plain = TorchEpochs(self.backend, None, self.rollout, self.prepared, self.knobs)
        plain.measure_terms(plain.losses(part, plain.draws(0)))
        self.term_gradients, self.knobs = plain.term_gradients, plain.knobs

    # ---------------------------------------------------------------- numbers

    def _terms(self, sums: list[float], total: int) -> dict[str, float]:
        """Weighted loss terms by name."""
        critics = self.backend.bound.network.critics
        weight = self.backend.config.value_weight / critics
        terms = {"policy": sums[numbers.POLICY] / total}
        if self.knobs.entropy_weight:
            terms["entropy"] = -self.knobs.entropy_weight * sums[numbers.ENTROPY] / total
        if self._weights.bounds:
            terms["bounds"] = self._weights.bounds * sums[numbers.BOUNDS] / total
        if self._weights.prior and self._weights.prior_law.size:
            terms["prior"] = self._weights.prior * sums[numbers.PRIOR] / total
        for c in range(critics):
            terms[f"mean_{c}"] = weight * sums[SUMS + 2 * c] / total
            if self.backend.bound.network.quantiles > 0:
                terms[f"law_{c}"] = weight * sums[SUMS + 2 * c + 1] / total
        return terms

    def metrics(self) -> dict[str, float]:
        """See `Epochs.metrics`. What minibatches summed up gets its names at the end: by then there is time."""
        tally = Tally()
        if self._rows_seen:
            sums = numbers.merged(self._sums)
            self._tally(tally, sums, self._terms(sums, self._rows_seen), self._rows_seen)
        if self._norms:
            squares, norms = self._squares[: len(self._norms)], np.array(self._norms)
            for name, group in self.backend.groups.items():
                tally.mean({f"grad/norm/{name}": float(np.sqrt(squares[:, group].sum(1)).mean())}, 1.0)
            before, after = norms.mean(0).tolist()
            tally.mean({"grad/norm_before": before, "grad/norm_after": after}, 1.0)
            tally.largest({"grad/norm_before_max": float(norms[:, 0].max())})
        return tally.result()

    def _tally(self, tally: Tally, sums: list[float], terms: dict[str, float], total: int) -> None:
        network = self.backend.bound.network
        mean = {name: sums[place] / total for name, place in _MEANS.items()}
        critic_loss = sum(sums[SUMS:]) / total
        mean |= {f"loss/{name}": value for name, value in terms.items()}
        if self._weights.prior_law.size:
            mean["policy/prior_kl"] = sums[numbers.PRIOR] / total
        mean |= {
            "critic/loss": critic_loss,
            "critic/loss_unclipped": critic_loss,
            "critic/clip_fraction": 0.0,
            "critic/clip_loss_fraction": 0.0,
            "policy/excluded_fraction": (sums[numbers.NAN] + sums[numbers.INFINITE]) / total,
        }
        if network.quantiles > 0:
            neighbours = network.critics * (network.quantiles - 1)
            mean["critic/quantile_crossing"] = sums[numbers.CROSSINGS] / (total * neighbours)
            mean["critic/mean_gap"] = sums[numbers.MEAN_GAP] / (total * network.critics)
        if network.log_std < 0:
            mean["policy/logit_range"] = sums[numbers.LOGIT_RANGE] / total
        tally.mean(mean, total)
        tally.largest({name: sums[place] for name, place in _MAXIMA.items()})
        tally.smallest({"policy/entropy_min": sums[numbers.ENTROPY_MIN]})

    def kl_after(self) -> float:
        """See `Epochs.kl_after`."""
        return policy_kl(self.backend, self.rollout, self.rows)


def _prior_of(model: ActorCritic) -> np.ndarray:
    """`Weights.prior_law` of a model."""
    if model.prior is None:
        return np.zeros(0)
    prior = model.prior.double()
    return (torch.log_softmax(prior, -1) if model.law.discrete else prior).numpy()


_NO_NOISE = np.zeros((0, 0), dtype=np.float32)
_MEANS = {
    "policy/entropy": numbers.ENTROPY,
    "policy/kl": numbers.KL,
    "policy/clip_fraction": numbers.CLIPPED,
    "policy/dual_clip_fraction": numbers.DUAL,
    "policy/log_ratio_clamp_fraction": numbers.CLAMPED,
    "policy/nan_fraction": numbers.NAN,
    "policy/infinite_fraction": numbers.INFINITE,
    "critic/disagreement": numbers.DISAGREEMENT,
}
_MAXIMA = {
    "policy/log_ratio_max": numbers.LOG_RATIO_MAX,
    "policy/ratio_max": numbers.RATIO_MAX,
    "policy/entropy_max": numbers.ENTROPY_MAX,
}


def _units_of(parts: list[batches.Part]) -> list[np.ndarray]:
    """What workers share: environments of each microbatch, or all rows at once (blocks bound their memory anyway).

    In order: rows that are read as they lie are fetched ahead.
    """
    units = [part.units for part in parts]
    if not parts or parts[0].whole:
        return units
    rows = np.concatenate(units)
    rows.sort()
    return [rows]


def policy_kl(backend: FusedBackend, rollout: Rollout, rows: Rows) -> float:
    """Mean of KL(old || new) over all valid rows, nats; each process looks at the rows of its own shards."""
    read, workers, shards = (backend.parameters, backend.log_std, rows), backend.workers, backend.shards
    recurrent = backend.bound.network.core != NO_CORE
    units = batches.units_of_shards(rollout.valid, recurrent=recurrent, shards=shards.count)
    memories = workers.step_memories(rows.envs) if recurrent else []
    backend.lay_out(backend.bound.laid.to_act)

    def sum_of(shard: int) -> float:
        sums = [0.0] * len(workers.scratches)

        def of_rows(part: np.ndarray, k: int) -> None:
            sums[k] = sum_kl(*read, part, workers.scratches[k])

        def of_sequences(part: np.ndarray, k: int) -> None:
            order = sequence_rows(rollout.steps, rows.envs, part).reshape(rollout.steps, -1)
            sums[k] = sum_kl_along(*read, order, rows.state[part], memories[k])

        workers.run(units[shard], of_sequences if recurrent else of_rows)
        return sum(sums)

    every = shards.exchange([sum_of(shard) for shard in shards.mine])
    return sum(every) / int(np.count_nonzero(rows.valid))

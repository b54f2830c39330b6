"""The passes over one rollout with compiled kernels: same minibatches, draws, KL stop and metrics as `Epochs`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from tailwise.core.loops.philox import choose_particles
from tailwise.kernels import rows as numbers
from tailwise.kernels.adam import adam_step, square_sums
from tailwise.kernels.layout import NO_CORE
from tailwise.kernels.policy import policy_kl
from tailwise.kernels.prepare_rows import rows_of
from tailwise.kernels.recurrent import Tape
from tailwise.kernels.rows import SUMS, Draws, Weights
from tailwise.kernels.shares import Trunk, learn_rows, learn_sequences
from tailwise.learner import batching
from tailwise.learner.backend import Knobs
from tailwise.learner.gradients import term_gradients
from tailwise.learner.preparation import Prepared
from tailwise.learner.rollout import Rollout
from tailwise.learner.torch_backend import ADAM_EPSILON, CRITIC_EPSILON, STOP_FACTOR, Epochs
from tailwise.model.config import QuantileCritic

if TYPE_CHECKING:
    from tailwise.kernels.backend import FusedBackend

Memory = list[tuple[Trunk, Tape]]


class FusedEpochs(Epochs):
    """See the module; `backend` is the fused one."""

    def __init__(self, backend: FusedBackend, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> None:
        super().__init__(backend, rollout, prepared, knobs)
        self.fused = backend
        self.rows = rows_of(backend.model, rollout, prepared)
        assert prepared.particles is not None
        self._particles: np.ndarray = prepared.particles.contiguous().numpy()
        self._squares = np.zeros(len(backend.bound.segments))
        critic = backend.model.config.critic
        assert isinstance(critic, QuantileCritic)
        self._kappa, self._sampled = critic.kappa, critic.minibatch_particles
        self._sums, self._rows_seen = numbers.empty_sums(backend.model.critic_count).tolist(), 0
        # At each step: squares of the gradient's norms by parameter, its norm before and after clipping.
        self._squares_seen: list[list[float]] = []
        self._norms: list[tuple[float, float]] = []

    def _draws(self, epoch: int) -> Draws:  # type: ignore[override]
        """The numbers of `Prepared.draws`, and what they choose."""
        streams, law, rows = self.backend.streams, self.backend.model.law, len(self._particles)
        update, ids = self.rollout.update, self.rollout.environment.numpy()
        particles, noise = self._particles, _NO_NOISE
        if particles.shape[1] > self._sampled:
            particles = np.empty((rows, self._sampled), dtype=np.float32)
            key, chosen = streams.key("particle"), particles

            def work(part: np.ndarray, k: int) -> None:
                choose_particles(key, update, epoch, ids, self._particles, part[0], part[-1] + 1, chosen)

            self.fused.workers.run(np.arange(rows), work)
        if law.squashed:
            steps, draws = self.rollout.steps, law.noise
            normal = streams.normals("entropy", update=update, epoch=epoch, environments=ids, steps=steps, draws=draws)
            noise = normal.astype(np.float32).reshape(rows, -1)
        return Draws(particles, noise)

    def _minibatch(self, parts: list[batching.Part], draws: Draws) -> str | None:  # type: ignore[override]
        backend, config = self.fused, self.backend.config
        total = sum(part.size for part in parts)
        if self._first and self.knobs.measure_terms:
            self._measure_terms(parts[0])
        grad, sums = self._gradient(parts, draws, total)
        if not math.isfinite(sums[numbers.POLICY] + sums[numbers.ENTROPY] + sum(sums[SUMS:])):
            names = ", ".join(f"{name} {value:g}" for name, value in self._terms(sums, total).items())
            return f"a loss became NaN or infinite ({names}); the update was rolled back"
        self._sums = numbers.merged(self._sums, sums)
        self._rows_seen += total
        kl = sums[numbers.KL] / total
        if self._first:
            self.first_log_ratio, self._first = sums[numbers.LOG_RATIO_MAX], False
        if config.target_kl is not None and kl > STOP_FACTOR * config.target_kl:
            self.stopped = True
            return None
        square_sums(grad, backend.bound.segments, self._squares)
        squares = self._squares.tolist()
        before = math.sqrt(sum(squares))
        self._squares_seen.append(squares)
        if not before < math.inf:
            self._norms.append((before, before))
            return f"the gradient norm became {before}; the update was rolled back"
        clip = config.max_grad_norm
        scale = clip / before if clip is not None and before > clip else 1.0
        after = adam_step(
            *(backend.flat, grad, *backend.moments),
            *(backend.bound.segments, scale, float(self.knobs.step_size.value), backend.count_step()),
            (ADAM_EPSILON, CRITIC_EPSILON),
        )
        self._norms.append((before, after if scale != 1.0 else before))
        if backend.bound.network.log_std >= 0:
            backend.model.project()
        return None

    def _gradient(self, parts: list[batching.Part], draws: Draws, total: int) -> tuple[np.ndarray, list[float]]:
        """Gradient of the minibatch's loss [size] and its sums; as numbers: after a kernel arrays are slow to touch."""
        backend, config = self.fused, self.backend.config
        network, flat = backend.bound.network, backend.flat
        weights = Weights(
            clip=config.clip,
            dual_clip=math.inf if config.dual_clip is None else config.dual_clip,
            entropy=float(self.knobs.entropy_weight),
            value=config.value_weight / network.critics,
            kappa=self._kappa,
            per_row=1.0 / total,
            lean=backend.lean,
        )

        workers, log_std, panels = backend.workers, backend.log_std, backend.lay_out(backend.bound.laid.to_learn)
        workers.begin()
        for units in _units_of(parts):
            memory = workers.sequences(self.rollout.steps, len(units)) if network.core != NO_CORE else []

            def work(mine: np.ndarray, k: int, memory: Memory = memory) -> None:
                scratch = workers.scratches[k]
                if memory:
                    learn_sequences(
                        *(network, flat, panels, log_std, self.rows, mine, draws, weights, scratch), *memory[k]
                    )
                else:
                    learn_rows(network, flat, panels, log_std, self.rows, mine, draws, weights, None, None, scratch)

            workers.run(units, work)
        return workers.result()

    def _measure_terms(self, part: batching.Part) -> None:
        """Gradients of single terms are measured now and then: torch's graph does it, before the first step."""
        losses = self._losses(part, Epochs._draws(self, 0))
        self.term_gradients = term_gradients({**losses.terms, **losses.probes}, self.backend.model)
        self.knobs = dataclasses.replace(self.knobs, measure_terms=False)

    # ---------------------------------------------------------------- numbers

    def _terms(self, sums: list[float], total: int) -> dict[str, float]:
        """Weighted loss terms by name."""
        critics = self.fused.bound.network.critics
        weight = self.backend.config.value_weight / critics
        terms = {"policy": sums[numbers.POLICY] / total}
        if self.knobs.entropy_weight:
            terms["entropy"] = -self.knobs.entropy_weight * sums[numbers.ENTROPY] / total
        for c in range(critics):
            terms[f"mean_{c}"] = weight * sums[SUMS + 2 * c] / total
            terms[f"law_{c}"] = weight * sums[SUMS + 2 * c + 1] / total
        return terms

    def all(self) -> str | None:
        """See `Epochs.all`. What minibatches summed up becomes metrics at the end: by then there is time for names."""
        reason = super().all()
        if self._rows_seen:
            self._tally(self._sums, self._terms(self._sums, self._rows_seen), self._rows_seen)
        if self._norms:
            squares, norms = np.array(self._squares_seen), np.array(self._norms)
            for name, group in self.fused.groups.items():
                self.tally.mean({f"grad/norm/{name}": float(np.sqrt(squares[:, group].sum(1)).mean())}, 1.0)
            before, after = norms.mean(0).tolist()
            self.tally.mean({"grad/norm_before": before, "grad/norm_after": after}, 1.0)
            self.tally.largest({"grad/norm_before_max": float(norms[:, 0].max())})
        return reason

    def _tally(self, sums: list[float], terms: dict[str, float], total: int) -> None:
        network = self.fused.bound.network
        mean = {name: sums[place] / total for name, place in _MEANS.items()}
        critic_loss = sum(sums[SUMS:]) / total
        mean |= {f"loss/{name}": value for name, value in terms.items()}
        mean |= {
            "critic/loss": critic_loss,
            "critic/loss_unclipped": critic_loss,
            "critic/clip_fraction": 0.0,
            "critic/quantile_crossing": sums[numbers.CROSSINGS] / (total * network.critics * (network.quantiles - 1)),
            "critic/mean_gap": sums[numbers.MEAN_GAP] / (total * network.critics),
        }
        if network.log_std < 0:
            mean["policy/logit_range"] = sums[numbers.LOGIT_RANGE] / total
        self.tally.mean(mean, total)
        self.tally.largest({name: sums[place] for name, place in _MAXIMA.items()})
        self.tally.smallest({"policy/entropy_min": sums[numbers.ENTROPY_MIN]})

    def measure_after(self) -> None:
        """Exact KL(old||new) over all valid rows of the rollout."""
        self.kl_after = policy_kl(self.fused, self.rows, self.rollout.steps)


_NO_NOISE = np.zeros((0, 0), dtype=np.float32)
_MEANS = {
    "policy/entropy": numbers.ENTROPY,
    "policy/kl": numbers.KL,
    "policy/clip_fraction": numbers.CLIPPED,
    "policy/dual_clip_fraction": numbers.DUAL,
    "policy/log_ratio_clamp_fraction": numbers.CLAMPED,
    "policy/excluded_fraction": numbers.EXCLUDED,
    "critic/disagreement": numbers.DISAGREEMENT,
}
_MAXIMA = {
    "policy/log_ratio_max": numbers.LOG_RATIO_MAX,
    "policy/ratio_max": numbers.RATIO_MAX,
    "policy/entropy_max": numbers.ENTROPY_MAX,
}


def _units_of(parts: list[batching.Part]) -> list[np.ndarray]:
    """What workers share: environments of each microbatch, or all rows at once (blocks bound their memory anyway).

    In order: rows that are read as they lie are fetched ahead.
    """
    units = [part.units for part in parts]
    if parts[0].whole:
        return units
    return [np.sort(units[0] if len(units) == 1 else np.concatenate(units))]

"""PPO from rollout to weights, from top to bottom.

`update` is the algorithm: targets, risk, the new return scale, epochs of minibatches, and the decision whether to keep
the result. What can be computed in several ways (networks, particles, gradients) it asks of a `Backend`; `TorchBackend`
is the reference in plain PyTorch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner import batches
from tailwise.learner.backend import Backend, Epochs, Knobs, MixAdvantages, UpdateReport
from tailwise.learner.batches import Prepared, Targets, build_targets, particle_returns, prepare
from tailwise.learner.config import LearnerConfig
from tailwise.learner.credit import CreditInputs, risk_credit
from tailwise.learner.decisions import Ahead, Decisions, action_noise
from tailwise.learner.losses import AuxiliaryLoss, Inputs, Losses, compute_losses, law_kl
from tailwise.learner.optimisers import (
    ModelOptimiser,
    Snapshot,
    clip_global_norm,
    first_non_finite,
    group_norms,
    restore,
    take_snapshot,
    term_gradients,
)
from tailwise.learner.returns import mix_advantages
from tailwise.learner.risk import RiskSettings, assess_risk, pooled_tail
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.learner.shards import Contribution, OneProcess, Shards, add_gradients
from tailwise.learner.tally import Tally, detached
from tailwise.learner.variance_scaling import gradient_noise
from tailwise.model.actor_critic import ActorCritic, CriticOutput, Decision, decide, decide_padded

STOP_FACTOR = 1.5  # epochs stop at this multiple of target_kl
_NO_UNITS: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)


def update(backend: Backend, rollout: Rollout, knobs: Knobs) -> UpdateReport:
    """Learn from a rollout; committed only if everything stayed finite and KL bounded, else as if nothing happened."""
    model, config = backend.model, backend.config
    broken = rollout.non_finite()
    if broken:
        counts = ", ".join(f"{n} in {name}" for name, n in broken.items())
        return _refused(f"the rollout has NaN or infinite entries: {counts}; nothing was learnt from it")

    # 1. Raw targets: GAE advantages, lambda-returns, particles of the return's law.
    targets = targets_of(backend, rollout)
    snapshot = backend.snapshot()

    # 2. Tail risk: the measure of the pooled law, and what each action did to it.
    assessed = None
    if backend.risk is not None:
        assessed = assess_risk(
            targets,
            rollout,
            backend.risk,
            gamma=config.gamma,
            threshold=knobs.threshold,
            credit=backend.risk_credit,
        )

    # 3. New return scale; old outputs and targets re-expressed in it; advantages mixed and standardised once.
    prepared, metrics = prepare(
        rollout,
        targets,
        model,
        backend.optimiser,
        config,
        backend.mix_advantages,
        risk=None if assessed is None else assessed.advantage,
        multiplier=knobs.multiplier,
        probe_risk=knobs.measure_terms and knobs.multiplier > 0,
    )
    if not prepared.finite():
        backend.restore(snapshot)
        return _refused("targets overflowed to NaN or infinity; nothing was learnt from this rollout", snapshot)
    known = None if assessed is None else assessed.cvar
    metrics |= describe_targets(rollout, targets, backend.tail_alpha, cvar=known)
    metrics |= {} if assessed is None else assessed.metrics(knobs.multiplier)

    # 4. Epochs of minibatches, until KL says that the rollout is used up.
    epochs = backend.epochs(rollout, prepared, knobs)
    reason = run_epochs(backend, epochs, rollout)
    metrics |= epochs.metrics()

    # 5. Commit, or roll back with the reason.
    too_far, kl_after = None, 0.0
    if reason is None:
        too_far, kl_after = _final_check(backend, epochs)
        reason = too_far
    metrics |= {"policy/kl_after": kl_after, "policy/epochs": float(epochs.done)}
    metrics |= {"policy/stopped_early": float(epochs.stopped), "policy/first_log_ratio": epochs.first_log_ratio}
    report = UpdateReport(
        reason is None,
        reason,
        epochs.stopped,
        kl_after,
        metrics,
        epochs.term_gradients,
        went_too_far=too_far is not None,
        before=snapshot,
    )
    if reason is not None:
        backend.restore(snapshot)
        return report
    absorbed = model.normaliser.absorb(rollout.of_valid(rollout.obs))
    metrics["obs/outlier_fraction"] = absorbed.outliers
    noise = {} if epochs.noise is None else epochs.noise.measured()
    return dataclasses.replace(report, observed=absorbed.moments, gradient_noise=noise)


def targets_of(backend: Backend, rollout: Rollout) -> Targets:
    """Raw targets of a rollout, with the particles that risk needs if it acts."""
    return build_targets(
        rollout,
        backend.model.config.critic,
        backend.streams,
        gamma=backend.config.gamma,
        lam=backend.config.lam,
        near=backend.risk is not None,
        make_particles=backend.particles,
    )


def run_epochs(backend: Backend, epochs: Epochs, rollout: Rollout) -> str | None:
    """Go through the rollout in random minibatches; return a sentence if something is not finite, else None."""
    config, valid, recurrent = backend.config, rollout.valid, backend.model.core is not None
    units = batches.units_of_shards(valid, recurrent=recurrent, shards=backend.shards.count)
    numbers = range(config.epochs)
    orders = [
        backend.streams.permutations(_order(shard), len(own), update=rollout.update, epochs=numbers)
        for shard, own in enumerate(units)
    ]
    for epoch in numbers:
        draws = epochs.draws(epoch)
        split = [
            batches.minibatches(own, count=config.minibatches, permutation=order[epoch])
            for own, order in zip(units, orders, strict=True)
        ]
        for chunks in itertools.zip_longest(*split, fillvalue=_NO_UNITS):
            parts = [
                batches.parts(chunk, valid, microbatches=config.microbatches, recurrent=recurrent) for chunk in chunks
            ]
            if not any(parts):
                continue
            reason = epochs.minibatch(parts, draws)
            if reason is not None or epochs.stopped:
                return reason
        epochs.done += 1
    return None


def _order(shard: int) -> str:
    """The stream that the order of a shard's rows is drawn from."""
    return "minibatch" if shard == 0 else f"minibatch/{shard}"


def kl_is_used_up(kl: float, config: LearnerConfig) -> bool:
    """Whether a minibatch with this KL(old||new) ends the epochs."""
    return config.target_kl is not None and kl > STOP_FACTOR * config.target_kl


def _final_check(backend: Backend, epochs: Epochs) -> tuple[str | None, float]:
    """(why the update has to be rolled back, or None; KL(old||new) over the whole rollout)."""
    name = backend.first_non_finite()
    if name is not None:
        return f"parameter {name} became NaN or infinite; the update was rolled back", 0.0
    kl, limit = epochs.kl_after(), backend.config.max_kl
    if not kl <= limit:
        return (
            f"KL(old||new) {kl:.3g} nats after the update is above learner.max_kl {limit:g}; the update was rolled back"
        ), kl
    return None, kl


def describe_targets(
    rollout: Rollout, targets: Targets, tail_alpha: float | None, *, cvar: float | None = None
) -> dict[str, float]:
    """Numbers about raw targets: explained variance, and the tail of the pooled return law (`cvar` if it is known)."""
    returns, value = (
        rollout.of_valid(part).numpy(force=True).astype(np.float64) for part in (targets.lambda_return, targets.value)
    )
    spread = float(returns.var())
    metrics: dict[str, float] = {"return/mean": float(returns.mean()), "return/std": spread**0.5}
    if spread > 0:
        metrics["critic/explained_variance"] = 1.0 - float((returns - value).var()) / spread
    if tail_alpha is not None and targets.particles is not None:
        particles = rollout.of_valid(targets.particles)
        metrics["risk/cvar_return"] = pooled_tail(particles, tail_alpha)[1] if cvar is None else cvar
    return metrics


def _refused(reason: str, snapshot: Any = None) -> UpdateReport:
    return UpdateReport(False, reason, False, 0.0, {}, before=snapshot)


@torch.no_grad()
def record(backend: Backend, features: Tensor, final_features: Tensor, final_index: Tensor) -> CriticRecord:
    """Critic outputs at features [T+1, B, H], and at final_features [F, H] of rows final_index [F, 2] = (t, b)."""
    out = backend.values(features)
    steps = features.shape[0] - 1
    # One zero that shows everywhere: zeros of their own would take as much memory as all values of the rollout.
    final_mean = torch.zeros(()).expand(steps, *out.mean.shape[1:])
    final_law = None if out.law is None else torch.zeros(()).expand(steps, *out.law.shape[1:])
    if final_index.shape[0]:
        final = backend.values(final_features)
        final_mean, final_law = final_mean.contiguous(), None if final_law is None else final_law.contiguous()
        final_mean[final_index[:, 0], final_index[:, 1]] = final.mean
        if final_law is not None and final.law is not None:
            final_law[final_index[:, 0], final_index[:, 1]] = final.law
    scale = backend.model.return_scale
    return CriticRecord(out.mean, out.law, final_mean, final_law, float(scale.mu), float(scale.sigma))


# ---------------------------------------------------------------- the reference backend


class TorchBackend:
    """Plain PyTorch. `mix_advantages` and `auxiliary` are the seams for risk and further losses."""

    def __init__(
        self,
        model: ActorCritic,
        config: LearnerConfig,
        streams: Streams,
        *,
        tail_alpha: float | None = None,
        risk: RiskSettings | None = None,
        mix_advantages: MixAdvantages = mix_advantages,
        auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
        shards: Shards | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.streams = streams
        self.tail_alpha = tail_alpha
        self.risk = risk
        self.mix_advantages = mix_advantages
        self.auxiliary = tuple(auxiliary)
        self.shards: Shards = OneProcess() if shards is None else shards
        self.optimiser = ModelOptimiser(model, config.optimiser, streams, learning_rate=config.learning_rate)

    def warm_up(self, tell: Callable[[str], None], venv: Any = None) -> None:
        """See `Backend.warm_up`: nothing to wait for."""

    def act(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """See `Backend.act`."""
        return decide(self.model, obs, state, start, mask, uniform)

    def play(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """See `Backend.play`."""
        return decide_padded(self.model, obs, state, start, mask, uniform)

    def begin(self, update: int, environments: npt.NDArray[np.int64], steps: int, state: Tensor) -> Decisions:
        """See `Backend.begin`."""
        decisions = Decisions(self.model, action_noise(self.model, self.streams, update, environments, steps), state)
        decisions.prepared = self.model.normaliser.standard(torch.get_default_dtype())
        return decisions

    def decide(
        self,
        decisions: Decisions,
        t: int,
        obs: npt.NDArray[np.float32],
        start: npt.NDArray[np.bool_],
        mask: npt.NDArray[np.bool_] | None,
    ) -> None:
        """See `Backend.decide`."""
        observation = torch.from_numpy(obs).to(torch.get_default_dtype())
        allowed = None if mask is None else torch.from_numpy(mask)
        uniform = torch.from_numpy(decisions.noise[t])
        begins, standard = torch.from_numpy(start), decisions.prepared
        decisions.take(t, decide(self.model, observation, decisions.state, begins, allowed, uniform, standard=standard))

    def ahead(self, venv: Any) -> Ahead | None:
        """See `Backend.ahead`."""
        return None

    @torch.no_grad()
    def encode(self, obs: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """See `Backend.encode`."""
        return self.model.latent(obs[None], state, start[None]).features[0]

    def values(self, features: Tensor) -> CriticOutput:
        """See `Backend.values`."""
        return self.model.values(features)

    def record(self, features: Tensor, final_features: Tensor, final_index: Tensor) -> CriticRecord:
        """See `record`."""
        return record(self, features, final_features, final_index)

    def update(self, rollout: Rollout, knobs: Knobs) -> UpdateReport:
        """See `update`."""
        return update(self, rollout, knobs)

    def particles(self, *arguments: Any, **named: Any) -> tuple[Tensor | None, list[Tensor]]:
        """See `batches.particle_returns`."""
        return particle_returns(*arguments, **named)

    def risk_credit(self, inputs: CreditInputs) -> Tensor:
        """See `credit.risk_credit`."""
        return risk_credit(inputs)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        return take_snapshot(self.model, self.optimiser)

    def restore(self, snapshot: Snapshot) -> None:
        """See `Backend.restore`."""
        restore(snapshot, self.model, self.optimiser)

    def first_non_finite(self) -> str | None:
        """See `Backend.first_non_finite`."""
        return first_non_finite(self.model)

    def epochs(self, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> TorchEpochs:
        """See `Backend.epochs`."""
        self.optimiser.use(knobs.step_size)
        return TorchEpochs(self, self.optimiser, rollout, prepared, knobs)


class TorchEpochs:
    """The epochs of one update by autograd; see `Epochs`. optimiser: None where only terms are measured."""

    def __init__(
        self, backend: Backend, optimiser: ModelOptimiser | None, rollout: Rollout, prepared: Prepared, knobs: Knobs
    ) -> None:
        self.backend, self.optimiser = backend, optimiser
        self.rollout, self.prepared, self.knobs = rollout, prepared, knobs
        self.tally = Tally()
        self.stopped = False
        self.done = 0
        self.first_log_ratio = 0.0
        self.term_gradients: dict[str, dict[str, float]] = {}
        self.noise = gradient_noise(backend.config.variance_scaling, backend.model.groups())
        self._first = True
        self._normalised = backend.model.normaliser(prepared.obs)  # the statistics stay as they are during an update
        self._parameters = list(backend.model.parameters())

    def draws(self, epoch: int) -> batches.EpochDraws:
        """Random numbers of an epoch."""
        streams, update = self.backend.streams, self.rollout.update
        of_batches = self.prepared.draws(streams, self.backend.model, update=update, epoch=epoch)
        return batches.EpochDraws(streams, self.rollout, epoch, of_batches)

    def minibatch(self, parts: list[list[batches.Part]], draws: batches.EpochDraws) -> str | None:
        """See `Epochs.minibatch`."""
        backend, config, optimiser = self.backend, self.backend.config, self.optimiser
        assert optimiser is not None
        total = sum(part.size for own in parts for part in own)
        mine = [self._contribution(shard, parts[shard], draws, total) for shard in backend.shards.mine]
        kl, largest = 0.0, 0.0
        contributions = backend.shards.exchange(mine)
        for one in contributions:
            for size, means, maxima, minima in one.measured:
                self.tally.mean(means, size)
                self.tally.largest(maxima)
                self.tally.smallest(minima)
            if one.broken is not None:
                return one.broken
            kl += one.kl
            largest = max(largest, one.largest)
        add_gradients(self._parameters, [one.gradient for one in contributions])
        if self._first:
            self.first_log_ratio, self._first = largest, False
        if kl_is_used_up(kl, config):
            self.stopped = True
            return None
        if self.noise is not None:
            self.noise.complete(total)
        self.tally.mean({f"grad/norm/{name}": norm for name, norm in group_norms(backend.model).items()}, 1.0)
        before, after = clip_global_norm(self._parameters, config.max_grad_norm)
        self.tally.mean({"grad/norm_before": before, "grad/norm_after": after}, 1.0)
        self.tally.largest({"grad/norm_before_max": before})
        if not before < float("inf"):
            return f"the gradient norm became {before}; the update was rolled back"
        optimiser.step()
        backend.model.project()
        return None

    def _contribution(
        self, shard: int, parts: list[batches.Part], draws: batches.EpochDraws, total: int
    ) -> Contribution:
        """What the parts of a shard add to a minibatch of `total` rows; they end with the first broken one."""
        assert self.optimiser is not None
        self.optimiser.zero_grad()
        own = Contribution()
        for part in map(self._placed, parts):
            losses = self.losses(part, draws)
            share = part.size / total
            loss = losses.total
            # What decides how to go on, in one transfer.
            decisive = (loss.detach(), losses.kl.mean(), losses.log_ratio.abs().max())
            total_loss, kl, largest = torch.stack(decisive).tolist()
            if not math.isfinite(total_loss):
                names = ", ".join(f"{name} {float(term.detach()):g}" for name, term in losses.terms.items())
                own.broken = f"a loss became NaN or infinite ({names}); the update was rolled back"
                break
            if self._first and self.knobs.measure_terms and shard == 0:
                self.measure_terms(losses)
            torch.autograd.backward(loss * share)
            if self.noise is not None:
                self.noise.part(share)
            own.measured.append((part.size, detached(losses.means), detached(losses.maxima), detached(losses.minima)))
            own.kl += share * kl
            own.largest = max(own.largest, largest)
        own.gradient = [parameter.grad for parameter in self._parameters]
        return own

    def losses(self, part: batches.Part, draws: batches.EpochDraws) -> Losses:
        """All loss terms of a microbatch, with their graph."""
        backend = self.backend
        inputs = dataclasses.replace(self._inputs(part), noise=partial(draws.noise, part))
        return compute_losses(
            backend.model,
            inputs.encode(backend.model),
            self.prepared.batch(part.rows, draws.of_batches),
            backend.config,
            inputs=inputs,
            entropy_weight=self.knobs.entropy_weight,
            bounds_weight=self.knobs.bounds_weight,
            prior_weight=self.knobs.prior_weight,
            auxiliary=backend.auxiliary,
            progress=self.knobs.progress,
        )

    def measure_terms(self, losses: Losses) -> None:
        """Keep the gradient norm of every loss term on every parameter group; once per update."""
        terms = {**losses.terms, **losses.probes}
        for name in ("prior", "adversary"):
            if name in terms and float(terms[name].detach()) == 0.0:
                del terms[name]  # a policy that is exactly its prior is not pulled anywhere, nor misled by what it sees
        self.term_gradients = term_gradients(terms, self.backend.model)
        self.knobs = dataclasses.replace(self.knobs, measure_terms=False)

    def _placed(self, part: batches.Part) -> batches.Part:
        """A part with its row numbers where the observations are."""
        return part

    def _inputs(self, part: batches.Part) -> Inputs:
        """What the network reads for the rows of a part: whole sequences, or single rows without a core."""
        prepared = self.prepared
        if part.envs is None or part.inside is None:
            rows = len(part.rows)
            raw, normalised = (
                obs.flatten(0, 1).index_select(0, part.rows)[None] for obs in (prepared.obs, self._normalised)
            )
            nothing, begins = raw.new_zeros(rows, 0, 0), raw.new_zeros(1, rows, dtype=torch.bool)
            return Inputs(raw, nothing, begins, None, normalised=normalised)
        envs, rollout = part.envs, self.rollout
        raw, normalised = (obs.index_select(1, envs) for obs in (prepared.obs, self._normalised))
        state, start = rollout.state[envs], rollout.start[:, envs]
        return Inputs(raw, state, start, part.inside, normalised=normalised)

    def _features(self, part: batches.Part) -> Tensor:
        """Latent features [n, H] of the rows of a part."""
        return self._inputs(part).encode(self.backend.model)

    def metrics(self) -> dict[str, float]:
        """What the minibatches measured, aggregated over the update."""
        return self.tally.result() | ({} if self.noise is None else self.noise.metrics())

    @torch.no_grad()
    def kl_after(self) -> float:
        """Exact KL(old||new) over all valid rows of the rollout, in as many parts as training used."""
        valid, shards = self.rollout.valid, self.backend.shards
        units = batches.units_of_shards(valid, recurrent=self.backend.model.core is not None, shards=shards.count)
        sums = shards.exchange([self._kl_sum(units[shard]) for shard in shards.mine])
        return sum(sums) / int(np.count_nonzero(valid.numpy(force=True)))

    def _kl_sum(self, units: npt.NDArray[np.int64]) -> float:
        """Sum of KL(old||new) over the rows of a shard."""
        model, config = self.backend.model, self.backend.config
        old = self.rollout.params.reshape(-1, self.rollout.params.shape[-1])
        count, total = config.minibatches * config.microbatches, 0.0
        parts = batches.parts(units, self.rollout.valid, microbatches=count, recurrent=model.core is not None)
        for part in map(self._placed, parts):
            new = model.policy(self._features(part), self.prepared.mask_rows(part.rows))
            total += float(law_kl(model.law, old[part.rows], new).sum())
        return total

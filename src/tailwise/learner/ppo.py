"""PPO from rollout to weights, in plain PyTorch: the reference implementation of `Backend`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.errors import CheckpointError
from tailwise.core.streams import Streams
from tailwise.learner import batches
from tailwise.learner.advantages import mix_advantages
from tailwise.learner.ahead import Ahead
from tailwise.learner.backend import Knobs, UpdateReport
from tailwise.learner.batches import MakeParticles, Prepared, Targets, build_targets, prepare
from tailwise.learner.config import LearnerConfig
from tailwise.learner.credit import CreditInputs, risk_credit
from tailwise.learner.decisions import Decisions
from tailwise.learner.losses import AuxiliaryLoss, Losses, compute_losses, law_kl
from tailwise.learner.optimisers import (
    clip_global_norm,
    first_non_finite,
    group_norms,
    restore,
    take_snapshot,
    term_gradients,
)
from tailwise.learner.risk import RiskSettings, assess_risk, pooled_tail
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.model.actor_critic import ActorCritic, CriticOutput
from tailwise.model.inference import Decision, decide


class Tally:
    """Collects numbers by name; `result` gives one float per name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._maxima: dict[str, float] = {}
        self._minima: dict[str, float] = {}

    def mean(self, values: Mapping[str, float], weight: float) -> None:
        """Add values that are means over `weight` samples."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def largest(self, values: Mapping[str, float]) -> None:
        """Keep the largest value per name."""
        for name, value in values.items():
            self._maxima[name] = max(self._maxima.get(name, value), value)

    def smallest(self, values: Mapping[str, float]) -> None:
        """Keep the smallest value per name."""
        for name, value in values.items():
            self._minima[name] = min(self._minima.get(name, value), value)

    def result(self) -> dict[str, float]:
        """One number per name."""
        means = {name: total / self._weights[name] for name, total in self._sums.items() if self._weights[name] > 0}
        return {**means, **self._maxima, **self._minima}


STOP_FACTOR = 1.5  # epochs stop at this multiple of target_kl
ADAM_EPSILON = 1e-5
# The outermost of 64 quantiles are pulled by one particle in a hundred: their gradients are about as small as 1e-5,
# which would slow down exactly the tail.
CRITIC_EPSILON = 1e-8
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


class TorchBackend:
    """Model, optimiser and the update. `mix_advantages` and `auxiliary` are the seams for risk and further losses."""

    make_particles: MakeParticles | None = None  # None: `targets.particle_returns`
    optimiser: Any  # torch's Adam, or what has its `state` and `param_groups`

    def __init__(
        self,
        model: ActorCritic,
        config: LearnerConfig,
        streams: Streams,
        *,
        tail_alpha: float | None = None,
        risk: RiskSettings | None = None,
        mix_advantages: Callable[[Tensor, Tensor | None, float], Tensor] = mix_advantages,
        auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
    ) -> None:
        self.model = model
        self.config = config
        self.streams = streams
        self.tail_alpha = tail_alpha
        self.risk = risk
        self.mix_advantages = mix_advantages
        self.auxiliary = tuple(auxiliary)
        self.parameters = list(model.parameters())
        self.optimiser = self._make_optimiser()

    def warm_up(self, tell: Callable[[str], None], venv: Any = None) -> None:
        """See `Backend.warm_up`: nothing to wait for."""

    # ---------------------------------------------------------------- inference

    def act(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """See `Backend.act`."""
        return decide(self.model, obs, state, start, mask, uniform)

    def begin(self, update: int, environments: npt.NDArray[np.int64], steps: int, state: Tensor) -> Decisions:
        """See `Backend.begin`."""
        draws = self.model.law.noise
        noise = self.streams.uniforms("action", update=update, environments=environments, steps=steps, draws=draws)
        return Decisions(self.model, noise, state)

    def decide(
        self, made: Decisions, t: int, obs: npt.NDArray[np.float32], start: npt.NDArray[np.bool_],
        mask: npt.NDArray[np.bool_] | None,
    ) -> None:  # fmt: skip
        """See `Backend.decide`."""
        seen, fresh = torch.from_numpy(obs).to(torch.get_default_dtype()), torch.from_numpy(start)
        allowed = None if mask is None else torch.from_numpy(mask)
        made.take(t, self.act(seen, made.state, fresh, allowed, torch.from_numpy(made.noise[t])))

    def ahead(self, venv: Any) -> Ahead | None:
        """See `Backend.ahead`."""
        return None

    @torch.no_grad()
    def look(self, obs: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """See `Backend.look`."""
        return self.model.latent(obs[None], state, start[None]).features[0]

    @torch.no_grad()
    def record(self, features: Tensor, final_features: Tensor, final_index: Tensor) -> CriticRecord:
        """See `Backend.record`."""
        out = self._values(features)
        steps = features.shape[0] - 1
        # One zero that shows everywhere: zeros of their own would take as much memory as all values of the rollout.
        final_mean = torch.zeros(()).expand(steps, *out.mean.shape[1:])
        final_law = None if out.law is None else torch.zeros(()).expand(steps, *out.law.shape[1:])
        if final_index.shape[0]:
            final = self._values(final_features)
            final_mean, final_law = final_mean.contiguous(), None if final_law is None else final_law.contiguous()
            final_mean[final_index[:, 0], final_index[:, 1]] = final.mean
            if final_law is not None and final.law is not None:
                final_law[final_index[:, 0], final_index[:, 1]] = final.law
        scale = self.model.return_scale
        return CriticRecord(out.mean, out.law, final_mean, final_law, float(scale.mu), float(scale.sigma))

    # ---------------------------------------------------------------- update

    def update(self, rollout: Rollout, knobs: Knobs) -> UpdateReport:
        """Targets, new return scale, epochs; committed only if everything stayed finite and KL bounded."""
        broken = rollout.non_finite()
        if broken:
            counts = ", ".join(f"{n} in {name}" for name, n in broken.items())
            return _refused(f"the rollout has NaN or infinite entries: {counts}; nothing was learnt from it")
        targets = self._targets(rollout)
        snapshot = self._take_snapshot()
        assessed = (
            None
            if self.risk is None
            else assess_risk(
                targets,
                rollout,
                self.risk,
                gamma=self.config.gamma,
                threshold=knobs.threshold,
                credit=self._risk_credit,
            )
        )
        prepared, metrics = prepare(
            rollout,
            targets,
            self.model,
            self.optimiser,
            self.config,
            self.mix_advantages,
            risk=None if assessed is None else assessed.advantage,
            multiplier=knobs.multiplier,
            probe_risk=knobs.measure_terms and knobs.multiplier > 0,
        )
        if not prepared.finite():
            self._restore(snapshot)
            return _refused("targets overflowed to NaN or infinity; nothing was learnt from this rollout")
        known = None if assessed is None else assessed.cvar
        metrics |= describe_targets(rollout, targets, self.model, self.tail_alpha, cvar=known)
        metrics |= {} if assessed is None else assessed.metrics(knobs.multiplier)
        for group in self.optimiser.param_groups:
            group["lr"] = knobs.step_size.value
        run = self._epochs(rollout, prepared, knobs)
        reason = run.all()
        too_far = None if reason is not None else self._final_check(run)
        reason = reason or too_far
        metrics |= run.tally.result()
        metrics |= {"policy/kl_after": run.kl_after, "policy/epochs": float(run.epochs_done)}
        metrics |= {"policy/stopped_early": float(run.stopped), "policy/first_log_ratio": run.first_log_ratio}
        if reason is not None:
            self._restore(snapshot)
            return UpdateReport(
                False, reason, run.stopped, run.kl_after, metrics, run.term_gradients, went_too_far=too_far is not None
            )
        obs = rollout.of_valid(rollout.obs)
        absorbed = self.model.normaliser.absorb(obs)
        metrics["obs/outlier_fraction"] = absorbed.outliers
        return UpdateReport(
            True, None, run.stopped, run.kl_after, metrics, run.term_gradients, observed=absorbed.moments
        )

    def snapshot(self) -> Any:
        """See `Backend.snapshot`."""
        return self._take_snapshot()

    def restore(self, snapshot: Any) -> None:
        """See `Backend.restore`."""
        self._restore(snapshot)

    # What another implementation may do in its own way, with the same result.

    def _make_optimiser(self) -> Any:
        return torch.optim.Adam(_with_epsilon(self.model), lr=self.config.learning_rate)

    def _values(self, features: Tensor) -> CriticOutput:
        return self.model.values(features)

    def _targets(self, rollout: Rollout) -> Targets:
        return build_targets(
            rollout,
            self.model.config.critic,
            self.streams,
            gamma=self.config.gamma,
            lam=self.config.lam,
            near=self.risk is not None,
            make_particles=self.make_particles,
        )

    def _risk_credit(self, inputs: CreditInputs) -> Tensor:
        return risk_credit(inputs)

    def _take_snapshot(self) -> Any:
        return take_snapshot(self.model, self.optimiser)

    def _restore(self, snapshot: Any) -> None:
        restore(snapshot, self.model, self.optimiser)

    def _epochs(self, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> Epochs:
        return Epochs(self, rollout, prepared, knobs)

    def _first_non_finite(self) -> str | None:
        return first_non_finite(self.model)

    def _final_check(self, run: Epochs) -> str | None:
        name = self._first_non_finite()
        if name is not None:
            return f"parameter {name} became NaN or infinite; the update was rolled back"
        run.measure_after()
        if not run.kl_after <= self.config.max_kl:
            return (
                f"KL(old||new) {run.kl_after:.3g} nats after the update is above learner.max_kl "
                f"{self.config.max_kl:g}; the update was rolled back"
            )
        return None

    # ---------------------------------------------------------------- checkpoint

    def training_tensors(self) -> dict[str, Tensor]:
        """Adam's moments by parameter name."""
        tensors = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser/{name}/{key}"] = torch.as_tensor(value).clone()
        return tensors

    def check_training_tensors(self, tensors: dict[str, Tensor], *, fresh: bool) -> None:
        """Raise when optimiser tensors do not fit this model; only a `fresh` one (no step taken) may have none."""
        if fresh and not tensors:
            return
        named = dict(self.model.named_parameters())
        expected = {f"optimiser/{name}/{key}" for name in named for key in ADAM_STATE}
        if tensors.keys() != expected:
            missing, foreign = sorted(expected - tensors.keys())[:3], sorted(tensors.keys() - expected)[:3]
            raise CheckpointError(
                f"the optimiser state does not fit this model: missing {missing}, unexpected {foreign}; use the "
                "configuration that the run was started with"
            )
        for full, value in tensors.items():
            _, name, key = full.split("/")
            shape = torch.Size(()) if key == "step" else named[name].shape
            if value.shape != shape or value.dtype != named[name].dtype:
                raise CheckpointError(
                    f"optimiser state {full!r} is {value.dtype} {tuple(value.shape)}; the model needs "
                    f"{named[name].dtype} {tuple(shape)}"
                )

    def load_training_tensors(self, tensors: dict[str, Tensor]) -> None:
        """See `Backend.load_training_tensors`."""
        self.check_training_tensors(tensors, fresh=True)
        named = dict(self.model.named_parameters())
        self.optimiser.state.clear()
        for full, value in tensors.items():
            _, name, key = full.split("/")
            self.optimiser.state[named[name]][key] = value.clone()


def describe_targets(
    rollout: Rollout, targets: Targets, model: ActorCritic, tail_alpha: float | None, *, cvar: float | None = None
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


def _refused(reason: str) -> UpdateReport:
    return UpdateReport(False, reason, False, 0.0, {})


class Epochs:
    """The passes over one rollout; holds what they measured."""

    def __init__(self, backend: TorchBackend, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> None:
        self.backend, self.rollout, self.prepared, self.knobs = backend, rollout, prepared, knobs
        self.tally = Tally()
        self.stopped = False
        self.epochs_done = 0
        self.kl_after = 0.0
        self.first_log_ratio = 0.0
        self.term_gradients: dict[str, dict[str, float]] = {}
        self._first = True
        self._recurrent = backend.model.core is not None

    def all(self) -> str | None:
        """Run the epochs; a sentence when something is not finite, else None."""
        config, update = self.backend.config, self.rollout.update
        valid = self.rollout.valid
        units = batches.all_units(valid, recurrent=self._recurrent)
        orders = self.backend.streams.permutations("minibatch", len(units), update=update, epochs=range(config.epochs))
        for epoch, order in enumerate(orders):
            draws = self._draws(epoch)
            for chunk in batches.minibatches(units, count=config.minibatches, permutation=order):
                parts = batches.parts(chunk, valid, microbatches=config.microbatches, recurrent=self._recurrent)
                if not parts:
                    continue
                reason = self._minibatch(parts, draws)
                if reason is not None or self.stopped:
                    return reason
            self.epochs_done += 1
        return None

    def _draws(self, epoch: int) -> tuple[Tensor | None, Tensor | None]:
        return self.prepared.draws(self.backend.streams, self.backend.model, update=self.rollout.update, epoch=epoch)

    def _minibatch(self, parts: list[batches.Part], draws: tuple[Tensor | None, Tensor | None]) -> str | None:
        backend, config = self.backend, self.backend.config
        total = sum(part.size for part in parts)
        backend.optimiser.zero_grad(set_to_none=True)
        kl, largest = 0.0, 0.0
        for part in parts:
            losses = self._losses(part, draws)
            share = part.size / total
            loss = losses.total
            if not bool(torch.isfinite(loss)):
                names = ", ".join(f"{name} {float(term.detach()):g}" for name, term in losses.terms.items())
                return f"a loss became NaN or infinite ({names}); the update was rolled back"
            if self._first and self.knobs.measure_terms:
                self.term_gradients = term_gradients({**losses.terms, **losses.probes}, backend.model)
                self.knobs = dataclasses.replace(self.knobs, measure_terms=False)
            torch.autograd.backward(loss * share)
            self.tally.mean(losses.means, part.size)
            self.tally.largest(losses.maxima)
            self.tally.smallest(losses.minima)
            kl += share * float(losses.kl.mean())
            largest = max(largest, float(losses.log_ratio.abs().max()))
        if self._first:
            self.first_log_ratio, self._first = largest, False
        if config.target_kl is not None and kl > STOP_FACTOR * config.target_kl:
            self.stopped = True
            return None
        norms = group_norms(backend.model)
        before, after = clip_global_norm(backend.parameters, config.max_grad_norm)
        self.tally.mean({f"grad/norm/{name}": norm for name, norm in norms.items()}, 1.0)
        self.tally.mean({"grad/norm_before": before, "grad/norm_after": after}, 1.0)
        self.tally.largest({"grad/norm_before_max": before})
        if not before < float("inf"):
            return f"the gradient norm became {before}; the update was rolled back"
        backend.optimiser.step()
        backend.model.project()
        return None

    def _losses(self, part: batches.Part, draws: tuple[Tensor | None, Tensor | None]) -> Losses:
        backend = self.backend
        return compute_losses(
            backend.model,
            self._features(part),
            self.prepared.batch(part.rows, draws),
            backend.config,
            entropy_weight=self.knobs.entropy_weight,
            bounds_weight=self.knobs.bounds_weight,
            auxiliary=backend.auxiliary,
        )

    def _features(self, part: batches.Part) -> Tensor:
        """Latent features [n, H] of the rows of a part."""
        model, prepared = self.backend.model, self.prepared
        if part.envs is None or part.inside is None:
            obs = prepared.obs.reshape(-1, prepared.obs.shape[-1])[part.rows]
            empty = torch.zeros(len(part.rows), 0, 0)
            return model.latent(obs[None], empty, torch.zeros(1, len(part.rows), dtype=torch.bool)).features[0]
        latent = model.latent(
            prepared.obs[:, part.envs], self.rollout.state[part.envs], self.rollout.start[:, part.envs]
        )
        return latent.features.reshape(-1, latent.features.shape[-1])[part.inside]

    @torch.no_grad()
    def measure_after(self) -> None:
        """Exact KL(old||new) over all valid rows of the rollout, in as many parts as training used."""
        model, config, valid = self.backend.model, self.backend.config, self.rollout.valid
        units = batches.all_units(valid, recurrent=self._recurrent)
        old = self.rollout.params.reshape(-1, self.rollout.params.shape[-1])
        rows, kl = 0, 0.0
        for part in batches.parts(
            units, valid, microbatches=config.minibatches * config.microbatches, recurrent=self._recurrent
        ):
            new = model.policy(self._features(part), self.prepared.mask_rows(part.rows))
            kl += float(law_kl(model.law, old[part.rows], new).sum())
            rows += part.size
        self.kl_after = kl / rows


def _with_epsilon(model: ActorCritic) -> list[dict[str, Any]]:
    """All parameters in two groups of the optimiser: critics, and the rest."""
    groups = model.groups()
    critics = [p for name, parameters in groups.items() if name.startswith("critic_") for p in parameters]
    others = [p for name, parameters in groups.items() if not name.startswith("critic_") for p in parameters]
    return [{"params": others, "eps": ADAM_EPSILON}, {"params": critics, "eps": CRITIC_EPSILON}]

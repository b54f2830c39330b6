"""Signals that rules need beside the learner's own metrics, and what has to be remembered for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tailwise.core.numerics import Moments, column_moments
from tailwise.learner.config import KlFactor, LearnerConfig
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.health import probes
from tailwise.run.health.plasticity import Weights, plasticity
from tailwise.run.health.probes import StepFacts

Floats = npt.NDArray[np.float64]

DRIFT_RATE = 0.1  # of the moving moments: about ten rollouts
DRIFT_WARMUP = 10  # rollouts before a shift is told
SMALLEST_SPREAD = 1e-6  # relative to the entry's size; below it an entry counts as constant
LARGEST_LOG_RATIO = 14.0  # ln of a spread that went to rounding
SMALLEST_RATIO = math.exp(-LARGEST_LOG_RATIO)
ROWS, ENTRIES, KEPT, BINS = 128, 16, 5, 10  # of the samples for PSI
EMPTY = 1e-3  # share of an empty bin
TENTHS = np.linspace(0, 1, BINS + 1)[1:-1]
REWARD_WARMUP = 5  # rollouts before a reward can be a jump
RETURN_WARMUP = 10  # updates before a fall of the return is told
RETURN_RATE = 0.1
USUAL_KL = 0.05  # nats; what KL is compared with when no target is set
LEAST_SPREAD = 0.3  # of the widest spread of returns so far: with less, what critics miss is measured by this


def psi(reference: Floats, sample: Floats, tenths: Floats) -> float:
    """Population stability index of sample [n] against reference [m], over bins that end at `tenths` of the reference.

    sum over bins of (q - p) ln(q / p); 0: the same law. A bin without entries counts as `EMPTY`.
    """
    edges = np.unique(tenths)
    p, q = (
        np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1) / len(values)
        for values in (reference, sample)
    )
    filled = (p > 0) | (q > 0)  # a bin that neither has says nothing
    p, q = (np.maximum(share[filled], EMPTY) for share in (p, q))
    p, q = p / p.sum(), q / q.sum()
    return float(((q - p) * np.log(q / p)).sum())


class Drift:
    """Moving moments of the entries [D] that are scaled, and the newest samples of rows."""

    def __init__(self, scaled: npt.NDArray[np.bool_]) -> None:
        from tailwise.core.loops import rollouts  # imports numba: on first use

        self.columns = np.flatnonzero(scaled)
        self.rollouts = 0
        self.mean = np.zeros(len(self.columns))
        self.variance = np.zeros(len(self.columns))
        self.samples: list[Floats] = []  # each [rows, entries], oldest first
        self._found = np.empty(rollouts.FOLLOWED)
        self._follow = rollouts.follow_moments

    def warm_up(self) -> None:
        """Compile or load the pass before the first update; one over no columns does."""
        nothing = np.empty(0)
        self._follow(nothing, nothing, self.columns[:0], nothing, nothing, DRIFT_RATE, SMALLEST_SPREAD, self._found)

    def absorb(self, obs: npt.NDArray[np.float32], moments: Moments | None = None) -> dict[str, float]:
        """Compare a rollout's rows obs [n, D] with the recent ones, then count them among those.

        moments: those of obs, where they are known.
        """
        if not len(self.columns) or not len(obs):
            return {}
        now = column_moments(obs) if moments is None else moments
        rate = max(DRIFT_RATE, 1.0 / (self.rollouts + 1))
        self._follow(self.mean, self.variance, self.columns, now.mean, now.variance, rate, SMALLEST_SPREAD, self._found)
        absorbed, compared, shift, widest, narrowest = self._found.tolist()
        if not absorbed:
            return {}
        self.rollouts += 1
        if self.rollouts <= DRIFT_WARMUP or not compared:
            return {}
        return {
            "obs/drift_mean": shift,
            "obs/drift_std": max(math.log(max(widest, SMALLEST_RATIO)), -math.log(max(narrowest, SMALLEST_RATIO))),
        }

    def sample(self, obs: npt.NDArray[np.float32]) -> dict[str, float]:
        """PSI of some rows of obs [n, D] against the kept samples; call it at an interval."""
        if not len(self.columns) or not len(obs):
            return {}
        columns = self.columns[:: max(1, -(-len(self.columns) // ENTRIES))]
        rows = obs[:: max(1, len(obs) // ROWS)][:ROWS][:, columns].astype(np.float64)
        if not np.isfinite(rows).all():
            return {}
        metrics = {}
        if len(self.samples) == KEPT:
            reference = np.concatenate(self.samples)
            triples = zip(reference.T, rows.T, np.quantile(reference, TENTHS, axis=0).T)
            metrics["obs/drift_psi"] = max(psi(*triple) for triple in triples)
        self.samples = [*self.samples[-(KEPT - 1) :], rows]
        return metrics

    def against(self, mean: Floats) -> float | None:
        """Largest shift of another mean [D] against the recent rollouts, in their standard deviations."""
        spread = np.sqrt(self.variance)
        moving = spread > SMALLEST_SPREAD * (np.abs(self.mean) + 1e-12)
        if self.rollouts == 0 or not moving.any():
            return None
        shift = np.abs(mean[self.columns] - self.mean)[moving]
        return float((shift / spread[moving]).max())

    def state(self) -> dict[str, Floats]:
        """Arrays for a checkpoint."""
        arrays = {"mean": self.mean, "variance": self.variance, "rollouts": np.array(float(self.rollouts))}
        return arrays | {f"sample_{i}": rows for i, rows in enumerate(self.samples)}

    def load(self, arrays: dict[str, Floats]) -> None:
        """The inverse of `state`."""
        mean, variance = arrays["mean"].copy(), arrays["variance"].copy()
        for name, moment in (("mean", mean), ("variance", variance)):
            # Compiled code reads and writes them without a look at their size.
            if moment.shape != self.mean.shape or moment.dtype != np.float64 or not np.isfinite(moment).all():
                raise ValueError(f"the moving {name} of observations is not {len(self.columns)} finite numbers")
        if (variance < 0).any():
            raise ValueError("a moving variance of observations is negative")
        self.mean, self.variance = mean, variance
        self.rollouts = int(arrays["rollouts"])
        self.samples = [arrays[f"sample_{i}"].copy() for i in range(KEPT) if f"sample_{i}" in arrays]


class Signals:
    """Measures after each update. All of it reads the rollout and the torch modules, whatever the backend is."""

    def __init__(self, model: ActorCritic, learner: LearnerConfig, *, every: int) -> None:
        self.model = model
        self.kl_factor = learner.kl_factor
        self.every = every
        self.drift = Drift(np.asarray(model.observation.scaled, dtype=np.bool_))
        self.weights = Weights(model)
        self.counter = probes.Counter(model)
        self.rollouts = 0
        self.largest_reward = 0.0
        self.rewards_varied = False  # within one of the rollouts so far
        self.ends_told = False  # whether terminations told something, with rewards that are all equal
        self.peak_std = 0.0
        self.farthest_return = 0.0  # from the centre of its scale, reward units
        self.returns = 0
        self.return_mean = 0.0
        self.return_variance = 0.0

    def warm_up(self) -> None:
        """Compile or load what is measured in every update."""
        self.counter.warm_up()
        self.drift.warm_up()

    def measure(
        self,
        rollout: Rollout,
        facts: StepFacts,
        metrics: Mapping[str, float],
        *,
        kl_factor: float,
        target_kl: float | None,
        observed: Moments | None = None,
    ) -> dict[str, float]:
        """Everything about this update; `metrics` are the learner's own, `observed` its moments of observations."""
        counts = self.counter.count(rollout)
        signals = probes.decisions(self.model, rollout, counts) | facts.metrics()
        signals |= self._rewards(counts, rollout)
        signals |= self._returns(metrics)
        largest = counts.largest_entropy
        if largest is not None and largest > 0 and "policy/entropy" in metrics:
            signals["policy/entropy_share"] = metrics["policy/entropy"] / largest
        if "policy/kl_after" in metrics:
            signals["policy/kl_of_target"] = metrics["policy/kl_after"] / (USUAL_KL if target_kl is None else target_kl)
        obs = probes.rows_of(rollout, rollout.obs)
        signals |= self.drift.absorb(obs, observed)
        if self.rollouts % self.every == 0:
            signals |= self.drift.sample(obs)
            hidden = probes.hidden_units(self.model, rollout)
            dead = probes.dead_units(hidden)
            signals |= {} if dead is None else {"model/dead_units": dead}
            signals |= plasticity(hidden, self.weights)
        if isinstance(self.kl_factor, KlFactor):
            signals["step/at_low_bound"] = float(kl_factor <= self.kl_factor.low)
            signals["step/at_high_bound"] = float(kl_factor >= self.kl_factor.high)
        signals["machine/memory"] = probes.memory_mb()
        self.rollouts += 1
        return signals

    def _rewards(self, counts: probes.Counts, rollout: Rollout) -> dict[str, float]:
        earlier = self.largest_reward if self.rollouts >= REWARD_WARMUP else 0.0
        signals = probes.rewards(counts, earlier)
        if signals:
            varied = counts.smallest < counts.largest
            self.largest_reward = max(self.largest_reward, signals["reward/largest"])
            signals["reward/no_information"] = float(self._no_information(rollout, varied=varied))
        return signals

    def _no_information(self, rollout: Rollout, *, varied: bool) -> bool:
        """All rewards are equal and nothing ended, as it always was, or although rewards used to differ.

        A solved CartPole has neither differences nor ends: there the ends told what was good, and nothing is wrong. The
        same where only the step that ends an episode pays differently (a solved InvertedPendulum).
        """
        if varied and self.rewards_varied:
            return False  # nothing is left to be found out
        terminated, alive = rollout.terminated.numpy(), varied  # whether rewards differ while an episode goes on
        informative = bool(terminated.any())
        if informative:
            paid = rollout.reward.numpy()[rollout.valid.numpy() & ~terminated]
            alive = bool(paid.min() < paid.max()) if len(paid) else varied
            informative = not len(paid) or bool(paid.any())  # where staying alive pays nothing, ending it costs nothing
        self.rewards_varied |= alive
        self.ends_told |= informative and not self.rewards_varied
        return not varied and not informative and not self.ends_told

    def _returns(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How the returns of this update compare with the earlier ones; nothing for a refused update."""
        mean, std = metrics.get("return/mean"), metrics.get("return/std")
        if mean is None or std is None or not (math.isfinite(mean) and math.isfinite(std)):
            return {}
        signals = {}
        self.peak_std = max(self.peak_std, std)
        if self.peak_std > 0:
            signals["return/std_of_peak"] = std / self.peak_std
            signals |= self._unexplained(metrics, std)
        signals |= self._record(metrics)
        spread = math.sqrt(self.return_variance)
        if self.returns >= RETURN_WARMUP and spread > 0 and self.peak_std > 0:
            signals["return/decline"] = (self.return_mean - mean) / spread
            signals["return/decline_of_peak"] = (self.return_mean - mean) / self.peak_std
        rate = max(RETURN_RATE, 1.0 / (self.returns + 1))
        shift = mean - self.return_mean
        self.return_variance = (1 - rate) * (self.return_variance + rate * shift**2)
        self.return_mean += rate * shift
        self.returns += 1
        return signals

    def _unexplained(self, metrics: Mapping[str, float], std: float) -> dict[str, float]:
        """What the critics miss, in the variance of returns, which counts as at least that of `LEAST_SPREAD`.

        Once returns are nearly constant, an error of nothing is many times their variance.
        """
        explained = metrics.get("critic/explained_variance")
        if explained is None:
            return {}
        missed = (1.0 - explained) * std**2
        return {"critic/unexplained": missed / max(std, LEAST_SPREAD * self.peak_std) ** 2}

    def _record(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How far the farthest return of this update lies from the centre, over the farthest one before."""
        largest, sigma = metrics.get("return/largest_normalised"), metrics.get("return/sigma")
        if largest is None or sigma is None or not math.isfinite(largest * sigma):
            return {}
        farthest, before = largest * sigma, self.farthest_return
        self.farthest_return = max(before, farthest)
        return {"return/record": farthest / before} if before > 0 else {}

    def forget_returns(self) -> None:
        """Compare the returns of the next updates with each other alone: another discount gives other returns."""
        self.peak_std, self.returns, self.return_mean, self.return_variance = 0.0, 0, 0.0, 0.0
        self.farthest_return = 0.0

    def evaluation(self, mean: np.ndarray) -> dict[str, float]:
        """Shift of the evaluation's mean observation [D] against training."""
        shift = self.drift.against(mean)
        return {} if shift is None else {"obs/evaluation_drift": shift}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """For a checkpoint: (tensors, JSON)."""
        tensors = {f"drift/{name}": torch.from_numpy(np.array(array)) for name, array in self.drift.state().items()}
        return tensors, {
            "rollouts": self.rollouts,
            "largest_reward": self.largest_reward,
            "rewards_varied": self.rewards_varied,
            "ends_told": self.ends_told,
            "peak_std": self.peak_std,
            "farthest_return": self.farthest_return,
            "returns": self.returns,
            "return_mean": self.return_mean,
            "return_variance": self.return_variance,
        }

    def load(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.drift.load({n.removeprefix("drift/"): t.numpy() for n, t in tensors.items() if n.startswith("drift/")})
        self.rollouts, self.returns = int(data["rollouts"]), int(data["returns"])
        self.largest_reward, self.peak_std = float(data["largest_reward"]), float(data["peak_std"])
        self.farthest_return = float(data.get("farthest_return", 0.0))  # earlier checkpoints have none
        self.rewards_varied, self.ends_told = bool(data["rewards_varied"]), bool(data["ends_told"])
        self.return_mean, self.return_variance = float(data["return_mean"]), float(data["return_variance"])

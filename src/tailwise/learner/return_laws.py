"""Laws of the return that critics predict, as `ActionLaw` is for actions: one object per kind of critic.

A law of C critics is a tensor [..., C, N] in normalised units: quantiles, or logits on atoms. The mathematics stands in
pure functions (`critic_losses`, `returns`, `calibration_laws`); an object knows which of them
its kind uses. A new kind of critic is a section in `model/config.py` and an object here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tailwise.core.errors import ConfigError
from tailwise.learner import calibration_laws, critic_losses
from tailwise.learner.calibration_laws import Floats, Integers, Laws
from tailwise.learner.returns import (
    average_law,
    inverse_cdf_atoms,
    inverse_cdf_quantiles,
    places_between,
    stratified_levels,
)
from tailwise.learner.rollout import CriticRecord
from tailwise.learner.tally import Number
from tailwise.model.actor_critic import CriticOutput
from tailwise.model.config import (
    CategoricalCritic,
    Critic,
    QuantileCritic,
    ScalarCritic,
    quantile_midpoints,
)
from tailwise.model.scales import ReturnScale, preserve_outputs


class RowLoss(NamedTuple):
    """Per row [n]: what is trained on, the loss without value clip, whether the clip changed the prediction."""

    loss: Tensor
    unclipped: Tensor
    clipped: Tensor


class ScaleMove(NamedTuple):
    """A move of the return scale, raw units."""

    old_mu: float
    old_sigma: float
    mu: float
    sigma: float


@dataclass(frozen=True)
class QuantileKernel:
    """What compiled code needs to know of a law of quantiles.

    quantiles: N per critic, 0 where only means are learnt; kappa: Huber threshold; sampled: particles per target and
    minibatch.
    """

    quantiles: int
    kappa: float
    sampled: int


class ReturnLaw(ABC):
    """What the learner asks of one kind of critic.

    size            N, 0 without a law
    lam             lambda of the SR(lambda) particles that the law learns from, None where it learns from none
    particle_count  M, particles per target
    sampled         particles drawn per minibatch, 0 for all
    kernel          what compiled code reads, None where there is no such code
    rescales        whether `rescale` multiplies the weights of a head by old sigma / sigma
    """

    size: int = 0
    lam: float | None = None
    particle_count: int = 0
    sampled: int = 0
    kernel: QuantileKernel | None = None
    rescales: ClassVar[bool] = False

    def target_of(self, returns: Tensor) -> Tensor | None:
        """What the law learns from where `lam` is None: [T, B, M] of lambda-returns [T, B], None without a law."""
        return None

    @abstractmethod
    def loss(self, new: Tensor, old: Tensor | None, particles: Tensor) -> RowLoss:
        """Loss of one critic's law [n, N] on particles [n, m], clipped (if at all) around its old output [n, N]."""

    def describe(self, out: CriticOutput, particles: Tensor) -> dict[str, Number]:
        """Metrics of the critics' outputs at n rows and of their particles [n, m]."""
        return {}

    @abstractmethod
    def particles(self, law: Tensor, levels: Tensor, *, mu: float, sigma: float) -> Tensor:
        """Particles [..., M] of the critics' common law: the average over critics of their inverse CDFs.

        law [..., C, N] in the scale (mu, sigma); levels [..., M] in (0, 1), the same leading dimensions or 1 in their
        place. Raw units come out. "Lower of two" would bias an on-policy law; averages do not.
        """

    # ---------------------------------------------------------------- the scale of returns

    @abstractmethod
    def rescale(self, head: nn.Linear, move: ScaleMove) -> None:
        """Keep the raw predictions of a law head when the return scale moves, where that is possible."""

    def start(self, returns: NDArray[np.float64]) -> Tensor | None:
        """Outputs [N] that predict the first returns [n] (normalised) at every state; None: stay as built."""
        return None

    @abstractmethod
    def in_scale(self, law: Tensor, record: CriticRecord, scale: ReturnScale, started: Tensor | None) -> Tensor:
        """Old outputs [..., C, N] of a record as `loss` reads them, in the scale of now.

        started [C, N]: how far `start` moved the heads after the record was made, None where it did not.
        """

    # ---------------------------------------------------------------- calibration

    def grid(self, mu: float, sigma: float) -> Floats:
        """[2]: lowest atom and spacing in raw units; 0 where there are no atoms."""
        return np.zeros(2)

    @abstractmethod
    def raw_values(self, law: NDArray[Any], record: CriticRecord, offset: Floats) -> Laws:
        """N equally likely raw values [n, N], ascending, of the common law [n, C, N]; not finite where that is not.

        offset [n, 1] in (0, 1): where in its stratum each level is read.
        """

    @abstractmethod
    def draw(self, law: NDArray[Any], record: CriticRecord, uniform: Floats) -> Floats:
        """One raw draw [n] from each of the laws [n, C, N], by uniforms [n]; NaN where it is not finite."""

    @abstractmethod
    def transform(self, predicted: Laws, realised: Floats, luck: Floats, grid: Floats) -> Floats:
        """Probability integral transform [n] of returns [n] under laws [n, N]; luck [n, 3], grid [n, 2] of windows."""

    @abstractmethod
    def places(self, levels: Tensor) -> tuple[Integers, NDArray[np.float32] | None]:
        """Where raw values [N] are read at levels [..., M]: the index below, and how far it is to the next one, flat;
        None where only the values themselves are read."""


class ScalarReturn(ReturnLaw):
    """A mean only: nothing of a law can be asked."""

    kernel = QuantileKernel(quantiles=0, kappa=1.0, sampled=0)

    def _refuse(self) -> NoReturn:
        raise ConfigError("model.critic.kind scalar predicts no law of the return; use model.critic.kind quantile.")

    def loss(self, new: Tensor, old: Tensor | None, particles: Tensor) -> RowLoss:
        self._refuse()

    def particles(self, law: Tensor, levels: Tensor, *, mu: float, sigma: float) -> Tensor:
        self._refuse()

    def rescale(self, head: nn.Linear, move: ScaleMove) -> None:
        self._refuse()

    def in_scale(self, law: Tensor, record: CriticRecord, scale: ReturnScale, started: Tensor | None) -> Tensor:
        self._refuse()

    def raw_values(self, law: NDArray[Any], record: CriticRecord, offset: Floats) -> Laws:
        self._refuse()

    def draw(self, law: NDArray[Any], record: CriticRecord, uniform: Floats) -> Floats:
        self._refuse()

    def transform(self, predicted: Laws, realised: Floats, luck: Floats, grid: Floats) -> Floats:
        self._refuse()

    def places(self, levels: Tensor) -> tuple[Integers, NDArray[np.float32] | None]:
        self._refuse()


class QuantileReturn(ReturnLaw):
    """N quantiles at the levels (i + 0.5) / N."""

    def __init__(self, config: QuantileCritic) -> None:
        self.size, self.clip, self.kappa = config.quantiles, config.clip, config.kappa
        self.lam = config.lam if config.target == "particles" else None
        self.particle_count, self.sampled = config.particle_count, config.minibatch_particles
        self.limits = config.clip.limits
        self.kernel = QuantileKernel(config.quantiles, config.kappa, config.minibatch_particles)

    def target_of(self, returns: Tensor) -> Tensor:
        return returns[..., None]

    def loss(self, new: Tensor, old: Tensor | None, particles: Tensor) -> RowLoss:
        limit, factor = self.limits
        around = new.detach() if old is None else old
        result = critic_losses.clipped_quantile_loss(
            new, around, particles, mode=self.clip.kind, range=limit, factor=factor, kappa=self.kappa
        )
        return RowLoss(result.loss, result.loss_new, result.active)

    def describe(self, out: CriticOutput, particles: Tensor) -> dict[str, Number]:
        assert out.law is not None
        law = out.law.detach()
        return {
            "critic/quantile_crossing": (law[..., 1:] < law[..., :-1]).float().mean(),
            "critic/mean_gap": (law.mean(-1) - out.mean.detach()).mean(),
        }

    def particles(self, law: Tensor, levels: Tensor, *, mu: float, sigma: float) -> Tensor:
        # Even where M = N the quantiles themselves are not used: their outermost levels are 0.5/N from the ends, so
        # every bootstrap would trim the tail.
        return mu + sigma * inverse_cdf_quantiles(average_law(law), levels)

    rescales = True

    def rescale(self, head: nn.Linear, move: ScaleMove) -> None:
        preserve_outputs(head, **move._asdict())

    def start(self, returns: NDArray[np.float64]) -> Tensor | None:
        if not returns.min() < returns.max():
            return None
        return torch.from_numpy(np.quantile(returns, quantile_midpoints(self.size).numpy()))

    def in_scale(self, law: Tensor, record: CriticRecord, scale: ReturnScale, started: Tensor | None) -> Tensor:
        if record.sigma > 0:
            return scale.to_normalised(record.raw(law))
        return law if started is None else law + started

    def raw_values(self, law: NDArray[Any], record: CriticRecord, offset: Floats) -> Laws:
        return calibration_laws.raw_quantiles(law, record.mu, record.sigma)

    def draw(self, law: NDArray[Any], record: CriticRecord, uniform: Floats) -> Floats:
        return calibration_laws.draw_from_quantiles(law, uniform, record.mu, record.sigma)

    def transform(self, predicted: Laws, realised: Floats, luck: Floats, grid: Floats) -> Floats:
        return calibration_laws.transform_by_quantiles(predicted, realised, luck)

    def places(self, levels: Tensor) -> tuple[Integers, NDArray[np.float32] | None]:
        left, beyond = places_between(levels, self.size)
        return left.numpy(), beyond.float().numpy().reshape(-1)


class CategoricalReturn(ReturnLaw):
    """Probabilities on N evenly spaced atoms (C51)."""

    def __init__(self, config: CategoricalCritic) -> None:
        self.size, self.clip, self.lam = config.atoms, config.clip, config.lam
        self.particle_count, self.sampled = config.particle_count, config.minibatch_particles
        self.limits = config.clip.limits
        self.support = config.support()

    def loss(self, new: Tensor, old: Tensor | None, particles: Tensor) -> RowLoss:
        atoms = self.support.to(new.dtype)
        target = critic_losses.project(particles, None, atoms)
        plain = critic_losses.cross_entropy(new, target)
        if not self.clip.active:
            return RowLoss(plain, plain, torch.zeros_like(plain, dtype=torch.bool))
        limit, factor = self.limits
        around = new.detach() if old is None else old
        moved = critic_losses.clip_categorical(new, around, atoms, mode=self.clip.kind, range=limit, factor=factor)
        active = critic_losses.categorical_clip_active(
            new, around, atoms, mode=self.clip.kind, range=limit, factor=factor
        )
        return RowLoss(critic_losses.clipped_loss(plain, critic_losses.cross_entropy(moved, target)), plain, active)

    def describe(self, out: CriticOutput, particles: Tensor) -> dict[str, Number]:
        atoms = self.support.to(particles.dtype)
        return {"critic/out_of_support": critic_losses.out_of_support_fraction(particles, atoms)}

    def particles(self, law: Tensor, levels: Tensor, *, mu: float, sigma: float) -> Tensor:
        atoms = mu + sigma * self.support.to(law.dtype)
        every = levels.expand(*law.shape[:-2], -1)  # atoms are searched row by row
        per_critic = [inverse_cdf_atoms(atoms, law[..., c, :].softmax(-1), every) for c in range(law.shape[-2])]
        return torch.stack(per_critic).mean(0)

    def rescale(self, head: nn.Linear, move: ScaleMove) -> None:
        """Nothing: logits are no affine function of the return. The support moves, and the prediction along with it."""

    def in_scale(self, law: Tensor, record: CriticRecord, scale: ReturnScale, started: Tensor | None) -> Tensor:
        """Probabilities of what was predicted, projected onto where the support stands now."""
        probs = law.softmax(-1)
        if not record.sigma > 0:
            return probs
        atoms = self.support.to(law.dtype)
        moved = scale.to_normalised(record.raw(atoms)).expand_as(probs)
        return critic_losses.project(moved, probs, atoms)

    def grid(self, mu: float, sigma: float) -> Floats:
        support = mu + sigma * self.support.double().numpy()
        return np.array([support[0], support[1] - support[0]])

    def raw_values(self, law: NDArray[Any], record: CriticRecord, offset: Floats) -> Laws:
        # All levels are moved by the same offset, so that an atom of less mass than a stratum is met as often as it
        # should.
        levels = stratified_levels(torch.from_numpy(offset).expand(-1, self.size))
        return np.asarray(self._read(law, record, levels), dtype=np.float32)

    def draw(self, law: NDArray[Any], record: CriticRecord, uniform: Floats) -> Floats:
        return np.asarray(self._read(law, record, torch.from_numpy(uniform)[:, None])[:, 0], dtype=np.float64)

    def _read(self, law: NDArray[Any], record: CriticRecord, levels: Tensor) -> NDArray[Any]:
        """Raw values [n, M] of laws [n, C, N] at levels [n, M]; NaN where a law is not finite."""
        values = self.particles(torch.from_numpy(law), levels, mu=record.mu, sigma=record.sigma).numpy()
        return np.where(np.isfinite(law).all((1, 2))[:, None], values, np.nan)

    def transform(self, predicted: Laws, realised: Floats, luck: Floats, grid: Floats) -> Floats:
        return calibration_laws.transform_by_atoms(predicted, realised, luck, grid, self.size)

    def places(self, levels: Tensor) -> tuple[Integers, NDArray[np.float32] | None]:
        return (levels * self.size).long().numpy(), None


def return_law(config: Critic) -> ReturnLaw:
    """The law that a critic predicts; made once for each configuration and default dtype."""
    return _return_law(config, torch.get_default_dtype())


@cache
def _return_law(config: Critic, dtype: torch.dtype) -> ReturnLaw:
    match config:
        case ScalarCritic():
            return ScalarReturn()
        case QuantileCritic():
            return QuantileReturn(config)
        case CategoricalCritic():
            return CategoricalReturn(config)

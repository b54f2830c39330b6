"""The fused CPU implementation of `Backend`: the inner loops as compiled kernels.

What surrounds the loops (targets, transaction, KL control, checkpoints) is `learner.ppo`, for all backends alike, so
that they cannot drift apart. The torch model stays the owner of its parameters: they become views into one flat buffer
(`layout`), and Adam's moments are two more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from tailwise.core.compiled import Repeated
from tailwise.core.errors import ConfigError
from tailwise.core.numerics import surely_finite
from tailwise.core.streams import Streams
from tailwise.fused.adam import FlatAdam, FlatKind, adam_step
from tailwise.fused.ahead import FusedAhead, ahead_of
from tailwise.fused.coverage import kernel_of, why_not_fused
from tailwise.fused.credit import risk_credit
from tailwise.fused.epochs import FusedEpochs
from tailwise.fused.inference import Inputs, Outputs, StepMemory, act, step_memory
from tailwise.fused.inference import values as critic_values
from tailwise.fused.layout import Parameters, aligned_zeros, bind
from tailwise.fused.minibatch import Workers, learn_rows, learn_sequences
from tailwise.fused.products import lay_out
from tailwise.fused.rows import Standard, standard_of
from tailwise.fused.targets import particle_returns
from tailwise.fused.warm_up import compile_ahead, compile_kernels, kernels_are_kept
from tailwise.learner import ppo
from tailwise.learner.backend import Knobs, MixAdvantages, UpdateReport
from tailwise.learner.batches import Prepared
from tailwise.learner.config import LearnerConfig
from tailwise.learner.credit import CreditInputs
from tailwise.learner.decisions import Ahead, Decisions, action_noise
from tailwise.learner.losses import AuxiliaryLoss
from tailwise.learner.optimisers import first_non_finite
from tailwise.learner.return_laws import return_law
from tailwise.learner.returns import mix_advantages
from tailwise.learner.risk import RiskSettings
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.learner.shards import OneProcess, Shards
from tailwise.model.actor_critic import ActorCritic, CriticOutput, Decision, check_finite
from tailwise.model.config import quantile_midpoints

_NO_MASK = np.zeros((0, 0), dtype=np.bool_)
_NO_NOISE = np.zeros((0, 0))
_NO_CHOICE = np.zeros(0, dtype=np.int64)
_NO_ACTION = np.zeros((0, 0), dtype=np.float32)


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.numpy())


@dataclass(frozen=True)
class _FlatSnapshot:
    """Copies of what an update changes: parameters, Adam's moments and step, the model's buffers by name."""

    flat: np.ndarray
    average: np.ndarray
    square: np.ndarray
    step: int
    buffers: dict[str, np.ndarray]


def _groups(model: ActorCritic) -> dict[str, list[int]]:
    """Numbers of the parameters in each group and layer of the core, as `optimisers.group_norms` names them."""
    order = {parameter: i for i, parameter in enumerate(model.parameters())}
    groups = {name: [order[parameter] for parameter in group] for name, group in model.groups().items()}
    if "core" in groups:
        groups["core.layer_0"] = groups["core"]
    return groups


class _PreparedSteps:
    """The arguments of `act` in every step of one rollout; only what is observed is missing."""

    def __init__(self, backend: FusedBackend, decisions: Decisions) -> None:
        envs, discrete = decisions.noise.shape[1], backend._discrete
        actions = decisions.actions.reshape(-1, envs) if discrete else decisions.actions
        self._first = (backend.parameters, backend.log_std, backend.standard())
        self._noise, self._memory = decisions.noise, backend._memory_for(envs)
        self._state = decisions.states if backend._recurrent else None
        self._outputs = [
            Outputs(
                choice=action if discrete else _NO_CHOICE,
                action=_NO_ACTION if discrete else action,
                log_prob=decisions.log_probs[t],
                params=decisions.parameters[t],
                features=decisions.looks[t],
                state=decisions.states,
            )
            for t, action in enumerate(actions)
        ]
        self._act = backend.act_again

    def decide(self, t: int, obs: np.ndarray, start: np.ndarray, mask: np.ndarray | None) -> None:
        """obs float32 [B, D], start bool [B], mask bool [B, K] or None."""
        inputs = Inputs(
            np.ascontiguousarray(obs, np.float32),
            np.ascontiguousarray(start, np.bool_),
            _NO_MASK if mask is None else np.ascontiguousarray(mask, np.bool_),
            self._noise[t],
        )
        self._act(*self._first, inputs, self._state, self._memory, self._outputs[t])


class FusedBackend:
    """See the module. `threads` workers share every minibatch; their number is part of the result's last digits."""

    def __init__(
        self,
        model: ActorCritic,
        config: LearnerConfig,
        streams: Streams,
        *,
        threads: int = 1,
        tail_alpha: float | None = None,
        risk: RiskSettings | None = None,
        mix_advantages: MixAdvantages = mix_advantages,
        auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
        shards: Shards | None = None,
    ) -> None:
        reason = why_not_fused(model.config, config, model.action, auxiliary=auxiliary)
        if reason is not None:
            raise ConfigError(f"backend fused: {reason}")
        self.model = model
        self.config = config
        self.streams = streams
        self.tail_alpha = tail_alpha
        self.risk = risk
        self.mix_advantages = mix_advantages
        self.auxiliary = tuple(auxiliary)
        self.shards: Shards = OneProcess() if shards is None else shards
        self.bound = bind(model)
        assert isinstance(config.optimiser, FlatKind)
        self.optimiser = FlatAdam(model, self.bound, config.optimiser)
        # The same memory as an array: a tensor that is touched after a kernel costs tens of microseconds.
        self.flat: np.ndarray = self.bound.flat.numpy()
        self.parameters = Parameters(self.bound.network, self.flat, aligned_zeros(self.bound.laid.floats).numpy())
        network, self._recurrent = self.bound.network, model.core is not None
        # A view, as kernels read it; None for Discrete.
        self.log_std = self.flat[network.log_std :][: network.actor] if network.log_std >= 0 else None
        self._discrete, self._parameters = model.law.discrete, model.law.parameters
        self._state_shape, self._normaliser = model.state_shape, model.normaliser
        self._memory = step_memory(self.bound.network, 1)
        self._ahead: FusedAhead | None = None
        self.act_again, self.adam_step = Repeated(act), Repeated(adam_step)
        self.learn_rows, self.learn_sequences = Repeated(learn_rows), Repeated(learn_sequences)
        self._buffers = dict(model.named_buffers())  # the walk over all modules takes longer than the copies
        self._buffer_arrays = {name: buffer.numpy() for name, buffer in self._buffers.items()}
        floats = [array for array in self._buffer_arrays.values() if array.dtype.kind == "f"]
        self._floats = [self.flat, *floats]  # what `first_non_finite` looks at
        self._statistics = (model.normaliser.mean, model.normaliser.variance)
        self._standard: tuple[tuple[int, int], Standard] | None = None
        quantiles = kernel_of(model.config.critic).quantiles
        self.tau_weight = (2.0 * quantile_midpoints(quantiles) - 1.0).to(torch.float32).numpy()
        self.groups = _groups(model)
        self.workers = Workers(self.bound.network, self.bound.flat.shape[0], threads)

    def warm_up(self, tell: Callable[[str], None], venv: Any = None) -> None:
        """See `Backend.warm_up`."""
        model = self.model
        ahead = None if venv is None else self.ahead(venv)
        if kernels_are_kept(core=self.bound.network.core, particles=return_law(model.config.critic).lam is not None):
            if ahead is not None:
                compile_ahead(ahead, venv.num_envs, tell)
            return
        throwaway = ActorCritic(model.config, model.observation, model.action, init_seed=0)
        compile_kernels(FusedBackend(throwaway, self.config, Streams(0)), tell, venv)

    # ---------------------------------------------------------------- inference

    def act(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """See `Backend.act`. Arrays and not tensors inside: a step is short, and making a tensor is not."""
        network, rows, discrete = self.bound.network, obs.shape[0], self._discrete
        noise = _NO_NOISE if uniform is None else uniform.numpy()
        inputs = Inputs(
            obs=_array(obs),
            start=_array(start),
            mask=_NO_MASK if mask is None else _array(mask),
            noise=np.ascontiguousarray(noise if discrete or uniform is None else ndtri(noise)),
        )
        outputs = Outputs(
            choice=np.empty(rows if discrete else 0, dtype=np.int64),
            action=np.empty((0 if discrete else rows, network.actor), dtype=np.float32),
            log_prob=np.empty(rows, dtype=np.float32),
            params=np.empty((rows, self._parameters), dtype=np.float32),
            features=np.empty((rows, network.features_width), dtype=np.float32),
            state=np.empty((rows, *self._state_shape), dtype=np.float32),
        )
        self.lay_out(self.bound.laid.to_act)
        before, memory = _array(state) if self._recurrent else None, self._memory_for(rows)
        act(self.parameters, self.log_std, self.standard(), inputs, before, memory, outputs)
        return Decision(
            action=torch.from_numpy(outputs.choice[:, None] if discrete else outputs.action),
            log_prob=torch.from_numpy(outputs.log_prob),
            params=torch.from_numpy(outputs.params),
            features=torch.from_numpy(outputs.features),
            state=torch.from_numpy(outputs.state),
        )

    def play(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """See `Backend.play`; the kernel adds up each row in the same order, however many there are."""
        decision = self.act(obs, state, start, mask, uniform)
        check_finite(decision, obs)
        return decision

    def begin(self, update: int, environments: np.ndarray, steps: int, state: Tensor) -> Decisions:
        """See `Backend.begin`; the noise of a Box policy is normal already, the weights are laid out for all steps."""
        noise = action_noise(self.model, self.streams, update, environments, steps)
        self.lay_out(self.bound.laid.to_act)
        return Decisions(self.model, noise if self._discrete else ndtri(noise), state)

    def decide(self, decisions: Decisions, t: int, obs: np.ndarray, start: np.ndarray, mask: np.ndarray | None) -> None:
        """See `Backend.decide`: the kernel writes to where the rollout lies, the new state over the old one."""
        if decisions.prepared is None:  # not before it is needed: whole stretches that run ahead do without
            decisions.prepared = _PreparedSteps(self, decisions)
        decisions.prepared.decide(t, obs, start, mask)

    def ahead(self, venv: Any) -> Ahead | None:
        """See `Backend.ahead`; asked anew for every rollout, because somebody may have replaced a step."""
        ahead = ahead_of(self, venv)
        if ahead is None or self._ahead is None or not self._ahead.same_as(ahead):
            self._ahead = ahead
        return self._ahead  # the one before keeps its machine code

    def encode(self, obs: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """See `Backend.encode`; the decision that comes with it costs little and is not used."""
        return self.act(obs, state, start, None, None).features

    def values(self, features: Tensor) -> CriticOutput:
        """See `Backend.values`."""
        network = self.bound.network
        flat_features = features.reshape(-1, features.shape[-1])
        rows = flat_features.shape[0]
        mean, law = torch.empty(rows, network.critics), torch.empty(rows, network.critics, network.quantiles)
        inputs, means, laws = _array(flat_features), mean.numpy(), law.numpy()
        self.lay_out(self.bound.laid.to_value)

        def work(part: np.ndarray, k: int) -> None:
            mine = slice(part[0], part[-1] + 1)
            memory = self.workers.scratches[k].work  # wide enough: the critics' workspace is part of the heads'
            critic_values(self.parameters, inputs[mine], memory, means[mine], laws[mine])

        self.workers.run(np.arange(rows), work)
        lead = features.shape[:-1]
        return CriticOutput(
            mean.reshape(*lead, -1), law.reshape(*lead, *law.shape[1:]) if network.quantiles > 0 else None
        )

    def lay_out(self, matrices: np.ndarray) -> None:
        """Lay the panels that `matrices` lists out again, from the parameters as they are now."""
        lay_out(matrices, self.flat, self.parameters.panels)

    def _memory_for(self, rows: int) -> StepMemory:
        width = self.bound.network.trunk_width
        if self._memory.trunk.shape[0] < rows * width:
            self._memory = step_memory(self.bound.network, rows)
        return self._memory

    def standard(self) -> Standard:
        """The normaliser's numbers, read again when its buffers were written to."""
        written = (self._statistics[0]._version, self._statistics[1]._version)
        if self._standard is None or self._standard[0] != written:
            self._standard = (written, standard_of(self._normaliser))
        return self._standard[1]

    # ---------------------------------------------------------------- update

    def record(self, features: Tensor, final_features: Tensor, final_index: Tensor) -> CriticRecord:
        """See `ppo.record`."""
        return ppo.record(self, features, final_features, final_index)

    def update(self, rollout: Rollout, knobs: Knobs) -> UpdateReport:
        """See `ppo.update`."""
        return ppo.update(self, rollout, knobs)

    def particles(self, *arguments: Any, **named: Any) -> tuple[Tensor | None, list[Tensor]]:
        """`particle_returns`, shared by the workers."""
        return particle_returns(*arguments, run=self.workers.run, **named)

    def risk_credit(self, inputs: CreditInputs) -> Tensor:
        """`risk_credit`, shared by the workers."""
        return risk_credit(inputs, run=self.workers.run)

    def epochs(self, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> FusedEpochs:
        """See `Backend.epochs`."""
        return FusedEpochs(self, rollout, prepared, knobs)

    def snapshot(self) -> _FlatSnapshot:
        """See `Backend.snapshot`."""
        buffers = {name: array.copy() for name, array in self._buffer_arrays.items()}
        average, square = self.optimiser.moments
        return _FlatSnapshot(self.flat.copy(), average.copy(), square.copy(), self.optimiser.steps, buffers)

    @torch.no_grad()
    def restore(self, snapshot: _FlatSnapshot) -> None:
        """See `Backend.restore`."""
        self.flat[:] = snapshot.flat
        for moment, before in zip(self.optimiser.moments, (snapshot.average, snapshot.square)):
            moment[:] = before
        self.optimiser.steps = snapshot.step
        for name, buffer in self._buffers.items():  # as tensors, which count how often they were written to
            buffer.copy_(torch.from_numpy(snapshot.buffers[name]))

    def first_non_finite(self) -> str | None:
        """See `Backend.first_non_finite`."""
        return None if surely_finite(*self._floats) else first_non_finite(self.model)

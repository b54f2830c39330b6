"""The torch backend with its epochs on a device: what happens many times per rollout happens there.

Decisions, targets and everything else that happens once per rollout stay on the CPU, where environments are and where
the model of a run stands: checkpoints, evaluations and health rules know of no device. When the epochs begin, the
weights, the optimiser's state and what minibatches read go to the device, once; a committed update brings weights and
state back. Inside an epoch the device is sent the row numbers of each minibatch, and what is read are single numbers
that decide how to go on (loss, KL, norm of the gradient).
"""

from __future__ import annotations

import copy
import dataclasses
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tailwise.learner.backend import Knobs, UpdateReport
from tailwise.learner.batches import EpochDraws, Part, Prepared
from tailwise.learner.optimisers import first_non_finite
from tailwise.learner.ppo import TorchBackend, TorchEpochs, update
from tailwise.learner.rollout import Rollout

# What the host works with while epochs run: which rows are valid, and the ids that random numbers are drawn by.
_STAYS = ("valid", "environment")


class DeviceBackend(TorchBackend):
    """`TorchBackend` whose epochs run on `device`, on a copy of the learner that is made when they begin."""

    def __init__(self, *arguments: Any, device: torch.device, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.device = device
        # Now and not later: some optimisers pull weights to what they were when the optimiser was built.
        there = copy.deepcopy(self.model).to(device)
        self._there = TorchBackend(there, self.config, self.streams, shards=self.shards)

    def update(self, rollout: Rollout, knobs: Knobs) -> UpdateReport:
        """See `ppo.update`."""
        report = update(self, rollout, knobs)
        if report.committed:
            self._bring_back()
        return report

    def epochs(self, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> TorchEpochs:
        """See `Backend.epochs`."""
        there, device = self._there, self.device
        there.config = self.config
        there.model.load_state_dict(self.model.state_dict())
        there.model.prior = None if self.model.prior is None else self.model.prior.to(device)
        there.optimiser.load({name: _moved(name, tensor, device) for name, tensor in self.optimiser.tensors().items()})
        there.optimiser.use(knobs.step_size)
        moved = {
            field.name: value.to(device)
            for field in dataclasses.fields(prepared)
            if isinstance(value := getattr(prepared, field.name), Tensor) and field.name not in _STAYS
        }
        sent = dataclasses.replace(
            rollout,
            params=moved["params"].view(rollout.params.shape),
            state=rollout.state.to(device),
            start=rollout.start.to(device),
        )
        return DeviceEpochs(there, there.optimiser, sent, dataclasses.replace(prepared, **moved), knobs)

    def first_non_finite(self) -> str | None:
        """See `Backend.first_non_finite`: of the learner that took the steps."""
        return first_non_finite(self._there.model)

    @torch.no_grad()
    def _bring_back(self) -> None:
        """Take over what the epochs changed: weights and the optimiser's state."""
        for own, other in zip(self.model.parameters(), self._there.model.parameters(), strict=True):
            own.copy_(other)
        self.optimiser.load({name: tensor.cpu() for name, tensor in self._there.optimiser.tensors().items()})


class DeviceEpochs(TorchEpochs):
    """`TorchEpochs` of a learner on a device."""

    def draws(self, epoch: int) -> EpochDraws:
        """See `Epochs.draws`; in one transfer each."""
        draws = super().draws(epoch)
        chosen, uniform = (None if one is None else one.to(self._device) for one in draws.of_batches)
        return dataclasses.replace(draws, of_batches=(chosen, uniform))

    def _placed(self, part: Part) -> Part:
        return _PartThere(part.units, part.valid, part.whole, part.size, self._device)

    @property
    def _device(self) -> torch.device:
        return self.prepared.obs.device


@dataclasses.dataclass(frozen=True)
class _PartThere(Part):
    """A part whose row numbers are on a device."""

    device: torch.device

    @cached_property
    def _here(self) -> Part:
        return Part(self.units, self.valid, self.whole, self.size)

    @property
    def envs(self) -> Tensor | None:
        """See `Part.envs`."""
        envs = self._here.envs
        return None if envs is None else envs.to(self.device)

    @cached_property
    def rows(self) -> Tensor:
        """See `Part.rows`."""
        return self._here.rows.to(self.device)

    @cached_property
    def inside(self) -> Tensor | None:
        """See `Part.inside`."""
        inside = self._here.inside
        return None if inside is None else inside.to(self.device)


def _moved(name: str, tensor: Tensor, device: torch.device) -> Tensor:
    """State of the optimiser on the device, but for the number of steps, which torch reads on the host."""
    return tensor if name.endswith("/step") else tensor.to(device)

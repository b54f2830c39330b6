"""The inference of playback, bar by bar: `decide_padded` with memory that is made once and nothing that nobody reads.

A paper session asks for one row at a time, so the matrix products of the 64 padded rows are a third of the time and the
small operations around them the rest. Left out are the log-probability, the terms of the normaliser while they stay as
they are, and new memory for the padding. Every number is computed by the same operation on the same 64 rows, so that
decisions equal those of `decide_padded` to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tailwise.model.actor_critic import ROWS, ActorCritic, check_finite
from tailwise.model.scales import Standard


class Answer(NamedTuple):
    """What a policy decides: action [B, A] raw, params [B, P], state [B, S, H]."""

    action: Tensor
    params: Tensor
    state: Tensor


class _Padded:
    """ROWS rows of one input; those that are not given hold `fill`."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, fill: float) -> None:
        self.rows = torch.full((ROWS, *shape), fill, dtype=dtype)
        self._fill, self._given = fill, 0

    def put(self, given: Tensor) -> Tensor:
        """The rows, of which the first are `given` [n, ...]."""
        count = given.shape[0]
        self.rows[:count] = given
        if count < self._given:
            self.rows[count : self._given] = self._fill
        self._given = count
        return self.rows


class PaddedPolicy:
    """`decide_padded` of one model, for many calls; weights and normaliser may change between them."""

    def __init__(self, model: ActorCritic) -> None:
        self.model = model
        self._inputs: dict[str, _Padded] = {}
        self._statistics: tuple[Tensor, Tensor] | None = None  # of the normaliser, to which `_standard` belongs
        self._standard: Standard | None = None

    @torch.no_grad()
    def __call__(
        self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None
    ) -> Answer:
        """Arguments and errors as those of `decide_padded`."""
        if obs.shape[0] <= ROWS:  # nearly always, and slices of a row take a while as well
            answer = self._block(obs, state, start, mask, uniform)
            check_finite(answer, obs)
            return answer
        blocks = []
        for first in range(0, obs.shape[0], ROWS):
            block = slice(first, first + ROWS)
            answer = self._block(
                obs[block],
                state[block],
                start[block],
                None if mask is None else mask[block],
                None if uniform is None else uniform[block],
            )
            check_finite(answer, obs[block], first)
            blocks.append(answer)
        return Answer(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))

    def _block(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Answer:
        model, rows = self.model, obs.shape[0]
        padded, standard = self._padded("obs", obs, 0.0), self._standard_now(obs.dtype)
        normalised = padded if standard is None else standard(padded)
        before = self._padded("state", state, 0.0) if model.core is not None else state
        begins = self._padded("start", start, 1.0)
        latent = model.latent_of(normalised[None], before, begins[None])
        params = model.policy(latent.features[0], None if mask is None else self._padded("mask", mask, 1.0))
        law = model.law
        action = law.mode(params) if uniform is None else law.sample(params, self._padded("uniform", uniform, 0.5))
        return Answer(action[:rows], params[:rows], latent.state[:rows])

    def _padded(self, name: str, given: Tensor, fill: float) -> Tensor:
        memory = self._inputs.get(name)
        if memory is None or memory.rows.dtype != given.dtype:
            memory = self._inputs[name] = _Padded(tuple(given.shape[1:]), given.dtype, fill)
        return memory.put(given)

    def _standard_now(self, dtype: torch.dtype) -> Standard | None:
        """What the normaliser does, computed again where its statistics are no longer the same numbers."""
        normaliser, known = self.model.normaliser, self._statistics
        if known is None or not (torch.equal(known[0], normaliser.mean) and torch.equal(known[1], normaliser.variance)):
            self._statistics = (normaliser.mean.clone(), normaliser.variance.clone())
            self._standard = normaliser.standard(dtype)
        return self._standard

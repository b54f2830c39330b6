"""Interval bounds: what no attack within a budget can do in one step, whatever it tries (Gowal et al. 2018).

An interval around every observation is carried through encoder, memory cell and actor. The bounds hold, and are loose:
a policy may withstand far more. They speak of one decision from the hidden state that was reached without attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tailwise.evaluate.attack_moves import Moment
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.recurrence import Recurrent

SILU_LOWEST = -1.2784645  # where x * sigmoid(x) turns
_MONOTONE = (nn.Tanh, nn.ReLU)


@dataclass(frozen=True)
class Interval:
    """Lower and upper bounds of the same shape."""

    low: Tensor
    high: Tensor

    def linear(self, weight: Tensor, bias: Tensor | None) -> Interval:
        """Of weight x + bias."""
        middle, radius = (self.high + self.low) / 2, (self.high - self.low) / 2
        centre = nn.functional.linear(middle, weight, bias)
        reach = nn.functional.linear(radius, weight.abs())
        return Interval(centre - reach, centre + reach)

    def sigmoid(self) -> Interval:
        return Interval(self.low.sigmoid(), self.high.sigmoid())

    def tanh(self) -> Interval:
        return Interval(self.low.tanh(), self.high.tanh())

    def times(self, other: Interval) -> Interval:
        """Of the product."""
        corners = torch.stack([a * b for a in (self.low, self.high) for b in (other.low, other.high)])
        return Interval(corners.amin(0), corners.amax(0))

    def plus(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)


def exactly(value: Tensor) -> Interval:
    """The interval of one value."""
    return Interval(value, value)


def why_not_certified(model: ActorCritic) -> str | None:
    """The part of a model through which intervals are not carried, a sentence; None where all are."""
    for name, stack in (("encoder", model.encoder), ("actor", model.actor.body)):
        if not isinstance(stack, nn.Sequential):
            return f"its {name} is a {type(stack).__name__}, through which no interval is carried"
        for layer in stack:
            if not isinstance(layer, (nn.Linear, nn.SiLU, *_MONOTONE)):
                return f"its {name} has a {type(layer).__name__}, through which no interval is carried"
    return None


def _through(stack: nn.Module, interval: Interval) -> Interval:
    assert isinstance(stack, nn.Sequential)
    for layer in stack:
        if isinstance(layer, nn.Linear):
            interval = interval.linear(layer.weight, layer.bias)
        elif isinstance(layer, nn.SiLU):
            ends = torch.stack([layer(interval.low), layer(interval.high)])
            turns = (interval.low < SILU_LOWEST) & (interval.high > SILU_LOWEST)
            lowest = torch.full_like(interval.low, float(layer(torch.tensor(SILU_LOWEST))))
            interval = Interval(torch.where(turns, lowest, ends.amin(0)), ends.amax(0))
        else:
            interval = Interval(layer(interval.low), layer(interval.high))
    return interval


def _through_core(core: Recurrent, interval: Interval, state: Tensor) -> Interval:
    """One step of all layers from the exact hidden state [B, S, H]."""
    for layer in range(core.layers):
        ours = [getattr(core.net, f"{kind}_l{layer}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        step = _lstm_step if core.is_lstm else _gru_step
        cell = state[:, core.layers + layer] if core.is_lstm else state[:, layer]
        interval = step(interval, state[:, layer], cell, ours)
    return interval


def _lstm_step(x: Interval, hidden: Tensor, cell: Tensor, weights: Sequence[Tensor]) -> Interval:
    weight_in, weight_hidden, bias_in, bias_hidden = weights
    gates = x.linear(weight_in, bias_in).plus(exactly(nn.functional.linear(hidden, weight_hidden, bias_hidden)))
    parts = [Interval(low, high) for low, high in zip(gates.low.chunk(4, -1), gates.high.chunk(4, -1), strict=True)]
    take, keep, new, show = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()
    return show.times(keep.times(exactly(cell)).plus(take.times(new)).tanh())


def _gru_step(x: Interval, hidden: Tensor, cell: Tensor, weights: Sequence[Tensor]) -> Interval:
    weight_in, weight_hidden, bias_in, bias_hidden = weights
    own = nn.functional.linear(hidden, weight_hidden, bias_hidden).chunk(3, -1)
    given = x.linear(weight_in, bias_in)
    parts = [Interval(low, high) for low, high in zip(given.low.chunk(3, -1), given.high.chunk(3, -1), strict=True)]
    reset, keep = (parts[k].plus(exactly(own[k])).sigmoid() for k in (0, 1))
    new = parts[2].plus(reset.times(exactly(own[2]))).tanh()
    # (1 - z) n + z h rises with n, and is between n and h: its ends are at those of z.
    low = torch.stack([(1 - z) * new.low + z * hidden for z in (keep.low, keep.high)]).amin(0)
    high = torch.stack([(1 - z) * new.high + z * hidden for z in (keep.low, keep.high)]).amax(0)
    return Interval(low, high)


@torch.no_grad()
def head_input(model: ActorCritic, moment: Moment) -> Interval:
    """Bounds [B, n] of what the last layer of the actor reads, for every observation in the box of a moment."""
    box = moment.box
    ends = [box.moved(sign * box.budget.expand_as(box.centre))[0] for sign in (-1.0, 1.0)]
    interval = _through(model.encoder, Interval(ends[0], ends[1]))
    if model.core is not None:
        state = torch.where(moment.start[:, None, None], torch.zeros_like(moment.state), moment.state)
        interval = _through_core(model.core, interval, state)
    return _through(model.actor.body, interval)


@torch.no_grad()
def bound_of(model: ActorCritic, moment: Moment) -> np.ndarray:
    """What is certain about one decision [B], in the units of `change_of_action`: no move in the box changes more.

    Discrete actions: 0 where the most likely action stays what it is, else 1. Box: the largest change of the most
    likely action, mean over its components.
    """
    interval, head = head_input(model, moment), model.actor.head
    if not model.law.discrete:
        means = interval.linear(head.weight, head.bias)
        actions = [
            model.action.to_env(mean.numpy(), squashed=model.law.squashed).reshape(len(mean), -1).astype(np.float64)
            for mean in (model.law.mode(moment.clean.params), means.low, means.high)
        ]
        reach = np.maximum(np.abs(actions[1] - actions[0]), np.abs(actions[2] - actions[0]))
        return np.asarray(reach.mean(axis=1))
    chosen, fragile, first = model.law.mode(moment.clean.params), torch.zeros(len(interval.low), dtype=torch.bool), 0
    for component, choices in enumerate(model.action.sizes):
        rows = slice(first, first + choices)
        weight, bias = head.weight[rows], head.bias[rows]
        own = chosen[:, component]
        # The difference of two logits at once: bounds of each alone would forget that they share their input.
        middle, radius = (interval.high + interval.low) / 2, (interval.high - interval.low) / 2
        apart = weight[own][:, None, :] - weight[None]
        margin = (apart * middle[:, None]).sum(-1) - (apart.abs() * radius[:, None]).sum(-1) + bias[own][:, None] - bias
        rivals = torch.ones_like(margin, dtype=torch.bool).scatter(1, own[:, None], False)
        if moment.mask is not None:
            rivals &= moment.mask[:, rows]
        fragile |= ((margin <= 0) & rivals).any(-1)
        first += choices
    return fragile.numpy().astype(np.float64)

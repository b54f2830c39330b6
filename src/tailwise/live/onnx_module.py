"""A policy as one function of tensors that can be traced: observation and hidden state in, decision and law out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tailwise.core.errors import NotBuiltError
from tailwise.learner.return_laws import return_law
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import QuantileCritic
from tailwise.model.distributions import ActionLaw

LAW = "quantiles"


class OnnxPolicy(nn.Module):
    """One decision for each of B rows, always the most likely action.

    Inputs, of which a policy has those in `inputs`:
        obs     float32 [B, D], raw: the normaliser is inside
        state   float32 [B, S, H], what the call before gave as `next_state`; zeros at first
        start   bool [B], True where an episode begins: the state before it counts as zero
        mask    bool [B, K], True where a choice is allowed
    Outputs, those in `outputs`:
        action          what the environment takes: int64 [B] or [B, A] of choices, float32 [B, A] of numbers
        probabilities   [B, K] of the choices, all components side by side; or `mean` and `std` [B, A] of raw numbers
        expected        [B], predicted mean of the discounted return, raw
        quantiles       [B, N], its law at the levels (i + 0.5) / N, raw, ascending; where critics predict quantiles
        next_state      [B, S, H]
    """

    middle: Tensor
    half_range: Tensor
    low: Tensor
    high: Tensor
    first: Tensor

    def __init__(self, model: ActorCritic, *, masked: bool) -> None:
        super().__init__()
        if model.action.kind == "box" and model.action.dtype != "float32":
            raise NotBuiltError(
                f"actions of dtype {model.action.dtype} are not exported; use a float32 Box or choices."
            )
        self.model = model
        self.has_state = model.core is not None
        self.masked = masked and model.law.discrete
        self.has_law = isinstance(model.config.critic, QuantileCritic)
        self.inputs = ["obs", *(("state", "start") if self.has_state else ()), *(("mask",) if self.masked else ())]
        chances = ["probabilities"] if model.law.discrete else ["mean", "std"]
        law = [LAW] if self.has_law else []
        self.outputs = ["action", *chances, "expected", *law, *(("next_state",) if self.has_state else ())]
        scale = model.return_scale
        self.mu, self.sigma = float(scale.mu), float(scale.sigma)
        action = model.action
        if action.kind == "box":
            middle = action.in_env_units(np.zeros(action.components))
            half = action.in_env_units(np.ones(action.components)) - middle
            for name, values in (("middle", middle), ("half_range", half), ("low", action.low), ("high", action.high)):
                self.register_buffer(name, torch.from_numpy(np.asarray(values, dtype=np.float32)))
        else:
            self.register_buffer("first", torch.tensor(action.start, dtype=torch.int64))

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of these rows, zeros: what a trace begins with."""
        slots, width = self.model.state_shape
        inputs = {
            "obs": torch.zeros(rows, self.model.observation.size),
            "state": torch.zeros(rows, slots, width),
            "start": torch.zeros(rows, dtype=torch.bool),
            "mask": torch.ones(rows, max(self.model.action.logits, 1), dtype=torch.bool),
        }
        return tuple(inputs[name] for name in self.inputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        named = dict(zip(self.inputs, inputs, strict=True))
        model, obs = self.model, named["obs"]
        features = model.encoder(model.normaliser(obs[None]))
        outputs: dict[str, Tensor] = {}
        if model.core is not None:
            features, outputs["next_state"] = model.core(features, named["state"], named["start"][None])
        features = features[0]
        params = model.policy(features, named.get("mask"))
        outputs |= self._decision(model.law, params)
        values = model.values(features)
        outputs["expected"] = values.mean.mean(-1) * self.sigma + self.mu
        if self.has_law and values.law is not None:
            # `average_law` in operations that can be traced
            outputs[LAW] = values.law.sort(-1).values.mean(-2) * self.sigma + self.mu
        return tuple(outputs[name] for name in self.outputs)

    def _decision(self, law: ActionLaw, params: Tensor) -> dict[str, Tensor]:
        action = self.model.action
        if law.discrete:
            parts = torch.split(params, list(action.sizes), dim=-1)
            chosen = torch.stack([part.argmax(-1) for part in parts], dim=-1) + self.first
            chances = torch.cat([part.softmax(-1) for part in parts], dim=-1)
            return {"action": chosen[:, 0] if action.kind == "discrete" else chosen, "probabilities": chances}
        mean, log_std = params.chunk(2, dim=-1)
        if law.squashed:
            taken = self.low + (mean.tanh() + 1.0) / 2.0 * (self.high - self.low)
        else:
            taken = self.middle + self.half_range * mean
        return {"action": taken.maximum(self.low).minimum(self.high), "mean": mean, "std": log_std.exp()}


def law_levels(model: ActorCritic) -> int:
    """N, entries of the output `quantiles`; 0 without it."""
    return return_law(model.config.critic).size if isinstance(model.config.critic, QuantileCritic) else 0

"""The law that a policy starts from and is pulled back to: of positive width around the action of a base rule.

Without evidence the policy then stays the rule, instead of flat or noise. The pull is weight x KL(policy || prior); a
uniform prior is an entropy bonus. docs/base.md has the reasons and measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.config import BasePrior, Prior, UniformPrior
from tailwise.model.actor_critic import ActorCritic


def prior_law(prior: Prior, model: ActorCritic, base_action: Sequence[float] | None) -> Tensor:
    """Parameters [P] of the prior; base_action: in units of the environment, an index for discrete actions."""
    law, action = model.law, model.action
    if isinstance(prior, UniformPrior):
        if not law.discrete:
            raise ConfigError(f"learner.prior.kind uniform is for discrete actions and these are {action.kind}.")
        return torch.zeros(law.parameters)
    assert isinstance(prior, BasePrior)
    if base_action is None:
        raise ConfigError("learner.prior.kind is base and there is no base rule; set env.base, or remove the key.")
    if law.discrete:
        others = (1.0 - prior.mass) / (law.parameters - 1)
        logits = torch.full((law.parameters,), math.log(others))
        logits[int(base_action[0])] = math.log(prior.mass)
        return logits
    means = torch.tensor(action.from_env(base_action, squashed=law.squashed), dtype=torch.get_default_dtype())
    return torch.cat([means, torch.full_like(means, math.log(prior.std))])

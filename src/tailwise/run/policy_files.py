"""The policy half of a checkpoint: everything that acting needs, and nothing of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailwise.core.config import parse
from tailwise.core.signature import Origin
from tailwise.features.spec import FeatureSpec
from tailwise.model.action_spec import ActionSpec
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import ModelConfig
from tailwise.model.observation import ObservationSpec
from tailwise.run.checkpoint import match_tensors, read_policy
from tailwise.run.config import Config, parse_config
from tailwise.run.stored_policy import check_size, policy_spec
from tailwise.run.trust import Trust, code_named_by, require_trust


@dataclass(frozen=True)
class PolicyFiles:
    """What a checkpoint says about acting. masked: trained with action masks; features: None outside the market."""

    model: ActorCritic
    config: Config
    masked: bool
    features: FeatureSpec | None


def policy_tensors(model: ActorCritic) -> dict[str, torch.Tensor]:
    """Parameters and buffers (normaliser, return scale) by name."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}


def policy_json(model: ActorCritic, config: Config, *, masked: bool, features: FeatureSpec | None) -> dict[str, Any]:
    """Specifications from which the model is built again, and the configuration it was trained with."""
    return {
        "observation": model.observation.to_json(),
        "action": model.action.to_json(),
        "model": model.config.model_dump(mode="json"),
        "config": config.model_dump(mode="json"),
        "masked": masked,
        "features": None if features is None else features.to_json(),
    }


def load_policy(folder: str | Path, *, trust: Trust = False) -> PolicyFiles:
    """Rebuild the model of a checkpoint folder, verified; TrustError if that would execute somebody else's code."""
    part = read_policy(folder)
    source = str(Path(folder) / "policy" / "spec.json")
    spec = policy_spec(part.json, source=source)
    config, network = parse_config(spec.config, source=source), parse(ModelConfig, spec.model, source=source)
    check_code(folder, config, spec.features, part.origin, trust)
    observation = ObservationSpec.from_json(part.json["observation"])
    check_size(network, observation.size, part.tensors, source=source)
    model = ActorCritic(network, observation, ActionSpec.from_json(part.json["action"]), init_seed=0)
    load_policy_tensors(model, part.tensors, source=str(folder))
    features = None if spec.features is None else FeatureSpec.from_json(spec.features)
    return PolicyFiles(model, config, spec.masked, features)


def check_code(
    folder: str | Path, config: Config, features: Mapping[str, Any] | None, origin: Origin, trust: Trust
) -> None:
    """Raise TrustError if a policy of this configuration and stored features would execute somebody else's code."""
    modules = () if features is None else FeatureSpec.modules_of(features)
    require_trust(str(folder), code_named_by(config, training=False, modules=modules), origin, trust)


def load_policy_tensors(model: ActorCritic, tensors: dict[str, torch.Tensor], *, source: str) -> None:
    """Put checkpoint tensors into a model of the same configuration."""
    match_tensors(tensors, model.state_dict(), source=source)
    model.load_state_dict(tensors)

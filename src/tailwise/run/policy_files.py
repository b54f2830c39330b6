"""The policy half of a checkpoint: everything that acting needs, and nothing of training.

policy/spec.json is checked against its shape, and no network is built that is larger than the stored tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator

from tailwise.core.config import parse
from tailwise.core.errors import CheckpointError, DataError
from tailwise.core.parsing import Stored, as_stored
from tailwise.core.signature import Origin
from tailwise.features.spec import FeatureSpec
from tailwise.model.action_spec import ActionSpec
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import MlpEncoder, ModelConfig, NoCore
from tailwise.model.observation import ObservationSpec
from tailwise.run.checkpoint import match_tensors, read_policy
from tailwise.run.config import Config, parse_config
from tailwise.run.trust import Trust, code_named_by, require_trust

LARGEST_SPACE = 2**24  # entries of an observation or an action
Size = Annotated[int, Field(ge=0, le=LARGEST_SPACE)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Bound = float | Literal["inf", "-inf"]
Dtype = Literal[
    "bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"
]


class StoredLeaf(Stored):
    """See `Leaf`."""

    path: list[str | int]
    kind: Literal["box", "binary", "onehot"]
    shape: list[Size]
    sizes: list[Size]
    starts: list[Whole]

    @model_validator(mode="after")
    def _fits(self) -> StoredLeaf:
        entries = math.prod(self.shape)
        components = entries if self.kind == "onehot" else 0
        if entries > LARGEST_SPACE or sum(self.sizes) > LARGEST_SPACE:
            raise ValueError(f"an observation has at most {LARGEST_SPACE:,} entries")
        if len(self.sizes) != components or len(self.starts) != components:
            raise ValueError(f"sizes and starts need {components} entries, one per choice of a one-hot")
        return self


class StoredObservation(Stored):
    """See `ObservationSpec`."""

    leaves: Annotated[list[StoredLeaf], Field(min_length=1)]
    mask: StoredLeaf | None


class StoredAction(Stored):
    """See `ActionSpec`."""

    kind: Literal["discrete", "multidiscrete", "box"]
    shape: list[Size]
    dtype: Dtype
    sizes: list[Annotated[int, Field(ge=1, le=LARGEST_SPACE)]]
    start: list[Whole]
    low: list[Bound]
    high: list[Bound]
    scaled: bool = False  # missing in policies from before

    @model_validator(mode="after")
    def _fits(self) -> StoredAction:
        entries = math.prod(self.shape)
        choices, bounds = (0, entries) if self.kind == "box" else (entries, 0)
        if entries == 0 or entries > LARGEST_SPACE or sum(self.sizes) > LARGEST_SPACE:
            raise ValueError(f"an action has 1 to {LARGEST_SPACE:,} entries")
        if {len(self.sizes), len(self.start)} != {choices} or {len(self.low), len(self.high)} != {bounds}:
            raise ValueError("sizes and start belong to choices, low and high to a box, one per entry of its shape")
        if self.kind == "discrete" and self.shape:
            raise ValueError("one choice has no shape")
        if any(float(low) > float(high) for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("low is above high")
        return self


class PolicySpec(Stored):
    """policy/spec.json; model, config and features have parsers of their own."""

    observation: StoredObservation
    action: StoredAction
    model: dict[str, Any]
    config: dict[str, Any]
    masked: bool
    features: dict[str, Any] | None


def policy_spec(data: Any, *, source: str) -> PolicySpec:
    """The specification of a policy, in its shape."""
    try:
        return as_stored(PolicySpec, data, source=source)
    except DataError as error:
        raise CheckpointError(f"{error}\nIt was not written by this version; use another checkpoint.") from error


def check_size(config: ModelConfig, observed: int, tensors: Mapping[str, torch.Tensor], *, source: str) -> None:
    """Refuse to build a network that is larger than the tensors that are to go into it.

    observed: D, entries of an observation. A few lines of JSON can describe a network that no memory holds.
    """
    stored, needed = sum(tensor.numel() for tensor in tensors.values()), _least_weights(config, observed)
    if needed > stored:
        raise CheckpointError(
            f"{source} describes a network of at least {needed:,} weights, and the checkpoint holds {stored:,}; it was "
            "changed after it was written, use another checkpoint."
        )


def _least_weights(config: ModelConfig, observed: int) -> int:
    """Weights of the encoder's, the core's and the heads' matrices, without those of a custom encoder."""
    widths = [observed, *config.encoder.hidden] if isinstance(config.encoder, MlpEncoder) else []
    core = config.core
    layers = 0 if isinstance(core, NoCore) else 3 * core.layers * core.hidden**2
    stacks = [widths, config.actor.hidden, config.critic.hidden]
    return layers + sum(first * second for stack in stacks for first, second in pairwise(stack))


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

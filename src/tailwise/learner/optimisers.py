"""The optimiser and what surrounds a step: its size, gradient norms and clipping, copies to roll back to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from tailwise.core.errors import CheckpointError
from tailwise.core.streams import Streams
from tailwise.learner.config import KlFactor, NoKlFactor
from tailwise.learner.lasting import AdamW, AdaUpgd, Lasting, Upgd
from tailwise.learner.optimiser_config import AdamOptimiser, AnyOptimiser
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import PopArt


@dataclass(frozen=True)
class StepSize:
    """The factors of one update's learning rate; noise_factor: of single parameter groups, 1 where none is given."""

    base: float
    schedule: float
    kl_factor: float
    health_factor: float
    noise_factor: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The learning rate that the optimiser uses, before the noise factors."""
        return self.base * self.schedule * self.kl_factor * self.health_factor


def next_kl_factor(
    config: NoKlFactor | KlFactor, factor: float, *, stopped: bool, kl: float, target_kl: float | None
) -> float:
    """The factor after an update: smaller when it was stopped early, larger when KL stayed below half the target."""
    if isinstance(config, NoKlFactor) or target_kl is None:
        return factor
    if stopped:
        factor = factor / config.ratio
    elif kl < target_kl / 2:
        factor = factor * config.ratio
    return min(max(factor, config.low), config.high)


def group_norms(model: ActorCritic) -> dict[str, Tensor]:
    """Euclidean norm of the gradient per named group, and per layer of the core; each parameter counts once a name."""
    squares = {group: _square_sum(parameters) for group, parameters in model.groups().items()}
    if model.core is not None:
        layers: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.core.named_parameters():
            layer = re.search(r"_l(\d+)$", name)
            assert layer is not None, name
            layers.setdefault(f"core.layer_{layer.group(1)}", []).append(parameter)
        squares |= {name: _square_sum(parameters) for name, parameters in layers.items()}
    return {name: value.sqrt() for name, value in squares.items()}


def _square_sum(parameters: Sequence[nn.Parameter]) -> Tensor:
    parts = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
    return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64)


def clip_global_norm(parameters: Sequence[nn.Parameter], max_norm: float | None) -> tuple[float, float]:
    """Scale all gradients so that their joint norm is at most max_norm (None: leave them). Norms (before, after)."""
    before = float(_square_sum(parameters).sqrt())
    if max_norm is None or not before > max_norm:
        return before, before
    scale = max_norm / before
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
    return before, float(_square_sum(parameters).sqrt())


def term_gradients(terms: Mapping[str, Tensor], model: ActorCritic) -> dict[str, dict[str, float]]:
    """Norm of d(term)/d(group) for every loss term and parameter group; exactly 0.0 where no gradient exists."""
    groups = model.groups()
    parameters = [parameter for group in groups.values() for parameter in group]
    result: dict[str, dict[str, float]] = {}
    for name, term in terms.items():
        if not term.requires_grad:
            result[name] = dict.fromkeys(groups, 0.0)
            continue
        # One pass for all groups: a pass for each would go through the same graph again.
        grads = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        squares = [0.0 if grad is None else float(grad.double().square().sum()) for grad in grads]
        of_parameter = dict(zip(parameters, squares, strict=True))
        result[name] = {group: math.sqrt(sum(of_parameter[p] for p in members)) for group, members in groups.items()}
    return result


def owner_of(term: str) -> str:
    """The group that a loss term exists to train: mean_0 and law_0 critic 0, everything else the actor."""
    index = re.fullmatch(r"(?:mean|law)_(\d+)", term)
    return f"critic_{index.group(1)}" if index else "actor"


class Optimiser(Protocol):
    """The state of an optimiser, as everybody but its own step needs it.

    It goes by names `optimiser/<parameter>/<key>` into checkpoints; the keys are the optimiser's own affair.
    """

    def rescale(self, parameter: Tensor, factor: float, weights: float) -> None:
        """Make the state what it would be if all gradients of a parameter had been `factor` times as large, and the
        parameter itself `weights` times."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the state by name; none before the first step."""
        ...

    def check(self, tensors: Mapping[str, Tensor], *, fresh: bool) -> None:
        """Raise when tensors are not the state of this optimiser; only a `fresh` one (no step taken) may have none."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave; what comes from a file is to be checked first."""
        ...


ADAM_EPSILON = 1e-5
# The outermost of 64 quantiles are pulled by one particle in a hundred: their gradients are about as small as 1e-5,
# which would slow down exactly the tail.
CRITIC_EPSILON = 1e-8
ADAM_KEYS = ("step", "exp_avg", "exp_avg_sq")  # torch's names
LASTING: Mapping[str, type[Lasting]] = {"adamw": AdamW, "upgd": Upgd, "upgd_w": Upgd, "ada_upgd": AdaUpgd}


class ModelOptimiser:
    """An optimiser of torch on the parameter groups of a model, with a smaller epsilon for the critics."""

    def __init__(
        self, model: ActorCritic, config: AnyOptimiser, streams: Streams, *, learning_rate: float, foreach: bool = True
    ) -> None:
        self._named = dict(model.named_parameters())
        self.torch: torch.optim.Optimizer
        self._keys: dict[str, tuple[str, ...]]
        groups = named_groups(model)
        if isinstance(config, AdamOptimiser):
            self.torch = torch.optim.Adam(groups, lr=learning_rate, foreach=foreach)
            self._keys = dict.fromkeys(self._named, ADAM_KEYS)
            return
        options = config.model_dump(exclude={"kind", "decay_to"})
        options["decay_to_initial"] = getattr(config, "decay_to", "zero") == "initial"
        lasting = LASTING[config.kind](groups, streams=streams, lr=learning_rate, foreach=foreach, **options)
        names = {parameter: name for name, parameter in self._named.items()}
        self.torch = lasting
        self._keys = {
            names[p]: ("step", *lasting.keys(group)) for group in lasting.param_groups for p in group["params"]
        }

    def use(self, step_size: StepSize) -> None:
        """Take the next steps with these learning rates: the noise factor acts on what preconditioning left of a
        gradient, and neither on decay nor on fresh weights."""
        for group in self.torch.param_groups:
            factor = step_size.noise_factor.get(group["of"], 1.0)
            if isinstance(self.torch, Lasting):
                group["lr"], group["noise_factor"] = step_size.value, factor
            else:
                group["lr"] = step_size.value * factor

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        self.torch.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Move all parameters along their gradients."""
        self.torch.step()

    def rescale(self, parameter: Tensor, factor: float, weights: float) -> None:
        """See `Optimiser.rescale`: the mean of gradients is linear in them, the mean of squares quadratic; the utility
        is a product of gradient and weight."""
        state = self.torch.state.get(parameter, {})
        if "exp_avg" in state and factor != 1.0:
            state["exp_avg"].mul_(factor)
            state["exp_avg_sq"].mul_(factor**2)
        if "utility" in state:
            state["utility"].mul_(factor * weights)

    def tensors(self) -> dict[str, Tensor]:
        """See `Optimiser.tensors`."""
        tensors = {}
        for name, parameter in self._named.items():
            for key, value in self.torch.state.get(parameter, {}).items():
                tensors[f"optimiser/{name}/{key}"] = torch.as_tensor(value).clone()
        return tensors

    def check(self, tensors: Mapping[str, Tensor], *, fresh: bool) -> None:
        """See `Optimiser.check`."""
        check_tensors(self._named, self._keys, tensors, fresh=fresh)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Optimiser.load`."""
        self.torch.state.clear()
        for full, value in tensors.items():
            _, name, key = full.split("/")
            self.torch.state[self._named[name]][key] = value.clone()
        if isinstance(self.torch, Lasting):
            self.torch.forget_layout()


def scaled_heads(model: ActorCritic) -> set[nn.Parameter]:
    """Parameters of the heads that move with the return scale: to shrink them would shrink predictions, not weights."""
    if not isinstance(model.config.returns, PopArt):
        return set()
    heads = [head for critic in model.critic_heads() for head in (critic.mean_head, critic.law_head)]
    return {parameter for head in heads if head is not None for parameter in head.parameters()}


def named_groups(model: ActorCritic) -> list[dict[str, object]]:
    """The parameter groups of an optimiser; `of`: the model's group. Heads that the return scale moves are apart."""
    heads, groups = scaled_heads(model), list[dict[str, object]]()
    for name, members in model.groups().items():
        epsilon = CRITIC_EPSILON if name.startswith("critic_") else ADAM_EPSILON
        plain, scaled = [p for p in members if p not in heads], [p for p in members if p in heads]
        if plain:
            groups.append({"params": plain, "eps": epsilon, "of": name})
        if scaled:
            kept = {"weight_decay": 0.0, "decay_to_initial": False, "shrink_perturb": 0.0}
            groups.append({"params": scaled, "eps": epsilon, "of": name, **kept})
    return groups


def check_tensors(
    named: Mapping[str, nn.Parameter],
    keys: Mapping[str, Sequence[str]],
    tensors: Mapping[str, Tensor],
    *,
    fresh: bool,
) -> None:
    """Raise when tensors are not the state of these parameters, by its `keys`; `fresh`: there may be none."""
    if fresh and not tensors:
        return
    expected = {f"optimiser/{name}/{key}" for name in named for key in keys[name]}
    if tensors.keys() != expected:
        missing, foreign = sorted(expected - tensors.keys())[:3], sorted(tensors.keys() - expected)[:3]
        raise CheckpointError(
            f"the optimiser state does not fit this model: missing {missing}, unexpected {foreign}; use the "
            "configuration that the run was started with"
        )
    for full, value in tensors.items():
        _, name, key = full.split("/")
        shape = torch.Size(()) if key == "step" else named[name].shape
        if value.shape != shape or value.dtype != named[name].dtype:
            raise CheckpointError(
                f"optimiser state {full!r} is {value.dtype} {tuple(value.shape)}; the model needs "
                f"{named[name].dtype} {tuple(shape)}"
            )


@dataclass(frozen=True)
class Snapshot:
    """Copies of parameters and buffers by name, and of the optimiser's state by name."""

    tensors: dict[str, Tensor]
    optimiser: dict[str, Tensor]


def take_snapshot(model: nn.Module, optimiser: Optimiser) -> Snapshot:
    """Copy what an update may change."""
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return Snapshot(tensors, optimiser.tensors())


@torch.no_grad()
def restore(snapshot: Snapshot, model: nn.Module, optimiser: Optimiser) -> None:
    """Put everything back, bit for bit; the snapshot stays what it is and can be restored again."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(snapshot.tensors[name])
    optimiser.load(snapshot.optimiser)


def first_non_finite(model: nn.Module) -> str | None:
    """Name of the first parameter or float buffer with a NaN or infinite entry, None when all are finite."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None

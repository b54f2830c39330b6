"""Optimisers for problems that change: AdamW with decay to the start, UPGD and AdaUPGD, each with shrink and perturb.

All parameters of a group are one vector while a step is computed, because a dozen operations on each small tensor would
cost more than the arithmetic; `foreach=False` computes the same step parameter by parameter. docs/optimisers.md
has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tailwise.core.streams import Streams

PERTURBATION, FRESH = "optimiser perturbation", "optimiser fresh weights"  # names of streams


def normal_draws(streams: Streams, name: str, *, step: int, size: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers [size] of an optimiser step, by Box and Muller in torch, which vectorises them."""
    half = (size + 1) // 2
    uniform = streams.uniforms(name, update=step, environments=1, steps=1, draws=2 * half, short=True)
    levels = torch.from_numpy(uniform.reshape(2, half)).to(dtype)
    radius, angle = (-2.0 * levels[0].log()).sqrt_(), levels[1].mul_(2.0 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:size]


def protection(utility: Tensor, largest: Tensor) -> Tensor:
    """sigmoid(utility / largest) [n]: 1/2 for a weight without utility, .73 for the most useful, towards 0 for harmful.

    largest: the greatest utility of all parameters; clamped above 0, so that utilities that are all negative do not
    change sign, and ones that are all 0 protect every weight alike.
    """
    return torch.sigmoid(utility / largest.clamp(min=torch.finfo(utility.dtype).tiny))


@dataclass
class Chunk:
    """Parameters that are stepped as one vector [n], and their state as such.

    first: place of entry 0 among all parameters of the optimiser, by which random numbers are addressed.
    """

    group: dict[str, Any]
    parameters: list[Tensor]
    first: int
    size: int
    state: dict[str, Tensor] = field(default_factory=dict)
    fresh: tuple[Tensor, Tensor] | None = None  # (mean, standard deviation) of freshly drawn weights

    def gather(self, tensors: Iterable[Tensor]) -> Tensor:
        """One tensor per parameter -> [n], a copy."""
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def split(self, flat: Tensor) -> list[Tensor]:
        """[n] -> views in the shapes of the parameters."""
        parts = torch.split(flat, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


class Lasting(torch.optim.Optimizer):
    """What they share: w <- w - lr wd (w - target) - lr f direction, then w <- (1-a) w + a w_fresh.

    Options of a group: lr, eps, beta1, beta2, utility_beta, noise, weight_decay, decay_to_initial, shrink_perturb (a)
    and noise_factor (f, which variance scaling sets). A parameter without a gradient counts as one whose gradient is 0.
    Random numbers are those of (stream, step, place), so a step depends on nothing but weights, gradients and state.
    """

    adaptive: ClassVar[bool]  # whether steps go along Adam's direction, else along gradients
    protective: ClassVar[bool]  # whether useful weights are protected and the others perturbed

    def __init__(
        self, params: Iterable[Any], *, streams: Streams, lr: float, foreach: bool = True, **options: Any
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr, "eps": 1e-8, "beta1": 0.9, "beta2": 0.999, "utility_beta": 0.999, "noise": 0.0,
            "weight_decay": 0.0, "decay_to_initial": False, "shrink_perturb": 0.0, "noise_factor": 1.0,
        }  # fmt: skip
        unknown = sorted(options.keys() - defaults.keys())
        if unknown:
            raise TypeError(f"{type(self).__name__} has no option {', '.join(unknown)}; it has {', '.join(defaults)}")
        super().__init__(params, defaults | options)
        self.streams, self.foreach = streams, foreach
        self._chunks: list[Chunk] | None = None
        self._begun_with = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}

    def keys(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the state of each parameter in a group, beside `step`."""
        anchored = (group["weight_decay"] > 0 and group["decay_to_initial"]) or group["shrink_perturb"] > 0
        return (
            *(("exp_avg", "exp_avg_sq") if self.adaptive else ()),
            *(("utility",) if self.protective else ()),
            *(("initial",) if anchored else ()),
        )

    def load_state_dict(self, state_dict: Any) -> None:
        """See torch; the state is copied."""
        super().load_state_dict(state_dict)
        self._chunks = None

    def forget_layout(self) -> None:
        """Read `state` anew at the next step: somebody replaced tensors in it."""
        self._chunks = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on all parameters; returns what `closure`, which makes the gradients if given, returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        chunks = self._layout()
        step = self._count()
        weights = [chunk.gather(chunk.parameters) for chunk in chunks]
        grads = [chunk.gather([_gradient(p) for p in chunk.parameters]) for chunk in chunks]
        protected = self._protection(chunks, weights, grads, step) if self.protective else [None] * len(chunks)
        size, dtype, device = chunks[-1].first + chunks[-1].size, weights[0].dtype, weights[0].device
        noise = fresh = None
        if self.protective and any(group["noise"] > 0 for group in self.param_groups):
            noise = normal_draws(self.streams, PERTURBATION, step=step, size=size, dtype=dtype).to(device)
        if any(group["shrink_perturb"] > 0 for group in self.param_groups):
            fresh = normal_draws(self.streams, FRESH, step=step, size=size, dtype=dtype).to(device)
        for chunk, w, g, s in zip(chunks, weights, grads, protected, strict=True):
            group, here = chunk.group, slice(chunk.first, chunk.first + chunk.size)
            direction = adam_direction(chunk.state, g, group, step) if self.adaptive else g
            if s is not None:
                if noise is not None:
                    direction = direction.add(noise[here], alpha=group["noise"])
                direction = direction.mul_(2.0 * (1.0 - s))
            if group["weight_decay"] > 0:
                rate = group["lr"] * group["weight_decay"]
                if group["decay_to_initial"]:
                    w.lerp_(chunk.state["initial"], rate)
                else:
                    w.mul_(1.0 - rate)
            w.sub_(direction, alpha=group["lr"] * group["noise_factor"])
            if group["shrink_perturb"] > 0:
                assert fresh is not None and chunk.fresh is not None
                mean, spread = chunk.fresh
                w.lerp_(torch.addcmul(mean, spread, fresh[here]), group["shrink_perturb"])
            for parameter, value in zip(chunk.parameters, chunk.split(w), strict=True):
                parameter.copy_(value)
        return loss

    def _protection(
        self, chunks: list[Chunk], weights: list[Tensor], grads: list[Tensor], step: int
    ) -> list[Tensor | None]:
        """Update the utilities; `protection` of each chunk. Bias is corrected before the largest of all is taken."""
        corrected = []
        for chunk, w, g in zip(chunks, weights, grads, strict=True):
            beta = chunk.group["utility_beta"]
            utility = chunk.state["utility"].mul_(beta).addcmul_(g, w, value=-(1.0 - beta))
            corrected.append(utility / (1.0 - beta**step))
        largest = torch.stack([utility.max() for utility in corrected]).max()
        return [protection(utility, largest) for utility in corrected]

    def _count(self) -> int:
        """One more step; returns its number."""
        steps = self.state[self.param_groups[0]["params"][0]]["step"]
        steps += 1.0  # every parameter has the same tensor
        return int(steps)

    def _layout(self) -> list[Chunk]:
        """Chunks whose flat state is what `state` shows by parameter; made at the first step and after a load."""
        if self._chunks is not None:
            return self._chunks
        chunks, first = [], 0
        for group in self.param_groups:
            for parameters in [group["params"]] if self.foreach else [[p] for p in group["params"]]:
                size = sum(p.numel() for p in parameters)
                chunks.append(Chunk(group, parameters, first, size))
                first += size
        some = chunks[0].parameters[0]
        stored = self.state.get(some, {}).get("step")
        steps = torch.zeros((), dtype=some.dtype) if stored is None else stored.clone()
        for chunk in chunks:
            self._lay_out(chunk, steps)
        self._chunks = chunks
        return chunks

    def _lay_out(self, chunk: Chunk, steps: Tensor) -> None:
        for key in self.keys(chunk.group):
            parts = [self.state[p].get(key) if p in self.state else None for p in chunk.parameters]
            start = [self._begun_with[p] if key == "initial" else torch.zeros_like(p) for p in chunk.parameters]
            flat = chunk.gather([s if part is None else part for s, part in zip(start, parts, strict=True)])
            chunk.state[key] = flat
            for parameter, view in zip(chunk.parameters, chunk.split(flat), strict=True):
                self.state[parameter][key] = view
        for parameter in chunk.parameters:
            self.state[parameter]["step"] = steps
        if chunk.group["shrink_perturb"] > 0:
            chunk.fresh = fresh_law(chunk.split(chunk.state["initial"]))


def adam_direction(state: dict[str, Tensor], grad: Tensor, group: dict[str, Any], step: int) -> Tensor:
    """m / (sqrt(v) + eps) [n] with both moments, which are updated, corrected for their start at 0."""
    beta1, beta2 = group["beta1"], group["beta2"]
    average = state["exp_avg"].lerp_(grad, 1.0 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    root = square.sqrt().div_(math.sqrt(1.0 - beta2**step)).add_(group["eps"])
    direction: Tensor = (average / (1.0 - beta1**step)).div_(root)
    return direction


def fresh_law(initial: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """(mean [n], standard deviation [n]) of freshly drawn weights, from the weights that a run began with.

    Entries of matrices are normal with the root mean square of their initial matrix; vectors (biases, gains of a layer
    norm, ln standard deviations) begin as constants, and their fresh values are those.
    """
    means, spreads = [], []
    for tensor in initial:
        matrix = tensor.dim() >= 2
        spread = tensor.square().mean().sqrt() if matrix else torch.zeros((), dtype=tensor.dtype)
        means.append((torch.zeros_like(tensor) if matrix else tensor).reshape(-1))
        spreads.append(spread.expand_as(tensor).reshape(-1))
    return torch.cat(means), torch.cat(spreads)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


class AdamW(Lasting):
    """Adam with decoupled weight decay, to zero or to the initial weights."""

    adaptive, protective = True, False


class Upgd(Lasting):
    """Utility-based perturbed gradient descent (Elsayed and Mahmood 2024); with weight decay it is UPGD-W."""

    adaptive, protective = False, True


class AdaUpgd(Lasting):
    """UPGD along Adam's direction."""

    adaptive, protective = True, True

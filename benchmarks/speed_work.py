"""The work that every contender does: the size of the network and of the rollout, and the arithmetic that it takes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.plain_market import ACTIONS, OBSERVATION

Network = Literal["mlp", "lstm"]
Critic = Literal["own", "scalar"]
GATES = 4  # of an LSTM


@dataclass(frozen=True)
class Work:
    """One iteration: `environments` x `steps` samples, then `epochs` passes over them in `minibatches` parts.

    mlp: two layers of `hidden` units; lstm: a layer of 64 units, then `hidden` cells. Then, for everybody, linear heads
    on the same features: the policy, and the critics. tanh between layers.
    critic: own, each contender's usual kind; scalar, one mean for everybody. quantiles, particles: of our two critics
    where they are our own kind; particles are those that a minibatch looks at.
    """

    network: Network = "mlp"
    hidden: int = 64
    environments: int = 64
    steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    quantiles: int = 64
    particles: int = 8
    critic: Critic = "own"

    @property
    def samples(self) -> int:
        """Environment steps of one iteration."""
        return self.environments * self.steps

    @property
    def gradient_steps(self) -> int:
        """Steps of the optimiser in one iteration."""
        return self.epochs * self.minibatches

    @property
    def encoder(self) -> tuple[int, ...]:
        """Widths of the dense layers before the memory or the heads."""
        return (self.hidden, self.hidden) if self.network == "mlp" else (64,)

    @property
    def name(self) -> str:
        """For people."""
        network = f"MLP {self.hidden}x{self.hidden}" if self.network == "mlp" else f"LSTM {self.hidden}"
        alike = ", one scalar critic each" if self.critic == "scalar" else ""
        return f"{network}, {self.environments} environments{alike}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Work:
        values: dict[str, Any] = json.loads(text)
        return Work(**values)


def our_outputs(work: Work) -> int:
    """Columns of our heads: the policy, and one mean, or a mean with quantiles for each of two critics."""
    if work.critic == "scalar":
        return ACTIONS + 1
    return ACTIONS + 2 * (1 + work.quantiles)


def layers(work: Work, outputs: int) -> list[tuple[int, int]]:
    """(inputs, outputs) of every matrix that a sample is multiplied with, first to last."""
    found, width = [], OBSERVATION
    for units in work.encoder:
        found.append((width, units))
        width = units
    if work.network == "lstm":
        found += [(width, GATES * work.hidden), (work.hidden, GATES * work.hidden)]
        width = work.hidden
    return [*found, (width, outputs)]


def flops_per_sample(work: Work, outputs: int) -> int:
    """Floating-point operations of the matrix products for one sample in one iteration, a multiply-add counting two.

    Once forward in the rollout; in each epoch forward, backward to the weights, and backward to the inputs of every
    layer but the first, whose inputs are data. Nothing else is counted: no activations, no losses, no optimiser, nor
    the pass by which our update measures its KL in the end.
    """
    sizes = [2 * rows * columns for rows, columns in layers(work, outputs)]
    forward = sum(sizes)
    return forward + work.epochs * (forward + forward + forward - sizes[0])

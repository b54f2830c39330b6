"""Who is compared, and what a contender can be asked."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Protocol

from benchmarks.speed_work import Work


@dataclass(frozen=True)
class Done:
    """What a contender itself has counted since it was made."""

    samples: int
    gradient_steps: int


class Contender(Protocol):
    """A learner that is ready to train."""

    def iterate(self, times: int) -> None:
        """Collect a rollout and learn from it, `times` times."""

    def done(self) -> Done:
        """As its own library counts, not as it was asked."""

    def facts(self) -> dict[str, float]:
        """Anything else worth a number."""


@dataclass(frozen=True)
class Entry:
    """maker: "module:function", a function of a `Work` that makes a `Contender`; critic: its usual kind; needs:
    packages beyond our own."""

    name: str
    maker: str
    critic: str
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [package for package in self.needs if importlib.util.find_spec(package) is None]

    def critic_on(self, work: Work) -> str:
        """What it has for a critic on this work, in words."""
        return "one scalar critic" if work.critic == "scalar" else self.critic

    def make(self, work: Work) -> Contender:
        module, _, function = self.maker.partition(":")
        made: Contender = getattr(importlib.import_module(module), function)(work)
        return made


_OURS = "two critics with a mean and quantiles on particles"
FUSED = Entry("tailwise fused", "benchmarks.speed_ours:fused", _OURS)
TORCH = Entry("tailwise torch", "benchmarks.speed_ours:torch_backend", _OURS)
SB3 = Entry("stable-baselines3 PPO", "benchmarks.speed_peers:ppo", "one scalar critic", ("stable_baselines3",))
CONTRIB = Entry(
    "sb3-contrib RecurrentPPO", "benchmarks.speed_peers:recurrent_ppo", "one scalar critic", ("sb3_contrib",)
)
GEMM = Entry("matrix products", "benchmarks.speed_products:peak", "none")


def peers_of(work: Work) -> list[Entry]:
    """Other people's learners that can do this work."""
    return [SB3] if work.network == "mlp" else [CONTRIB]

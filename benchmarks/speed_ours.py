"""Tailwise as a contender: the whole agent as a user has it, with its health rules, metrics and tail report."""

from __future__ import annotations

from typing import Any, Literal

from benchmarks.plain_market import PlainMarket
from benchmarks.speed_contenders import Done
from benchmarks.speed_work import Work
from tailwise.run.agent import PPO

NEVER = 1_000_000_000  # updates between audits


def config_of(
    work: Work, backend: Literal["torch", "fused"], *, workers: int = 1, audit_every: int = NEVER
) -> dict[str, Any]:
    """The configuration that does this work.

    Limits on KL are off, as the peers have none by default, so that every epoch is run. audit_every: updates between
    measurements of the gradients of single loss terms; they are off here, because no peer has them, and
    `benchmarks.speed_profile` says what they cost at their default of 20.
    """
    critic: dict[str, Any] = {"kind": "scalar", "hidden": [], "twin": False}
    # The tail that is reported: the default 5%, or what so few quantiles can tell.
    risk: dict[str, Any] = {"mode": "off"}
    if work.critic == "own":
        critic = {"kind": "quantile", "hidden": [], "quantiles": work.quantiles, "minibatch_particles": work.particles}
        risk = {"mode": "report", "alpha": max(0.05, 2 / work.quantiles)}
    core: dict[str, Any] = {"kind": "none"} if work.network == "mlp" else {"kind": "lstm", "hidden": work.hidden}
    return {
        "backend": backend,
        "model": {
            "encoder": {"kind": "mlp", "hidden": list(work.encoder)},
            "core": core,
            "actor": {"hidden": []},
            "critic": critic,
        },
        "learner": {
            "epochs": work.epochs,
            "minibatches": work.minibatches,
            "schedule": {"kind": "constant"},
            "target_kl": None,
            "max_kl": 100.0,
        },
        "run": {"environments": work.environments, "rollout_steps": work.steps, "threads": workers},
        "risk": risk,
        "health": {"gradients_every": audit_every},
    }


class Ours:
    """See `Contender`."""

    def __init__(
        self, work: Work, backend: Literal["torch", "fused"], *, workers: int = 1, audit_every: int = NEVER
    ) -> None:
        self.work = work
        config = config_of(work, backend, workers=workers, audit_every=audit_every)
        self.agent = PPO(PlainMarket(work.environments), config)

    def iterate(self, times: int) -> None:
        self.agent.learn(times * self.work.samples)
        refused = [metrics for metrics in self.agent.history if metrics["update/committed"] != 1.0]
        if refused:
            raise RuntimeError(f"{len(refused)} updates were refused; the comparison would count work that was undone")
        self.agent.history.clear()

    def done(self) -> Done:
        trainer = self.agent.trainer
        taken = {int(value) for name, value in trainer.backend.optimiser.tensors().items() if name.endswith("/step")}
        return Done(trainer.steps, max(taken, default=0))

    def facts(self) -> dict[str, float]:
        return {"parameters": float(sum(p.numel() for p in self.agent.model.parameters()))}


def fused(work: Work) -> Ours:
    return Ours(work, "fused")


def torch_backend(work: Work) -> Ours:
    return Ours(work, "torch")

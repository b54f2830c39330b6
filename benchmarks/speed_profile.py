"""Where does the time go? Timers around the parts of an iteration, in torch and in the fused backend.

A timer stops while another one inside it runs, so the parts add up to the whole. They read the CPU clock of the
process, which costs half a microsecond a call: the parts of a single step come out a little too large. Environment and
policy are told apart step by step; in training they share one kernel (`tailwise.fused.ahead`), which takes less than
the two.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from benchmarks.report import Check, Options
from benchmarks.speed_contenders import Entry
from benchmarks.speed_ours import Ours
from benchmarks.speed_rounds import Result, compare
from benchmarks.speed_sizes import COMPARED, SIZES, name_of
from benchmarks.speed_work import Work

ENVIRONMENT, INFERENCE, TARGETS, DRAWS, LOSSES, OPTIMISER, DIVERGENCE, REST = PARTS = (
    "environment",
    "inference and values",
    "returns and targets",
    "random draws",
    "losses and gradients",
    "optimiser",
    "KL at the end",
    "the rest",
)
AUDIT = "audit of loss terms"
INFERRING = ("begin", "decide", "act", "encode", "record")  # methods of a backend; some lack one of the first
ALWAYS = (ENVIRONMENT, INFERENCE, TARGETS, LOSSES, OPTIMISER)  # a part that took no time here was not timed
NETWORKS = ("mlp64/64", "lstm64/64", "lstm128/64")
ROUNDS, SECONDS = 5, 0.5
FUSED = Entry("tailwise fused", "benchmarks.speed_profile:fused", "")
TORCH = Entry("tailwise torch", "benchmarks.speed_profile:torch_backend", "")
PLAIN = Entry("tailwise fused", "benchmarks.speed_ours:fused", "")
AUDITED = Entry("tailwise fused", "benchmarks.speed_profile:audited", "")
AUDIT_EVERY = 20  # updates between audits of the gradients of single loss terms, as `health.gradients_every` has it


class Timers:
    """CPU-seconds by part, each without what other parts took inside it."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self._since = 0.0

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            self._switch()
            self._open.append(part)
            try:
                return function(*arguments, **named)
            finally:
                self._switch()
                self._open.pop()

        return timed

    def _switch(self) -> None:
        """Book the time since the last switch to the innermost open part."""
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


class Profiled(Ours):
    """Our learner with timers around its parts; `facts` are seconds per iteration."""

    def __init__(self, work: Work, backend: Literal["torch", "fused"]) -> None:
        super().__init__(work, backend)
        self.timers, self._times = Timers(), 1
        for owner, name, part in _places(self, backend):
            setattr(owner, name, self.timers.around(part, getattr(owner, name)))

    def iterate(self, times: int) -> None:
        self.timers.seconds, self._times = dict.fromkeys(PARTS, 0.0), times
        self.timers.around(REST, super().iterate)(times)
        missed = [part for part in ALWAYS if not self.timers.seconds[part]]
        if missed:
            raise RuntimeError(f"nothing was timed as {missed[0]}: a function has another name now, see _places")

    def facts(self) -> dict[str, float]:
        return {part: seconds / self._times for part, seconds in self.timers.seconds.items()}


def _places(ours: Ours, backend: Literal["torch", "fused"]) -> list[tuple[Any, str, str]]:
    """(owner, attribute, part) of every function that is timed."""
    import torch

    from tailwise.learner import ppo as plain

    trainer = ours.agent.trainer
    engine = trainer.backend
    places: list[tuple[Any, str, str]] = [
        (trainer.driver.venv, "step", ENVIRONMENT),
        *((engine, name, INFERENCE) for name in INFERRING if hasattr(engine, name)),
        (plain, "targets_of", TARGETS),
        (plain, "prepare", TARGETS),
        (plain, "describe_targets", TARGETS),
        (trainer.streams, "uniforms", DRAWS),
        (trainer.streams, "permutations", DRAWS),
    ]
    if backend == "torch":
        return [
            *places,
            (plain.TorchEpochs, "draws", DRAWS),
            (plain.TorchEpochs, "losses", LOSSES),
            (torch.autograd, "backward", LOSSES),
            (plain, "group_norms", OPTIMISER),
            (plain, "clip_global_norm", OPTIMISER),
            (engine.optimiser, "step", OPTIMISER),
            (plain.TorchEpochs, "kl_after", DIVERGENCE),
        ]
    from tailwise.fused import epochs as compiled

    return [
        *places,
        (compiled.FusedEpochs, "draws", DRAWS),
        (compiled.FusedEpochs, "_gradient", LOSSES),
        (engine, "adam_step", OPTIMISER),
        (compiled.FusedEpochs, "kl_after", DIVERGENCE),
    ]


def fused(work: Work) -> Profiled:
    return Profiled(work, "fused")


def torch_backend(work: Work) -> Profiled:
    return Profiled(work, "torch")


def audited(work: Work) -> Ours:
    """With an audit in every update."""
    return Ours(work, "fused", audit_every=1)


def measure_profile(options: Options) -> list[Check]:
    checks = []
    rounds, seconds = (1, 0.05) if options.quick else (ROUNDS, SECONDS)
    for part in NETWORKS[:1] if options.quick else NETWORKS:
        work = replace(SIZES[part].work, environments=16, steps=16) if options.quick else SIZES[part].work
        options.say(f"  profile of {work.name}")
        *profiled, plain, audit = compare(
            work, [TORCH, FUSED, PLAIN, AUDITED], rounds=rounds, seconds=seconds, say=lambda text: None
        )
        for result in profiled:
            whole = statistics.median(turn.cpu for turn in result.rounds)
            for name in PARTS:
                value = statistics.median(turn.facts[name] for turn in result.rounds)
                checks.append(
                    Check(
                        name_of(work, result.entry.name, name, "us per sample"),
                        1e6 * value / work.samples,
                        COMPARED,
                        math.isfinite(value),
                        f"{value / whole:.1%} of the iteration",
                    )
                )
        checks.append(_audit(work, plain, audit))
    return checks


def _audit(work: Work, plain: Result, audit: Result) -> Check:
    """What the audit would add at its default; the comparison with others leaves it out, since they have none."""
    pairs = zip(plain.rounds, audit.rounds, strict=True)
    more = statistics.median((with_it.cpu - without.cpu) / AUDIT_EVERY for without, with_it in pairs)
    whole = statistics.median(turn.cpu for turn in plain.rounds)
    return Check(
        name_of(work, "tailwise fused", AUDIT, "us per sample"),
        1e6 * more / work.samples,
        COMPARED,
        math.isfinite(more),
        f"{more / whole:.1%} on top of an iteration; once in {AUDIT_EVERY} updates, and not in the other numbers",
    )

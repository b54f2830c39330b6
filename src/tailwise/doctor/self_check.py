"""Check this installation (`tailwise doctor --self`): formulas, matrix products, random streams, fused kernels, resume.

Compiling kernels takes longer than all checks together. Where nothing is compiled yet, only the smallest network is
compiled and checked, and the check of the other one says that it was skipped.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailwise.core.streams import Streams
from tailwise.doctor.check import Check, Verdict
from tailwise.doctor.formulas import check_formulas
from tailwise.fused.backend import FusedBackend
from tailwise.fused.coverage import why_not_fused
from tailwise.fused.warm_up import kernels_are_kept
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config, parse_config
from tailwise.run.metric_store import FILE, differences_without_time

SHAPES = ((64, 64, 64), (1, 1, 1), (7, 129, 33), (256, 64, 192), (1000, 3, 5))
FLOAT32 = 2.0**-24  # unit of rounding
STREAM = "c7bb9a10"  # first digits of the digest of some draws (x86-64, numpy 2.4); the same on every machine


def check_products() -> Check:
    """Compare float32 products of torch and numpy with float64, in units of the largest possible rounding error."""
    worst, where = 0.0, ""
    for seed, (rows, inner, columns) in enumerate(SHAPES):
        g = np.random.default_rng(seed)
        a, b = g.standard_normal((rows, inner)), g.standard_normal((inner, columns))
        a32, b32 = a.astype(np.float32), b.astype(np.float32)
        exact = a32.astype(np.float64) @ b32.astype(np.float64)
        # Rounding of a sum of `inner` products is at most inner x unit x the sum of their sizes.
        bound = (inner + 2) * FLOAT32 * (np.abs(a32).astype(np.float64) @ np.abs(b32).astype(np.float64))
        for name, product in (("numpy", a32 @ b32), ("torch", (torch.from_numpy(a32) @ torch.from_numpy(b32)).numpy())):
            share = float((np.abs(product - exact) / bound).max())
            if share > worst:
                worst, where = share, f"{name} {rows}x{inner}x{columns}"
    evidence = f"largest error {worst:.2g} of what float32 rounding allows ({where}); {_blas()}"
    meaning = "a BLAS that computes in lower precision (bfloat16, TF32) would break the equality of the backends"
    if worst <= 1.0:
        return Check("matrix products", "ok", evidence, meaning)
    advice = "call torch.set_float32_matmul_precision('highest'), or use another BLAS"
    return Check("matrix products", "fail", evidence, meaning, advice)


def stream_digest() -> str:
    """Digest of the first uniforms and of a permutation of seed 0."""
    streams = Streams(0)
    draws = streams.uniforms("doctor", update=3, environments=4, steps=5, draws=2)
    order = streams.permutation("doctor", 100, update=1)
    return hashlib.sha256(draws.astype("<f8").tobytes() + order.astype("<i8").tobytes()).hexdigest()[:8]


def check_streams() -> Check:
    """Check that the random streams draw the same numbers as on every other machine."""
    digest = stream_digest()
    meaning = "every draw has an address; equal seeds give equal runs on every machine only if these digits agree"
    if digest == STREAM:
        return Check("random streams", "ok", f"digest {digest}", meaning)
    advice = "another version of numpy draws differently: install one that Tailwise was tested with"
    return Check("random streams", "fail", f"digest {digest}, expected {STREAM}", meaning, advice)


class _Cut(Exception):
    """Ends a run in the middle, as a kill would."""


class _CutAfter(Callback):
    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, progress: Progress) -> bool | None:
        if progress.update == self.update:
            raise _Cut
        return None


def check_repetition(core: str | None) -> list[Check]:
    """Train two equal runs and one that is cut off and resumed; compare all three bit for bit.

    core: of a network whose fused kernels are compiled; None: plain torch with an LSTM.
    """
    with tempfile.TemporaryDirectory(prefix="tailwise-doctor-") as place:
        folders = {name: Path(place) / name for name in ("first", "second", "cut")}
        backend = "torch" if core is None else "fused"
        config = tiny_config(backend=backend, core=core or "lstm", updates=4)
        for name in ("first", "second"):
            PPO(config=config, run_dir=folders[name]).learn()
        try:
            PPO(config=config, run_dir=folders["cut"], callbacks=[_CutAfter(2)]).learn()
        except _Cut:
            agent, _ = PPO.resume(folders["cut"])
            agent.learn(progress=False)
        same = _differences(folders["first"], folders["second"])
        resumed = _differences(folders["first"], folders["cut"])
    which = f"({backend}, core {config.model.core.kind})"
    cut = f"a run that was cut off after 2 of 4 updates and resumed {which}"
    return [
        _equality("determinism", same, f"two runs of the same seed {which}", "equal seeds must give equal runs"),
        _equality("resume", resumed, cut, "a run that was killed must end as if it had never been"),
    ]


def _differences(first: Path, second: Path) -> list[str]:
    differing = differences_without_time(first / FILE, second / FILE)
    newest = [ckpt.checkpoints_in(folder)[0] for folder in (first, second)]
    if newest[0].name != newest[1].name:
        return [*differing, f"the newest checkpoints are {newest[0].name} and {newest[1].name}"]
    left, right = (ckpt.read_policy(path).tensors for path in newest)
    return differing + [f"tensor {name}" for name, tensor in left.items() if not torch.equal(tensor, right[name])]


def _equality(name: str, differing: list[str], what: str, meaning: str) -> Check:
    verdict: Verdict = "fail" if differing else "ok"
    evidence = f"{what}: {f'{len(differing)} differences, first: {differing[0]}' if differing else 'equal bit for bit'}"
    advice = "set run.threads to 1; report it with the versions of torch and numba" if differing else ""
    return Check(name, verdict, evidence, meaning, advice)


def _blas() -> str:
    threads = torch.get_num_threads()
    count = f"{threads} thread{'' if threads == 1 else 's'}"
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {count}"


CORES = ("none", "lstm")  # the smallest network first
# Of the largest entry of a tensor's mean gradient, after whole updates. Rounding gives up to 3e-5, a wrong kernel far
# more.
# Gradients and not parameters are compared: Adam divides by a gradient's own size, so that where it is nothing but
# rounding, a parameter takes a whole step in one direction or the other.
TOLERANCE = 1e-4
MEANING = "the fused backend must give what plain torch gives; it is the default where it covers all options"


@dataclass(frozen=True)
class KernelChecks:
    """Checks of the fused kernels.

    checks      one per network
    compiling   seconds, 0 if all kernels were cached
    core        of the largest network whose kernels are compiled now; None if there is none
    """

    checks: tuple[Check, ...]
    compiling: float
    core: str | None


def check_kernels(*, everything: bool) -> KernelChecks:
    """Compare the fused backend with plain torch over whole updates; everything: compile missing kernels."""
    checks, compiling, ready = [], 0.0, None
    for core in CORES:
        name = f"fused kernels, core {core}"
        fused = PPO(config=tiny_config(backend="fused", core=core))
        reason = why_not_fused(fused.config.model, fused.config.learner, fused.model.action, auxiliary=())
        if reason is not None:
            checks.append(Check(name, "unknown", reason, MEANING))
            continue
        backend = fused.trainer.backend
        assert isinstance(backend, FusedBackend)
        kept = kernels_are_kept(core=backend.bound.network.core, particles=True)
        if not (kept or everything or core == CORES[0]):
            evidence = (
                "not checked: its kernels are not compiled on this machine yet, which takes longer than all checks"
            )
            checks.append(
                Check(name, "unknown", evidence, MEANING, "tailwise doctor --self --full compiles and checks")
            )
            continue
        clock = time.perf_counter()
        backend.warm_up(lambda sentence: None)
        seconds = 0.0 if kept else time.perf_counter() - clock
        plain = PPO(config=tiny_config(backend="torch", core=core))
        for agent in (plain, fused):
            agent.learn(progress=False)
        checks.append(_compared(name, plain, fused, seconds))
        compiling, ready = compiling + seconds, core
    return KernelChecks(tuple(checks), compiling, ready)


def _compared(name: str, plain: PPO, fused: PPO, seconds: float) -> Check:
    gaps = relative_gaps(mean_gradients(plain), mean_gradients(fused))
    worst = max(gaps, key=lambda tensor: gaps[tensor])
    evidence = (
        f"over {plain.trainer.update} updates gradients differ by at most {gaps[worst]:.2g} of the largest entry of "
        f"their tensor ({worst}), allowed {TOLERANCE:g}"
    )
    evidence += f"; compiled in {seconds:.1f} s" if seconds else ""
    if gaps[worst] <= TOLERANCE:
        return Check(name, "ok", evidence, MEANING)
    return Check(name, "fail", evidence, MEANING, "set backend: torch, and report the processor and the versions")


def mean_gradients(agent: PPO) -> dict[str, torch.Tensor]:
    """The newest gradients of each parameter, averaged as Adam does, by name."""
    tensors, end = agent.trainer.backend.optimiser.tensors(), "/exp_avg"
    return {name.removesuffix(end): tensor for name, tensor in tensors.items() if name.endswith(end)}


def relative_gaps(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Largest |difference| of every tensor over its largest |entry|, by name; both have the same names."""
    if first.keys() != second.keys() or not first:
        raise ValueError(f"Tensors of other names: {sorted(first.keys() ^ second.keys()) or 'none at all'}.")
    gaps = {}
    for name, tensor in first.items():
        size = float(tensor.detach().abs().max())
        gap = float((tensor - second[name]).detach().abs().max())
        gaps[name] = gap / size if size > 0 else gap
    return gaps


ENVIRONMENT = "CartPole-v1"


def tiny_config(*, backend: str = "auto", core: str = "none", updates: int = 2, seed: int = 0) -> Config:
    """Configuration of a run of a few seconds."""
    tree: dict[str, Any] = {
        "seed": seed,
        "backend": backend,
        "env": {"id": ENVIRONMENT},
        "model": {
            "encoder": {"kind": "mlp", "hidden": [16]},
            "core": {"kind": core, **({} if core == "none" else {"hidden": 8})},
            "actor": {"hidden": [8]},
            "critic": {"kind": "quantile", "quantiles": 40, "minibatch_particles": 8, "hidden": [8]},
        },
        "learner": {"epochs": 2, "minibatches": 2, "target_kl": None},
        "run": {
            "environments": 4,
            "rollout_steps": 16,
            "total_steps": 64 * updates,
            "checkpoint_every": 1,
            "tensorboard": False,
        },
    }
    return parse_config(tree, source="the self-check")


@dataclass(frozen=True)
class Examination:
    """All self-checks, and the seconds spent on compiling kernels (0 if they were cached)."""

    checks: list[Check]
    compiling: float


def check_installation(*, everything: bool = False) -> Examination:
    """Run every self-check; everything: also those whose kernels are not compiled yet."""
    plain = [*check_formulas(), check_products(), check_streams()]
    kernels = check_kernels(everything=everything)
    return Examination([*plain, *kernels.checks, *check_repetition(kernels.core)], kernels.compiling)

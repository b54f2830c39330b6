"""What this machine makes of the same numbers: matrix products, random streams, repeated and resumed runs."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import torch

from tailwise.core.streams import Streams
from tailwise.doctor.check import Check, Verdict
from tailwise.doctor.tiny_run import tiny_config
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.metric_store import FILE, differences_without_time

SHAPES = ((64, 64, 64), (1, 1, 1), (7, 129, 33), (256, 64, 192), (1000, 3, 5))
FLOAT32 = 2.0**-24  # unit of rounding
STREAM = "c7bb9a10"  # first digits of the digest of some draws (x86-64, numpy 2.4); the same on every machine


def check_products() -> Check:
    """float32 products of torch and numpy against float64, in units of what rounding may do."""
    worst, where = 0.0, ""
    for seed, (rows, inner, columns) in enumerate(SHAPES):
        g = np.random.default_rng(seed)
        a, b = g.standard_normal((rows, inner)), g.standard_normal((inner, columns))
        a32, b32 = a.astype(np.float32), b.astype(np.float32)
        exact = a32.astype(np.float64) @ b32.astype(np.float64)
        # Rounding of a sum of `inner` products is at most inner x unit x the sum of their sizes.
        bound = (inner + 2) * FLOAT32 * (np.abs(a32).astype(np.float64) @ np.abs(b32).astype(np.float64))
        for name, found in (("numpy", a32 @ b32), ("torch", (torch.from_numpy(a32) @ torch.from_numpy(b32)).numpy())):
            share = float((np.abs(found - exact) / bound).max())
            if share > worst:
                worst, where = share, f"{name} {rows}x{inner}x{columns}"
    told = f"largest error {worst:.2g} of what float32 rounding allows ({where}); {_blas()}"
    meaning = "a BLAS that computes in lower precision (bfloat16, TF32) would break the equality of the backends"
    if worst <= 1.0:
        return Check("matrix products", "ok", told, meaning)
    advice = "call torch.set_float32_matmul_precision('highest'), or use another BLAS"
    return Check("matrix products", "fail", told, meaning, advice)


def stream_digest() -> str:
    """Digest of the first uniforms and of a permutation of seed 0."""
    streams = Streams(0)
    draws = streams.uniforms("doctor", update=3, environments=4, steps=5, draws=2)
    order = streams.permutation("doctor", 100, update=1)
    return hashlib.sha256(draws.astype("<f8").tobytes() + order.astype("<i8").tobytes()).hexdigest()[:8]


def check_streams() -> Check:
    """The random streams draw what they draw everywhere."""
    found = stream_digest()
    meaning = "every draw has an address; equal seeds give equal runs on every machine only if these digits agree"
    if found == STREAM:
        return Check("random streams", "ok", f"digest {found}", meaning)
    advice = "another version of numpy draws differently: install one that Tailwise was tested with"
    return Check("random streams", "fail", f"digest {found}, expected {STREAM}", meaning, advice)


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
    """Two equal runs, and one that is cut off and resumed: all three equal bit for bit.

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
            agent.learn()
        same = _differences(folders["first"], folders["second"])
        resumed = _differences(folders["first"], folders["cut"])
    which = f"({backend}, core {config.model.core.kind})"
    cut = f"a run that was cut off after 2 of 4 updates and resumed {which}"
    return [
        _equality("determinism", same, f"two runs of the same seed {which}", "equal seeds must give equal runs"),
        _equality("resume", resumed, cut, "a run that was killed must end as if it had never been"),
    ]


def _differences(first: Path, second: Path) -> list[str]:
    found = differences_without_time(first / FILE, second / FILE)
    newest = [ckpt.checkpoints_in(folder)[0] for folder in (first, second)]
    if newest[0].name != newest[1].name:
        return [*found, f"the newest checkpoints are {newest[0].name} and {newest[1].name}"]
    left, right = (ckpt.read_policy(path).tensors for path in newest)
    return found + [f"tensor {name}" for name, tensor in left.items() if not torch.equal(tensor, right[name])]


def _equality(name: str, found: list[str], what: str, meaning: str) -> Check:
    verdict: Verdict = "fail" if found else "ok"
    told = f"{what}: {f'{len(found)} differences, first: {found[0]}' if found else 'equal bit for bit'}"
    advice = "set run.threads to 1; report it with the versions of torch and numba" if found else ""
    return Check(name, verdict, told, meaning, advice)


def _blas() -> str:
    threads = torch.get_num_threads()
    count = f"{threads} thread{'' if threads == 1 else 's'}"
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {count}"

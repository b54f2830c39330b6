"""Like for like: plain PPO against plain PPO, with one scalar critic on both sides.

`speed_sizes` compares what each library has by default, and our critics are the heaviest. Here everybody has the same
network to the last column; ours keeps everything else that users get: normaliser, PopArt, metrics, health rules, KL
after the update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.report import Check, Options
from benchmarks.speed_contenders import CONTRIB, FUSED, SB3, TORCH, Entry, peers_of
from benchmarks.speed_rounds import compare
from benchmarks.speed_sizes import JAX, ROUNDS, SECONDS, against, compile_ours, facts
from benchmarks.speed_work import Work


@dataclass(frozen=True)
class Alike:
    """floors: (our path, peer) -> how many times as fast it has to be, per CPU-second."""

    work: Work
    floors: dict[tuple[Entry, Entry], float]


ALIKE = {
    "alike-mlp64/64": Alike(Work(critic="scalar"), {(FUSED, SB3): 4.0, (FUSED, JAX): 2.0, (TORCH, SB3): 1.1}),
    "alike-lstm64/64": Alike(
        Work("lstm", critic="scalar"), {(FUSED, CONTRIB): 14.0, (FUSED, JAX): 2.0, (TORCH, CONTRIB): 3.0}
    ),
}
OURS = (FUSED, TORCH)


def measure_alike(alike: Alike, options: Options) -> list[Check]:
    """Both of our paths and all peers that are installed, in one run."""
    work = alike.work
    if options.quick:
        work = replace(work, environments=16, steps=16)
    peers = [*peers_of(work), JAX]
    here = [*OURS, *(peer for peer in peers if not peer.missing())]
    rounds, seconds = (2, 0.05) if options.quick else (ROUNDS, SECONDS)
    compile_ours(work)
    results = dict(zip(here, compare(work, here, rounds=rounds, seconds=seconds, say=options.say), strict=True))
    checks = [
        against(work, own, peer, alike.floors.get((own, peer)), results, options) for own in OURS for peer in peers
    ]
    return [*checks, *(check for entry in here for check in facts(work, results[entry]))]

"""Is the tail that steers the limit the tail of the policy that is deployed?

    python -m benchmarks.deployed [--json] [--quick] [--only exposure|positions]

The S&P 500 as `tailwise init` writes it, with a continuous multiplier of the base rule (its default) and with a choice
of multiples. The limit is steered by actions that are sampled while training; what is deployed plays the most likely
action of a continuous one, and samples among choices (docs/risk.md). Both are measured on the train bars, in accounts
as old as those of training: what the run itself measured over the updates before the checkpoint, the policy that
samples, and the policy as it is deployed. No select or test bar is played.
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_all
from benchmarks.real_recipes import alpha_of, recipe
from benchmarks.report import Check, Options, main

ACTIONS: Mapping[str, Mapping[str, Any]] = {
    "exposure": {},
    "positions": {"env": {"action": {"kind": "positions", "positions": [0, 0.5, 1, 1.5]}}},
}
NEAR = 0.1  # of the steered tail
MEASURED = 20  # updates before the checkpoint over which the run's own measure is averaged
DRAWS = 8  # sampled policies, averaged: one account lives through few tails


@dataclass(frozen=True)
class Tails:
    """Of one seed on the train bars. measured: by the run; sampled: of the policy that samples; deployed: as used."""

    measured: float
    sampled: float
    deployed: float


def run(options: Options) -> list[Check]:
    """A row for each kind of action."""
    names = [name for name in ACTIONS if not options.only or name in options.only]
    jobs: list[Job] = [(measure, (name,), {"quick": options.quick}) for name in names]
    checks = [check(name, tails) for name, tails in zip(names, run_all(jobs, options), strict=True)]
    if options.quick:
        note = "smoke run: the goal is not judged"
        checks = [Check(c.name, c.value, c.goal, True, f"{c.detail}; {note}") for c in checks]
    return checks


def check(name: str, tails: Sequence[Tails]) -> Check:
    """The deployed tail against both that steer, mean over the seeds: the worse of the two must be near."""
    measured, sampled, deployed = (
        statistics.fmean(getattr(one, part) for one in tails) for part in ("measured", "sampled", "deployed")
    )
    apart = max(abs(deployed / steered - 1.0) for steered in (measured, sampled))
    each = "; ".join(f"{one.measured:.4f}, {one.sampled:.4f}, {one.deployed:.4f}" for one in tails)
    return Check(
        f"{name}: deployed tail on the train bars, distance from the steered one",
        apart,
        f"<= {NEAR:g}",
        apart <= NEAR,
        f"measured by the run {measured:.4f}, sampled {sampled:.4f}, deployed {deployed:.4f}; by seed: {each}",
    )


def measure(name: str, *, quick: bool) -> list[Tails]:
    """Train with the seeds of `init`, and play the train bars by each of them."""
    import tailwise
    from tailwise.bars.bars import save_bars
    from tailwise.bars.builtin import sp500
    from tailwise.core.errors import ConfigWarning
    from tailwise.run.config import parse_config

    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        bars = Path(place, "sp500.parquet")
        save_bars(sp500(), bars)
        data = recipe([bars]).model_dump(mode="json")
        for section, changes in ACTIONS[name].items():
            data[section] |= changes
        if quick:
            small = {"total_steps": 4096, "environments": 16, "rollout_steps": 64, "tensorboard": False}
            data["run"] = small | {"seeds": 2}
        trained = tailwise.train(parse_config(data, source=name), out=Path(place, "run"))
        return [tails_of(Path(one.run_dir)) for one in trained.seeds]


def tails_of(folder: Path) -> Tails:
    """Those of the run of one seed."""
    import tailwise
    from tailwise.core.numerics import tail_horizon
    from tailwise.evaluate.statistics import empirical_cvar, forward_returns
    from tailwise.run.checkpoint import checkpoint_path, latest_good, training_behind

    best = checkpoint_path(folder, None)  # as `load` chooses: there is none before the limit has acted
    deployed = best if best.is_dir() else latest_good(folder)[0]
    assert deployed is not None
    policy, metrics = tailwise.load(deployed), tailwise.Run(folder).metrics
    behind = metrics[metrics["update"] <= training_behind(deployed).updates]
    config = policy.config
    market = config.env.market
    assert market is not None and market.episode_length is not None
    gamma, alpha = config.learner.gamma, alpha_of(config)
    # The first `episode_length` bars of each piece have the horizon ahead: returns from every age of training.
    world = policy.market().in_pieces("train", market.episode_length + tail_horizon(gamma) - 1)

    def tail(*, deterministic: bool, seed: int) -> float:
        paths = policy.trade("train", deterministic=deterministic, seed=seed, market=world)
        return float(empirical_cvar(np.concatenate([forward_returns(path, gamma) for path in paths]), alpha))

    likely = config.plays_most_likely(discrete=policy.model.law.discrete)
    return Tails(
        measured=float(behind["risk/measure"].iloc[-MEASURED:].mean()),
        sampled=statistics.fmean(tail(deterministic=False, seed=draw) for draw in range(DRAWS)),
        # Other draws than those of the sampled one: the same ones would agree with themselves.
        deployed=statistics.fmean(
            tail(deterministic=likely, seed=DRAWS + draw) for draw in range(1 if likely else DRAWS)
        ),
    )


if __name__ == "__main__":
    main("Deployed tail", run)

"""What pooling options and resampled worlds do, on markets whose truth is known.

    python -m benchmarks.pooling [--json] [--quick] [--only scales|tails|instrument|resample]

Pooled: two symbols with the same planted edge (AR(1) returns) whose volatilities differ by five, one policy as
`tailwise init` writes it but for one option; the reference has shared scales of features. Resampled: one symbol, with
the edge or a random walk, against the same without resampled worlds. Three seeds, each with bars of its own; most
likely actions on bars nobody saw.
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
from benchmarks.real import base_player, sharpe
from benchmarks.real_measures import Tail, matched_base
from benchmarks.real_recipes import alpha_of, recipe
from benchmarks.report import Check, Options, main
from tailwise.bars.bars import save_bars
from tailwise.bars.synthetic import make

SEEDS = (0, 1, 2)
BARS = 5000  # days
PHI = 0.3
SIGMAS: Mapping[str, float] = {"CALM": 0.004, "WILD": 0.02}
Tree = dict[str, Any]
POOLED: Mapping[str, Tree] = {
    "reference": {"features": {"scales": "shared"}},
    "scales": {"features": {"scales": "symbol"}},
    "tails": {"features": {"scales": "shared"}, "data": {"pool": {"tails": "pooled"}}},
    "instrument": {"features": {"scales": "shared", "instrument": True}},
}
RESAMPLED: Mapping[str, Tree] = {
    "none": {},
    "half, drift kept": {"data": {"resample": {"share": 0.5}}},
    "half, drift removed": {"data": {"resample": {"share": 0.5, "drift": "remove"}}},
}
MARKETS: Mapping[str, Tree] = {"ar1": {"phi": PHI, "sigma": 0.01}, "random_walk": {"sigma": 0.01, "drift": 0.0003}}


@dataclass(frozen=True)
class Played:
    """One policy on the bars of one symbol.

    sharpes: train, test; base: that of the base rule with the same tail on the test bars; difference: log-return a year
    minus that of this base; use: realised tail on the train bars as a share of half of buy and hold's own
    """

    sharpes: tuple[float, float]
    base: float
    difference: float
    use: float


def run(options: Options) -> list[Check]:
    """Train every arm, then compare with the first one."""
    seeds = SEEDS[:1] if options.quick else SEEDS
    wanted = set(options.only)
    chosen = {*wanted, "reference"} if wanted - {"resample"} else wanted
    pooled = [name for name in POOLED if not wanted or name in chosen]
    markets = list(MARKETS) if not wanted or "resample" in wanted else []
    jobs: list[Job] = [
        (measure, (f"pool: {name}", seed), {"quick": options.quick}) for name in pooled for seed in seeds
    ] + [
        (measure, (f"{market}: {name}", seed), {"quick": options.quick})
        for market in markets
        for name in RESAMPLED
        for seed in seeds
    ]
    found = dict(zip([job[1] for job in jobs], run_all(jobs, options), strict=True))
    return [
        check(f"{arm}, {symbol}", [found[arm, seed][symbol] for seed in seeds])
        for arm in dict.fromkeys(name for name, _ in found)
        for symbol in found[arm, seeds[0]]
    ]


def check(name: str, played: Sequence[Played]) -> Check:
    """Means over seeds, for comparison: nothing here has a goal."""

    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values)

    sharpes = [mean([one.sharpes[at] for one in played]) for at in (0, 1)]
    each = ", ".join(f"{one.sharpes[1]:.2f}" for one in played)
    words = (
        f"Sharpe train {sharpes[0]:.2f}, test {sharpes[1]:.2f} (seeds {each}), base at its tail "
        f"{mean([one.base for one in played]):.2f}; {100 * mean([one.difference for one in played]):+.2f}% a year over "
        f"it; budget use on the train bars {mean([one.use for one in played]):.2f}"
    )
    return Check(name, sharpes[1], "for comparison", True, words)


def measure(arm: str, seed: int, *, quick: bool = False) -> dict[str, Played]:
    """Train one arm; what became of each symbol."""
    import tailwise
    from tailwise.core.errors import ConfigWarning
    from tailwise.evaluate.statistics import window_returns
    from tailwise.run.config import parse_config

    market, _, name = arm.partition(": ")
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        if market == "pool":
            files = [_written("ar1", one, 10 * seed + at, Path(place)) for at, one in enumerate(SIGMAS)]
        else:
            files = [_written(market, market.upper(), 10 * seed, Path(place))]
        changes = (POOLED if market == "pool" else RESAMPLED)[name]
        data = _laid_over(recipe(files).model_dump(mode="json"), changes) | {"seed": seed}
        if quick:
            data["run"] = {"total_steps": 4096, "environments": 16, "rollout_steps": 64, "tensorboard": False}
        agent = tailwise.PPO(config=parse_config(data, source=arm), run_dir=Path(place, "run"))
        agent.learn()
        policy, world = tailwise.load(Path(place, "run")), agent.market()
        tail = Tail(alpha_of(world.config), world.config.learner.gamma)
        paths = {window: policy.trade(window, deterministic=True, seed=0) for window in ("train", "test")}
        found = {}
        for at, (train, test) in enumerate(zip(paths["train"], paths["test"], strict=True)):
            base, _, _ = matched_base(base_player(world, at, "test"), test, tail)
            difference = window_returns(test) - window_returns(base)
            held = world.dataset.tables("train")[at]
            whole = np.diff(np.log(held.close[held.first_valid :]))
            half = 0.5 * _tail_of(whole, tail)
            found[test.symbol] = Played(
                sharpes=(sharpe(train), sharpe(test)),
                base=sharpe(base),
                difference=float(difference.sum() / (len(difference) / test.periods_per_year)),
                use=(tail.of_returns(train) or 0.0) / half,
            )
        return found


def _tail_of(returns: Any, tail: Tail) -> float:
    """Buy and hold's tail without costs, from its log-returns [T]."""
    from tailwise.core.numerics import known_forward_returns
    from tailwise.evaluate.statistics import empirical_cvar

    return float(empirical_cvar(known_forward_returns(returns, tail.gamma, over=False), tail.alpha))


def _written(market: str, name: str, seed: int, folder: Path) -> Path:
    parameters = {"phi": PHI, "sigma": SIGMAS[name]} if name in SIGMAS else MARKETS[market]
    path = folder / f"{name}.parquet"
    save_bars(make(market, seed=seed, length=BARS, bar="1d", **parameters)[0], path)
    return path


def _laid_over(data: Tree, changes: Tree) -> Tree:
    """The tree with the changes in their places."""
    merged = dict(data)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = _laid_over(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


if __name__ == "__main__":
    main("Pooling and resampled worlds", run)

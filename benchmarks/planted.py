"""Does the pull to the base rule let an edge through where there is one, and hold where there is none?

    python -m benchmarks.planted [--json] [--quick] [--only ar1]

Daily bars of synthetic markets with a planted edge (AR(1) returns, a sine in the price, regimes), a random walk, and
the S&P 500 with its days shuffled. Each is trained as `tailwise init` writes it, no key changed but the seed: several
policies that decide together. The free policy is the same without the pull. Three worlds, each with bars of its own;
most likely actions on the test bars.
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_all
from benchmarks.real import base_player, sharpe
from benchmarks.real_measures import Tail, matched_base
from benchmarks.real_recipes import alpha_of, recipe
from benchmarks.report import Check, Options, main
from tailwise.bars import synthetic
from tailwise.bars.bars import Bars, save_bars

SEEDS = (0, 1, 2)
BARS = 5000  # days, about as many as the real indices have
EDGES: Mapping[str, Mapping[str, Any]] = {
    "ar1": {"kind": "ar1"},
    "sine": {"kind": "sine"},
    # By default storms lose 10 bp a day at 2% volatility: over the 875 storm days of the train bars 1.5 standard
    # errors, which nobody can learn from one history. Four times as much is six.
    "regimes": {"kind": "regime_switching", "drift": (0.0005, -0.004)},
}
NOTHING: Mapping[str, Mapping[str, Any] | None] = {"random walk": {"kind": "random_walk"}, "shuffled S&P 500": None}
KEPT = 0.8  # of the excess that the free policy finds
TURNOVER = 1.5  # of the base rule's
NEVER_FLAT = 0.5  # of the base rule's mean exposure
NOISE = 2.0  # standard errors

FREE = {"learner": {"prior": {"weight": 0.0}}}


@dataclass(frozen=True)
class Played:
    """One policy on its test bars, beside the base rule scaled to the limit and to the policy's own tail.

    sharpes: policy, base; difference: log-returns a year minus the base's at the same tail; error: its standard error;
    exposures and turnovers: policy, base (that of the same tail); use: of the budget
    """

    sharpes: tuple[float, float]
    difference: float
    error: float
    exposures: tuple[float, float]
    turnovers: tuple[float, float]
    use: float | None
    alerts: tuple[str, ...]


def run(options: Options) -> list[Check]:
    """Edges with and without the pull, then the two markets without one."""
    names = [name for name in (*EDGES, *NOTHING) if not options.only or name in options.only]
    seeds = SEEDS[:1] if options.quick else SEEDS
    jobs: list[Job] = [
        (measure, (name, seed, free), {"quick": options.quick})
        for name in names
        for seed in seeds
        for free in ([False, True] if name in EDGES else [False])
    ]
    found = dict(zip([job[1] for job in jobs], run_all(jobs, options), strict=True))
    checks: list[Check] = []
    for name in names:
        pulled = [found[name, seed, False] for seed in seeds]
        if name in EDGES:
            checks.append(_kept(name, pulled, [found[name, seed, True] for seed in seeds]))
        else:
            checks += _left_alone(name, pulled)
    if options.quick:
        note = "smoke run: the goal is not judged"
        checks = [Check(c.name, c.value, c.goal, True, f"{c.detail}; {note}") for c in checks]
    return checks


def measure(
    name: str, seed: int, free: bool, *, quick: bool, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> Played:
    """Train on one market and play the test bars. changes: sections of the configuration, laid over what init wrote."""
    import tailwise
    from tailwise.core.errors import ConfigWarning
    from tailwise.evaluate.statistics import window_returns
    from tailwise.run.config import parse_config
    from tailwise.run.run_folder import read_alerts

    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        data = recipe([_written(market(name, seed), Path(place))]).model_dump(mode="json")
        for section in (changes or {}, FREE if free else {}):
            data = _laid_over(data, section)
        data |= {"seed": 100 * seed}
        if quick:
            small = {"total_steps": 4096, "environments": 16, "rollout_steps": 64, "tensorboard": False}
            data["run"] = small | {"seeds": 2}
        trained = tailwise.train(parse_config(data, source=name), out=Path(place, "run"))
        policy = tailwise.load(trained.folder)
        world = policy.market()
        loud = [alert for one in trained.seeds for alert in read_alerts(Path(one.run_dir))]
        alerts = tuple(sorted({alert["rule"] for alert in loud if alert["severity"] != "info"}))
        (path,) = policy.trade("test", deterministic=True, seed=0, market=world)
        config = world.config
        tail, rule = Tail(alpha_of(config), config.learner.gamma), base_player(world, 0, "test")
        base, _, _ = matched_base(rule, path, tail)
        difference = window_returns(path) - window_returns(base)
        years = len(difference) / path.periods_per_year
        realised = tail.of_returns(path)
        return Played(
            sharpes=(sharpe(path), sharpe(base)),
            difference=float(difference.sum() / years),
            error=float(difference.std() * np.sqrt(len(difference)) / years),
            exposures=(float(np.abs(path.exposure).mean()), float(np.abs(base.exposure).mean())),
            turnovers=(float(path.traded.sum() / years), float(base.traded.sum() / years)),
            use=None if realised is None else realised / config.risk.level,  # type: ignore[union-attr]
            alerts=alerts,
        )


def market(name: str, seed: int) -> Bars:
    """The bars of a seed."""
    parameters = {**EDGES, **NOTHING}[name]
    if parameters is not None:
        others = {key: value for key, value in parameters.items() if key != "kind"}
        return synthetic.make(parameters["kind"], seed=seed, length=BARS, bar="1d", **others)[0]
    return shuffled(seed)


def shuffled(seed: int) -> Bars:
    """The S&P 500 with its days in another order: each keeps its moves against the close before it, and its volume."""
    from dataclasses import replace

    from tailwise.bars.builtin import sp500

    bars = sp500()
    before = np.concatenate([bars.open[:1], bars.close[:-1]])
    order = np.random.default_rng(seed).permutation(len(bars))
    close = bars.open[0] * np.exp(np.cumsum(np.log(bars.close / before)[order]))
    opened = np.concatenate([bars.open[:1], close[:-1]])
    moved = {name: opened * (getattr(bars, name) / before)[order] for name in ("open", "high", "low")}
    high = np.maximum.reduce([moved["high"], moved["open"], close])  # rounding must not put a close above its high
    low = np.minimum.reduce([moved["low"], moved["open"], close])
    return replace(bars, open=moved["open"], high=high, low=low, close=close, volume=bars.volume[order])


def _written(bars: Bars, folder: Path) -> Path:
    save_bars(bars, folder / "market.parquet")
    return folder / "market.parquet"


def _laid_over(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _laid_over(merged[key], value) if both else value
    return merged


def _kept(name: str, pulled: list[Played], free: list[Played]) -> Check:
    excess, possible = (statistics.fmean(one.sharpes[0] - one.sharpes[1] for one in each) for each in (pulled, free))
    told = "; ".join(
        f"seed {seed}: base {p.sharpes[1]:.2f}, pulled {p.sharpes[0]:.2f}, free {f.sharpes[0]:.2f}, turnover "
        f"{p.turnovers[0]:.0f} and {f.turnovers[0]:.0f} a year, budget use {p.use or 0.0:.2f}"
        for seed, (p, f) in enumerate(zip(pulled, free, strict=True))
    )
    share = excess / possible if possible > 0 else None
    return Check(
        f"{name}: share of the free policy's excess Sharpe that is left under the pull",
        share,
        f">= {KEPT:g}",
        share is not None and share >= KEPT,
        told,
    )


def _left_alone(name: str, played: list[Played]) -> list[Check]:
    difference = statistics.fmean(one.difference for one in played)
    error = float(np.sqrt(np.sum([one.error**2 for one in played])) / len(played))
    turnover = max(one.turnovers[0] / one.turnovers[1] for one in played)
    exposure = min(one.exposures[0] / one.exposures[1] for one in played)
    told = "; ".join(
        f"seed {seed}: {one.difference:+.4f} a year, exposure {one.exposures[0]:.2f} (base {one.exposures[1]:.2f}), "
        f"turnover {one.turnovers[0]:.0f} (base {one.turnovers[1]:.0f}), Sharpe {one.sharpes[0]:.2f} (base "
        f"{one.sharpes[1]:.2f}), budget use {one.use or 0.0:.2f}"
        for seed, one in enumerate(played)
    )
    return [
        Check(
            f"{name}: log-return a year minus that of the base with the same tail, in standard errors",
            difference / error if error > 0 else 0.0,
            f"within {NOISE:g}",
            abs(difference) <= NOISE * error,
            told,
        ),
        Check(f"{name}: largest turnover over the base's", turnover, f"<= {TURNOVER:g}", turnover <= TURNOVER, ""),
        Check(
            f"{name}: smallest mean exposure over the base's",
            exposure,
            f">= {NEVER_FLAT:g}",
            exposure >= NEVER_FLAT,
            "never flat",
        ),
    ]


if __name__ == "__main__":
    main("Planted edges", run)

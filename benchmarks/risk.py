"""Does the limit bind? Problems with a known optimum, a market with regimes, calibration, ownership and cost.

    python -m benchmarks.risk [--json] [--quick] [--only exposure]

Parts: exposure, continuing, lottery, signs, minimal, cliff, market, calibration, ownership, cost. Three seeds each, but
for the cost. Every policy is judged on fresh draws (or exactly, where its value can be computed), never by what its own
training reported; the coverage of the critics is that of the run's own calibration windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks import risk_market, risk_measured, risk_minimal, risk_signs, risk_toys
from benchmarks.jobs import run_all
from benchmarks.report import Check, Options, main
from benchmarks.risk_truth import (
    CLIFF_LIMIT,
    CONTINUING,
    EXPOSURES,
    ONE_STEP,
    RISKY_SHARES,
    CliffProblem,
    ExposureProblem,
    LotteryProblem,
    cliff_truth,
    exposure_cvar,
    lottery_cvar,
)

SEEDS = (0, 1, 2)
QUICK: risk_toys.Size = (16, 32, 4, 1e-3)


def run(options: Options) -> list[Check]:
    """All parts, or those that were asked for."""
    parts: dict[str, Callable[[Options], list[Check]]] = {
        "exposure": lambda o: _exposure(
            o, ONE_STEP, risk_toys.ONE_STEP_SIZE, "exposure, one step", free=risk_toys.ONE_STEP_SIZE
        ),
        "continuing": lambda o: _exposure(
            o, CONTINUING, risk_toys.CONTINUING_SIZE, "exposure, continuing", free=risk_toys.CONTINUING_FREE_SIZE
        ),
        "lottery": _lottery,
        "signs": lambda o: risk_signs.checks(o, _seeds(o)),
        "minimal": lambda o: risk_minimal.checks(o, _seeds(o)),
        "cliff": _cliff,
        "market": lambda o: risk_market.checks(o, _seeds(o)),
        "calibration": lambda o: risk_measured.calibration(o, _seeds(o)),
        "ownership": lambda o: risk_measured.ownership(o, _seeds(o)),
        "cost": risk_measured.cost,
    }
    found: list[Check] = []
    for name, part in parts.items():
        if not options.only or name in options.only:
            options.say(f"{name} ...")
            checks = part(options)
            for c in checks:  # a part may take half an hour: nothing is lost if a later one is stopped
                options.say(f"  {'ok' if c.passed else 'MISSED'} {c.name}: {c.value} ({c.goal}); {c.detail}")
            found += checks
    if options.quick:
        note = "smoke run: the goal is not judged"
        found = [Check(c.name, c.value, c.goal, c.value is not None, f"{c.detail}; {note}") for c in found]
    return found


def _seeds(options: Options) -> Sequence[int]:
    return SEEDS[:1] if options.quick else SEEDS


def _exposure(
    options: Options, base: ExposureProblem, size: risk_toys.Size, title: str, *, free: risk_toys.Size
) -> list[Check]:
    """Five limits for each law of the noise, and no limit at all (with the size `free`)."""
    checks = []
    targets = EXPOSURES[:1] if options.quick else EXPOSURES
    sizes = {False: QUICK, True: QUICK} if options.quick else {False: size, True: free}
    for noise in ("normal", "student4"):
        problem = replace(base, noise=noise)
        limits = [exposure_cvar(problem, w) for w in targets]
        cases = [(limit, seed) for limit in [*limits, None] for seed in _seeds(options)]
        outcomes = run_all(
            [(risk_toys.exposure, (problem, limit), {"seed": s, "size": sizes[limit is None]}) for limit, s in cases],
            options,
        )
        bound = [(o, limit) for o, (limit, _) in zip(outcomes, cases, strict=True) if limit is not None]
        wanted = [w for w in targets for _ in _seeds(options)]
        actions = [o.action / w - 1 for (o, _), w in zip(bound, wanted, strict=True)]
        tails = [o.cvar / limit - 1 for o, limit in bound]
        unbound = [o.action for o, (limit, _) in zip(outcomes, cases, strict=True) if limit is None]
        checks += [
            _worst(f"{title}, {noise}: mean action against w*", actions, 0.1),
            _worst(f"{title}, {noise}: realised CVaR against the limit", tails, 0.1),
            Check(
                f"{title}, {noise}: exposure without a limit",
                min(unbound),
                ">= 0.95, every seed",
                min(unbound) >= 0.95,
                ", ".join(f"{w:.3f}" for w in unbound),
            ),
        ]
    return checks


def _worst(name: str, errors: Sequence[float], allowed: float) -> Check:
    """The largest relative error; the detail has all of them, limit by limit."""
    worst = max(errors, key=abs)
    told = " ".join(f"{100 * error:+.1f}" for error in errors)
    return Check(
        name, abs(worst), f"<= {allowed:g}, every limit and seed", abs(worst) <= allowed, f"errors in %: {told}"
    )


def _lottery(options: Options) -> list[Check]:
    problem = LotteryProblem()
    shares = RISKY_SHARES[:1] if options.quick else RISKY_SHARES
    shape = QUICK if options.quick else risk_toys.LOTTERY_SIZE
    cases = [(share, seed) for share in [*shares, None] for seed in _seeds(options)]
    outcomes = run_all(
        [
            (risk_toys.lottery, (problem, None if q is None else lottery_cvar(problem, q)), {"seed": s, "size": shape})
            for q, s in cases
        ],
        options,
    )
    errors = [o.action - q for o, (q, _) in zip(outcomes, cases, strict=True) if q is not None]
    free = [o.action for o, (q, _) in zip(outcomes, cases, strict=True) if q is None]
    worst = max(errors, key=abs)
    return [
        Check(
            "lottery: risky share against q*",
            abs(worst),
            "<= 0.1, every limit and seed",
            abs(worst) <= 0.1,
            "differences: " + " ".join(f"{error:+.3f}" for error in errors),
        ),
        Check(
            "lottery: risky share without a limit",
            min(free),
            ">= 0.95, every seed",
            min(free) >= 0.95,
            ", ".join(f"{share:.3f}" for share in free),
        ),
    ]


def _cliff(options: Options) -> list[Check]:
    problem = CliffProblem()
    truth = cliff_truth(problem, CLIFF_LIMIT)
    shape = QUICK if options.quick else risk_toys.CLIFF_SIZE
    cases = [(limit, seed) for limit in (CLIFF_LIMIT, None) for seed in _seeds(options)]
    values = run_all([(risk_toys.cliff, (problem, limit), {"seed": s, "size": shape}) for limit, s in cases], options)
    bound = [v for v, (limit, _) in zip(values, cases, strict=True) if limit is not None]
    free = [v for v, (limit, _) in zip(values, cases, strict=True) if limit is None]
    tails, means = [v.cvar / CLIFF_LIMIT for v in bound], [v.mean / truth.bound.mean for v in bound]
    return [
        Check(
            "cliff: pooled CVaR as a share of the limit 2, exact",
            min(tails),
            ">= 0.9, every seed",
            min(tails) >= 0.9,
            f"{_told(tails)}; the road without limit has {truth.free.cvar / CLIFF_LIMIT:.2f}",
        ),
        Check(
            "cliff: mean return as a share of the best under the limit, exact",
            min(means),
            ">= 0.9, every seed",
            min(means) >= 0.9,
            f"{_told(means)}; roads 1, 2, 3: {'; '.join(_told(v.roads[1:]) for v in bound)}",
        ),
        Check(
            "cliff: mean return without a limit as a share of the best",
            min(v.mean / truth.free.mean for v in free),
            ">= 0.95, every seed",
            min(v.mean / truth.free.mean for v in free) >= 0.95,
            f"share of the risky road: {_told([v.roads[1] for v in free])}",
        ),
    ]


def _told(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    main("Tail risk", run)

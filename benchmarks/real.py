"""What does `tailwise init` give on real bars that nobody has tuned it on? docs/real-bars.md is the protocol.

    python -m benchmarks.real [--json] [--quick] [--only bars|stocks|pooled|NAME] [--journal FOLDER]

Everything real that installed packages ship: two indices, two shares and a currency pair twice (`bars`), the closes of
20 US shares (`stocks`), and one policy for all daily instruments together (`pooled`). Each is trained as `init` writes
it, on three splits with five seeds, and what would be deployed, the average of the seeds, is played on bars that
neither `init` nor training nor selection saw. A whole run is written down in docs/real-bars-trials.jsonl before it
begins, and refused while the protocol or the benchmark has changes that are not committed.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import statistics
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job, run_timed
from benchmarks.journal import Outcome
from benchmarks.real_instruments import BY_NAME, STOCKS, Available, available, bars_of
from benchmarks.real_measures import BasePlayer, Cell, Tail, daily, factor_for, matched_base, pooled_interval
from benchmarks.real_recipes import SPLITS, Recipe, alpha_of, base_rule, limit_of, pooled_members, split_config
from benchmarks.report import Check, Options, main

ROOT = Path(__file__).parent.parent
PROTOCOL, TRIALS = ROOT / "docs" / "real-bars.md", ROOT / "docs" / "real-bars-trials.jsonl"
SEEDS = (0, 1, 2, 3, 4)
OLD_SEEDS = (0,)  # a gap is measured for each seed by itself, so that one is as good an estimate as five, only wider
USED = (0.5, 1.1)  # realised tail / limit
BROKEN = 1.25
POINTS = 0.10  # by which a share may be worse than that of the base
SHORTFALL = -0.10  # of the base's return
GAP_SHARE = 0.5  # of the gap of the old recipe
CPU_MINUTES = 120.0
QUICK = ("SP500", "NASDAQ")
POOLED = "pooled"


def run(options: Options) -> list[Check]:
    """Train and play every instrument and split, then judge the goals."""
    data = available(quick=options.quick, names=QUICK if options.quick else None)
    groups = planned(data, options)
    recipes: tuple[Recipe, ...] = ("init", "old")
    splits = 1 if options.quick else SPLITS
    jobs: list[Job] = [
        (measure, (names, split, which), {"quick": options.quick})
        for names in groups.values()
        for split in range(splits)
        for which in recipes
    ]
    trainings = sum(len(_seeds(which, quick=options.quick)) for _, (_, _, which), _ in jobs)
    options.say(f"{len(groups)} policies x {splits} splits: {trainings} trainings in {len(jobs)} jobs")
    trials = trainings if options.quick else write_trials(groups, trainings)
    outcomes = run_timed(jobs, options)
    cells = {
        which: {
            name: [
                c
                for job, o in zip(jobs, outcomes, strict=True)
                if job[1][0] == names and job[1][2] == which
                for c in o.result
            ]
            for name, names in groups.items()
        }
        for which in recipes
    }
    checks: list[Check] = []
    alone = [name for name in groups if name != POOLED]
    for title, names in (("each alone", alone), (POOLED, [POOLED] if POOLED in groups else [])):
        new, old = ([cell for name in names for cell in cells[which][name]] for which in recipes)
        if new:
            checks += goals(title, new, old)
            checks += [of_instrument(title, name, new, old) for name in dict.fromkeys(c.instrument for c in new)]
    checks += [Check(f"left out: {name}", None, "for comparison", True, why) for name, why in data.left_out.items()]
    checks += _spent(outcomes, trainings, trials)
    if options.quick:
        note = "smoke run on the oldest half of the bars: the goal is not judged"
        checks = [Check(c.name, c.value, c.goal, True, f"{c.detail}; {note}") for c in checks]
    return checks


def planned(data: Available, options: Options) -> dict[str, tuple[str, ...]]:
    """Policies to train: name -> the instruments it trades. What is left out is said."""
    for name, why in data.left_out.items():
        options.say(f"left out: {name}: {why}")
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in data.bars}
    daily_bars = {name: bars for name, bars in data.bars.items() if BY_NAME[name].daily}
    if len(daily_bars) > 1:
        members, others = pooled_members(daily_bars)
        for name, why in others.items():
            options.say(f"not in the pooled policy: {name}: {why}")
        groups[POOLED] = tuple(members)
    kinds = {"bars": [name for name in data.bars if name not in STOCKS], "stocks": list(STOCKS)}
    wanted = [name for one in options.only for name in kinds.get(one, [one])]
    unknown = [name for name in wanted if name not in BY_NAME and name != POOLED]
    if unknown:
        raise SystemExit(f"--only {unknown[0]}: choose bars, stocks, pooled or one of {', '.join(BY_NAME)}.")
    return {name: names for name, names in groups.items() if not wanted or name in wanted}


def measure(names: tuple[str, ...], split: int, which: Recipe, *, quick: bool) -> list[Cell]:
    """Train the seeds of one policy on one split, play their average on the test window; a cell per instrument."""
    import tailwise
    from tailwise.core.errors import ConfigWarning
    from tailwise.run.ensemble import Ensemble

    bars = [bars_of(name, quick=quick) for name in names]
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        cut = split_config(names, bars, split, which, Path(place))
        members, gaps = [], []
        for seed in _seeds(which, quick=quick):
            config = cut.seeded(seed, smoke=quick)
            folder = Path(place, f"seed-{seed}")
            agent = tailwise.PPO(config=config, run_dir=folder)
            agent.learn()
            members.append(tailwise.load(folder))  # the checkpoint that selection chose
            gaps.append([a - b for a, b in zip(*_sharpes(Ensemble(members[-1:], "average"), agent.market()))])
        team, world = Ensemble(members, "average"), agent.market()
        paths = {purpose: _played(team, world, purpose) for purpose in ("train", "test")}
        return [
            cell_of(name, split, world, at, paths["train"][at], paths["test"][at], [gap[at] for gap in gaps])
            for at, name in enumerate(names)
        ]


def cell_of(name: str, split: int, world: Any, at: int, train: Any, test: Any, gaps: Sequence[float]) -> Cell:
    """All measures of one instrument. world: the market; at: number of the instrument in it; train, test: paths."""
    from tailwise.run.limits import with_numbers

    config = with_numbers(world.config, world.dataset)
    tail = Tail(alpha_of(config), config.learner.gamma)
    on_train, on_test = (base_player(world, at, purpose) for purpose in ("train", "test"))
    unscaled = {"train": on_train.play(1.0), "test": on_test.play(1.0)}
    limit = limit_of(config, tail.of_returns(unscaled["train"]) or 0.0, world.dataset.bars[at].symbol)
    factor, reached = 0.0, False
    if limit is not None:
        factor, reached = factor_for(
            limit, lambda k: tail.of_returns(on_train.play(k)) or 0.0, largest=on_train.largest
        )
    base_tail = tail.of_returns(on_test.play(min(factor, on_test.largest)))
    matched, matched_factor, by = matched_base(on_test, test, tail)
    returns, base = _window(test), _window(matched)
    per_year = test.periods_per_year
    time = world.dataset.bars[at].time[on_test.first + 1 : on_test.last + 1]
    days, (difference, held, years) = daily(time, returns - base, base, np.full(len(returns), 1 / per_year))
    return Cell(
        instrument=name,
        split=split,
        test_bars=len(returns),
        horizon=round(3 / (1 - tail.gamma)),
        limit=limit,
        tail=tail.of_returns(test),
        base_tail=base_tail,
        base_factor=factor,
        base_reached=reached,
        sharpes=(sharpe(train), sharpe(test)),
        base_sharpes=(sharpe(unscaled["train"]), sharpe(unscaled["test"])),
        gaps=tuple(gaps),
        turnover=float(test.traded.sum() / len(returns) * per_year),
        base_turnover=float(matched.traded.sum() / len(returns) * per_year),
        matched_factor=matched_factor,
        matched_by=by,
        days=days,
        difference=difference,
        base=held,
        years=years,
    )


def base_player(world: Any, at: int, purpose: str) -> BasePlayer:
    """The base rule of the configuration on the bars that the policy trades in a window."""
    bars, table = world.dataset.bars[at], world.dataset.tables(purpose)[at]
    rule = base_rule(world.config)
    return BasePlayer(rule(bars), bars, world.costs, world.settings, table.first_valid, len(table.close) - 1)


def sharpe(path: Any) -> float:
    """Per year; 0 for an account that never held anything."""
    from tailwise.evaluate.statistics import sharpe_ratio

    return sharpe_ratio(_window(path), path.periods_per_year) or 0.0


def goals(title: str, new: Sequence[Cell], old: Sequence[Cell]) -> list[Check]:
    """The four goals of the protocol over all instruments and splits."""
    judged = [(c.use, c.base_use) for c in new if c.use is not None and c.base_use is not None]
    counts = f"{len(judged)} of {len(new)} instruments x splits have a limit and a test window beyond the horizon"
    used = [float(np.mean([USED[0] <= pair[side] <= USED[1] for pair in judged])) for side in (0, 1)] if judged else []
    broken = [float(np.mean([pair[side] > BROKEN for pair in judged])) for side in (0, 1)] if judged else []
    interval = pooled_interval(new)
    gap, before = (statistics.fmean(value for cell in cells for value in cell.gaps) for cells in (new, old))
    kinds = ", ".join(f"{sum(c.matched_by == by for c in new)} {by}" for by in dict.fromkeys(c.matched_by for c in new))
    return [
        Check(
            f"{title}: share with a budget use of {USED[0]} to {USED[1]}, minus that of the base",
            used[0] - used[1] if used else None,
            f">= -{POINTS:g}",
            bool(used) and used[0] - used[1] >= -POINTS,
            f"{used[0]:.0%} against {used[1]:.0%}; {counts}" if used else counts,
        ),
        Check(
            f"{title}: share that breaks the limit by more than a quarter, minus that of the base",
            broken[0] - broken[1] if broken else None,
            f"<= {POINTS:g}",
            bool(broken) and broken[0] - broken[1] <= POINTS,
            f"{broken[0]:.0%} against {broken[1]:.0%}" if broken else counts,
        ),
        Check(
            f"{title}: lower bound of (return - return of the base with the same tail), share of the latter",
            interval.share,
            f">= {SHORTFALL:g}",
            interval.share is not None and interval.share >= SHORTFALL,
            f"per year {interval.difference:+.4f} in [{interval.low:+.4f}, {interval.high:+.4f}], base "
            f"{interval.base:+.4f}; 95%, blocks of days and instruments; matched by tail: {kinds}",
        ),
        Check(
            f"{title}: mean gap between train and test Sharpe",
            gap,
            f"<= {GAP_SHARE:g} of that of the old init",
            gap <= GAP_SHARE * before if before > 0 else gap <= before,
            f"old init {before:.2f}; the average of the seeds "
            f"{statistics.fmean(c.sharpes[0] - c.sharpes[1] for c in new):.2f}; the base "
            f"{statistics.fmean(c.base_sharpes[0] - c.base_sharpes[1] for c in new):.2f}",
        ),
    ]


def of_instrument(title: str, name: str, new: Sequence[Cell], old: Sequence[Cell]) -> Check:
    """All measures of one instrument, split by split; nothing is judged."""
    own, before = ([cell for cell in cells if cell.instrument == name] for cells in (new, old))
    difference = sum(c.difference.sum() for c in own) / sum(c.years.sum() for c in own)
    told = [
        f"split {c.split + 1} ({c.test_bars} bars): limit {_percent(c.limit)}, use {_number(c.use)} (base "
        f"{_number(c.base_use)}{'' if c.base_reached else ', limit not reached'}), return a year "
        f"{c.base.sum() / c.years.sum() + c.difference.sum() / c.years.sum():+.3f} (base "
        f"{c.base.sum() / c.years.sum():+.3f} at {c.matched_factor:.2f} by {c.matched_by}), Sharpe {c.sharpes[0]:.2f} "
        f"train {c.sharpes[1]:.2f} test, gap {statistics.fmean(c.gaps):.2f} (old {statistics.fmean(o.gaps):.2f}), "
        f"turnover {c.turnover:.1f} (base {c.base_turnover:.1f})"
        for c, o in zip(own, before, strict=True)
    ]
    return Check(
        f"{title}, {name}: log-return a year minus that of the base with the same tail",
        float(difference),
        "for comparison",
        True,
        "; ".join(told),
    )


def write_trials(groups: dict[str, tuple[str, ...]], trainings: int) -> int:
    """Write down a whole run before it begins; the number of trainings of all runs so far, this one included.

    A run that continues another one (same sources, same policies) is not counted again. Raises while the protocol or
    the benchmark is not committed.
    """
    from benchmarks.measured import facts_of

    changed = _git("status", "--porcelain", "--", str(PROTOCOL), "benchmarks", "src/tailwise")
    if changed or not _git("log", "-1", "--format=%h", "--", str(PROTOCOL)):
        raise SystemExit(
            f"the protocol ({PROTOCOL.name}), the benchmark and the package must be committed before test bars are "
            f"looked at; not committed: {', '.join(line[3:] for line in changed.splitlines()) or PROTOCOL.name}."
        )
    facts = facts_of("real")
    key = hashlib.sha256(json.dumps([facts["sources"], sorted(groups)], sort_keys=True).encode()).hexdigest()[:16]
    lines = [json.loads(line) for line in TRIALS.read_text().splitlines()] if TRIALS.exists() else []
    if all(line["key"] != key for line in lines):
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        lines.append(
            {"key": key, "time": now, "revision": facts["revision"], "policies": list(groups), "trainings": trainings}
        )
        TRIALS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return sum(line["trainings"] for line in lines)


def _spent(outcomes: Sequence[Outcome], trainings: int, trials: int) -> list[Check]:
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    return [
        Check("CPU-minutes", minutes, f"<= {CPU_MINUTES:g}", minutes <= CPU_MINUTES, f"{trainings} trainings"),
        Check("trainings of all runs on these bars", trials, "every one counted", True, TRIALS.name),
    ]


def _seeds(which: Recipe, *, quick: bool) -> tuple[int, ...]:
    seeds = SEEDS if which == "init" else OLD_SEEDS
    return seeds[:2] if quick else seeds


def _played(trader: Any, world: Any, purpose: str) -> list[Any]:
    """The most likely actions over a whole window: one path per instrument."""
    from tailwise.run.worlds import trade_window

    return trade_window(trader.player(deterministic=True, seed=0), world, purpose, seed=0)  # type: ignore[arg-type]


def _sharpes(trader: Any, world: Any) -> tuple[list[float], list[float]]:
    """Sharpe ratios on the train and on the test bars, one per instrument."""
    train, test = ([sharpe(path) for path in _played(trader, world, purpose)] for purpose in ("train", "test"))
    return train, test


def _window(path: Any) -> Any:
    from tailwise.evaluate.statistics import window_returns

    return window_returns(path)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main("Real bars", run)

"""Online learning that cannot hurt: what it recovers, what it costs where nothing changes, and its error rates.

    python -m benchmarks.live_learning [--json] [--quick] [--only promotion] [--journal FOLDER]

Parts: promotion (simulated markets in which no challenger is better), drift (stationary streams), recover (sessions of
`paper --learn` on bars whose regime flips, stays, or is a random walk), poison (a stuck feed, spikes).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from benchmarks.jobs import run_all
from benchmarks.report import Check, Options, main

Floats = npt.NDArray[np.float64]
ALPHA, RATE = 0.05, 0.1
MARKETS, SEEDS = 200, 10
CHALLENGERS, CONTEST = 3, 400  # of a session on a simulated market, and bars of each
TRAIN, BEFORE_FLIP, AFTER_FLIP = 2016, 500, 3000  # bars of an hour; training ends with a day
LEARNING: dict[str, Any] = {"window": 600, "every": 250, "updates": 400, "patience": 250, "kl": 5.0}
KINDS = ("flip", "stationary", "walk")


def garch(streams: int, bars: int, seed: int) -> Floats:
    """GARCH(1,1) with Student's t [streams, bars], unit variance, other parameters in every stream."""
    draw = np.random.default_rng(seed)
    alpha, beta = draw.uniform(0.03, 0.12, streams), draw.uniform(0.75, 0.86, streams)
    shocks = np.empty((streams, bars))
    for k, nu in enumerate(draw.uniform(4.0, 10.0, streams)):
        shocks[k] = draw.standard_t(nu, bars) * math.sqrt((nu - 2) / nu)
    values, variance = np.empty((streams, bars)), np.ones(streams)
    for t in range(bars):
        values[:, t] = np.sqrt(variance) * shocks[:, t]
        variance = 1 - alpha - beta + alpha * values[:, t] ** 2 + beta * variance
    return values


def garch_market(bars: int, seed: int) -> Floats:
    """Differences [bars, 1] without a mean."""
    return garch(1, bars, seed).T


def crash_market(bars: int, seed: int) -> Floats:
    """A challenger that sells crashes: a small gain on 99 bars of 100, ten deviations lost on the other."""
    draw = np.random.default_rng(seed)
    return np.where(draw.random(bars) < 0.01, -10.0, 10 / 99 + 0.3 * draw.standard_normal(bars))[:, None]


def correlated_market(bars: int, seed: int) -> Floats:
    """20 symbols with correlation .8 [bars, 20]."""
    draw = np.random.default_rng(seed)
    return math.sqrt(0.8) * garch(1, bars, seed).T + math.sqrt(0.2) * draw.standard_normal((bars, 20))


WORLDS: dict[str, Callable[[int, int], Floats]] = {
    "GARCH-t": garch_market,
    "crash sellers": crash_market,
    "20 correlated symbols": correlated_market,
}


def promotes(world: str, seed: int) -> bool:
    """Whether a session on a simulated market promotes any of its challengers. The deployed policy earns 0."""
    from tailwise.online.promotion import Contest

    values = WORLDS[world](CHALLENGERS * CONTEST, 1000 + seed)
    for k in range(CHALLENGERS):
        contest = Contest.begin(k + 1, alpha=ALPHA, margin=0.0, level=-1.0, bound=5.0)
        for row in values[k * CONTEST : (k + 1) * CONTEST]:
            contest = contest.after(row, np.zeros_like(row))
            if contest.promoted_by is not None:
                return True
    return False


def false_promotions(options: Options) -> list[Check]:
    """At most alpha of the sessions promote."""
    count = 10 if options.quick else MARKETS
    checks = []
    for world in WORLDS:
        found = sum(promotes(world, seed) for seed in range(count))
        options.say(f"  {world}: {found} of {count} sessions promoted falsely")
        goal = f"at most {ALPHA:g}"
        detail = f"{found} of {count} simulated markets, {CHALLENGERS} challengers each"
        checks.append(Check(f"false promotions, {world}", found / count, goal, found / count <= ALPHA, detail))
    return checks


def false_alarms(options: Options) -> list[Check]:
    """At most 1.5 times the stated rate on streams whose parameters are unknown to the detector, after references of a
    policy that has long decided and of one that is new."""
    from tailwise.online.drift import FEWEST, HORIZON, largest_cusum, standardised, threshold

    count, draws = (10, 100) if options.quick else (MARKETS, 400)
    checks = []
    for name, reference in (("false drift alarms", 1000), ("false drift alarms, a new policy", FEWEST)):
        streams = garch(count, reference + HORIZON, 77)
        largest = largest_cusum(standardised(streams, streams[:, :reference].std(axis=1)), reference)
        limits = [threshold(one[:reference], RATE, seed=k, draws=draws) for k, one in enumerate(streams)]
        found = int((largest >= np.array(limits)).sum())
        detail = (
            f"{found} of {count} GARCH-t streams, stated {RATE:g} per {HORIZON:,} bars, reference {reference:,} bars"
        )
        passed = options.quick or found / count <= 1.5 * RATE
        checks.append(Check(name, found / count, f"at most {1.5 * RATE:g}", passed, detail))
    return checks


def regime_bars(kind: str, seed: int, bars: int) -> Any:
    """Bars of which the first TRAIN + BEFORE_FLIP continue moves (AR 1, phi .4) and the others, where they flip, do the
    opposite; of a walk all of them are without memory."""
    from tailwise.bars.synthetic import START_PRICE, ar1

    early, later = TRAIN + BEFORE_FLIP, bars - TRAIN - BEFORE_FLIP
    phis = {"flip": (0.4, -0.4), "stationary": (0.4, 0.4), "walk": (0.0, 0.0)}[kind]
    parts = [
        ar1(seed=2 * seed + k, length=n, phi=phi) for k, (n, phi) in enumerate(zip((early, later), phis, strict=True))
    ]
    close = START_PRICE * np.exp(np.cumsum([x for one in parts for x in np.log(one.close / one.open).tolist()]))
    begin = np.concatenate([[START_PRICE], close[:-1]])
    like = ar1(seed=seed, length=bars)
    return replace(
        like, open=begin, close=close, high=np.maximum(begin, close), low=np.minimum(begin, close), label="synthetic"
    )


def trained_policy(bars: Any, folder: Path, seed: int, steps: int) -> Any:
    """A policy trained on the first TRAIN bars."""
    import tailwise

    file = folder / "bars.parquet"
    bars.to_frame().to_parquet(file)
    days = [str(bars.time[k].astype("datetime64[D]")) for k in (0, TRAIN, TRAIN + 240)]
    end = str(bars.time[-1].astype("datetime64[D]") + 1)
    split = {"kind": "dates", "train": days[:2], "select": days[1:], "test": [days[2], end]}
    agent = tailwise.PPO(
        config={
            "seed": seed,
            "data": {"kind": "files", "paths": [str(file)], "symbols": [bars.symbol], "split": split},
            "features": {"include": ["return_1", "volatility_20"]},
            "env": {
                "kind": "market", "episode_length": 128, "action": {"kind": "exposure", "low": -1.0, "high": 1.0}
            },
            "costs": {"taker_fee_bps": 1.0, "half_spread_bps": 0.5},
            "model": {
                "encoder": {"hidden": [16]}, "actor": {"hidden": [16]},
                "critic": {"hidden": [16], "quantiles": 40, "minibatch_particles": 4},
            },
            "learner": {"gamma": 0.5, "learning_rate": 1e-3},
            "risk": {"mode": "off"},
            "run": {"environments": 16, "rollout_steps": 64, "total_steps": steps, "tensorboard": False},
        }
    )  # fmt: skip
    agent.learn(steps)
    agent.save(folder / "agent")
    return tailwise.load(folder / "agent")


def session_on(
    policy: Any, bars: Any, folder: Path, learning: dict[str, Any] | None
) -> tuple[float, list[dict[str, Any]]]:
    """(log-return of a paper session on the bars after TRAIN, audit); learning: settings, None without it."""
    from tailwise.live.feeds import BarsFeed
    from tailwise.live.paper import Beginning, Paper, frequency_of, terms_of
    from tailwise.live.session import Session, Ticked
    from tailwise.live.settings import LiveGuards
    from tailwise.online.jobs import AtOnce
    from tailwise.online.learner import Learner, Learning
    from tailwise.online.settings import LearnSettings

    before, more = bars.slice(0, TRAIN), bars.slice(TRAIN, None)
    since = f"{more.time[0].astype('datetime64[s]')}Z"
    terms = terms_of(policy, [bars.symbol], frequency_of(policy, [before], None), Beginning(since), folder)
    beside = None
    if learning is not None:
        beside = Learning(Learner(policy, terms, folder, LearnSettings(**learning), [before], AtOnce()))
    session = Session(policy, terms, folder, LiveGuards(), deployed=None if beside is None else beside.learner.find)
    session.open()
    if beside is not None:
        beside.go_on(session)

    def told(_: Ticked) -> None:
        if beside is not None:
            beside.after(session)

    paper = Paper(session, told=told)
    paper.warm_up([before])
    begun = session.desks[0].account.equity
    paper.run(BarsFeed([more]))
    session.close()
    audit = [] if beside is None else beside.learner.audit.lines
    return math.log(session.desks[0].account.equity / begun), audit


def compare(kind: str, seed: int, steps: int, after: int, learning: dict[str, Any]) -> dict[str, float]:
    """Log-returns of the frozen and the learning session, and how often policies changed."""
    import warnings

    from tailwise.core.errors import ConfigWarning

    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        folder = Path(name)
        bars = regime_bars(kind, seed, TRAIN + BEFORE_FLIP + after)
        policy = trained_policy(bars, folder, seed, steps)
        frozen, _ = session_on(policy, bars, folder / "frozen", None)
        learnt, audit = session_on(policy, bars, folder / "learns", learning)
    kinds = [line["kind"] for line in audit]
    counts = {name: float(kinds.count(name)) for name in ("trained", "promoted", "rolled back", "drift")}
    return {"frozen": frozen, "learnt": learnt, **counts}


def recoveries(options: Options) -> list[Check]:
    """What learning is worth where the regime flips, and what it costs where it does not."""
    seeds = range(1 if options.quick else SEEDS)
    steps, after = (4096, 60) if options.quick else (81_920, AFTER_FLIP)
    learning = {**LEARNING, "every": 200, "updates": 2} if options.quick else LEARNING
    kinds = KINDS[:1] if options.quick else KINDS
    chosen = [kind for kind in kinds if not options.only or "recover" in options.only or kind in options.only]
    jobs = [(compare, (kind, seed, steps, after, learning), {}) for kind in chosen for seed in seeds]
    rows = run_all(jobs, options)
    checks = []
    for place, kind in enumerate(chosen):
        own = rows[place * len(seeds) : (place + 1) * len(seeds)]
        frozen, learnt = (np.array([row[name] for row in own]) for name in ("frozen", "learnt"))
        changes = "promoted {:.0f}, rolled back {:.0f}, alarms {:.0f}, trained {:.0f}".format(
            *(sum(row[name] for row in own) for name in ("promoted", "rolled back", "drift", "trained"))
        )
        detail = f"log-returns frozen {frozen.mean():+.3f}, learning {learnt.mean():+.3f}, {len(own)} seeds; {changes}"
        if kind == "flip":
            share = float((learnt - frozen).mean() / -frozen.mean())
            pairs = zip(frozen.tolist(), learnt.tolist(), strict=True)
            detail += "; by seed, frozen and learning: " + ", ".join(f"{one:+.2f} {two:+.2f}" for one, two in pairs)
            passed = options.quick or (share >= 0.5 and bool(frozen.mean() < 0))
            checks.append(Check("recovered of what the frozen policy loses", share, "at least 0.5", passed, detail))
            continue
        difference = learnt - frozen
        noise = 0.0
        if len(own) > 1:
            noise = float(student.ppf(0.95, len(own) - 1) * difference.std(ddof=1) / math.sqrt(len(own)))
        mean = float(difference.mean())
        goal = f"not below {-noise:.3g}, the noise of {len(own)} seeds"
        checks.append(Check(f"learning against frozen, {kind}", mean, goal, mean >= -noise, detail))
    return checks


def poisoned(options: Options) -> list[Check]:
    """A stuck feed is not trained on; spikes never reach an account, a window or a challenger."""
    import warnings

    from tailwise.core.errors import ConfigWarning

    learning = {**LEARNING, "every": 50, "updates": 2, "patience": 20}
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        folder = Path(name)
        bars = regime_bars("stationary", 0, TRAIN + BEFORE_FLIP + 10)
        policy = trained_policy(bars, folder, 0, 4096)
        columns = {one: getattr(bars, one).copy() for one in ("open", "high", "low", "close")}
        for one in columns.values():
            one[TRAIN + 50 :] = columns["close"][TRAIN + 50 - 1]
        stuck = replace(bars, **{key: value.copy() for key, value in columns.items()})
        _, audit = session_on(policy, stuck, folder / "stuck", learning)
        late = [line["kind"] for line in audit if line["n"] > 50 + 0.5 * LEARNING["window"] + 20]
        spikes = {one: getattr(bars, one).copy() for one in ("open", "high", "low", "close")}
        for one in spikes.values():
            one[TRAIN + 100] *= 50.0
        clean, _ = session_on(policy, bars.slice(0, TRAIN + 100), folder / "clean", None)
        spiked, _ = session_on(
            policy,
            replace(bars.slice(0, TRAIN + 101), **{k: v[: TRAIN + 101] for k, v in spikes.items()}),
            folder / "spiked",
            learning,
        )
    refused = float("training" not in late and "not trained" in late)
    same = float(spiked == clean)
    return [
        Check(
            "a stuck feed is not trained on", refused, "1", refused == 1.0, f"{len(late)} entries: {sorted(set(late))}"
        ),
        Check("a spike changes nothing", same, "1", same == 1.0, f"log-returns {clean:.6f} and {spiked:.6f}"),
    ]


PARTS: dict[str, Callable[[Options], list[Check]]] = {
    "promotion": false_promotions,
    "drift": false_alarms,
    "recover": recoveries,
    "poison": poisoned,
}


def run(options: Options) -> list[Check]:
    """All parts, or those that were asked for; flip, stationary and walk are single markets of `recover`."""
    chosen = {"recover" if name in KINDS else name for name in options.only} or set(PARTS)
    return [check for name, part in PARTS.items() if name in chosen for check in part(options)]


if __name__ == "__main__":
    main("Online learning", run)

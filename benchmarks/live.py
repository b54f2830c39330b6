"""Live: what trades on paper is what was judged, whatever happens to the process, the feed or the venue.

    python -m benchmarks.live [--json] [--quick] [--only latency]

Parts: equal, killed, decide, nautilus, guards, hostile, latency, replay, page. Online learning is measured elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import live_guards, live_latency, live_page
from benchmarks.live_world import KINDS, LSTM, first_tested, killed, play, ticks, trader_of, trained
from benchmarks.report import Check, Options, main
from tailwise.live.journal import JOURNAL
from tailwise.live.states import RULES

KILLS = 20
BLOCKS, BLOCK = 20, 200  # bars of latency: 4,000 for each way to decide
REPLAYED = 50_000
GOAL_MS, GOAL_MINUTES, GOAL_MB = 0.5, 5.0, 8.0
LARGEST_TARGET, LARGEST_EXPOSURE = 1.0, 1.5  # of the policy's positions; an exposure drifts until the next order
# What a venue has too: a fee and whole units. Spread, impact and interest are the simulator's alone.
VENUE: dict[str, Any] = {
    "costs": {
        "taker_fee_bps": 2.0,
        "half_spread_bps": 0.0,
        "slippage_bps": 0.0,
        "impact_bps": 0.0,
        "borrow_rate": 0.0,
        "loan_rate": 0.0,
        "lot_size": 1.0,
    }
}


def equal(options: Options, folder: Path) -> list[Check]:
    """Targets, units and equity of a paper replay are those of `evaluate`."""
    same, compared = [], 0
    for kind in _kinds(options):
        trader = trader_of(kind)
        world = trader.market()
        bars = list(world.dataset.bars)
        play(trader, bars, folder / kind, first_tested(bars[0], trader))
        lines, good = ticks(folder / kind), True
        for k, path in enumerate(trader.trade("test", market=world)):
            desks = [line["desks"][k] for line in lines]
            units = path.ledger["units"].reshape(len(path), -1)
            good &= np.array_equal([one["equity"] for one in desks], path.equity)
            good &= np.array_equal([one["target"] for one in desks[:-1]], path.target)
            good &= np.array_equal([one["units"] for one in desks[1:]], units)
            compared += len(path)
        same += [kind] if good else []
    return [
        _counted(
            "paper replay is `evaluate` bit for bit",
            same,
            _kinds(options),
            f"{compared:,} bars of targets, units and equity",
        )
    ]


def killed_sessions(options: Options, folder: Path) -> list[Check]:
    """A session that is killed again and again has the journal of one that was left alone."""
    same, kills = [], 2 if options.quick else KILLS
    for kind in _kinds(options):
        trader = trader_of(kind)
        bars = list(trader.market().dataset.bars)
        since = first_tested(bars[0], trader)
        alone, again = folder / kind / "alone", folder / kind / "killed"
        play(trader, bars, alone, since)
        dice, running = random.Random(kind), 0
        for _ in range(kills):
            run = partial(play, trader, bars, again, since, 200.0)
            running += killed(run, again / JOURNAL, dice.randrange(0, 2500), dice.uniform(0.0, 0.02))
        play(trader, bars, again, since)
        same += [kind] if running == kills and ticks(again) == ticks(alone) else []
        options.say(f"{kind}: {running} of {kills} kills met a running session")
    return [
        _counted(
            f"paper after {kills} random kill -9 is paper left alone",
            same,
            _kinds(options),
            "every tick once, every number equal",
        )
    ]


def decided(options: Options, folder: Path) -> list[Check]:
    """`decide` says what `paper` decided last."""
    same = []
    for kind in _kinds(options):
        trader = trader_of(kind)
        bars = list(trader.market().dataset.bars)
        since = first_tested(bars[0], trader)
        play(trader, bars, folder / kind, since)
        last, several = ticks(folder / kind)[-1]["desks"], trader.market().portfolio
        good = True
        for desk, own in zip(last, [bars] if several else [[one] for one in bars], strict=True):
            made = trader.decide(own, since=since)
            good &= made.target.tolist() == desk["target"] and made.equity == desk["equity"]
        same += [kind] if good else []
    return [
        _counted(
            "`decide` equals the last decision of `paper`", same, _kinds(options), "target and equity, bit for bit"
        )
    ]


def nautilus(options: Options, folder: Path) -> list[Check]:
    """The policy in NautilusTrader's engine on the bars of the evaluation."""
    name, goal = "NautilusTrader: largest difference of equity, bps", "< 1"
    if importlib.util.find_spec("nautilus_trader") is None:
        return [Check(name, None, goal, False, "nautilus_trader is not installed: pip install tailwise[live]")]
    from tailwise.live.nautilus import run_backtest

    trader = trained(1, {**LSTM, **VENUE})
    world = trader.market()
    bars, window = world.dataset.bars[0], world.dataset.window("test")[0]
    since = int(bars.time[window.first - 1].astype("int64")) + bars.frequency.bar_ns
    result, path = run_backtest(trader, bars, since=since), trader.trade("test", market=world)[0]
    orders = np.asarray(path.ledger["order_units"]).reshape(-1)
    same = [fill[1] for fill in result.fills] == orders[orders != 0].tolist()
    bps = float(np.abs(result.equity / path.equity - 1).max() * 1e4)
    detail = f"{len(result.fills)} fills at {len(result.equity)} closes, {'all' if same else 'not all'} of equal units"
    return [Check(name, bps, goal, bps < 1 and same, detail)]


def guards(options: Options, folder: Path) -> list[Check]:
    """Each reason of a session on a feed written for it."""
    trader = trader_of("LSTM")
    bars = trader.market().dataset.bars[0]
    fired = [live_guards.fire(name, trader, bars, folder / name) for name in live_guards.SCRIPTS]
    good = [one.name for one in fired if one.holds]
    detail = "decisions while it held: " + ", ".join(f"{one.name} {one.decisions}" for one in fired)
    return [_counted("guards that fire and hold", good, list(RULES), detail)]


def hostile(options: Options, folder: Path) -> list[Check]:
    """Hostile lines between the bars of a feed."""
    trader = trader_of("LSTM")
    found = live_guards.survive(trader, trader.market().dataset.bars[0], folder)
    largest = max(found.largest_target / LARGEST_TARGET, found.largest_exposure / LARGEST_EXPOSURE)
    said = f"{found.refused} lines refused, {found.passed_over} passed over as late or repeated"
    return [
        Check(
            f"bars lost or changed among {live_guards.LINES:,} hostile lines", found.lost, "0", found.lost == 0, said
        ),
        Check(
            "largest target or exposure among them, of what the policy may hold",
            largest,
            "<= 1",
            largest <= 1,
            f"target {found.largest_target:.3g} of {LARGEST_TARGET:g}, "
            f"exposure {found.largest_exposure:.3g} of {LARGEST_EXPOSURE:g}",
        ),
    ]


def latency(options: Options, folder: Path) -> list[Check]:
    """From the bar to the order, in CPU time."""
    bars = live_latency.one_second_bars(live_latency.TRAINED_ON + BLOCKS * BLOCK)
    found = live_latency.latencies(bars, folder, blocks=2 if options.quick else BLOCKS, block=BLOCK)
    checks = []
    for one in found:
        judged = one.name == "torch"
        detail = f"p99 {one.p99:.3f} ms; LSTM {live_latency.HIDDEN}, {len(one.per_bar):,} bars, features to journal"
        goal = f"<= {GOAL_MS}" if judged else "for comparison"
        checks.append(
            Check(f"CPU-ms from bar to order, {one.name}, p50", one.p50, goal, not judged or one.p50 <= GOAL_MS, detail)
        )
    return checks


def replay(options: Options, folder: Path) -> list[Check]:
    """One-second bars as fast as they are read."""
    bars = live_latency.one_second_bars(4000 if options.quick else REPLAYED)
    found = live_latency.replay(bars, folder)
    measured = f"from {found.bars:,} bars; {found.bytes:.0f} bytes of journal a bar"
    return [
        Check(
            "CPU-minutes for a week of one-second bars",
            found.minutes,
            f"< {GOAL_MINUTES:g}",
            found.minutes < GOAL_MINUTES,
            measured,
        ),
        Check(
            "growth of memory over them, MB",
            found.grown,
            f"< {GOAL_MB:g}",
            found.grown < GOAL_MB,
            "from a tenth of the way to the end",
        ),
    ]


def page(options: Options, folder: Path) -> list[Check]:
    """The page during a session."""
    name, goal = "looks at the page that show the session", "4 of 4"
    executable = live_page.chromium()
    if executable is None:
        return [Check(name, None, goal, False, "no Chromium, or no playwright, is installed here")]
    pictures = os.environ.get("TAILWISE_PICTURES")
    with live_page.session_in(folder / "run"):
        seen = list(live_page.looks(folder / "run", executable, None if pictures is None else Path(pictures)))
    good = [one for one in seen if one.good]
    detail = "; ".join(f"{one.name}: {one.charts} charts" + ("" if one.good else f" {one}") for one in seen)
    return [Check(name, len(good), goal, len(good) == len(seen), detail)]


PARTS: dict[str, Callable[[Options, Path], list[Check]]] = {
    "equal": equal,
    "killed": killed_sessions,
    "decide": decided,
    "nautilus": nautilus,
    "guards": guards,
    "hostile": hostile,
    "latency": latency,
    "replay": replay,
    "page": page,
}


def _kinds(options: Options) -> list[str]:
    return ["LSTM"] if options.quick else list(KINDS)


def _counted(name: str, good: list[str], wanted: list[str], detail: str) -> Check:
    missing = [one for one in wanted if one not in good]
    said = f"{', '.join(wanted)}: {detail}" + (f"; NOT: {', '.join(missing)}" if missing else "")
    return Check(name, len(good), f"{len(wanted)}", not missing, said)


def run(options: Options) -> list[Check]:
    """All parts, or those that were asked for."""
    checks: list[Check] = []
    for name, part in PARTS.items():
        if not options.only or name in options.only:
            options.say(f"{name} ...")
            with tempfile.TemporaryDirectory() as folder:
                checks += part(options, Path(folder))
    if options.quick:
        note = "smoke run: the goal is not judged"
        checks = [Check(c.name, c.value, c.goal, c.value is not None, f"{c.detail}; {note}") for c in checks]
    return checks


if __name__ == "__main__":
    main("Live", run)

"""Is evidence declared where there is some, and nowhere else? Simulated markets in which the truth is known.

    python -m benchmarks.evidence [--json] [--quick] [--only level]

Markets: five years of daily bars, zero mean log-return, GARCH(1,1) volatility with Student's t innovations (5 degrees
of freedom) and an autocorrelation of 0.1. The zero-edge policy holds 1 or 0, as a coin without any look at the bars
decides once in twenty; the planted one knows the sign of the next bar a little more often than not, just enough for a
Sharpe ratio of 2. Both go through the simulator, without costs, and are judged as every path is. `walk_forward`
trains 5 folds x 3 seeds on the S&P 500, killed in the middle and continued (about ten CPU-minutes).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.signal import lfilter

from benchmarks.evidence_walk_forward import walk_forward
from benchmarks.report import Check, Options, main

Floats = npt.NDArray[np.float64]

MARKETS = 100
YEARS, BARS_PER_YEAR = 5, 252
PLANTED = 2.0  # Sharpe ratio per year
LEVEL = 0.95  # two-sided interval: 2.5% of false alarms above zero
AUTOCORRELATION, DAILY_VOLATILITY = 0.1, 0.01
TRIALS = (1, 2, 5, 10, 50, 200, 1000)
# Bailey & López de Prado (2014): Sharpe 2.5 a year, 1250 days, skewness -3, kurtosis 10, best of 100 with variance 1/2.
PUBLISHED = 0.9004


def run(options: Options) -> list[Check]:
    """The parts that `--only` leaves."""
    checks: list[Check] = []
    parts = {
        "golden": _golden,
        "level": _level_and_power,
        "annualisation": _annualisation,
        "folds": _folds,
        "walk_forward": walk_forward,
    }
    for name, part in parts.items():
        if not options.only or name in options.only:
            checks += part(options)
    return checks


def _golden(options: Options) -> list[Check]:
    from tailwise.evaluate.evidence import expected_best_sharpe, probabilistic_sharpe

    best = expected_best_sharpe(100, 0.5 / 250)
    found = probabilistic_sharpe(2.5 / np.sqrt(250), 1250, skew=-3, kurtosis=10, benchmark=best)
    return [
        Check(
            "deflated Sharpe ratio of the paper's example",
            found,
            f"{PUBLISHED} to four digits",
            abs(found - PUBLISHED) < 5e-5,
            f"expected best of 100 trials {best:.4f} per day",
        )
    ]


def market_returns(rng: np.random.Generator, count: int) -> Floats:
    """Log-returns [count]: autocorrelated, with clustered volatility and fat tails, mean zero."""
    burn = 500
    shocks = rng.standard_t(5, count + burn) / np.sqrt(5 / 3)
    variance, found = 1.0, np.empty(count + burn)
    for t, shock in enumerate(shocks.tolist()):
        found[t] = np.sqrt(variance) * shock
        variance = 0.02 + 0.08 * found[t] ** 2 + 0.90 * variance
    moved = np.asarray(lfilter([np.sqrt(1 - AUTOCORRELATION**2)], [1.0, -AUTOCORRELATION], found))
    return DAILY_VOLATILITY * moved[burn:]


def knowing_share() -> float:
    """Share of bars whose sign a position of +1 or -1 must know for a Sharpe ratio of log-returns of PLANTED."""
    returns = market_returns(np.random.default_rng(999), 400_000)
    right, wrong = np.abs(returns), np.log(2 - np.exp(np.abs(returns)))  # of a position against the move

    def excess(share: float) -> float:
        mean = share * right.mean() + (1 - share) * wrong.mean()
        square = share * (right**2).mean() + (1 - share) * (wrong**2).mean()
        return float(mean / np.sqrt(square - mean**2) * np.sqrt(BARS_PER_YEAR) - PLANTED)

    return float(brentq(excess, 0.5, 0.9))


def _level_and_power(options: Options) -> list[Check]:
    from tailwise.evaluate.evidence import deflated_sharpe, path_evidence

    count = YEARS * BARS_PER_YEAR
    markets = 5 if options.quick else MARKETS
    share = knowing_share()
    options.say(f"the planted policy knows the sign of {share:.1%} of the bars")
    quiet, found, ratios, falling = 0, 0, [], 0
    for number in range(markets):
        rng = np.random.default_rng([2026, number])
        returns = market_returns(rng, count + 1)
        coin = (np.cumsum(rng.random(count + 1) < 1 / 20) + rng.integers(2)) % 2  # 0 or 1, turned once in 20 bars
        without = path_evidence(_trade(returns, coin.astype(float)), alpha=0.05, trials=1, level=LEVEL)
        quiet += without.verdict != "above zero"
        sign = np.sign(returns[1:]) * np.where(rng.random(count) < share, 1.0, -1.0)
        path = _trade(returns, np.append(sign, 0.0))
        edge = path_evidence(path, alpha=0.05, trials=1, level=LEVEL)
        found += edge.verdict == "above zero"
        ratios.append(edge.sharpe.estimate)
        deflated = [deflated_sharpe(path.log_returns, BARS_PER_YEAR, trials=trials) for trials in TRIALS]
        values = [d.deflated for d in deflated if d is not None]
        falling += len(values) == len(TRIALS) and bool((np.diff(values) < 0).all())
        if (number + 1) % 20 == 0:
            options.say(f"  {number + 1} markets: {quiet} without evidence, {found} edges found")
    note = "; smoke run: the goal is not judged" if options.quick else ""
    law = "GARCH(1,1)-t5, autocorrelation 0.1, 1260 daily bars"
    return [
        Check(
            f"zero edge: markets of {markets} without evidence of an edge",
            quiet,
            ">= 95 of 100, test at 2.5%",
            options.quick or quiet >= 0.95 * markets,
            law + note,
        ),
        Check(
            f"planted Sharpe ratio of 2: markets of {markets} in which it is found",
            found,
            ">= 90 of 100, test at 2.5%",
            options.quick or found >= 0.90 * markets,
            f"{law}; realised Sharpe ratios {np.mean(ratios):.2f} +- {np.std(ratios):.2f}{note}",
        ),
        Check(
            "deflated Sharpe ratio falls with every step from 1 to 1000 trials: share of markets",
            falling / markets,
            "1",
            falling == markets,
            f"{len(TRIALS)} numbers of trials each",
        ),
    ]


def _trade(returns: Floats, targets: Floats):  # type: ignore[no-untyped-def]
    """Targets [n + 1] through the simulator on daily bars with these log-returns, without costs."""
    from tailwise import backtest
    from tailwise.bars.bars import Bars
    from tailwise.bars.frequency import infer_frequency
    from tailwise.market.costs import NO_COSTS

    days = np.busday_offset("2000-01-03", np.arange(len(returns))).astype("datetime64[ns]")
    price = 100 * np.exp(np.concatenate([[0.0], np.cumsum(returns)]))
    opens, closes = price[:-1], price[1:]
    bars = Bars(
        symbol="SIMULATED",
        time=days,
        open=opens,
        high=np.maximum(opens, closes),
        low=np.minimum(opens, closes),
        close=closes,
        volume=np.full(len(returns), 1e9),
        label="synthetic: GARCH(1,1)-t5 with autocorrelation",
        source="benchmarks.evidence",
        frequency=infer_frequency(days),
    )
    return backtest(targets, bars, NO_COSTS)


def _annualisation(options: Options) -> list[Check]:
    """Daily and hourly bars whose statistics were given the other's bars per year."""
    from dataclasses import replace

    from tailwise import backtest
    from tailwise.bars.builtin import sp500
    from tailwise.bars.synthetic import random_walk
    from tailwise.evaluate.statistics import annualisation_doubt

    caught, silent = 0, 0
    planted = ((sp500(), (12, 365, 8760)), (random_walk(seed=0, length=2000), (252, 365, 2190)))
    for bars, wrong in planted:
        path = backtest(np.ones(len(bars)), bars)
        silent += annualisation_doubt(path) is None
        caught += sum(annualisation_doubt(replace(path, periods_per_year=float(w))) is not None for w in wrong)
    return [
        Check(
            "wrong annualisations that are caught",
            caught / 6,
            "1, and none of the right ones",
            caught == 6 and silent == 2,
            "daily S&P 500 with 12, 365 and 8760 bars per year; hourly bars with 252, 365 and 2190",
        )
    ]


def _folds(options: Options) -> list[Check]:
    """Folds of all three kinds pass their check; with one train row inside the purge of a test range, none does."""
    from dataclasses import replace

    from tailwise.core.errors import DataError
    from tailwise.evaluate.splits import Range, check_fold, combinatorial, walk_forward

    purge, caught, passed = 20, 0, 0
    folds = walk_forward(2000, folds=5, purge=purge, select=100)
    folds += walk_forward(2000, folds=5, purge=purge, embargo=10, anchored=False)
    folds += combinatorial(2000, folds=6, test_folds=2, purge=purge, embargo=10)
    for fold in folds:
        check_fold(fold, 2000, label_horizon=1, look_back=purge)
        passed += 1
        test = fold.test[0]
        near = min(fold.train, key=lambda r: max(test.first - r.end, r.first - test.end))
        before = near.end <= test.first
        grown = Range(near.first, test.first - purge + 1) if before else Range(test.end + purge - 1, near.end)
        planted = replace(fold, select=None, train=tuple(grown if r == near else r for r in fold.train))
        try:
            check_fold(planted, 2000, label_horizon=1, look_back=purge)
        except DataError:
            caught += 1
    return [
        Check(
            "folds that reach into their purge and are caught",
            caught / len(folds),
            "1, and none of the right ones",
            caught == passed == len(folds),
            f"{len(folds)} folds: walk-forward anchored and rolling, combinatorial; purge {purge} bars",
        )
    ]


if __name__ == "__main__":
    main("Evidence", run)

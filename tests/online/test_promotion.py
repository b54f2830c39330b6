"""The evidence that promotes a challenger: golden numbers, the error rate in worlds without an edge, wrong bets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.core.errors import ConfigError, DataError
from tailwise.online.promotion import LARGEST_STAKE, PURSES, Contest, EProcess, alpha_of

Floats = npt.NDArray[np.float64]
ALPHA = 0.05


def after(process: EProcess, values: Floats) -> EProcess:
    for value in values.tolist():
        process = process.after(value)
    return process


def promoted(differences: Floats, *, number: int = 1, kind: type[Contest] = Contest) -> str | None:
    """What promotes on mean differences [n] alone, the deployed policy earning 0; bound 4."""
    contest = kind.begin(number, alpha=ALPHA, margin=0.0, level=-1.0, bound=4.0)
    for value in differences.tolist():
        contest = contest.after([value], [0.0])
        if contest.promoted_by is not None:
            return contest.promoted_by
    return None


def garch(bars: int, seed: int, *, alpha: float = 0.08, beta: float = 0.9, nu: float = 5.0) -> Floats:
    """GARCH(1,1) with Student's t, mean 0, variance 1."""
    draw = np.random.default_rng(seed)
    shocks = draw.standard_t(nu, bars) * math.sqrt((nu - 2) / nu)
    values, variance = np.empty(bars), 1.0
    for t in range(bars):
        values[t] = math.sqrt(variance) * shocks[t]
        variance = 1 - alpha - beta + alpha * values[t] ** 2 + beta * variance
    return values


def crash_seller(bars: int, seed: int) -> Floats:
    """Earns a little on 99 of 100 bars and loses ten deviations on the other: mean 0."""
    draw = np.random.default_rng(seed)
    crash = draw.random(bars) < 0.01
    return np.where(crash, -10.0, 10.0 / 99.0 + 0.3 * draw.standard_normal(bars))


def test_alpha_is_spent_once_over_all_challengers() -> None:
    """.05 * 6 / pi^2 = .030396; the shares of 100,000 challengers are nearly, and never more than, all of it. Rejects
    the same alpha for everybody, which spends 100,000 times .05."""
    assert alpha_of(1, 0.05) == pytest.approx(0.030396355, abs=1e-9)
    assert alpha_of(2, 0.05) == pytest.approx(0.030396355 / 4, abs=1e-9)
    total = sum(alpha_of(k, 0.05) for k in range(1, 100_001))
    assert 0.04999 < total < 0.05
    assert sum(alpha_of(k, 0.05 / PURSES) for k in range(1, 100_001) for _ in range(PURSES)) < 0.05
    with pytest.raises(ConfigError, match="counted from 1"):
        alpha_of(0, 0.05)


def test_factors_by_hand() -> None:
    """Bound 1, believed 20 bars of .1: mean square .2. Bar 1: stake 0. After .5: stake .5/(.25+.2) = 1.111 -> 1/2; a
    loss of 1.5 leaves 1 - .75 = 1/4; total -1, stake 0; a gain of 3 counts as 1 and changes nothing."""
    first = EProcess(1.0).after(0.5)
    assert first.value == 1.0 and first.stake == LARGEST_STAKE
    second = first.after(-1.5)
    assert second.value == pytest.approx(0.25) and second.stake == 0.0
    third = second.after(3.0)
    assert third.value == pytest.approx(0.25) and third.total == pytest.approx(0.0)
    fourth = EProcess(1.0).after(0.05)
    assert fourth.stake == pytest.approx(0.05 / (0.0025 + 0.2))
    assert fourth.after(-0.5).value == pytest.approx(1 - 0.5 * 0.05 / 0.2025)


def test_a_loss_beyond_the_bet_is_the_end() -> None:
    """2.5 bounds at stake 1/2 would leave -1/4 of the wealth: dead, and no later gain brings it back."""
    dead = EProcess(1.0).after(0.5).after(-2.5)
    assert dead.dead and dead.value == 0.0
    assert after(dead, np.ones(500)).dead
    with pytest.raises(DataError, match="finite"):
        dead.after(math.nan)


@settings(deadline=None)
@given(st.lists(st.floats(-0.9, 5.0), min_size=1, max_size=40), st.floats(-1.0, 5.0))
def test_no_bet_gains_from_a_fair_coin(past: list[float], size: float) -> None:
    """After any past, the mean of the factors of +x and -x (x within the bound) is at most 1: the process is a
    supermartingale. Rejects a stake that knows the bar it is for."""
    process = after(EProcess(1.0), np.array(past))
    x = min(abs(size), 1.0)
    if not process.dead and process.log > -600:
        factors = [math.exp(process.after(value).log - process.log) for value in (x, -x)]
        assert np.mean(factors) <= 1.0 + 1e-12


class _ClippedLosses(EProcess):
    """Wrong: losses are clipped as gains are."""

    def after(self, value: float) -> EProcess:
        made = EProcess.after(self, max(value, -self.bound))
        return _ClippedLosses(made.bound, made.log, made.count, made.total, made.squares)


class _ClippedContest(Contest):
    @classmethod
    def begin(cls, number: int, *, alpha: float, margin: float, level: float, bound: float) -> Contest:
        right = Contest.begin(number, alpha=alpha, margin=margin, level=level, bound=bound)
        wrong = _ClippedLosses(bound)
        return replace(right, better=wrong, as_good=wrong, safer=wrong)


def test_false_promotions_on_garch_t() -> None:
    """60 worlds of 500 bars in which the challenger is as good: at most alpha are promoted (benchmarks.live_learning
    has 200 of each kind)."""
    assert sum(promoted(garch(500, seed)) is not None for seed in range(60)) <= ALPHA * 60


def test_crash_sellers_are_not_promoted_and_would_be_with_clipped_losses() -> None:
    """The wrong e-process clips the losses at the bound too, and promotes most of them."""
    worlds = [crash_seller(1000, seed) for seed in range(20)]
    assert sum(promoted(world) is not None for world in worlds) <= 1
    assert sum(promoted(world, kind=_ClippedContest) is not None for world in worlds) > 10


def test_a_session_of_many_challengers_spends_alpha_once() -> None:
    """60 sessions of 15 challengers each without an edge: at most alpha of the sessions promote one. Each challenger
    with the alpha of the first would promote in more of them."""
    draw = np.random.default_rng(0)
    spent = fresh = 0
    for _ in range(60):
        worlds = draw.choice([-1.0, 1.0], (15, 40)) * 4.0  # differences at the bound: the bet that wins fastest
        spent += any(promoted(world, number=k + 1) is not None for k, world in enumerate(worlds))
        fresh += any(promoted(world) is not None for world in worlds)
    assert spent <= ALPHA * 60
    assert fresh > spent


def test_correlated_symbols_are_one_bet() -> None:
    """20 symbols with correlation .8: one factor per bar on the mean difference holds alpha; a factor per symbol
    multiplies what is one piece of luck."""
    wrong = right = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        common = garch(150, seed)[:, None]
        values = math.sqrt(0.8) * common + math.sqrt(0.2) * draw.standard_normal((150, 20))
        contest = Contest.begin(1, alpha=ALPHA, margin=0.0, level=-99.0, bound=6.0)
        each = EProcess(6.0)
        hits = [False, False]
        for row in values:
            contest = contest.after(row, np.zeros(20))
            each = after(each, row)
            hits[0] |= contest.promoted_by is not None
            hits[1] |= each.value >= contest.needed
        right, wrong = right + hits[0], wrong + hits[1]
    assert right <= ALPHA * 40
    assert wrong > 3 * ALPHA * 40


def test_an_edge_is_found() -> None:
    """A mean of .15 deviations per bar is promoted in most worlds of 4,000 bars: the bet has power."""
    found = [promoted(garch(4000, seed) + 0.15) for seed in range(5)]
    assert sum(one == "better" for one in found) >= 4


def test_a_smaller_tail_promotes_and_a_larger_one_does_not() -> None:
    """Half the exposure in a market without drift, margin .05 of a deviation: as good with a smaller tail. Twice the
    exposure never is, and neither is half of it in a market that pays more than the margin."""

    def way(factor: float, drift: float) -> str | None:
        contest = Contest.begin(1, alpha=ALPHA, margin=0.05, level=-1.0, bound=4.0)
        for value in (garch(3000, 11) + drift).clip(-6, 6).tolist():
            contest = contest.after([factor * value], [value])
            if contest.promoted_by is not None:
                return contest.promoted_by
        return None

    assert way(0.5, 0.0) == "as good with a smaller tail"
    assert way(2.0, 0.0) is None
    assert way(0.5, 0.3) is None


def test_evidence_goes_on_from_a_file() -> None:
    """Stored in the middle and read again, every later number is the same, also of a dead process."""
    import json

    contest = Contest.begin(3, alpha=0.1, margin=0.01, level=-0.5, bound=2.0)
    values = garch(200, 3)
    for value in values[:100].tolist():
        contest = contest.after([value], [0.0])
    again = Contest.from_json(json.loads(json.dumps(contest.to_json())))
    dead = replace(contest, better=replace(contest.better, log=-math.inf))
    assert Contest.from_json(json.loads(json.dumps(dead.to_json()))) == dead
    for value in values[100:].tolist():
        contest, again = contest.after([value], [0.0]), again.after([value], [0.0])
    assert again == contest


def test_closed_form_of_a_constant_bet() -> None:
    """Gains of 1 and losses of 1 after the stake has reached 1/2: each win 3/2, each loss 1/2."""
    start = after(EProcess(1.0), np.ones(50))
    assert start.stake == LARGEST_STAKE
    one = start.after(1.0).after(-1.0)
    assert one.log - start.log == pytest.approx(math.log(1.5) + math.log(0.5))

"""Golden numbers of every metric per bar length and calendar, by hand and against empyrical."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.bars.frequency import infer_frequency
from tailwise.core.errors import ConfigError
from tailwise.evaluate import statistics
from tailwise.evaluate.statistics import annualisation_doubt, path_statistics
from tailwise.market.path import AccountPath
from tests.evaluate.paths import RHYTHMS, bar_times, path_of

# Log-returns 2, -1, 1.5, -1, again and again, times u. By hand, in units of u:
#   mean (2 - 1 + 1.5 - 1) / 4 = 0.375; deviations 1.625, -1.375, 1.125, -1.375;
#   variance (2.640625 + 1.890625 + 1.265625 + 1.890625) / 4 = 1.921875, root 1.3863171
#   third moment (4.2910156 - 2.5996094 + 1.4238281 - 2.5996094) / 4 = 0.1289062; / 1.3863171**3 = 0.0483822
#   fourth (6.9729004 + 3.5744629 + 1.6018066 + 3.5744629) / 4 = 3.9309082; / 1.921875**2 - 3 = -1.9357533
#   downside sqrt((1 + 1) / 4) = 0.7071068
PATTERN = np.array([2.0, -1.0, 1.5, -1.0])
MEAN_OVER_DEVIATION = 0.2705009  # 0.375 / 1.3863171
MEAN_OVER_DOWNSIDE = 0.5303301  # 0.375 / 0.7071068


def golden(rhythm: str) -> tuple[AccountPath, float, float]:
    """One year of bars that earns a log-return of 0.1; u; the correction of a variance over n - 1."""
    per_year = RHYTHMS[rhythm][2]
    count = 4 * math.ceil(per_year / 4)
    u = 0.1 / (0.375 * per_year)
    time = bar_times(rhythm, count)
    found = infer_frequency(time).periods_per_year
    return path_of(u * np.tile(PATTERN, count // 4), time=time, periods_per_year=found), u, count / (count - 1)


@pytest.mark.parametrize("rhythm", RHYTHMS)
def test_golden_numbers_of_every_bar_length(rhythm: str) -> None:
    """From the times of the bars to the annual numbers. Rejects a constant 252 (or 365), days counted instead of bars,
    and a Sortino ratio over the losing bars alone."""
    _, _, per_year, root = RHYTHMS[rhythm]
    path, u, bessel = golden(rhythm)
    assert path.periods_per_year == per_year
    found = path_statistics(path, alpha=0.05, gamma=0.9)
    # Per year: a mean log-return of 0.1.
    assert found.annual_return == pytest.approx(0.1051709, rel=1e-6)
    assert found.years == pytest.approx(len(path) / per_year, rel=1e-12)
    assert found.total_return == pytest.approx(math.expm1(0.1 * found.years), rel=1e-9)
    assert found.annual_volatility == pytest.approx(u * 1.3863171 * math.sqrt(bessel) * root, rel=1e-6)
    assert found.sharpe == pytest.approx(MEAN_OVER_DEVIATION / math.sqrt(bessel) * root, rel=1e-6)
    assert found.sortino == pytest.approx(MEAN_OVER_DOWNSIDE * root, rel=1e-6)
    # Each fall is one step of -u from a peak, which is passed two bars after it.
    assert found.max_drawdown == pytest.approx(-math.expm1(-u), rel=1e-9) and found.longest_drawdown == 2
    assert found.cdar == pytest.approx(found.max_drawdown, rel=1e-9)  # a half of the closes lie u below the peak
    assert found.calmar == pytest.approx(0.1051709 / -math.expm1(-u), rel=1e-6)
    # Per bar: no annualisation.
    assert found.omega == pytest.approx(3.5 / 2.0, rel=1e-9)
    assert found.var_bar == pytest.approx(-u, rel=1e-9) and found.cvar_bar == pytest.approx(-u, rel=1e-9)
    assert found.tail_ratio == pytest.approx(2.0, rel=1e-9)
    assert found.skewness == pytest.approx(0.0483822, rel=1e-5)
    assert found.excess_kurtosis == pytest.approx(-1.9357533, rel=1e-6)
    assert annualisation_doubt(path) is None


@pytest.mark.parametrize("rhythm", RHYTHMS)
@pytest.mark.parametrize("wrong", [12.0, 252.0, 365.0, 8760.0])
def test_a_wrong_annualisation_is_caught(rhythm: str, wrong: float) -> None:
    """A planted number of bars per year contradicts the times of the path: told at run time, without the truth."""
    per_year = RHYTHMS[rhythm][2]
    path, _, _ = golden(rhythm)
    doubt = annualisation_doubt(replace(path, periods_per_year=wrong))
    if wrong == per_year:
        assert doubt is None
        return
    assert doubt is not None and f"assume {wrong:,.5g} bars per year" in doubt
    right = path_statistics(path, alpha=0.05, gamma=0.9).sharpe
    planted = path_statistics(replace(path, periods_per_year=wrong), alpha=0.05, gamma=0.9).sharpe
    assert right is not None and planted is not None
    assert planted / right == pytest.approx(math.sqrt(wrong / per_year), rel=1e-6)
    told = float(doubt.split("factor of ")[1].split()[0].rstrip("."))
    assert told == pytest.approx(planted / right, rel=0.05)  # 261 business days a year, not 252


def test_a_short_window_raises_no_doubt() -> None:
    """Five days around a weekend look like 261 or 365 bars a year: nothing can be said."""
    assert annualisation_doubt(path_of(np.full(5, 0.001), periods_per_year=365.0)) is None


def fat_returns(count: int, seed: int = 0) -> np.ndarray:
    return 0.0004 + 0.01 * np.random.default_rng(seed).standard_t(4, count)


@pytest.mark.parametrize("rhythm", ["daily, exchange", "4 hours, 24/7", "hourly, exchange", "minute, exchange"])
def test_against_empyrical(rhythm: str) -> None:
    """An independent implementation, told the bars per year (its own default is 252 whatever the bars are)."""
    import empyrical

    per_year = RHYTHMS[rhythm][2]
    returns = fat_returns(int(per_year) + 1000) / math.sqrt(per_year / 252)
    found = path_statistics(path_of(returns, periods_per_year=per_year), alpha=0.05, gamma=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found.sharpe == pytest.approx(empyrical.sharpe_ratio(returns, annualization=per_year), rel=1e-9)
        assert found.sortino == pytest.approx(empyrical.sortino_ratio(returns, annualization=per_year), rel=1e-9)
        assert found.annual_volatility == pytest.approx(
            empyrical.annual_volatility(returns, annualization=per_year), rel=1e-9
        )
        assert found.omega == pytest.approx(empyrical.omega_ratio(returns), rel=1e-9)
        # Growth and drawdowns are of the equity: simple returns.
        simple = np.expm1(returns)
        assert found.annual_return == pytest.approx(empyrical.cagr(simple, annualization=per_year), rel=1e-9)
        assert found.max_drawdown == pytest.approx(-empyrical.max_drawdown(simple), rel=1e-9)
        assert found.calmar == pytest.approx(empyrical.calmar_ratio(simple, annualization=per_year), rel=1e-9)
        # It interpolates between two values of the sample where ours takes one: equal up to their distance.
        assert found.var_bar == pytest.approx(empyrical.value_at_risk(returns, 0.05), rel=0.02)
        assert found.tail_ratio == pytest.approx(empyrical.tail_ratio(returns), rel=0.02)
        if per_year != 252:
            assert found.sharpe != pytest.approx(empyrical.sharpe_ratio(returns), rel=0.1)


def test_where_empyrical_is_wrong() -> None:
    """Its CVaR of n values averages floor((n - 1) alpha) + 1 whole ones: of 30 values, the worst 5% are 1.5 of them
    and it takes 2. And a series without risk has an infinite or undefined ratio instead of none."""
    import empyrical

    values = np.concatenate([[-3.0, -1.0], np.zeros(28)])
    assert statistics.empirical_cvar(values, 0.05) == pytest.approx((-3.0 - 0.5 * 1.0) / 1.5)
    assert empyrical.conditional_value_at_risk(values, 0.05) == pytest.approx(-2.0)
    with np.errstate(all="ignore"):
        assert not np.isfinite(empyrical.sortino_ratio(np.full(30, 0.01)))
    assert statistics.sortino_ratio(np.full(30, 0.01), 252.0) is None


def test_value_at_risk_is_the_quantile_that_cvar_integrates() -> None:
    """CVaR(a) = mean of VaR over [0, a]. Rejects an interpolated quantile, whose mean over the tail differs."""
    values = fat_returns(40, seed=3)
    levels = (np.arange(4000) + 0.5) / 4000 * 0.1
    mean = np.mean([statistics.value_at_risk(values, level) for level in levels])
    assert mean == pytest.approx(statistics.empirical_cvar(values, 0.1), rel=1e-9)
    interpolated = np.mean([np.quantile(values, level) for level in levels])
    assert abs(interpolated - statistics.empirical_cvar(values, 0.1)) > 1e-4
    assert statistics.value_at_risk(np.arange(100.0), 0.05) == 4.0  # the fifth of a hundred
    assert statistics.value_at_risk(np.arange(10.0), 0.01) == 0.0


def test_longest_drawdown_counts_from_the_peak_to_the_recovery() -> None:
    """Rejects the time from peak to trough, and a drawdown that is forgotten because it has not ended."""
    wealth = np.array([1.0, 1.2, 1.1, 0.9, 1.0, 1.2, 1.3, 1.25, 1.2, 1.29])
    assert statistics.longest_drawdown(wealth) == 4  # from bar 1 to bar 5; to the trough would be 2
    assert statistics.longest_drawdown(np.append(wealth, [1.2, 1.2])) == 5  # from bar 6 on, still below
    assert statistics.longest_drawdown(np.ones(5)) == 0
    assert statistics.longest_drawdown(np.array([1.0, 1.1, 1.2])) == 0
    assert statistics.longest_drawdown(np.array([1.0, 0.9])) == 1


def test_conditional_drawdown_by_hand() -> None:
    """Closes 1, .9, .8, .95, 1: drawdowns 0, .1, .2, .05, 0; the start is no close of the window."""
    wealth = np.array([1.0, 1.0, 0.9, 0.8, 0.95, 1.0])
    assert statistics.conditional_drawdown(wealth, 0.4) == pytest.approx((0.2 + 0.1) / 2)
    assert statistics.conditional_drawdown(wealth, 0.5) == pytest.approx((0.2 + 0.1 + 0.5 * 0.05) / 2.5)
    assert statistics.conditional_drawdown(wealth, 1.0) == pytest.approx(0.35 / 5)


def test_what_is_undefined_is_none() -> None:
    """Never infinite, never NaN: a flat account, one that only wins, one bar, and less than a year."""
    calm = path_statistics(path_of(np.zeros(300)), alpha=0.05, gamma=0.9)
    none = ("sharpe", "sortino", "calmar", "omega", "skewness", "excess_kurtosis", "tail_ratio", "hit_rate")
    assert [name for name in (*none, "profit_factor", "cost_share") if getattr(calm, name) is not None] == []
    assert calm.annual_return == 0.0 and calm.cdar == 0.0 and calm.longest_drawdown == 0
    rising = path_statistics(path_of(np.linspace(0.001, 0.002, 300)), alpha=0.05, gamma=0.9)
    assert (rising.sortino, rising.omega, rising.calmar, rising.tail_ratio) == (None, None, None, None)
    assert rising.sharpe is not None and rising.sharpe > 50
    one = path_statistics(path_of(np.array([-0.01])), alpha=0.05, gamma=0.9)
    assert one.sharpe is None and one.annual_volatility is None and one.annual_return is None and one.calmar is None
    with pytest.raises(ConfigError, match="periods per year is 0"):
        path_statistics(path_of(np.zeros(3), periods_per_year=0.0), alpha=0.05, gamma=0.9)


@settings(max_examples=60, deadline=None)
@given(
    returns=st.lists(st.floats(-0.5, 0.5, allow_subnormal=False), min_size=1, max_size=60),
    alpha=st.floats(0.01, 1.0),
)
def test_every_number_is_finite_or_none(returns: list[float], alpha: float) -> None:
    path = path_of(np.array(returns), periods_per_year=12.0)
    numbers = vars(path_statistics(path, alpha=alpha, gamma=0.5))
    assert all(value is None or np.isfinite(value) for value in numbers.values())
    assert 0 <= numbers["cdar"] <= numbers["max_drawdown"] + 1e-12 and numbers["max_drawdown"] < 1
    assert numbers["cvar_bar"] <= numbers["var_bar"] + 1e-12
    assert 0 <= numbers["longest_drawdown"] <= len(returns)


@pytest.mark.parametrize("rhythm", RHYTHMS)
def test_golden_numbers_of_trading_for_every_bar_length(rhythm: str) -> None:
    """Every four bars: buy half of the equity, hold, sell it 2% higher or 1% lower in turn, rest. By hand, equity 100:

    traded .5 + .51 and .5 + .495, fees .1 a trip, trips +1 - .1 = .9 and -.5 - .1 = -.6, equity ends at 110. Rejects a
    turnover or costs per bar, per day or per 252 bars, and shares of trips or bars that were annualised too.
    """
    per_year = RHYTHMS[rhythm][2]
    trips = 2 * math.ceil(min(per_year, 20_000) / 8)
    bars = 4 * trips
    time = bar_times(rhythm, bars)
    zero = np.zeros((bars, 1))
    units, price, close, fee = zero.copy(), zero.copy(), np.ones((bars, 1)), np.zeros(bars)
    orders = zero.copy()
    orders[0::4], orders[2::4], price[0::4] = 50.0, -50.0, 1.0
    price[2::8], price[6::8] = 1.02, 0.99
    units[0::4] = units[1::4] = 50.0
    fee[0::4] = fee[2::4] = 0.05
    returns = np.zeros(bars)
    returns[-1] = math.log(1.1)
    found = path_statistics(
        path_of(
            returns,
            time=time,
            periods_per_year=infer_frequency(time).periods_per_year,
            units=units,
            order_units=orders,
            order_price=price,
            close=close,
            fee=fee,
        ),
        alpha=0.05,
        gamma=0.9,
    )
    assert found.periods_per_year == per_year
    assert found.turnover == pytest.approx(per_year / 8 * 2.005, rel=1e-9)  # per_year / 4 trips a year
    assert found.costs == pytest.approx(per_year / 4 * 0.001, rel=1e-9)
    assert found.cost_share == pytest.approx(0.1 * trips / (10 + 0.1 * trips), rel=1e-9)
    assert found.mean_exposure == pytest.approx(0.25) and found.time_in_market == pytest.approx(0.5)
    assert found.trades == 2 * trips and found.round_trips == trips
    assert found.hit_rate == pytest.approx(0.5) and found.profit_factor == pytest.approx(1.5)

"""Accounts of several symbols as one: weights that look back only, money that adds up, one verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailwise.bars.builtin import nasdaq, sp500
from tailwise.core.errors import DataError
from tailwise.evaluate.backtest import play_rule
from tailwise.evaluate.judgement import POLICY, judge_rule
from tailwise.evaluate.portfolio import WARM_UP, equal_risk_weights, equal_weights, judge_portfolio, one_portfolio
from tailwise.evaluate.regression import regress
from tailwise.evaluate.statistics import path_statistics
from tailwise.market.costs import CostConfig
from tailwise.market.path import AccountPath
from tests.evaluate.paths import bar_times, path_of

FREE = CostConfig(taker_fee_bps=0, half_spread_bps=0, slippage_bps=0, impact_bps=0)


def returns_of(seed: int, *deviations: float, bars: int = 800) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((bars, len(deviations))) * np.array(deviations)


def test_weights_look_back_only_and_share_the_risk() -> None:
    """Rejects deviations of the whole window: changing the last half changes no weight of the first."""
    returns = returns_of(0, 0.002, 0.02, 0.0)
    weights = equal_risk_weights(returns)
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert (weights[:WARM_UP] == weights[0, 0]).all()
    assert weights[-1, 0] / weights[-1, 1] == pytest.approx(10, rel=0.1)
    assert weights[-1, 2] <= 11 * weights[-1, 0]  # what never moved does not take all of the money
    later = returns.copy()
    later[400:] *= 7
    assert np.array_equal(equal_risk_weights(later)[:401], weights[:401])
    assert not np.array_equal(equal_risk_weights(later)[401:], weights[401:])


def test_money_adds_up() -> None:
    """Each bar's gain is the weighted mean of the accounts' gains, and so are turnover and costs; exposures are the
    accounts' times their share. Rejects accounts that are added up without the weights."""
    bars = {one.symbol: one.slice(3000, 3600) for one in (sp500(), nasdaq())}
    paths = [play_rule(np.full(600, 0.8), one, CostConfig()) for one in bars.values()]
    whole = one_portfolio(paths, "both", weigh=equal_weights)
    gains = np.mean([np.diff(path.wealth) / path.wealth[:-1] for path in paths], axis=0)
    assert np.diff(whole.wealth) / whole.wealth[:-1] == pytest.approx(gains, abs=1e-12)
    assert whole.traded == pytest.approx(np.mean([path.traded for path in paths], axis=0), abs=1e-12)
    assert whole.costs == pytest.approx(np.mean([path.costs for path in paths], axis=0), abs=1e-12)
    assert whole.exposure == pytest.approx(0.8, abs=0.05) and whole.assets == tuple(bars)
    numbers = path_statistics(whole, alpha=0.05, gamma=0.97)
    assert numbers.net_exposure == pytest.approx(0.8, abs=0.01)


def test_symbols_with_other_days_and_a_ruin() -> None:
    """The union of the bars; a symbol without a bar stands still and keeps its position; a ruined account stays so."""
    time = bar_times("daily, exchange", 400)
    first = path_of(np.full(400, 0.001), time=time)
    shorter = np.flatnonzero(np.arange(400) % 5 != 2)[20:300]
    second = path_of(np.full(len(shorter), -0.001), time=time[shorter])
    whole = one_portfolio([first, second], "both", weigh=equal_weights)
    assert len(whole) == 400 and whole.periods_per_year == pytest.approx(252.0)
    gains = np.diff(whole.wealth) / whole.wealth[:-1]
    up, down = np.expm1(0.001), np.expm1(-0.001)
    assert gains[:20] == pytest.approx(up / 2) and gains[shorter[0]] == pytest.approx((up + down) / 2)
    gone = path_of(np.concatenate([np.full(10, 0.0), [-20.0]]))
    dead = replace(gone, planned=400)
    alive = one_portfolio([first, dead], "both", weigh=equal_weights)
    after = np.diff(alive.wealth) / alive.wealth[:-1]
    assert after[10] == pytest.approx((up - 1) / 2, abs=1e-3) and after[50] == pytest.approx(up / 2)
    with pytest.raises(DataError, match="no accounts"):
        one_portfolio([], "none")


def test_one_verdict_on_the_portfolio() -> None:
    """k times every market has beta k and no alpha to the portfolio of the markets; what single accounts hide in their
    noise, a small alpha in each of 30, the portfolio shows. Rejects the mean of single verdicts."""
    rng = np.random.default_rng(2)
    common = 0.006 * rng.standard_normal(1000)
    markets = [common + 0.01 * s * rng.standard_normal(1000) for s in (0.5, 1, 2) * 10]
    held = [path_of(one) for one in markets]
    half = [path_of(np.log1p(0.5 * np.expm1(one))) for one in markets]
    exact = regress(one_portfolio(half, "h"), one_portfolio(held, "m"), against="buy and hold", repetitions=100)
    assert exact is not None and exact.beta.estimate == pytest.approx(0.5, abs=1e-3)
    assert exact.alpha.estimate == pytest.approx(0.0, abs=1e-3)
    noise = 0.004 * rng.standard_normal((30, 1000))
    skilled = [path_of(np.log1p(0.5 * np.expm1(one)) + n + 0.0002) for one, n in zip(markets, noise, strict=True)]
    alone = [regress(p, m, against="m", repetitions=100) for p, m in zip(skilled, held, strict=True)]
    assert sum(one is not None and one.verdict == "above zero" for one in alone) < 20
    together = regress(one_portfolio(skilled, "s"), one_portfolio(held, "m"), against="m", repetitions=100)
    assert together is not None and together.verdict == "above zero"


def test_a_judgement_of_all_accounts() -> None:
    accounts = []
    for bars in (sp500().slice(4000, 4600), nasdaq().slice(4000, 4600)):
        path: AccountPath = play_rule(np.full(len(bars), 0.5), bars, FREE)
        accounts.append(judge_rule(path, bars, FREE))
    whole = judge_portfolio(accounts, gamma=0.97)
    assert whole.symbol == "equal-risk portfolio of 2 symbols" and not whole.limits
    assert {POLICY, "buy and hold", "flat", "buy and hold, equal weights"} <= set(whole.paths)
    numbers = whole.statistics[POLICY]
    assert numbers.hit_rate is None and numbers.round_trips == 2
    assert numbers.net_exposure == pytest.approx(0.5, abs=0.01)

"""Each synthetic market has the law that its docstring states."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.bars import synthetic
from tailwise.bars.bars import Bars, load_bars, save_bars
from tailwise.core.errors import ConfigError

LONG = 200_000


def log_returns(bars: Bars) -> np.ndarray:
    return np.log(bars.close / bars.open)


@pytest.mark.parametrize("kind", synthetic.kinds())
def test_shape_shared_by_all(kind: str) -> None:
    """Rejects bars that open elsewhere than the last close, wicks inside the body, empty volume, a missing label."""
    bars, extra = synthetic.make(kind, seed=7, length=500)
    np.testing.assert_array_equal(bars.open[1:], bars.close[:-1])
    assert (bars.high >= np.maximum(bars.open, bars.close)).all()
    assert (bars.low <= np.minimum(bars.open, bars.close)).all()
    assert (bars.low > 0).all() and (bars.volume > 0).all()
    assert bars.label.startswith(f"synthetic: {kind}(") and "seed=7" in bars.label
    assert bars.frequency.calendar == "24/7" and bars.frequency.periods_per_year == 8760
    assert tuple(extra) == (("next_log_return",) if kind == "leak" else ())


@pytest.mark.parametrize("kind", synthetic.kinds())
def test_seeded_and_extended_without_change(kind: str) -> None:
    """Rejects a global generator, an ignored seed, and draws that depend on the length."""
    short, long = (synthetic.make(kind, seed=3, length=n)[0] for n in (300, 700))
    again, other = (synthetic.make(kind, seed=s, length=300)[0] for s in (3, 4))
    assert short.data_hash() == again.data_hash() == long.slice(0, 300).data_hash()
    assert short.data_hash() != other.data_hash()


def test_sine_oracle_earns_four_amplitudes_per_period() -> None:
    """Rejects amplitude taken from peak to peak (2 A per period) and a wrong period."""
    returns = log_returns(synthetic.sine(seed=0, length=400, amplitude=0.1, period=40))
    assert np.abs(returns).sum() == pytest.approx(10 * 4 * 0.1, rel=1e-9)
    np.testing.assert_allclose(returns[40:], returns[:-40], atol=1e-12)


def test_ar1_moments_and_oracle() -> None:
    """Rejects innovations of size sigma (standard deviation sigma / sqrt(1 - phi**2)) and a wrong sign of phi."""
    phi, sigma = 0.6, 0.01
    returns = log_returns(synthetic.ar1(seed=1, length=LONG, phi=phi, sigma=sigma))
    assert returns.std() == pytest.approx(sigma, rel=0.015)
    for lag in (1, 2, 3):
        assert np.corrcoef(returns[:-lag], returns[lag:])[0, 1] == pytest.approx(phi**lag, abs=0.015)
    earned = np.mean(np.sign(returns[:-1]) * returns[1:])
    assert earned == pytest.approx(phi * sigma * np.sqrt(2 / np.pi), rel=0.02)
    assert sigma / np.sqrt(1 - phi**2) != pytest.approx(sigma, rel=0.015)  # the wrong law would be seen


def test_ar1_first_bar_is_stationary() -> None:
    """Rejects a start at zero return or with the innovation's scale: over seeds, the first bar has scale sigma."""
    first = [log_returns(synthetic.ar1(seed=s, length=2, phi=0.9, sigma=0.01))[0] for s in range(800)]
    assert np.std(first) == pytest.approx(0.01, rel=0.1)  # the innovation's scale would be 0.0044


def test_random_walk_has_no_memory() -> None:
    """Rejects serial dependence of returns or of their size, and a drift that is not there."""
    returns = log_returns(synthetic.random_walk(seed=2, length=LONG, sigma=0.01, drift=0.0002))
    assert returns.mean() == pytest.approx(0.0002, abs=4 * 0.01 / np.sqrt(LONG))
    assert returns.std() == pytest.approx(0.01, rel=0.01)
    assert abs(np.corrcoef(returns[:-1], returns[1:])[0, 1]) < 4 / np.sqrt(LONG)
    assert abs(np.corrcoef(returns[:-1] ** 2, returns[1:] ** 2)[0, 1]) < 4 / np.sqrt(LONG)


def test_regimes_have_their_share_length_and_volatility() -> None:
    """Rejects swapped probabilities (share of storm 0.75 instead of 0.25) and one volatility for both states."""
    states = synthetic.regime_states(seed=5, length=LONG, leave_calm=0.01, leave_storm=0.03)
    bars = synthetic.regime_switching(seed=5, length=LONG, leave_calm=0.01, leave_storm=0.03)
    returns = log_returns(bars)
    assert states.mean() == pytest.approx(0.25, abs=0.03)
    ends = np.flatnonzero(np.diff(states) == -1).size
    assert states.sum() / ends == pytest.approx(1 / 0.03, rel=0.1)
    for state, drift, sigma in ((0, 0.0005, 0.005), (1, -0.001, 0.02)):
        part = returns[states == state]
        assert part.std() == pytest.approx(sigma, rel=0.02)
        assert part.mean() == pytest.approx(drift, abs=4 * sigma / np.sqrt(len(part)))


def test_jump_diffusion_cumulants() -> None:
    """Rejects at most one jump per bar, a jump scaled by the count instead of its root, and a forgotten jump mean."""
    m, s, rate, sigma = -0.03, 0.03, 0.5, 0.01
    bars = synthetic.jump_diffusion(
        seed=6, length=LONG, sigma=sigma, jumps=rate, jump_mean=m, jump_sigma=s, drift=rate * -m
    )
    returns = log_returns(bars)
    variance = sigma**2 + rate * (m**2 + s**2)
    assert returns.mean() == pytest.approx(0.0, abs=4 * np.sqrt(variance / LONG))
    assert returns.var() == pytest.approx(variance, rel=0.02)
    centred = returns - returns.mean()
    fourth = np.mean(centred**4) - 3 * np.mean(centred**2) ** 2
    assert fourth == pytest.approx(rate * (m**4 + 6 * m**2 * s**2 + 3 * s**4), rel=0.1)
    one_jump_at_most = (1 - np.exp(-rate)) * (m**2 + s**2) + sigma**2
    assert one_jump_at_most != pytest.approx(variance, rel=0.02)


def test_heston_variance_clusters_and_has_leverage() -> None:
    """Rejects a variance per bar that forgets dt, independent shocks (rho ignored), and no mean reversion."""
    bars = synthetic.heston(seed=8, length=LONG, kappa=20.0, theta=0.04, xi=1.0, rho=-0.7)
    returns = log_returns(bars)
    assert returns.var() * 8760 == pytest.approx(0.04, rel=0.1)
    daily = returns[: LONG // 24 * 24].reshape(-1, 24)
    variance, total = (daily**2).sum(1), daily.sum(1)
    noise = 1 / np.sqrt(len(variance))
    assert np.corrcoef(variance[:-1], variance[1:])[0, 1] > 0.3
    assert np.corrcoef(total[:-1], variance[1:])[0, 1] < -4 * noise
    flat = log_returns(synthetic.heston(seed=8, length=LONG, kappa=20.0, theta=0.04, xi=1.0, rho=0.0))
    daily = flat[: LONG // 24 * 24].reshape(-1, 24)
    assert abs(np.corrcoef(daily.sum(1)[:-1], (daily**2).sum(1)[1:])[0, 1]) < 4 * noise


def test_leak_tells_the_next_return_and_not_this_one() -> None:
    """Rejects a column shifted by one: the return of the present bar is no leak."""
    bars, extra = synthetic.leak(seed=9, length=1000)
    told = extra["next_log_return"]
    assert told.shape == (1000,) and np.isfinite(told).all()
    np.testing.assert_allclose(told[:-1], np.log(bars.close[1:] / bars.close[:-1]), atol=1e-12)
    assert not np.allclose(told, log_returns(bars), atol=1e-6)
    assert np.mean(np.abs(told)) == pytest.approx(0.01 * np.sqrt(2 / np.pi), rel=0.1)


@pytest.mark.parametrize("name", ["market.csv", "market.parquet"])
def test_a_saved_market_still_says_that_it_is_synthetic(tmp_path, name: str) -> None:
    """Rejects an artefact from which the label is lost, so that made-up bars pass for real ones."""
    bars = synthetic.sine(seed=1, length=50)
    save_bars(bars, tmp_path / name)
    back = load_bars(tmp_path / name, symbol=bars.symbol)
    assert back.label == bars.label
    assert back.data_hash() == bars.data_hash()
    assert load_bars(bars.to_frame()).label == bars.label


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        ("sinus", {}, "no synthetic market 'sinus'; there are sine"),
        ("sine", {"amplitud": 1}, "no parameter 'amplitud'; there are length, amplitude"),
        ("ar1", {"phi": 1.5}, "phi is 1.5"),
        ("random_walk", {"length": 1}, "length is 1"),
        ("random_walk", {"length": 100_000, "bar": "1D"}, "end after the year 2200"),
        ("random_walk", {"sigma": 1.0, "length": 200_000}, "log price leaves"),
        ("heston", {"kappa": 50.0, "bar": "4W"}, "reverts within one bar"),
        ("regime_switching", {"leave_calm": 0.0}, "leave_calm is 0.0"),
    ],
)
def test_bad_parameters_get_a_sentence(kind: str, parameters: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        synthetic.make(kind, seed=0, **parameters)


def test_parameters_of_two_regimes_are_lists_of_two_numbers() -> None:
    """As a configuration gives them. Rejects a check that knows only single numbers."""
    bars, _ = synthetic.make("regime_switching", seed=1, length=4000, sigma=[0.001, 0.001], drift=[0.0, 0.0])
    assert np.log(bars.close[1:] / bars.close[:-1]).std() == pytest.approx(0.001, rel=0.1)
    for wrong in ([0.01], 0.01, [0.01, "x"], [0.01, True]):
        with pytest.raises(ConfigError, match=r"sigma is .*; it must be 2 numbers, like \[0.005, 0.02\]"):
            synthetic.make("regime_switching", seed=1, sigma=wrong)

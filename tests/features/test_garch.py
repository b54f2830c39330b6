"""GARCH(1,1): the forecast is that of `arch`, fitted on the train rows of each symbol and stored in the spec."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tailwise.bars.bars import Bars
from tailwise.bars.builtin import nasdaq, sp500
from tailwise.core.errors import DataError
from tailwise.features.builtin_volatility import fit_garch
from tailwise.features.spec import FeatureSpec
from tests.features.example_bars import (
    Floats,
    assert_stream_equals_table,
    bars_from,
    config,
    is_causal,
    random_bars,
    scaled,
)

PLAIN_GARCH = config("garch", standardise=False)


@pytest.fixture(scope="module")
def index() -> Bars:
    return sp500()


@pytest.fixture(scope="module")
def spec(index: Bars) -> FeatureSpec:
    return FeatureSpec.fit(PLAIN_GARCH, [index.between(None, "2010-01-01")])


def _volatility_by_arch(bars: Bars, fitted: dict[str, float]) -> Floats:
    """arch's volatility of each bar given the bars before it, fraction per bar [T]; row 0 has none."""
    from arch import arch_model

    returns = 100 * np.diff(np.log(bars.close))
    model = arch_model(returns, mean="Constant", vol="GARCH", p=1, q=1, rescale=False)
    result = model.fix([fitted["mu"] * 100, fitted["omega"] * 1e4, fitted["alpha"], fitted["beta"]])
    return np.concatenate(([np.nan], result.conditional_volatility)) / 100


def test_forecast_is_that_of_arch_one_bar_ahead(index: Bars, spec: FeatureSpec) -> None:
    """Rejects the volatility OF the bar in place of the forecast FOR the next one."""
    fitted = dict(spec.fitted["garch"]["SP500"])
    by_arch = _volatility_by_arch(index, fitted)
    ours = spec.table(index).values[:, 0] * fitted["average"]
    settled = slice(600, -1)  # by then the start variance has faded
    np.testing.assert_allclose(ours[settled], by_arch[601:], rtol=1e-6)  # the table is float32
    assert not np.allclose(ours[settled], by_arch[600:-1], rtol=1e-3)


def test_parameters_are_plausible_and_the_train_average_is_one(index: Bars, spec: FeatureSpec) -> None:
    fitted = spec.fitted["garch"]["SP500"]
    assert 0.03 < fitted["alpha"] < 0.2 and 0.8 < fitted["beta"] < 0.97 and fitted["alpha"] + fitted["beta"] < 1
    assert fitted["variance"] == pytest.approx(fitted["omega"] / (1 - fitted["alpha"] - fitted["beta"]))
    train = spec.table(index.between(None, "2010-01-01"))
    assert train.values[train.first_valid :, 0].mean() == pytest.approx(1.0, abs=1e-6)


def test_streaming_equals_batch_with_garch_and_its_weekly_twin(index: Bars) -> None:
    wanted = config("garch", "return_1", timeframes={"1W": ("garch",)})
    spec = FeatureSpec.fit(wanted, [index.between(None, "2008-01-01")])
    assert spec.fitted["1W:garch"]["SP500"] != spec.fitted["garch"]["SP500"]
    assert_stream_equals_table(spec, index.slice(0, 1500))


def test_fitted_on_train_rows_only(index: Bars) -> None:
    """Changing test rows changes nothing; a fit on some of them fails the same check."""
    cut = 2000
    later = np.where(np.arange(len(index)) >= cut, 1.01, 1.0) ** (np.arange(len(index)) % 2)
    other = replace(index, **{name: getattr(index, name) * later for name in ("open", "high", "low", "close")})

    def agree(train_rows: int) -> bool:
        one, two = (FeatureSpec.fit(PLAIN_GARCH, [bars.slice(0, train_rows)]).fitted for bars in (index, other))
        return one == two

    assert agree(cut)
    assert not agree(2400)


def test_causal_and_scale_free(index: Bars, spec: FeatureSpec) -> None:
    def values(bars: Bars) -> Floats:
        return spec.table(bars).values[:, 0].astype(np.float64)

    bars = index.slice(0, 600)
    assert is_causal(values, bars, [300, 451])
    np.testing.assert_allclose(values(scaled(bars, 1000.0)), values(bars), rtol=1e-6)


def test_each_symbol_has_its_own_fit_and_an_unknown_one_is_refused(index: Bars) -> None:
    train = [index.between(None, "2005-01-01"), nasdaq().between(None, "2005-01-01")]
    spec = FeatureSpec.fit(PLAIN_GARCH, train)
    assert set(spec.fitted["garch"]) == {"SP500", "NASDAQ"}
    assert spec.fitted["garch"]["SP500"] != spec.fitted["garch"]["NASDAQ"]
    stranger = replace(index, symbol="DAX")
    with pytest.raises(DataError, match="'garch' was fitted for SP500, NASDAQ, not for 'DAX'; add the symbol"):
        spec.table(stranger)
    with pytest.raises(DataError, match="not for 'DAX'"):
        spec.stream("DAX", stranger.frequency)


def test_the_fit_survives_json_exactly(spec: FeatureSpec, index: Bars) -> None:
    again = FeatureSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.fitted == spec.fitted
    np.testing.assert_array_equal(again.table(index).values, spec.table(index).values)


def test_bars_that_cannot_be_fitted_get_a_sentence() -> None:
    with pytest.raises(DataError, match="TEST has 149 train returns; at least 250 are needed"):
        FeatureSpec.fit(PLAIN_GARCH, [random_bars(150, seed=1)])
    with pytest.raises(DataError, match="the price of TEST does not vary"):
        FeatureSpec.fit(PLAIN_GARCH, [random_bars(500, seed=1, kind="flat")])


def test_an_unstable_fit_is_refused_and_never_silent() -> None:
    """Volatility that doubles for good in the middle of the data looks like alpha + beta = 1 to the fit."""
    rng = np.random.default_rng(0)
    moves = rng.standard_normal(1200) * np.exp(np.linspace(-6, 0, 1200))
    close = 100 * np.exp(np.cumsum(moves))
    bars = bars_from(close, close, close, close, np.ones(1200))
    with pytest.raises(DataError, match=r"fit to TEST (is unstable \(alpha|did not converge).*ewma_volatility_20"):
        FeatureSpec.fit(PLAIN_GARCH, [bars])


def test_an_optimiser_that_gives_up_is_refused(index: Bars) -> None:
    """The sentence for a fit that did not converge, with the real optimiser stopped after one step."""
    matrix = np.zeros((600, 6))
    matrix[:, 4] = index.close[:600]
    with pytest.raises(DataError, match=r"the fit to SP500 did not converge \(code 9 of the optimiser\)"):
        fit_garch(matrix, "SP500", most_steps=1)

"""Every built-in against the same formula written with pandas and scipy, and some against arithmetic on paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tailwise.bars.bars import Bars
from tailwise.features.registry import BUILTIN
from tests.features.example_bars import PLAIN, bars_from, column, random_bars, raw

N, SHORT = 7, 3
Formula = Callable[[pd.DataFrame], pd.Series]


def _rolling(values: pd.Series, rows: int, function: Callable[[Any], float]) -> pd.Series:
    return values.rolling(rows).apply(function, raw=True)


def _returns(f: pd.DataFrame) -> pd.Series:
    return np.log(f.close).diff()


def _rms(values: pd.Series, rows: int) -> pd.Series:
    return _rolling(values, rows, lambda x: math.sqrt(np.mean(x**2)))


def _autocorrelation(x: Any) -> float:
    y = x - x.mean()
    return float(y[1:] @ y[:-1] / (y @ y))


def _true_range(f: pd.DataFrame) -> pd.Series:
    before = f.close.shift(1)
    return np.log(np.maximum(f.high, before) / np.minimum(f.low, before)).where(before.notna())


def _ewm_squares(f: pd.DataFrame, span: int) -> pd.Series:
    return (_returns(f).iloc[1:] ** 2).ewm(span=span, adjust=True).mean()


def _macd(f: pd.DataFrame) -> pd.Series:
    level = np.log(f.close)
    distance = level.ewm(span=SHORT, adjust=False).mean() - level.ewm(span=N, adjust=False).mean()
    return distance / np.sqrt(_ewm_squares(f, N))


def _rsi(f: pd.DataFrame) -> pd.Series:
    moves = _returns(f).iloc[1:]
    gain = moves.clip(lower=0).ewm(alpha=1 / N, adjust=True).mean()
    loss = (-moves).clip(lower=0).ewm(alpha=1 / N, adjust=True).mean()
    return (100 - 100 / (1 + gain / loss)) / 50 - 1


def _zscore(values: pd.Series) -> pd.Series:
    return _rolling(values, N, lambda x: (x[-1] - x.mean()) / x.std())


def _volume_return(f: pd.DataFrame) -> pd.Series:
    moves = _returns(f)
    return (moves * f.volume).rolling(N).sum() / f.volume.rolling(N).sum().where(moves.rolling(N).count() == N)


def _day(f: pd.DataFrame) -> pd.Series:
    return pd.Series(2 * np.pi * (f.index.hour + f.index.minute / 60) / 24, f.index)


def _week(f: pd.DataFrame) -> pd.Series:
    return pd.Series(2 * np.pi * f.index.dayofweek / 7, f.index)


def _rogers_satchell(f: pd.DataFrame) -> pd.Series:
    terms = np.log(f.high / f.close) * np.log(f.high / f.open) + np.log(f.low / f.close) * np.log(f.low / f.open)
    return np.sqrt(_rolling(terms, N, np.mean))


def _garman_klass(f: pd.DataFrame) -> pd.Series:
    terms = 0.5 * np.log(f.high / f.low) ** 2 - (2 * np.log(2) - 1) * np.log(f.close / f.open) ** 2
    return np.sqrt(_rolling(terms, N, np.mean))


def _range_position(f: pd.DataFrame) -> pd.Series:
    low, high = f.low.rolling(N).min(), f.high.rolling(N).max()
    return 2 * (f.close - low) / (high - low) - 1


FORMULAS: dict[str, Formula] = {
    "return": lambda f: np.log(f.close / f.close.shift(N)),
    "momentum": lambda f: _rolling(_returns(f), N, lambda x: x.sum() / (math.sqrt(np.mean(x**2)) * math.sqrt(N))),
    "efficiency": lambda f: abs(np.log(f.close / f.close.shift(N))) / _returns(f).abs().rolling(N).sum(),
    "up_share": lambda f: _rolling(_returns(f), N, lambda x: np.mean(np.sign(x))),
    "downside_share": lambda f: _rolling(_returns(f), N, lambda x: (x[x < 0] ** 2).sum() / (x**2).sum()),
    "autocorrelation": lambda f: _rolling(_returns(f), N, _autocorrelation),
    "skew": lambda f: _rolling(_returns(f), N, stats.skew),
    "kurtosis": lambda f: _rolling(_returns(f), N, stats.kurtosis),
    "trend": lambda f: _rolling(np.log(f.close), N + 1, lambda x: np.corrcoef(x, np.arange(N + 1))[0, 1]),
    "rsi": _rsi,
    "macd": _macd,
    "volatility": lambda f: _rms(_returns(f), N),
    "ewma_volatility": lambda f: np.sqrt(_ewm_squares(f, N)),
    "parkinson": lambda f: np.sqrt(_rolling(np.log(f.high / f.low) ** 2, N, np.mean) / (4 * np.log(2))),
    "garman_klass": _garman_klass,
    "rogers_satchell": _rogers_satchell,
    "volatility_ratio": lambda f: np.log(_rms(_returns(f), SHORT) / _rms(_returns(f), N)),
    "atr": lambda f: _rolling(_true_range(f), N, np.mean),
    "atr_ratio": lambda f: _true_range(f) / _rolling(_true_range(f), N, np.mean) - 1,
    "zscore": lambda f: _zscore(f.close),
    "bollinger": lambda f: (_zscore(f.close) / 2).clip(-1, 1),
    "bollinger_width": lambda f: _rolling(f.close, N, lambda x: 4 * x.std() / x.mean()),
    "high_distance": lambda f: np.log(f.close / f.high.rolling(N).max()),
    "low_distance": lambda f: np.log(f.close / f.low.rolling(N).min()),
    "drawdown": lambda f: np.log(f.close / f.close.rolling(N).max()),
    "range_position": _range_position,
    "gap": lambda f: np.log(f.open / f.close.shift(1)),
    "intraday": lambda f: np.log(f.close / f.open),
    "close_location": lambda f: (2 * f.close - f.high - f.low) / (f.high - f.low),
    "body": lambda f: (f.close - f.open) / (f.high - f.low),
    "upper_wick": lambda f: (f.high - np.maximum(f.open, f.close)) / (f.high - f.low),
    "lower_wick": lambda f: (np.minimum(f.open, f.close) - f.low) / (f.high - f.low),
    "volume_ratio": lambda f: np.log((f.volume / _rolling(f.volume, N, np.mean)).clip(lower=1e-3)),
    "volume_zscore": lambda f: _zscore(f.volume),
    "volume_return": _volume_return,
    "signed_volume": lambda f: (np.sign(_returns(f)) * f.volume).rolling(N).sum() / f.volume.rolling(N).sum(),
    "hour_sin": lambda f: np.sin(_day(f)),
    "hour_cos": lambda f: np.cos(_day(f)),
    "weekday_sin": lambda f: np.sin(_week(f)),
    "weekday_cos": lambda f: np.cos(_week(f)),
}


@pytest.fixture(scope="module")
def bars() -> Bars:
    return random_bars(400, seed=3, gaps=True, sigma=0.02)


@pytest.mark.parametrize("name", PLAIN)
def test_value_is_that_of_the_formula(name: str, bars: Bars) -> None:
    """Rejects another window length, another lag, a sample in place of a population deviation, and so on: the formula
    is written here a second time, with libraries, and both must give the same rows."""
    one = column(name)
    expected = FORMULAS[one.feature.name](bars.to_frame()).reindex(bars.to_frame().index).to_numpy(copy=True)
    # An exponential average has a value at once; the feature declares a warm-up nonetheless.
    expected[: one.warm_up] = np.nan
    np.testing.assert_allclose(raw(name, bars), expected, rtol=1e-9, atol=1e-11)


def test_every_builtin_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(BUILTIN) - {"garch"}  # its twin is `arch`, in test_garch.py
    assert len(BUILTIN) >= 24


def _prices(*close: float, volume: tuple[float, ...] | None = None) -> Bars:
    return bars_from(close, close, close, close, (1.0,) * len(close) if volume is None else volume)


@pytest.mark.parametrize(
    ("name", "bars", "expected"),
    [
        ("return_2", _prices(100, 50, 200), math.log(2)),
        ("momentum_2", _prices(100, 200, 400), math.sqrt(2)),  # two equal moves: 2 ln 2 / (ln 2 sqrt 2)
        ("momentum_2", _prices(100, 200, 100), 0.0),
        ("efficiency_3", _prices(1, 2, 1, 2), 1 / 3),
        ("up_share_4", _prices(1, 2, 3, 3, 2), 0.25),
        ("downside_share_2", _prices(1, 2, 1), 0.5),
        ("volatility_2", _prices(1, math.e, math.e), math.sqrt(0.5)),
        ("volatility_ratio_1_2", _prices(1, 1, math.e), 0.5 * math.log(2)),
        ("zscore_2", _prices(1, 3), 1.0),
        ("drawdown_3", _prices(1, 4, 2), -math.log(2)),
        ("trend_2", _prices(1, 2, 4), 1.0),
        ("rsi_2", _prices(1, 2, 1), -1 / 3),  # gains weigh 1/2, losses 1: (0.5 - 1) / 1.5
        ("close_location", bars_from([2], [4], [1], [4], [1]), 1.0),
        ("body", bars_from([2], [4], [1], [3], [1]), 1 / 3),
        ("upper_wick", bars_from([2], [4], [1], [3], [1]), 1 / 3),
        ("lower_wick", bars_from([2], [4], [1], [3], [1]), 1 / 3),
        ("volume_ratio_2", _prices(1, 1, volume=(1, 3)), math.log(1.5)),
        ("volume_ratio_2", _prices(1, 1, volume=(1, 0)), math.log(1e-3)),
        ("volume_return_2", _prices(1, math.e, 1, volume=(9, 3, 1)), 0.5),
        ("signed_volume_2", _prices(1, 2, 1, volume=(9, 3, 1)), 0.5),
        ("atr_1", bars_from([1, 2], [1, 4], [1, 2], [1, 3], [1, 1]), math.log(4)),  # the gap from 1 to 2 counts
    ],
)
def test_value_on_paper(name: str, bars: Bars, expected: float) -> None:
    assert raw(name, bars)[-1] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", PLAIN)
def test_flat_price_without_volume_has_the_declared_value(name: str) -> None:
    """Rejects 0/0: a price that stands still has defined features, 0 unless the meaning says otherwise."""
    values = raw(name, random_bars(60, seed=0, kind="flat"))[column(name).warm_up :]
    if name.startswith(("hour", "weekday")):
        assert np.isfinite(values).all()
    else:
        np.testing.assert_array_equal(values, 0.5 if name.startswith("downside_share") else 0.0)


@pytest.mark.parametrize("name", ["skew_7", "kurtosis_7", "autocorrelation_7"])
def test_steady_growth_has_no_shape(name: str) -> None:
    """Rejects moments of rounding errors: returns that are equal up to the last digit have no spread."""
    close = 100 * 1.01 ** np.arange(50)
    values = raw(name, bars_from(close, close, close, close, np.ones(50)))
    assert set(values[7:]) == {0.0}
    moves = np.diff(np.log(close))[-7:]
    assert moves.std() > 0  # without the guard, this noise would be divided by itself

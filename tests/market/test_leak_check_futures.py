"""Changed futures leave the past alone and consist of valid bars; cuts fall where leaks hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.bars.bars import COLUMNS, Bars
from tailwise.bars.builtin import sp500
from tailwise.bars.synthetic import make
from tailwise.core.errors import ConfigError, DataError
from tailwise.market.leaks.report import PROBES, changed_future, cut_points, everything_changed, same_bars

REAL = sp500().slice(0, 400)
GAPLESS = make("random_walk", seed=8, length=400)[0]


@settings(max_examples=40, deadline=None)
@given(
    cut=st.integers(1, 399),
    probe=st.sampled_from(PROBES),
    seed=st.integers(0, 9),
    bars=st.sampled_from([REAL, GAPLESS]),
)
def test_the_past_stays_and_the_future_is_another_valid_one(cut: int, probe: str, seed: int, bars: Bars) -> None:
    other = changed_future(bars, cut, probe, seed=seed)  # type: ignore[arg-type]
    for name in ("time", *COLUMNS):
        assert getattr(other, name)[:cut].tobytes() == getattr(bars, name)[:cut].tobytes()
    if probe == "truncate":
        assert len(other) == cut
        return
    assert not same_bars(bars, other)
    assert other.time.tobytes() == bars.time.tobytes()
    assert (other.high >= np.maximum(other.open, other.close)).all()
    assert (other.low <= np.minimum(other.open, other.close)).all()
    assert (other.low > 0).all()
    assert (other.volume >= 0).all()


def test_shuffling_permutes_the_bars_and_mirrors_some_of_them() -> None:
    other = changed_future(REAL, 100, "shuffle", seed=1)
    old, new = (np.log(one.close / one.open)[100:] for one in (REAL, other))
    np.testing.assert_allclose(np.sort(np.abs(new)), np.sort(np.abs(old)), atol=1e-12)
    assert abs(new.sum() - old.sum()) > 1e-3  # signs have changed
    old, new = (np.log(one.high / one.low)[100:] for one in (REAL, other))
    np.testing.assert_allclose(np.sort(new), np.sort(old), atol=1e-12)
    assert sorted(other.volume[100:]) == sorted(REAL.volume[100:])


def test_a_market_without_gaps_stays_one() -> None:
    """Rejects rounding that opens gaps of 1e-16 and would make `scale` look superfluous."""
    other = changed_future(GAPLESS, 50, "shuffle", seed=0)
    assert (other.open[1:] == other.close[:-1]).all()


def test_a_single_future_bar_is_mirrored() -> None:
    other = changed_future(REAL, 399, "shuffle", seed=0)
    assert np.log(other.close[-1] / other.open[-1]) == pytest.approx(-np.log(REAL.close[-1] / REAL.open[-1]))


def test_the_scaled_future_rises_at_some_cuts_and_falls_at_others() -> None:
    factors = {
        round(float(changed_future(REAL, cut, "scale", seed=0).close[-1] / REAL.close[-1]), 6)
        for cut in range(100, 130)
    }
    assert factors == {10.0, 0.1}


def test_everything_changed_moves_times_together_and_ends_earlier() -> None:
    two = everything_changed([REAL, replace(REAL, symbol="B")], seed=0)
    assert len(two[0]) < len(REAL)
    assert two[1].time[0] == two[0].time[7]
    assert set(two[1].time) <= set(two[0].time)
    assert (np.diff(two[0].time) != np.diff(REAL.time[: len(two[0])])).any()
    assert (two[0].time[0] - REAL.time[0]).astype("timedelta64[D]").astype(int) == 29


def test_cuts_lie_early_late_spread_and_on_every_weekday() -> None:
    cuts, left_out = cut_points(REAL, first=30, count=12, seed=0, most=1000)
    assert left_out == 0
    assert list(cuts) == sorted(set(cuts))
    assert {30, 31, 33, 37, 45, 61, 93, 399, 398, 395} <= set(cuts)
    for low in range(30, 399, 40):
        assert any(low <= cut < low + 62 for cut in cuts)
    assert any(set(range(cut, cut + 10)) <= set(cuts) for cut in cuts)
    worst = int(np.argmax(np.abs(np.diff(np.log(REAL.close))))) + 1
    assert {worst, worst + 1} <= set(cuts)


def test_fewer_cuts_keep_every_kind() -> None:
    cuts, left_out = cut_points(REAL, first=30, count=12, seed=0, most=5)
    everything, _ = cut_points(REAL, first=30, count=12, seed=0, most=1000)
    assert len(cuts) == 5
    assert left_out == len(everything) - 5
    assert {30, 399} <= set(cuts) <= set(everything)


def test_no_cut_is_an_error() -> None:
    with pytest.raises(DataError, match="there are only 400 bars"):
        cut_points(REAL, first=400, count=3, seed=0, most=9)
    with pytest.raises(ConfigError, match="cuts is 0"):
        cut_points(REAL, first=3, count=0, seed=0, most=9)
    negative = replace(REAL, low=REAL.low - 5000)
    with pytest.raises(DataError, match="a price is not positive"):
        changed_future(negative, 10, "shuffle", seed=0)

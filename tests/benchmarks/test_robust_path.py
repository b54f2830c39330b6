"""The benchmark of training on shifted paths: what it compares, and which bars it sees."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.robust_path import WORLDS, Judged, checks_of, resampled_test, settings
from tailwise.run.config import parse_config
from tailwise.run.presets import load_source
from tailwise.run.worlds import make_world


def test_differences_are_paired_by_seed() -> None:
    """Gains .1, .2 and .3: mean .2, half width 4.303 x .1 / sqrt 3 = .2484 (Student, 2 degrees of freedom). Rejects the
    difference turned around and an interval of the levels instead of the differences."""
    pairs = [
        (Judged(1.0, -0.1, 0.5), Judged(1.1, -0.2, 0.5)),
        (Judged(5.0, -0.1, 0.5), Judged(5.2, -0.3, 0.5)),
        (Judged(3.0, -0.1, 0.5), Judged(3.3, -0.4, 0.5)),
    ]
    found = {check.name.rpartition(": ")[2]: check for check in checks_of("m", pairs)}
    assert list(found) == ["test return", "test tail (CVaR 5%)", "return on the worst path at 0.02"]
    assert found["test return"].value == pytest.approx(0.2) and found["test return"].detail.startswith("+- 0.25,")
    assert found["test tail (CVaR 5%)"].value == pytest.approx(-0.2) and all(one.passed for one in found.values())


def test_the_test_window_of_the_preset_is_never_seen() -> None:
    """What is judged is its select window; resampled windows have the bars before it as they were, and returns of
    that window alone."""
    preset = load_source("sp500").data["data"]["split"]
    config = parse_config(settings("sp500", 0, adversary=True, quick=True), source="test")
    assert config.data is not None and config.learner.adversary.kind == "path"
    world = make_world(config).market()
    window, bars = world.dataset.window("test")[0], world.dataset.bars[0]
    assert str(bars.time[window.first])[:7] == str(preset["select"][0])[:7]
    assert bars.time[window.end - 1] < np.datetime64(str(preset["test"][0]))
    other = resampled_test(world)
    assert len(other.dataset.bars) == WORLDS
    own = np.log(bars.close[window.first : window.end] / bars.close[window.first - 1 : window.end - 1])
    closes = [one.close for one in other.dataset.bars]
    for one, made in zip(other.dataset.bars, closes, strict=True):
        assert len(one) == window.end and np.array_equal(made[: window.first], bars.close[: window.first])
        drawn = np.diff(np.log(made))[window.first - 1 :]
        assert np.abs(drawn[:, None] - own[None, :]).min(axis=1).max() < 1e-12
    assert not np.array_equal(closes[0], closes[1])

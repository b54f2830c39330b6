"""The panel shows the newest calibration that a run really wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwise.evaluate.judge import newest_calibration
from tailwise.pages.training_panels import calibration_figures, calibration_sentence
from tailwise.run.agent import PPO
from tailwise.run.metric_store import read
from tests.support import small_run


def test_the_newest_windows_of_a_run_in_words_and_bars(tmp_path: Path) -> None:
    """Rejects the first row, and a row in which nothing was measured yet."""
    config = small_run(learner={"gamma": 0.5}, run={"total_steps": 32 * 12})
    PPO("CartPole-v1", config, run_dir=tmp_path / "run").learn()
    found = newest_calibration(tmp_path / "run")
    assert found is not None
    last = read(tmp_path / "run").iloc[-1]
    assert found["windows"] == last["calibration/windows"] > 50
    assert sum(found[f"pit/{k}"] for k in range(10)) == pytest.approx(1.0)
    sentence = calibration_sentence(found, 0.25)
    assert f"{100 * found['coverage_05']:.1f}%" in sentence and "CVaR 25%" in sentence
    quantiles, tenths = calibration_figures(found)
    assert list(tenths.data[0].y) == [found[f"pit/{k}"] for k in range(10)]
    # Predicted against realised quantiles: the share below the predicted median is the first five tenths.
    assert quantiles.data[1].y[5] == pytest.approx(sum(found[f"pit/{k}"] for k in range(5)))


def test_a_run_without_a_law_has_no_calibration(tmp_path: Path) -> None:
    config = small_run(risk={"mode": "off"}, model={"critic": {"kind": "scalar", "hidden": [8]}})
    PPO("CartPole-v1", config, run_dir=tmp_path / "run").learn()
    assert newest_calibration(tmp_path / "run") is None

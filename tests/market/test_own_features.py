"""A user's own features are leak-checked before training, once for each content, and the verdict says what was done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailwise.bars.data_config import SyntheticData
from tailwise.core.errors import DataError
from tailwise.features.config import FeaturesConfig
from tailwise.market.dataset import Dataset, build_dataset
from tailwise.market.leaks.features import LeakVerdict, check_own_features

# How far `moved` looks ahead stands in a file, so that its behaviour can change while its source does not.
FEATURES = """
from pathlib import Path

import numpy as np
import pandas as pd

from tailwise.features import CLOSE, batch_feature, feature

CALLS = []


@batch_feature("moved", warm_up=3, unit="ratio", meaning="close some bars away / close")
def moved(frame):
    CALLS.append(len(frame))
    away = int(Path(__file__).with_name("bars_ahead.txt").read_text())
    return (frame["close"].shift(-away) / frame["close"]).fillna(1.0)


@batch_feature("elsewhere", warm_up=0, unit="share", meaning="numbers that come from nowhere")
def elsewhere(frame):
    return pd.Series(np.random.default_rng(0).random(100_000)[: len(frame)], index=frame.index)


@feature("last_change", warm_up=1, state_size=2, unit="ratio", meaning="close / previous close")
def last_change(state, bar):
    before = state[0]
    state[0] = bar[CLOSE]
    return bar[CLOSE] / before if before > 0.0 else 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(FEATURES)
    (tmp_path / "bars_ahead.txt").write_text("-2")
    return tmp_path


def dataset(folder: Path, *columns: str, **data: Any) -> Dataset:
    features = FeaturesConfig(include=("return_1", *columns), modules=(str(folder / "mine.py"),))
    section = SyntheticData(market="ar1", parameters={"length": 500}, **data)
    return build_dataset(section, features)


def calls_of(data: Dataset) -> list[int]:
    """Lengths of the frames that `moved` has been asked about, as its module counts them."""
    (column,) = [column for column in data.spec.columns if column.name == "moved"]
    assert column.feature.function is not None
    counted = column.feature.function.__globals__["CALLS"]
    assert isinstance(counted, list)
    return counted


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "tailwise" / "leak-checks").glob("*.json"))


def test_look_ahead_is_refused_by_name_and_the_past_is_not(folder: Path) -> None:
    """Rejects training on shift(-1), and a check that suspects every feature of a user."""
    verdict = check_own_features(dataset(folder, "moved", "last_change"))
    assert verdict.status == "passed" and not verdict.doubtful
    assert verdict.features == ("moved", "last_change"), "built-in columns are not listed"
    assert verdict.sentence.startswith("own features moved, last_change: no leak found (")
    (folder / "bars_ahead.txt").write_text("1")
    with pytest.raises(DataError, match=r"feature 'moved' at bar .*; it looks at least 1 bar ahead") as caught:
        check_own_features(dataset(folder, "moved", "last_change"))
    assert "last_change" not in str(caught.value)
    assert "features.leak_check: skip" in str(caught.value)


def test_every_symbol_is_checked(folder: Path) -> None:
    """Rejects a check of the first symbol alone."""
    one, two = (check_own_features(dataset(folder, "moved", seeds=seeds)) for seeds in ((0,), (0, 1)))
    numbers = [int(verdict.sentence.split("(")[1].split()[0].replace(",", "")) for verdict in (one, two)]
    assert numbers[1] > 1.5 * numbers[0]


def test_numbers_that_do_not_come_from_the_bars_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="feature 'elsewhere' varies but does not depend on the bars"):
        check_own_features(dataset(folder, "elsewhere"))


def test_the_outcome_is_kept_by_content(folder: Path) -> None:
    """Rejects a check at every start, and an outcome kept under the source of a feature: its source stays the same
    here while what it computes begins to look ahead."""
    first = dataset(folder, "moved")
    before = len(calls_of(first))
    verdict = check_own_features(first)
    assert len(calls_of(first)) > before + 50, "dozens of changed futures"
    before = len(calls_of(first))
    assert check_own_features(first) == verdict
    assert calls_of(first)[before:] == [500], "the values themselves, and nothing else"
    assert len(kept(folder)) == 1
    (folder / "bars_ahead.txt").write_text("2")
    ahead = dataset(folder, "moved")
    assert [c.identity for c in ahead.spec.columns] == [c.identity for c in first.spec.columns]
    for _ in range(2):  # found, and found again in what was kept
        with pytest.raises(DataError, match="it looks at least 2 bars ahead"):
            check_own_features(ahead)
    assert len(kept(folder)) == 2
    other = dataset(folder, "moved", seeds=(7,))
    with pytest.raises(DataError, match="it looks at least 2 bars ahead"):
        check_own_features(other)
    assert len(kept(folder)) == 3, "other bars are another content"


@pytest.mark.parametrize(
    "damage", ["", "{}", "null", "not json", '{"key": "other", "leaks": [], "values": 1, "runs": 1}']
)
def test_a_damaged_or_foreign_outcome_is_not_believed(folder: Path, damage: str) -> None:
    """Rejects an outcome that is taken for good without its key, and a traceback."""
    (folder / "bars_ahead.txt").write_text("1")
    data = dataset(folder, "moved")
    with pytest.raises(DataError):
        check_own_features(data)
    (path,) = kept(folder)
    path.write_text(damage)
    with pytest.raises(DataError, match="it looks at least 1 bar ahead"):
        check_own_features(data)
    assert json.loads(path.read_text())["key"] == path.stem, "written anew"


def test_no_folder_to_keep_it_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    assert check_own_features(dataset(folder, "moved")).status == "passed"


def test_skipping_is_said_and_built_ins_need_no_check(folder: Path) -> None:
    """Rejects a skipped check that reads like a passed one."""
    (folder / "bars_ahead.txt").write_text("1")
    verdict = check_own_features(dataset(folder, "moved"), skip=True)
    assert verdict.status == "skipped" and verdict.doubtful and verdict.features == ("moved",)
    assert verdict.sentence.startswith(
        "SKIPPED for own features moved (features.leak_check: skip): they may look ahead"
    )
    plain = build_dataset(SyntheticData(market="ar1", parameters={"length": 500}), FeaturesConfig())
    for skip in (False, True):
        assert check_own_features(plain, skip=skip) == LeakVerdict(
            status="not needed", features=(), sentence="built-in features only: nothing to check"
        )
    assert kept(folder) == []

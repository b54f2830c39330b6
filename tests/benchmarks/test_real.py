"""The benchmark on real bars: nothing of a test window is known before, and its measures find what is there."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from benchmarks import real, real_measures, real_recipes
from benchmarks.real_instruments import BY_NAME, INSTRUMENTS, available, bars_of, bars_of_closes
from benchmarks.real_measures import BasePlayer, Cell, Tail, factor_for, pooled_interval
from benchmarks.real_recipes import SPLITS, limit_of, pooled_members, split_config, windows_tested
from benchmarks.report import Options
from tailwise.bars.builtin import sp500
from tailwise.market.base import volatility_target
from tailwise.market.costs import CostConfig
from tailwise.market.dataset import build_dataset
from tailwise.market.env_config import MarketEnvConfig
from tailwise.run.config import parse_config
from tailwise.run.limits import units_of
from tailwise.run.worlds import MarketWorld


def test_splits_are_causal_and_do_not_overlap(tmp_path: Path) -> None:
    """train < select < test in every split, test windows one after the other, train from the first bar and growing."""
    bars, before = sp500(), 0
    ends = []
    for split in range(SPLITS):
        cut = split_config(["SP500"], [bars], split, "init", tmp_path)
        config = cut.seeded(0)
        assert config.data is not None and config.features is not None
        windows = {name: one[0] for name, one in build_dataset(config.data, config.features).windows.items()}
        train, select, test = (windows[name] for name in ("train", "select", "test"))
        purge = cut.plan.purge
        assert purge >= 60
        assert train.first == 0 and train.end + purge <= select.first and select.end + purge <= test.first
        assert split == 0 or test.first == before
        before = test.end
        ends.append(train.end)
    assert before == len(bars) and ends == sorted(set(ends))


def test_the_recipe_sees_no_bar_of_the_test_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a recipe that is made from all bars."""
    from tailwise.bars.bars import load_bars

    bars, given = sp500(), []
    chosen = real_recipes.recipe

    def remember(files: list[Path]) -> object:
        given.append(load_bars(files[0]).time[-1])
        return chosen(files)

    monkeypatch.setattr(real_recipes, "recipe", remember)
    cut = split_config(["SP500"], [bars], 0, "init", tmp_path)
    first, end = cut.fold.test[0].first, cut.fold.test[0].end
    assert given == [bars.time[first - 1]]
    assert load_bars(tmp_path / "whole" / "SP500.parquet").time[-1] == bars.time[end - 1]


def test_a_smoke_run_ends_before_any_test_window() -> None:
    """Those of the pooled policy begin in 2006, earlier than those of the indices alone."""
    quick = bars_of("SP500", quick=True)
    last = quick.time[windows_tested(quick.time)[0].end - 1]
    for name in ("SP500", "AAPL", "GOOG", "EURUSD"):
        clock = bars_of(name, quick=False).time
        assert last < clock[windows_tested(clock)[0].first]


def test_the_base_scaled_to_a_limit_lands_on_it_on_the_train_bars() -> None:
    bars, tail = sp500(), Tail(alpha=0.05, gamma=0.99)
    base = BasePlayer(volatility_target(bars), bars, CostConfig(), MarketEnvConfig(), 100, 1642)
    own = tail.of_returns(base.play(1.0))
    assert own is not None and own < 0
    factor, reached = factor_for(0.5 * own, lambda k: tail.of_returns(base.play(k)) or 0.0, largest=base.largest)
    assert reached and 0.4 < factor < 0.6
    assert tail.of_returns(base.play(factor)) == pytest.approx(0.5 * own, rel=1e-3)


def test_a_limit_that_leverage_cannot_reach_is_told() -> None:
    assert factor_for(-1.0, lambda k: -0.01 * k, largest=3.0) == (3.0, False)
    assert factor_for(0.0, lambda k: -0.01 * k, largest=3.0) == (0.0, True)
    factor, reached = factor_for(-0.02, lambda k: -0.01 * k, largest=3.0)
    assert reached and factor == pytest.approx(2.0)


def test_the_limit_is_that_of_the_configuration_or_half_the_base() -> None:
    market = {"env": {"kind": "market"}, "data": {"kind": "builtin"}}
    limited = parse_config({**market, "risk": {"mode": "constraint", "limit": -0.03}}, source="test")
    free = parse_config(market, source="test")
    assert limit_of(limited, -0.2) == -0.03
    assert limit_of(free, -0.2) == -0.1
    assert limit_of(free, 0.1) is None


def _cells(mean: float, *, seed: int, instruments: int = 8, days: int = 1500) -> list[Cell]:
    """Instruments whose differences share half of their variance; mean: difference per year, volatility 4% a year."""
    rng = np.random.default_rng(seed)
    common, scale = rng.normal(size=days), 0.04 / np.sqrt(252)
    clock = np.datetime64("2000-01-01") + np.arange(days)
    return [
        Cell(
            *(f"I{i}", 0, days, 300, -0.1, -0.09, -0.1, 1.0, True, (1.0, 0.5), (0.5, 0.5), (0.5,), 1.0, 1.0, 1.0),
            matched_by="return",
            days=clock,
            difference=mean / 252 + scale * np.sqrt(0.5) * (common + rng.normal(size=days)),
            base=np.full(days, 0.05 / 252),
            years=np.full(days, 1 / 252),
        )
        for i in range(instruments)
    ]


def test_the_interval_covers_a_known_difference_and_excludes_a_known_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """95% intervals of 40 samples miss the truth rarely; a loss of 10% a year is seen in every one."""
    monkeypatch.setattr(real_measures, "DRAWS", 400)
    missed = sum(not (i.low <= 0.01 <= i.high) for i in (pooled_interval(_cells(0.01, seed=s)) for s in range(40)))
    assert missed <= 6
    lost = pooled_interval(_cells(-0.1, seed=0))
    assert lost.high < 0 and lost.base == pytest.approx(0.05) and lost.share is not None and lost.share < -1


def test_days_are_drawn_for_all_instruments_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What instruments share does not average out: rejects a bootstrap that draws days for each by itself."""
    monkeypatch.setattr(real_measures, "DRAWS", 400)
    found = pooled_interval(_cells(0.0, seed=3, instruments=20))
    # Standard error of the common part alone: 0.04 x sqrt(1/2) / sqrt(1500/252) = 0.0116; each alone: 0.0037.
    assert found.high - found.low > 2 * 1.96 * 0.0116 * 0.75


def test_closes_alone_become_bars_without_an_invented_price() -> None:
    bars = bars_of_closes("skfolio", "datasets", "data", "sp500_dataset.csv.gz", column="AAPL")
    assert len(bars) == 8313 and (bars.open == bars.close).all() and (bars.high == bars.low).all()
    assert not bars.volume.any()


def test_what_is_too_short_or_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = available(names=("SP500", "BTCUSD"))
    assert list(found.bars) == ["SP500"]
    assert "156 bars; at least 500" in found.left_out["BTCUSD"]
    monkeypatch.setattr("benchmarks.real_instruments.find_spec", lambda name: None)
    assert "pip install 'tailwise[bench]'" in str(BY_NAME["GOOGL"].missing)
    assert len({one.name for one in INSTRUMENTS}) == len(INSTRUMENTS) == 27


def test_pooled_members_have_bars_in_every_window() -> None:
    bars = {"AAPL": BY_NAME["AAPL"].load(), "SP500": sp500(), "GOOG": BY_NAME["GOOG"].load()}
    members, others = pooled_members(bars)
    assert members == ["AAPL", "SP500"] and list(others) == ["GOOG"]


@pytest.mark.parametrize("which", ["init", "old"])
def test_a_member_that_init_leaves_out_is_pooled_on_the_windows_of_the_protocol(
    which: real_recipes.Recipe, tmp_path: Path
) -> None:
    """The S&P 500 begins in 1999: by its own cut of the years to 2006 `init` leaves it out, and the first split gives
    it two years to train on. Its limit is measured there, like that of the share beside it."""
    names = ("AAPL", "XOM", "SP500")
    bars = [BY_NAME[name].load() for name in names]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        config = split_config(names, bars, 0, which, tmp_path).seeded(0)
    assert [str(one.message)[:25] for one in told if "left out" in str(one.message)] == (
        ["left out: SP500 has 159 b"] if which == "init" else []
    )
    world = MarketWorld(config)
    lengths = {
        one.symbol: w.end - w.first for one, w in zip(world.dataset.bars, world.dataset.window("train"), strict=True)
    }
    assert lengths["SP500"] > real_recipes.FEWEST_POOLED and lengths["AAPL"] > 5 * lengths["SP500"]
    if which == "init":
        assert set(units_of(world.config)) == set(names)


def test_the_protocol_names_the_constants() -> None:
    text = " ".join(real.PROTOCOL.read_text(encoding="utf-8").split())
    assert (real.USED, real.BROKEN, real.POINTS, real.SHORTFALL) == ((0.5, 1.1), 1.25, 0.10, -0.10)
    assert (real.SEEDS, real.OLD_SEEDS, real.GAP_SHARE) == ((0, 1, 2, 3, 4), (0,), 0.5)
    assert (SPLITS, real_recipes.TESTED, real_recipes.SHARE_OF_BASE) == (3, 0.5, 0.5)
    assert (real_measures.BLOCK, real_measures.DRAWS, real_measures.LEVEL) == (63, 4000, 0.95)
    for words in ("[0.5, 1.1]", "use above 1.25", "10 points", "-10%", "63 consecutive days", "4000 draws", "95%"):
        assert words in text


def test_the_quick_run_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instrument in this process; both recipes, every measure, nothing judged or written down."""
    monkeypatch.setattr(real, "run_timed", lambda jobs, options: [real.Outcome(f(*a, **k), 1.0) for f, a, k in jobs])
    before = real.TRIALS.exists()
    checks = real.run(Options(True, lambda text: None, ("SP500",)))
    names = [check.name for check in checks]
    assert any("budget use" in name for name in names) and any(name.startswith("each alone, SP500") for name in names)
    assert all(check.passed and "smoke run" in check.detail for check in checks)
    assert real.TRIALS.exists() == before

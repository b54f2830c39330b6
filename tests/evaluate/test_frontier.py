"""The frontier's arithmetic: what is trained, how a run is scored, bands over seeds, kept or missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tailwise import backtest
from tailwise.bars.synthetic import random_walk
from tailwise.core.config import dump_yaml
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.frontier import (
    cell_config,
    cells_of,
    check_base,
    check_folder,
    market_score,
    play_rewards,
)
from tailwise.evaluate.frontier_result import (
    MOST_LIKELY,
    SAMPLED,
    Band,
    Cell,
    Frontier,
    Result,
    Score,
    band,
    format_band,
    legend,
    summarise,
    table_rows,
    verdict,
    warnings_about,
)
from tailwise.evaluate.statistics import empirical_cvar, known_forward_returns, path_statistics
from tailwise.learner.risk_config import RiskConstraint, RiskReport
from tailwise.market.path import AccountPath
from tailwise.run.agent import PPO
from tailwise.run.config import Config, parse_config
from tailwise.run.play import play_episodes


def config(**changes: Any) -> Config:
    return parse_config({"env": {"id": "CartPole-v1"}, **changes}, source="test")


def result(limit: float | None, seed: int, sampled: Score, likely: Score | None = None, **changes: Any) -> Result:
    scores = {SAMPLED: sampled, MOST_LIKELY: likely or sampled}
    acted = None if limit is None else True
    made = Result(Cell(limit, seed), "r", "update-000001", 100, "all 100 steps are done", False, 1, acted, scores, {})
    return replace(made, **changes)


def frontier(*results: Result, market: bool = True) -> Frontier:
    label = "real" if market else ""
    return Frontier("test", "somewhere", label, market, 0.05, 0.9, 30, None if market else 400, (), results)


# ---------------------------------------------------------------- what is trained


def test_every_seed_is_trained_at_every_limit_and_without_one() -> None:
    cells = cells_of([-0.02, -0.1], seeds=(7, 8), unconstrained=True)
    assert cells == [Cell(limit, seed) for seed in (7, 8) for limit in (None, -0.1, -0.02)]
    assert cells_of([-0.02], seeds=(0,), unconstrained=False) == [Cell(-0.02, 0)]
    names = [cell.folder for cell in cells]
    assert names[:2] == ["unconstrained_seed_7", "limit_-0.1_seed_7"] and len(set(names)) == 6


def test_a_run_keeps_what_the_configuration_says_about_the_constraint() -> None:
    """Rejects a section that is built anew and forgets gains and cap."""
    risk = {"mode": "constraint", "limit": -1, "alpha": 0.1, "pid": {"kp": 3}, "max_multiplier": 4}
    base = config(risk=risk, seed=5)
    made = cell_config(base, Cell(-0.02, 6))
    assert isinstance(made.risk, RiskConstraint) and isinstance(base.risk, RiskConstraint)
    assert made.risk == base.risk.model_copy(update={"limit": -0.02}) and made.risk.pid.kp == 3
    assert made.seed == 6 and made.learner == base.learner and made.model == base.model
    free = cell_config(base, Cell(None, 6))
    assert free.risk == RiskReport(alpha=0.1)


def test_without_a_constraint_in_the_configuration_its_defaults_hold_and_alpha_is_kept() -> None:
    made = cell_config(config(risk={"mode": "report", "alpha": 0.2}), Cell(-3.0, 0))
    assert made.risk == RiskConstraint(mode="constraint", alpha=0.2, limit=-3.0)
    off = cell_config(config(risk={"mode": "off"}), Cell(-3.0, 0))
    assert off.risk == RiskConstraint(mode="constraint", limit=-3.0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"critic": {"kind": "scalar"}}, "risk": {"mode": "off"}}, "critic.kind is scalar"),
        ({"model": {"critic": {"target": "scalar"}}, "risk": {"mode": "off"}}, "critic.target is scalar"),
        ({"risk": {"mode": "penalty", "weight": 1, "measure": {"kind": "wang"}}}, "measure.kind is wang"),
        ({"risk": {"mode": "constraint", "limit": 0, "measure": {"kind": "mean"}}}, "measure.kind is mean"),
    ],
)
def test_a_configuration_without_a_tail_to_limit_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_base(config(**changes))
    check_base(config())


def test_runs_of_another_configuration_are_refused_also_those_that_are_not_asked_for(tmp_path: Path) -> None:
    base = config(seed=1)
    run = tmp_path / "limit_-0.5_seed_9"
    run.mkdir()
    (run / "config.yaml").write_text(dump_yaml(cell_config(base, Cell(-0.5, 9))))
    check_folder(tmp_path, base)
    check_folder(tmp_path / "new", base)
    other = config(seed=1, learner={"clip": 0.1})
    with pytest.raises(DataError, match=r"limit_-0\.5_seed_9 was .* learner\.clip 0\.2, here 0\.1\. Call"):
        check_folder(tmp_path, other)
    with pytest.raises(DataError, match="is the folder of one run"):
        check_folder(run, base)


# ---------------------------------------------------------------- scores


def test_what_follows_the_end_of_a_game_is_known_and_what_follows_a_cut_is_not() -> None:
    """gamma 0.5 looks 6 steps ahead. Rejects a cut that is taken for an end: the last steps before it would look like
    returns of almost nothing and hide the tail."""
    rewards = np.array([1.0, -2.0, 4.0])
    assert known_forward_returns(rewards, 0.5, over=True) == pytest.approx([1 - 1 + 1, -2 + 2, 4])
    assert len(known_forward_returns(rewards, 0.5, over=False)) == 0
    long = np.ones(8)
    whole = 2 - 2 * 0.5**6
    assert known_forward_returns(long, 0.5, over=False) == pytest.approx([whole, whole, whole])
    assert known_forward_returns(long, 0.5, over=True)[-2:] == pytest.approx([1.5, 1.0])


def paths() -> list[AccountPath]:
    """Calm, wild and ruined."""
    calm, wild = random_walk(seed=0, length=900, sigma=0.001), random_walk(seed=1, length=900, sigma=0.02)
    jump = np.where(np.arange(900) >= 500, 100.0, 1.0)
    hurt = replace(calm, **{name: getattr(calm, name) * jump for name in ("open", "high", "low", "close")})
    found = [backtest(np.ones(900), calm), backtest(np.ones(900), wild), backtest(-np.ones(900), hurt)]
    assert [path.ruined for path in found] == [False, False, True]
    return found


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_score_of_one_account_is_that_of_its_statistics(number: int) -> None:
    path = paths()[number]
    score = market_score([path], alpha=0.05, gamma=0.9)
    known = path_statistics(path, alpha=0.05, gamma=0.9)
    assert score.cvar_return == pytest.approx(known.cvar_return, rel=1e-12)
    assert score.cvar_bar == pytest.approx(known.cvar_bar, rel=1e-12)
    if not path.ruined:
        assert score.mean_return == pytest.approx(np.log1p(known.total_return) / known.years, rel=1e-9)


def test_the_tail_of_several_accounts_is_that_of_the_pool() -> None:
    """Rejects the mean of the accounts' own CVaRs: the worst 5% of all bars are the wild account's alone."""
    calm, wild, _ = paths()
    score = market_score([calm, wild], alpha=0.05, gamma=0.9)
    alone = [market_score([path], alpha=0.05, gamma=0.9) for path in (calm, wild)]
    pool = np.concatenate([known_forward_returns(path.log_returns, 0.9, over=False) for path in (calm, wild)])
    assert score.cvar_return == pytest.approx(empirical_cvar(pool, 0.05))
    wrong = np.mean([one.cvar_return for one in alone if one.cvar_return is not None])
    assert score.cvar_return is not None and score.cvar_return < wrong - 0.02
    assert score.mean_return == pytest.approx(np.mean([one.mean_return for one in alone]))


def test_a_window_shorter_than_the_horizon_has_no_long_tail() -> None:
    bars = random_walk(seed=0, length=29)
    score = market_score([backtest(np.ones(29), bars)], alpha=0.05, gamma=0.9)
    assert score.cvar_return is None and np.isfinite(score.cvar_bar)


@pytest.mark.parametrize("deterministic", [True, False])
def test_rewards_step_by_step_add_up_to_the_returns_of_playback(deterministic: bool) -> None:
    """Episodes of unequal length in 3 environments. Rejects an order or a quota that differs from `play_episodes`."""
    small = {"encoder": {"hidden": [8]}, "actor": {"hidden": [8]}, "critic": {"hidden": [8]}}
    agent = PPO(config=config(model=small, run={"environments": 4, "rollout_steps": 16}))
    driver = agent.world().eval_env("test", episodes=3, seed=3)
    known = play_episodes(agent.model, driver, episodes=7, deterministic=deterministic, seed=3)
    found = play_rewards(agent, driver, episodes=7, deterministic=deterministic, seed=3)
    driver.close()
    assert [len(one.rewards) for one in found] == known.lengths.tolist()
    assert [one.rewards.sum() for one in found] == known.returns.tolist()
    assert len(set(known.lengths.tolist())) > 1 and all(one.over for one in found)


# ---------------------------------------------------------------- over seeds


def test_the_band_is_the_t_interval_of_the_mean() -> None:
    """Rejects normal quantiles (1.96) and the standard deviation of single seeds in place of that of their mean."""
    found = band([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    values = [0.3, -0.4, 1.1, 0.2]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    four = band(values)
    assert four.mean is not None and four.half is not None
    assert (four.mean - four.half, four.mean + four.half) == pytest.approx((low, high))
    assert band([5.0]) == Band(5.0, None)
    assert band([5.0, None]) == Band(None, None)


def test_kept_and_missed_are_said_of_the_mean_and_counted_by_seed() -> None:
    tails = {0: -0.04, 1: -0.03, 2: -0.07}
    results = [
        result(-0.05, seed, Score(0.1, tail, -0.01), Score(0.1, tail - 0.02, -0.01)) for seed, tail in tails.items()
    ]
    results += [result(None, seed, Score(0.2, -0.2, -0.02)) for seed in tails]
    rows = summarise(results)
    assert [(row.limit, row.played) for row in rows] == [
        (None, SAMPLED),
        (None, MOST_LIKELY),
        (-0.05, SAMPLED),
        (-0.05, MOST_LIKELY),
    ]
    free, kept, missed = rows[0], rows[2], rows[3]
    assert free.kept is None and verdict(free) == ""
    assert kept.cvar_return.mean == pytest.approx(-0.14 / 3)
    assert kept.kept is True and kept.seeds_kept == 2 and verdict(kept) == "kept, 2 of 3"
    assert missed.kept is False and missed.seeds_kept == 1 and verdict(missed) == "missed, 1 of 3"


def test_a_limit_that_never_acted_is_not_called_missed() -> None:
    """Training ended within the warm-up. Rejects "missed", which blames a limit that nobody enforced, and "kept", which
    praises it."""
    missed, kept = Score(0.1, -0.07, -0.01), Score(0.1, -0.04, -0.01)
    idle = frontier(*(result(-0.05, seed, missed, kept, limit_acted=False, updates=3) for seed in (0, 1)))
    assert [verdict(row) for row in idle.rows] == ["never acted", "kept without acting"]
    assert table_rows(idle, SAMPLED)[0][-1] == "never acted"
    assert warnings_about(idle) == [
        "The limit never acted in 2 of 2 runs that have one (limit -0.05, seed 0; limit -0.05, seed 1): training ended "
        "within the warm-up, after 3 updates, so that they follow the mean alone; train longer (risk.warmup says when "
        "a limit begins)."
    ]
    some = frontier(result(-0.05, 0, missed), result(-0.05, 1, missed, limit_acted=False))
    assert verdict(some.rows[0]) == "missed, 0 of 2; it acted in 1" and some.rows[0].seeds_acted == 1


def test_a_tail_that_cannot_be_measured_is_neither_kept_nor_missed() -> None:
    made = frontier(result(-1.0, 0, Score(2.0, None, -0.5)), market=False)
    assert made.rows[0].kept is None and verdict(made.rows[0]) == "not measured"
    assert table_rows(made, SAMPLED) == [("-1", "2", "-", "-0.5", "not measured")]
    assert "Episodes are cut before 30 steps" in warnings_about(made)[0]


def test_one_seed_has_no_band_and_that_is_said_in_words() -> None:
    one = frontier(result(-0.05, 0, Score(0.1, -0.04, -0.01)))
    assert table_rows(one, SAMPLED) == [("-5%", "10.0%", "-4.0%", "-1.00%", "kept")]
    assert "One seed: there is no band" in " ".join(legend(one))
    two = frontier(*(result(-0.05, seed, Score(0.1 + seed, -0.04, -0.01)) for seed in (0, 1)))
    assert "t interval of the mean over 2 seeds" in " ".join(legend(two))
    assert format_band(two.rows[0].mean_return, two) == "60.0% ± 635.3%"


def test_a_run_that_was_stopped_is_told() -> None:
    made = frontier(result(-0.05, 3, Score(0.1, -0.04, -0.01), refused=True, ended="5 updates were refused"))
    assert warnings_about(made) == ["limit -0.05, seed 3: 5 updates were refused"]

"""Whether a limit was kept on a window: the measure that the run was given, on returns that were realised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailwise import backtest
from tailwise.bars.synthetic import random_walk
from tailwise.core.numerics import discounted_forward_returns
from tailwise.evaluate.findings import weigh
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import POLICY, SAMPLED, forward_returns, judge_limit, judge_policy, rule_sentence
from tailwise.evaluate.statistics import path_statistics
from tailwise.market.costs import NO_COSTS
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath
from tailwise.pages.report import write_report
from tailwise.run.agent import PPO
from tailwise.run.config import Config, parse_config
from tailwise.run.presets import load_source


def config(gamma: float = 0.9, **risk: Any) -> Config:
    data = load_source("sp500").data | {"learner": {"gamma": gamma}, "risk": risk}
    return parse_config(data, source="test")


def limited(limit: float, **risk: Any) -> Config:
    return config(mode="constraint", limit=limit, **risk)


def walk(length: int = 3000, sigma: float = 0.01, seed: int = 3) -> AccountPath:
    bars = random_walk(seed=seed, length=length, sigma=sigma)
    return backtest(np.ones(len(bars)), bars, NO_COSTS)


def test_the_verdict_judges_the_long_tail_that_is_printed() -> None:
    """Rejects a verdict on the tail of single bars, which keeps nearly any limit."""
    path = walk()
    numbers = path_statistics(path, alpha=0.05, gamma=0.9)
    assert numbers.cvar_return is not None and numbers.cvar_return < numbers.cvar_bar - 0.01
    between = (numbers.cvar_return + numbers.cvar_bar) / 2
    verdict = judge_limit(path, limited(between))
    assert verdict is not None and verdict.realised == numbers.cvar_return and verdict.kept is False
    easy = judge_limit(path, limited(numbers.cvar_return))
    assert easy is not None and easy.kept is True  # at the limit is kept
    assert verdict.horizon == 30 and verdict.returns == len(path) - 29 and verdict.horizons == len(path) // 30


def test_only_a_constraint_has_a_verdict() -> None:
    path = walk(400)
    for risk in ({"mode": "off"}, {"mode": "report"}, {"mode": "penalty", "weight": 1.0}):
        assert judge_limit(path, config(**risk)) is None


def test_each_measure_is_judged_as_itself() -> None:
    """Rejects CVaR judged in the place of the measure that was limited."""
    path = walk()
    returns = forward_returns(path, 0.9)
    mean = judge_limit(path, limited(-0.01, measure={"kind": "mean"}))
    wang = judge_limit(path, limited(-0.01, measure={"kind": "wang", "eta": 0.5}))
    cvar = judge_limit(path, limited(-0.01))
    assert mean is not None and wang is not None and cvar is not None
    assert mean.realised == pytest.approx(returns.mean(), abs=1e-12)
    assert wang.realised == pytest.approx(returns.mean() - 0.5 * returns.std(), rel=0.05)  # near normal
    assert mean.realised is not None and wang.realised is not None and cvar.realised is not None
    assert cvar.realised < wang.realised < mean.realised
    assert "30-bar log-returns averaged" in mean.sentence() and "worst" not in mean.sentence()
    assert "Wang's distorted mean (eta 0.5) of discounted 30-bar log-returns was" in wang.sentence()


def test_the_sentences() -> None:
    """Rejects a miss without its size, and a verdict that hides how little evidence a window holds."""
    path = walk(901)
    tail = path_statistics(path, alpha=0.05, gamma=0.9).cvar_return
    assert tail is not None
    kept, missed = judge_limit(path, limited(-0.5)), judge_limit(path, limited(tail + 0.012))
    assert kept is not None and missed is not None
    assert kept.sentence() == (
        f"limit kept out of sample: the worst 5% of discounted 30-bar log-returns averaged {100 * tail:.1f}%, the "
        "limit is -50.0%; 30 horizons fit into the window without overlap"
    )
    assert missed.sentence().startswith("limit missed out of sample by 1.2 percentage points: ")
    assert rule_sentence("buy and hold", kept) == (
        f"buy and hold kept it too ({100 * tail:.1f}%): these bars were too calm to put the limit to the test"
    )
    against = rule_sentence("buy and hold", missed)
    assert against is not None and against.startswith("buy and hold missed it by 1.2 percentage points (")
    close = judge_limit(path, limited(tail + 1e-7))  # rejects "averaged -10.0%, the limit is -10.0%" of a miss
    assert close is not None and "averaged {0}, the limit is {0};".format(f"{100 * tail:.1f}%") not in close.sentence()
    gain = judge_limit(path, limited(0.004))
    assert gain is not None and gain.kept is False and "the limit is 0.4%" in gain.sentence()


def test_a_window_shorter_than_the_horizon_is_not_judged() -> None:
    """Rejects a limit that counts as kept because nothing was measured."""
    verdict = judge_limit(walk(20), limited(-0.5))
    assert verdict is not None and verdict.realised is None and verdict.kept is None
    assert verdict.sentence().startswith("limit not judged out of sample: the window is shorter than the 30 bars")
    assert verdict.to_json()["kept"] is None and rule_sentence("buy and hold", verdict) is None


def test_ruin_counts_in_the_tail() -> None:
    """Rejects the plain window of a ruined path, which stops before its worst moments are followed to their end."""
    bars = random_walk(seed=1, length=2000, sigma=0.02, drift=-0.01)
    path = backtest(np.full(len(bars), 3.0), bars, NO_COSTS, config=MarketEnvConfig())
    assert path.ruined and len(path) < path.planned
    verdict = judge_limit(path, limited(-0.5))
    numbers = path_statistics(path, alpha=0.05, gamma=0.9)
    assert verdict is not None and verdict.realised == numbers.cvar_return and verdict.kept is False
    assert verdict.returns == len(path)
    assert len(discounted_forward_returns(path.log_returns, 0.9)) < len(path)


def test_a_policy_with_a_limit_is_judged_both_ways_in_words_json_and_picture(tmp_path: Any) -> None:
    """Rejects a verdict on the most likely action alone: the constraint steers the sampled ones."""
    data = load_source("sine").data | {
        "run": {"environments": 4, "rollout_steps": 16, "total_steps": 64},
        "learner": {"epochs": 1, "gamma": 0.9},
        "risk": {"mode": "constraint", "limit": -0.05},
    }
    data["data"] = {**data["data"], "parameters": {"length": 900, "noise": 0.002}}
    agent = PPO(config=parse_config(data, source="test"))
    (judged,) = judge_policy(agent)
    assert list(judged.paths)[:2] == [POLICY, SAMPLED]
    assert not np.array_equal(judged.paths[POLICY].target, judged.paths[SAMPLED].target)
    told = judged.limit_sentences()
    assert told[0].startswith("limit ") and told[1].startswith("with sampled actions, which are what")
    assert told[2].startswith("buy and hold ") and len(told) == 4
    assert told[3].startswith("an account that holds nothing keeps any limit below 0: the policy held ")
    assert "(buy and hold 1.00 long), as multiples of equity" in told[3]
    kept = judged.to_json()
    assert kept["verdict"] == told
    assert kept["limits"]["policy"]["realised"] == kept["statistics"]["policy"]["cvar_return"]
    write_report(tmp_path / "page.html", [weigh(judged)], title="t", how="So.", gamma=0.9, background=Background())
    page = (tmp_path / "page.html").read_text()
    assert told[0][1:] in page and "limit -5.0%" in page and "Discounted log-return over the next 30 bars" in page
    (other,) = judge_policy(agent, deterministic=False)
    assert list(other.paths)[1] == "policy, most likely"
    (selected,) = judge_policy(agent, "select")
    assert "on the select window" in selected.limit_sentences()[0]
    agent.trainer.driver.close()

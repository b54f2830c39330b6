"""What a challenger is trained with: log-returns in one unit, and no code of the run beyond its policy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tailwise
from tailwise.core.errors import TrustError
from tailwise.online.challenger import online_config
from tailwise.online.jobs import FACTS, POLICY, ChallengerJob
from tailwise.online.settings import LearnSettings
from tailwise.online.window import NewestBars
from tailwise.run.agent import PPO
from tailwise.run.trust import open_config
from tests.live.markets import CASES, MARKET
from tests.run.strangers import another_user, forget
from tests.support import merged

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small
REWARD = """
from pathlib import Path
Path({mark!r}).touch()
def mine(step):
    return 0.0 * step.log_return
"""
SETTINGS = LearnSettings(window=200, updates=2, kl=100.0)


def test_a_strangers_reward_is_not_executed_by_a_challenger(tmp_path: Path) -> None:
    """The policy of another user opens without trust, because playing it executes nothing of theirs; training a
    challenger must not execute more. Rejects a training with the reward function that the run names."""
    mark, module = tmp_path / "executed", tmp_path / "mine.py"
    module.write_text(REWARD.format(mark=str(mark)))
    config = merged(MARKET, {"env": {"reward": {"function": f"{module}:mine", "drawdown_penalty": 0.5}}})
    with another_user(tmp_path):
        agent = PPO(config=config, run_dir=tmp_path / "run")
        agent.learn()
        bars = agent.market().dataset.bars
        agent.save(tmp_path / "policy")
    assert mark.exists()
    forget(mark)
    with pytest.raises(TrustError, match="reward"):
        open_config(tmp_path / "run", training=True)
    ChallengerJob(tmp_path / "policy", tuple(bars), SETTINGS, 1, tmp_path / "0001", trust=False).run()
    assert (tmp_path / "0001" / FACTS).exists() and (tmp_path / "0001" / POLICY).exists()
    assert not mark.exists()


def test_terms_adversaries_and_shards_are_left_out() -> None:
    config = merged(MARKET, {"env": {"reward": {"drawdown_penalty": 0.5}}, "learner": {"adversary": {"kind": "path"}}})
    policy = tailwise.PPO(config=config)
    made = online_config(policy.config, SETTINGS, number=1)
    assert made.env.market is not None and not made.env.market.reward.active
    assert made.learner.adversary.kind == "none" and made.run.shards == 1
    world = NewestBars(policy, policy.market().dataset.bars).with_config(made)
    assert not world.settings.reward.active and world.path_adversary is None


def test_pooled_symbols_are_rewarded_in_the_same_unit_in_segments_and_rollouts() -> None:
    """Rejects segments in log-returns beside rollouts in units of each symbol's tail."""
    policy = tailwise.PPO(config=merged(MARKET, CASES["pool"]))
    world = NewestBars(policy, policy.market().dataset.bars)
    world = world.with_config(online_config(policy.config, SETTINGS, number=1))
    units = world.reward_units()
    assert units is not None and np.ptp(units) > 0
    drivers = world.training(), world.side_by_side(1).eval_env("train", episodes=1, seed=0)
    paid = [driver.venv.unwrapped.simulator.table.units for driver in drivers]  # type: ignore[attr-defined]
    assert np.array_equal(paid[0], units) and np.array_equal(paid[1], units)
    for driver in drivers:
        driver.close()

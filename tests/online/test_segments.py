"""Online updates are those of training, and a segment knows what comes after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tailwise
from tailwise.core.errors import ShapeError
from tailwise.online.challenger import deployed_segments, train_challenger
from tailwise.online.segments import Segment, check_order, kl_from, learn_from
from tailwise.online.settings import LearnSettings
from tailwise.online.window import NewestBars
from tailwise.run.ensemble import Ensemble
from tailwise.run.policy import Policy
from tailwise.run.trainer import Trainer
from tests.live.markets import LSTM, MARKET
from tests.support import merged

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small
BACKENDS = ["torch", "auto"]


def agent_of(changes: dict[str, Any]) -> tailwise.PPO:
    agent = tailwise.PPO(config=merged(MARKET, {"seed": 1, **changes}))
    agent.learn(64)
    return agent


def knobs_of(trainer: Trainer) -> Any:
    return trainer.controllers.knobs(
        trainer.config.learner,
        trainer.narrowing,
        trainer.prior,
        update=trainer.update,
        steps=trainer.steps,
        total_steps=trainer.total_steps,
        measure_terms=False,
    )


def fresh_segments(agent: tailwise.PPO) -> list[Segment]:
    return deployed_segments(agent.trainer, NewestBars(agent, agent.market().dataset.bars))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("core", [{}, LSTM], ids=["mlp", "lstm"])
def test_an_online_update_of_a_fresh_rollout_is_the_offline_one(core: dict[str, Any], backend: str) -> None:
    """LEDGER 004-4: the same rollout, the same weights before, all weights and the optimiser equal to the last bit
    after. Rejects another loss, other targets, another order of minibatches and log-probabilities computed again."""
    agent = agent_of({**core, "backend": backend})
    trainer = agent.trainer
    rollout, _ = trainer.collector.collect(trainer.update)
    obs = torch.from_numpy(trainer.driver.obs.copy())
    start, state = torch.from_numpy(trainer.driver.episode_start.copy()), trainer.collector.state.clone()
    before, knobs = trainer.backend.snapshot(), knobs_of(trainer)
    trainer.backend.update(rollout, knobs)
    offline = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    moments = {name: one.clone() for name, one in trainer.backend.optimiser.tensors().items()}
    trainer.backend.restore(before)
    segment = Segment(rollout, trainer.update, 0, obs, start, state)
    segment.check(trainer.backend)
    report = learn_from(trainer.backend, segment, knobs, update=trainer.update, staleness=0)
    assert report is not None and report.committed
    online = trainer.model.state_dict()
    assert all(torch.equal(online[name], one) for name, one in offline.items())
    assert all(torch.equal(trainer.backend.optimiser.tensors()[name], one) for name, one in moments.items())


@pytest.mark.parametrize("core", [{}, LSTM], ids=["mlp", "lstm"])
def test_a_segment_is_bootstrapped_with_what_follows(core: dict[str, Any]) -> None:
    """LEDGER 004-4. Rejects a bootstrap value of the last observation itself, and that of another policy."""
    agent = agent_of(core)
    segment = fresh_segments(agent)[0]
    record = segment.rollout.critic
    itself = torch.cat([record.mean[:-1], record.mean[-2:-1]])
    wrong = replace(segment, rollout=replace(segment.rollout, critic=replace(record, mean=itself)))
    with pytest.raises(ShapeError, match="bootstrap value"):
        wrong.check(agent.trainer.backend)
    other = agent_of({**core, "seed": 2})
    with pytest.raises(ShapeError, match="bootstrap value"):
        segment.check(other.trainer.backend)


def test_segments_are_in_order() -> None:
    """Hidden state, observation and start of each are those that the one before ended with."""
    segments = fresh_segments(agent_of(LSTM))
    assert len(segments) >= 3
    assert any(float(one.rollout.state.abs().max()) > 0 for one in segments[1:])
    check_order(segments)
    with pytest.raises(ShapeError, match="does not begin where"):
        check_order([segments[0], segments[2]])
    with pytest.raises(ShapeError, match="does not begin where"):
        check_order([segments[0], replace(segments[1], version=1)])


def test_stale_segments_are_not_learnt_from() -> None:
    agent = agent_of({})
    segment, knobs = fresh_segments(agent)[0], knobs_of(agent.trainer)
    before = {name: one.clone() for name, one in agent.model.state_dict().items()}
    assert learn_from(agent.trainer.backend, segment, knobs, update=5, staleness=4) is None
    assert all(torch.equal(agent.model.state_dict()[name], one) for name, one in before.items())
    assert learn_from(agent.trainer.backend, segment, knobs, update=4, staleness=4) is not None


def test_kl_of_the_same_policy_is_0_and_grows_with_the_move() -> None:
    agent = agent_of(LSTM)
    segments = fresh_segments(agent)
    assert kl_from(segments, agent.model) == pytest.approx(0.0, abs=1e-7)
    with torch.no_grad():
        agent.model.actor.head.bias[0] += 1.0
    small = kl_from(segments, agent.model)
    with torch.no_grad():
        agent.model.actor.head.bias[0] += 1.0
    assert 0 < small < kl_from(segments, agent.model)


def test_a_challenger_is_deterministic_and_stays_within_its_budget() -> None:
    """The same bars and number give the same bits, another number others; a budget of KL ends the training before it
    is exceeded, and what is returned is the policy before that update. Rejects a budget that is checked afterwards."""
    agent = agent_of({})
    policy = Policy(agent.model, agent.config, masked=agent.needs_mask(), features=agent.features)
    bars = policy.market().dataset.bars
    settings = LearnSettings(updates=6, kl=100.0)  # its normaliser has seen 64 steps and moves far
    one, two = (train_challenger(policy, bars, settings, number=1) for _ in range(2))
    other = train_challenger(policy, bars, settings, number=2)
    weights = [made.policy.models[0].state_dict() for made in (one, two, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    assert one.updates == 6 and one.segments == 3 and one.kl > 0
    tight = train_challenger(policy, bars, LearnSettings(updates=6, kl=one.kl / 4), number=1)
    assert tight.stopped is not None and tight.kl <= one.kl / 4 and tight.updates < 6


def test_policies_that_decide_together_are_trained_each_by_itself() -> None:
    """Every member of a run with several seeds learns, and the challenger decides as the deployed policy did."""
    members = [agent_of({"seed": seed}) for seed in (1, 2)]
    policies = [Policy(one.model, one.config, masked=one.needs_mask(), features=one.features) for one in members]
    together = Ensemble(policies, "average")
    made = train_challenger(together, policies[0].market().dataset.bars, LearnSettings(updates=2, kl=100.0), number=1)
    assert isinstance(made.policy, Ensemble) and made.policy.how == "average" and made.updates == 4
    for before, after in zip(together.models, made.policy.models, strict=True):
        weights = before.state_dict()
        assert any(not torch.equal(weights[name], one) for name, one in after.state_dict().items())

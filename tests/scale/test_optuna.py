"""Proposals of the model on a problem whose optimum is known, without any training."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.run.config import parse_config
from tailwise.scale.population import Measured, Member, Ranking, Trained
from tailwise.scale.space import Range, Value, read_space
from tailwise.scale.trials import Proposer, RandomProposer

pytest.importorskip("optuna", reason="the extra tune is not installed")
from tailwise.scale.optuna_search import OptunaProposer

SPACE = read_space(
    {"learner.learning_rate": {"low": 1e-5, "high": 1e-1, "scale": "log"}, "learner.epochs": {"choices": [1, 2, 4]}},
    parse_config({"env": {"id": "CartPole-v1"}}, source="test"),
)
LIMIT = -0.6  # kept by levels up to 0.6


def trial(number: int, values: dict[str, Value], *, failed: bool = False) -> Trained:
    """The return grows with the level of the rate, and so does the tail's loss: the best allowed level is 0.6."""
    entry = SPACE.entries["learner.learning_rate"]
    assert isinstance(entry, Range)
    level = entry.level(float(values["learner.learning_rate"]))
    value = level - (0.1 if values["learner.epochs"] != 2 else 0.0)
    member = Member(number=number, generation=0, folder=f"trial-{number:04d}", seed=0, values=values)
    if failed:
        return Trained(member=member, measured=Measured(steps=1, value=None, tail=None, failed="its numbers broke"))
    return Trained(
        member=member, measured=Measured(steps=1, value=value, tail=-level, smoothed=value, smoothed_tail=-level)
    )


def searched(proposer: Proposer, *, trials: int, count: int = 4, failing: tuple[int, ...] = ()) -> list[Trained]:
    done: list[Trained] = []
    while len(done) < trials:
        for values in proposer.propose(len(done), count, done):
            done.append(trial(len(done), values, failed=len(done) in failing))
    return done


def regret(done: list[Trained]) -> float:
    """Distance of the best trial that keeps the limit from the optimum, 0.6."""
    kept = [one.measured.value for one in done if one.measured.tail is not None and one.measured.tail >= LIMIT]
    return 0.6 - max(value for value in kept if value is not None)


def test_the_best_return_within_the_limit_is_found() -> None:
    """Five seeds of 20 trials, each nearer to the optimum than random search with as many; most of the last proposals
    keep the limit although every step beyond it would earn more. Rejects a constraint with the wrong sign, which
    proposes 1.0, and a model that is told nothing."""
    ranking, ours, others, kept = Ranking(LIMIT), [], [], []
    for seed in range(5):
        done = searched(OptunaProposer(SPACE, ranking, seed), trials=20)
        ours.append(regret(done))
        others.append(regret(searched(RandomProposer(SPACE, seed), trials=20)))
        kept += [float(one.measured.tail or 0.0) >= LIMIT - 0.02 for one in done[-8:]]
    assert max(ours) < 0.02 and all(own < other for own, other in zip(ours, others, strict=True)), (ours, others)
    assert np.mean(kept) > 0.6, kept


def test_without_a_limit_it_goes_for_the_return() -> None:
    done = searched(OptunaProposer(SPACE, Ranking(None), 0), trials=20)
    assert max(float(one.measured.value or 0.0) for one in done) > 0.98


def test_proposals_follow_from_the_results_alone() -> None:
    """Also after a kill, when nothing of Optuna is left. Rejects a sampler whose state matters."""
    proposer = OptunaProposer(SPACE, Ranking(LIMIT), 3)
    done = searched(proposer, trials=12, failing=(2, 9))
    again = OptunaProposer(SPACE, Ranking(LIMIT), 3)
    assert again.propose(12, 4, done) == proposer.propose(12, 4, done)
    assert proposer.propose(12, 4, done) != proposer.propose(12, 4, done[:-1])
    bounds = [float(one.member.values["learner.learning_rate"]) for one in done]
    assert min(bounds) >= 1e-5 and max(bounds) <= 1e-1


def test_trials_that_all_failed_tell_nothing() -> None:
    proposer = OptunaProposer(SPACE, Ranking(LIMIT), 0)
    done = searched(proposer, trials=4, failing=(0, 1, 2, 3))
    assert len(proposer.propose(4, 2, done)) == 2

"""The comparison of learners: the arithmetic of its work, that everybody does it, and the rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plain_market import OBSERVATION
from benchmarks.speed_contenders import CONTRIB, FUSED, GEMM, SB3, TORCH, Done, Entry
from benchmarks.speed_ours import Ours
from benchmarks.speed_rounds import ContenderError, Result, Round, compare, limits, ratio
from benchmarks.speed_work import Critic, Work, flops_per_sample, layers, our_outputs

TINY = Work(environments=8, steps=8, hidden=8, quantiles=8, epochs=2, minibatches=2)


def test_products_by_hand() -> None:
    """64 inputs, 64x64, 133 outputs: 2 (64 64 + 64 64 + 64 133) = 33,408 forward; backward twice that without the
    inputs' 8,192. Rejects a count that multiplies back into the observations or forgets the rollout."""
    assert our_outputs(Work()) == 3 + 2 * 65
    assert flops_per_sample(Work(), 133) == 33_408 + 4 * (33_408 + 2 * 33_408 - 8_192)
    # LSTM: 64 -> 64, then 64 -> 256 and 64 -> 256 of the gates.
    forward = 2 * (64 * 64 + 2 * 64 * 256 + 64 * 133)
    assert flops_per_sample(Work("lstm"), 133) == forward + 4 * (3 * forward - 8_192)


def test_products_as_torch_counts_them() -> None:
    """An independent count of one epoch of the model that is really trained."""
    work = Work()
    model = Ours(work, "torch").agent.model
    rows = 10
    with FlopCounterMode(display=False) as counted:
        latent = model.latent(torch.randn(1, rows, OBSERVATION), torch.zeros(rows, 0, 0), torch.zeros(1, rows).bool())
        values = model.values(latent.features)
        assert values.law is not None
        (model.policy(latent.features, None).sum() + values.mean.sum() + values.law.sum()).backward()
    forward = sum(2 * a * b for a, b in layers(work, our_outputs(work)))
    epoch = (flops_per_sample(work, our_outputs(work)) - forward) // work.epochs
    assert counted.get_total_flops() == rows * epoch


@pytest.mark.parametrize("critic", ["own", "scalar"])
@pytest.mark.parametrize("entry", [FUSED, TORCH, SB3, CONTRIB], ids=lambda entry: entry.name)
def test_everybody_does_the_same_work(entry: Entry, critic: Critic) -> None:
    """Rejects a peer with another batch size, or ours with epochs that a KL limit ends early."""
    if entry.missing():
        pytest.skip(f"{entry.missing()} not installed")
    work = replace(TINY if entry is not CONTRIB else Work("lstm", 8, 8, 8, 2, 2), critic=critic)
    contender = entry.make(work)
    contender.iterate(2)
    assert contender.done() == Done(2 * 64, 2 * 4)
    contender.iterate(1)
    assert contender.done() == Done(3 * 64, 3 * 4)


def test_all_networks_have_the_same_layers_but_for_the_critic() -> None:
    """Ours has 2 (1 + N) columns of critics and a peer one; each column has a weight per feature and a bias. Like for
    like there is no difference."""
    pytest.importorskip("stable_baselines3")
    ours, theirs = (entry.make(TINY).facts()["parameters"] for entry in (TORCH, SB3))
    assert ours - theirs == (2 * (1 + TINY.quantiles) - 1) * (TINY.hidden + 1)
    alike = replace(TINY, critic="scalar")
    assert our_outputs(alike) == 3 + 1
    assert TORCH.make(alike).facts()["parameters"] == SB3.make(alike).facts()["parameters"]


def _idle(name: str) -> Entry:
    return Entry(name, f"tests.benchmarks.idle_contenders:{name}", "")


def test_rounds_are_interleaved_and_counted() -> None:
    said: list[str] = []
    results = compare(TINY, [_idle("honest"), _idle("honest")], rounds=3, seconds=0.01, say=said.append)
    assert [len(result.rounds) for result in results] == [3, 3]
    for result in results:
        turns = [turn.facts["times"] for turn in result.rounds]
        assert turns[1] - turns[0] == turns[2] - turns[1] >= 1
        assert result.per_cpu_second == [TINY.samples / turn.cpu for turn in result.rounds]
        assert result.peak_bytes > 1_000_000
    assert len(said) == 2


def test_a_contender_that_does_other_work_is_an_error() -> None:
    with pytest.raises(ContenderError, match=r"lazy made 64 samples and 2 gradient steps where .* needs 64 and 4"):
        compare(TINY, [_idle("lazy")], rounds=1, seconds=0.01, say=str)


def test_a_contender_that_breaks_is_an_error() -> None:
    with pytest.raises(ContenderError, match="breaking ended with code 1"):
        compare(TINY, [_idle("breaking")], rounds=1, seconds=0.01, say=str)


def test_a_ratio_pairs_the_rounds() -> None:
    """The machine was three times as slow in the second round: the ratio of medians would be 1.5 or 4.5."""
    assert ratio([300.0, 100.0, 300.0], [100.0, 100 / 3, 200.0]) == pytest.approx(3.0)


def test_the_limit_is_one_shape_and_not_the_luckiest_of_each_round() -> None:
    """The small square had one good moment: rejects the largest number of each round, which would be 9, 6, 7."""
    speeds = [{"384": 9.0, "512": 5.0}, {"384": 2.0, "512": 6.0}, {"384": 3.0, "512": 7.0}]
    turns = tuple(Round(1.0, 1.0, None, facts) for facts in speeds)
    assert limits(Result(GEMM, TINY, turns, 0.0, 0.0, 0.0, 0)) == [5.0, 6.0, 7.0]

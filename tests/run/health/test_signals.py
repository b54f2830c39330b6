"""Signals: each moves for what it is made for, is right by hand, and continues after a checkpoint."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks.toy_risk import ExposureVector
from tailwise.core.compiled import compiler_is_off
from tailwise.core.numerics import column_moments
from tailwise.run.health import Health, probes
from tailwise.run.health.probes import StepFacts
from tailwise.run.health.signals import DRIFT_RATE, DRIFT_WARMUP, KEPT, SMALLEST_SPREAD, TENTHS, Drift, psi
from tests.support import BACKENDS, learner_of, play, random_world, small_trainer


def test_psi_by_hand() -> None:
    """Two equal halves against 90:10: (.4)(ln 1.8) + (-.4)(ln .2). Rejects a one-sided Kullback-Leibler divergence."""
    reference = np.repeat([0.0, 1.0], 500)
    sample = np.repeat([0.0, 1.0], [900, 100])
    tenths = np.quantile(reference, TENTHS)
    assert psi(reference, reference, tenths) == 0.0
    assert psi(reference, sample, tenths) == pytest.approx(0.4 * np.log(0.9 / 0.5) - 0.4 * np.log(0.1 / 0.5))


def test_drift_is_in_recent_standard_deviations() -> None:
    generator = np.random.default_rng(0)
    drift = Drift(np.array([True, False, True]))
    for _ in range(DRIFT_WARMUP):
        assert drift.absorb(generator.normal([1e5, 0.0, 3.0], [2.0, 0.0, 1.0], (4000, 3)).astype(np.float32)) == {}
    same = drift.absorb(generator.normal([1e5, 0.0, 3.0], [2.0, 0.0, 1.0], (4000, 3)).astype(np.float32))
    assert same["obs/drift_mean"] < 0.1 and same["obs/drift_std"] < 0.05
    moved = drift.absorb(generator.normal([1e5, 9.0, 8.0], [2.0, 5.0, 3.0], (4000, 3)).astype(np.float32))
    assert moved["obs/drift_mean"] == pytest.approx(5.0, rel=0.05)  # entry 1 is no number to be scaled
    assert moved["obs/drift_std"] == pytest.approx(np.log(3.0), rel=0.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", np.zeros(3)),
        ("mean", np.zeros(1)),
        ("mean", np.zeros(2, dtype=np.float32)),
        ("mean", np.array([0.0, np.nan])),
        ("variance", np.zeros((2, 1))),
        ("variance", np.array([1.0, -1.0])),
    ],
)
def test_moments_that_do_not_fit_are_refused(name: str, value: np.ndarray) -> None:
    """Compiled code goes through them without a look at their size. Rejects a load that takes what it gets."""
    drift = Drift(np.ones(2, dtype=bool))
    with pytest.raises(ValueError, match=f"moving {name}"):
        drift.load({**drift.state(), name: value})


def test_drift_is_followed_as_it_is_written() -> None:
    """The compiled pass against its formula in numpy, bit for bit; a rollout with NaN changes nothing."""
    generator = np.random.default_rng(2)
    drift, columns = Drift(np.array([True, False, True, True])), [0, 2, 3]
    mean, variance = np.zeros(3), np.zeros(3)
    for k in range(DRIFT_WARMUP + 20):
        rows = generator.normal([k, 0.0, 3.0, 7.0], [2.0, 0.0, 1.0 + k % 3, 0.0], (50, 4)).astype(np.float32)
        rows[:, 3] += 3e-6 * (k % 2)  # rounding, and not a spread that vanishes
        assert drift.absorb(np.where(rows == rows[0, 0], np.nan, rows)) == {}
        now, rate = column_moments(rows), max(DRIFT_RATE, 1 / (k + 1))
        shift, spread = now.mean[columns] - mean, np.sqrt(variance)
        moving = spread > SMALLEST_SPREAD * (np.abs(mean) + 1e-12)
        told = drift.absorb(rows)
        if k >= DRIFT_WARMUP:
            ratio = (np.sqrt(now.variance[columns]) / np.where(moving, spread, 1.0))[moving]
            assert told["obs/drift_mean"] == np.abs(shift[moving] / spread[moving]).max()
            assert told["obs/drift_std"] == max(math.log(ratio.max()), -math.log(ratio.min()))
            assert moving.tolist() == [True, True, False]
        variance = (1 - rate) * variance + rate * now.variance[columns] + rate * (1 - rate) * shift**2
        mean = mean + rate * shift
        assert (drift.mean == mean).all() and (drift.variance == variance).all()


def test_a_dead_entry_and_one_that_never_moved() -> None:
    """A spread that goes to 0 is told; an entry that was constant all along is not."""
    generator = np.random.default_rng(0)
    drift = Drift(np.array([True, True]))
    for _ in range(DRIFT_WARMUP):
        drift.absorb(np.column_stack([generator.normal(size=500), np.full(500, 7.0)]).astype(np.float32))
    dead = drift.absorb(np.column_stack([np.zeros(500), np.full(500, 7.0)]).astype(np.float32))
    assert dead["obs/drift_std"] > 10 and dead["obs/drift_mean"] < 0.2


def test_drift_continues_after_a_checkpoint() -> None:
    generator = np.random.default_rng(1)
    first, second = Drift(np.ones(2, dtype=bool)), Drift(np.ones(2, dtype=bool))
    for _ in range(DRIFT_WARMUP + KEPT):
        rows = generator.normal(size=(300, 2)).astype(np.float32)
        first.absorb(rows)
        first.sample(rows)
    second.load(first.state())
    rows = generator.normal(size=(300, 2)).astype(np.float32) + 2
    assert second.absorb(rows) == first.absorb(rows) != {}
    assert second.sample(rows) == first.sample(rows) != {}
    assert second.against(np.array([9.0, 0.0])) == first.against(np.array([9.0, 0.0]))


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_dead_units_are_counted(kind: str, core: str) -> None:
    """Of 8 encoder units one is driven to the end of its tanh. Rejects counting units of a single observation."""
    backend = learner_of(kind, model={"core": {"kind": core}})
    rollout = play(backend, random_world())
    units = 8 + 8 + 2 * 8 + (backend.model.core.hidden if backend.model.core is not None else 0)
    assert probes.dead_units(probes.hidden_units(backend.model, rollout)) == 0.0
    with torch.no_grad():
        backend.model.encoder[0].bias[0] = 1e3
    assert probes.dead_units(probes.hidden_units(backend.model, rollout)) == pytest.approx(1 / units)
    still = dataclasses.replace(rollout, obs=torch.ones_like(rollout.obs))
    assert probes.dead_units(probes.hidden_units(backend.model, still)) is None


def test_actions_are_counted_where_there_is_a_choice() -> None:
    """4 choices; a row with one allowed action says nothing about the policy."""
    backend = learner_of("torch")
    rollout = play(backend, random_world(choices=4))
    assert rollout.mask is not None
    mask = torch.zeros_like(rollout.mask)
    mask[..., 2] = True
    mask[0, :, 1] = True
    action = torch.full_like(rollout.action, 2)
    action[0] = 1
    forced = dataclasses.replace(rollout, mask=mask, action=action)
    counter = probes.Counter(backend.model)
    assert counter.count(forced).top_share == 1.0
    rows = int(rollout.valid.sum())
    envs = int(rollout.valid[0].sum())
    assert counter.count(forced).largest_entropy == pytest.approx(np.log(2) * envs / rows)
    assert counter.count(dataclasses.replace(rollout, mask=None)).largest_entropy == pytest.approx(np.log(4))
    only = torch.zeros_like(mask)
    only[..., 2] = True  # nowhere a choice
    assert counter.count(dataclasses.replace(forced, mask=only)).top_share is None


NOTHING_LEFT = """
import tailwise
from benchmarks.toy_risk import ExposureVector
from tailwise.core.loops.rollouts import count_rollout, follow_moments
from tailwise.run.health import probes
from tests.support import learner_of, play, random_world, small_trainer

at_start = []

class Look(tailwise.Callback):
    def on_start(self, update, steps, total):
        at_start.extend([len(count_rollout.signatures), len(follow_moments.signatures)])

run = {"environments": 2, "rollout_steps": 8, "total_steps": 16, "tensorboard": False}
tailwise.PPO("CartPole-v1", {"backend": "torch", "run": run}, callbacks=[Look()]).learn(progress=False)
assert at_start == [1, 1], at_start
ready = list(count_rollout.signatures)
assert len(ready) == 1, ready
for world in (random_world(), random_world(choices=4)):
    backend = learner_of("torch")
    probes.Counter(backend.model).count(play(backend, world))
box = small_trainer(ExposureVector(4, mu=0.1, sigma=0.2))
box.begin()
box.health.warm_up()
followed = list(follow_moments.signatures)
rollout = box.collector.collect(0)[0]
box.health.signals.counter.count(rollout)
box.health.signals.drift.absorb(probes.rows_of(rollout, rollout.obs))
assert list(count_rollout.signatures) == ready, count_rollout.signatures
assert len(followed) == 1 and list(follow_moments.signatures) == followed, follow_moments.signatures
"""


@pytest.mark.skipif(compiler_is_off(), reason="NUMBA_DISABLE_JIT: nothing is compiled")
def test_nothing_is_compiled_within_an_update() -> None:
    """A run loads the passes before its first update; masked, free and Box actions use that machine code. Rejects a
    run that does not, and a warm-up for other types than those of rollouts."""
    ended = subprocess.run([sys.executable, "-c", NOTHING_LEFT], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_box_actions_at_their_bounds_are_counted_in_the_units_of_the_environment() -> None:
    """Range 0 to 1: raw -1 and 1 are its ends. Rejects raw actions held against the environment's bounds, of which half
    would be at or below 0."""
    trainer = small_trainer(ExposureVector(4, mu=0.1, sigma=0.2))
    action = np.array([[-0.9], [-0.1], [0.3], [1.0]])
    trainer.begin()
    played, _ = trainer.collector.collect(0)
    raw = torch.from_numpy(action).float().expand(played.steps, 4, 1)
    rollout = dataclasses.replace(played, action=raw, valid=torch.ones_like(played.valid))
    counts = probes.Counts(0.0, 0.0, 0.0)
    assert probes.decisions(trainer.model, rollout, counts) == {"action/at_bound": 0.25}


def test_logit_norm_by_hand() -> None:
    """Logits 3, 0, 0, -3 are centred: sqrt(18). A masked one does not count."""
    backend = learner_of("torch")
    rollout = play(backend, random_world())
    params = torch.tensor([3.0, 0.0, 0.0, -3.0]).expand_as(rollout.params)

    def norm(logits: torch.Tensor) -> float:
        logged = dataclasses.replace(rollout, params=logits.contiguous())
        found = probes.Counter(backend.model).count(logged).logit_norm
        assert found is not None
        return found

    assert norm(params) == pytest.approx(18**0.5)
    masked = params.clone()
    masked[..., 3] = torch.finfo(torch.float32).min  # 3, 0, 0 have the mean 1: sqrt(4 + 1 + 1)
    assert norm(masked) == pytest.approx(6**0.5)


def test_a_fall_of_the_return_is_told_in_its_own_history_and_in_the_spread_of_the_run() -> None:
    """A solved problem: returns of 100 +- .01 in a run that began with a spread of 20. A fall by .5 is huge for its
    history and nothing for the run. Rejects a rule that looks at the first alone."""
    signals = small_trainer().health.signals
    signals._returns({"return/mean": 50.0, "return/std": 20.0})
    for k in range(200):
        signals._returns({"return/mean": 100.0 + 0.01 * (-1) ** k, "return/std": 0.1})
    found = signals._returns({"return/mean": 99.5, "return/std": 0.1})
    assert found["return/decline"] > 30
    assert found["return/decline_of_peak"] == pytest.approx(0.025, rel=0.05)


def returns_of(mean: float, std: float, explained: float, largest: float = 3.0) -> dict[str, float]:
    """What a learner reports about the returns of an update."""
    return {
        "return/mean": mean,
        "return/std": std,
        "return/sigma": std,
        "return/largest_normalised": largest,
        "critic/explained_variance": explained,
    }


@pytest.mark.parametrize(("explained", "fires"), [(0.1, False), (-3.0, True)])
def test_critics_are_useless_where_returns_differ(explained: float, fires: bool) -> None:
    """A solved InvertedPendulum: returns hardly differ, so what critics miss is 15 times nothing; then it falls a few
    times, returns differ again and are explained a little. Rejects the mean of explained variances over all ten
    updates, judged by the spread of the newest one: it warned. Critics that really miss more than a constant are told.
    """
    signals, health = small_trainer().health.signals, Health()
    rows = [returns_of(50.0, 15.0, 0.8)] * 40 + [returns_of(100.0, 0.05, -15.0)] * 20
    rows += [returns_of(95.0, 10.0, explained)] * 12
    told = [health.judge_row(update, row | signals._returns(row)) for update, row in enumerate(rows, 1)]
    loud = [event.rule for events in told for event in events if event.severity != "info"]
    assert loud == ["value_useless"] * fires


def test_a_return_is_an_outlier_where_none_was_as_far_before() -> None:
    """30 standard deviations of returns that hardly differ any more, and no farther than the falls before: no outlier.
    A return ten times as far as any is one. Rejects the standard deviation alone."""
    signals, health = small_trainer().health.signals, Health()
    rows = [returns_of(50.0, 15.0, 0.8, 6.0)] * 5 + [returns_of(100.0, 3.0, 0.1, 30.0), returns_of(100.0, 3.0, 0.1)]
    told = [health.judge_row(update, row | signals._returns(row)) for update, row in enumerate(rows, 1)]
    assert [event.rule for events in told for event in events] == []
    broken = returns_of(100.0, 30.0, 0.1, 30.0)
    found = signals._returns(broken)
    assert found["return/record"] == pytest.approx(10.0)
    assert [event.rule for event in health.judge_row(8, broken | found)] == ["return_outlier"]


@pytest.mark.parametrize(("last", "alive", "silent"), [(1.0, 1.0, True), (0.0, 1.0, True), (1.0, 0.0, False)])
def test_rewards_that_differ_at_ends_alone_are_told_by_the_ends(last: float, alive: float, silent: bool) -> None:
    """CartPole pays 1 always, InvertedPendulum 0 for the step that falls; once solved, all rewards are equal and
    nothing ends, and that is no fault. A goal that is not found any more is one: there only the end paid."""
    signals = small_trainer().health.signals
    backend = learner_of("torch")
    rollout, counter = play(backend, random_world()), probes.Counter(backend.model)
    ends = torch.zeros_like(rollout.terminated)
    ends[3, 1] = True
    reward = torch.where(ends, last, alive).to(rollout.reward.dtype)
    whole = dataclasses.replace(rollout, reward=reward, terminated=ends, valid=torch.ones_like(rollout.valid))
    signals._rewards(counter.count(whole), whole)
    solved = dataclasses.replace(whole, reward=torch.full_like(reward, alive), terminated=torch.zeros_like(ends))
    found = signals._rewards(counter.count(solved), solved)
    assert found["reward/no_information"] == float(not silent)


def test_facts_of_infos() -> None:
    """Parts of the reward and jumps of equity; a new account is no jump. Rejects comparing across a reset."""
    facts = StepFacts()
    started = np.array([False, True])
    parts = {"base": np.array([1.0, -1.0]), "bonus": np.array([3.0, 3.0]), "_base": np.array([True, True])}
    facts.absorb({"equity": np.array([1.0, 5.0]), "reward_parts": parts}, np.array([True, True]))
    facts.absorb({"equity": np.array([1.1, 1.0])}, started)
    found = facts.metrics()
    assert found["reward/shaping_share"] == 3.0 and found["reward/part/bonus"] == 3.0
    assert found["env/equity_jump"] == pytest.approx(np.log(1.1))


@pytest.mark.parametrize("kind", BACKENDS)
def test_monitoring_is_measured_in_a_run(kind: str) -> None:
    """Every update has its signals and its time; PSI and dead units come at their interval."""
    trainer = small_trainer(backend=kind, health={"signals_every": 2}, learner={"entropy": {"weight": 0.0}})
    trainer.train()
    assert all(row["time/health"] > 0 and 0 < row["policy/entropy_share"] <= 1 for row in trainer.history)
    assert [row["update"] for row in trainer.history if "model/dead_units" in row] == [1, 3]

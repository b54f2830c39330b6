"""The update as a whole: transaction, KL control, clipping of gradients, and what it reports."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tailwise.core.metrics import METRICS
from tailwise.learner.losses import law_kl
from tailwise.learner.optimisers import clip_global_norm, group_norms
from tailwise.learner.ppo import STOP_FACTOR, TorchBackend, run_epochs
from tailwise.learner.rollout import Rollout
from tests.support import (
    BACKENDS,
    gradients,
    knobs,
    learner_of,
    play,
    prepared,
    random_world,
    same,
    small_backend,
    snapshot,
    whole_batch_losses,
)


def after_two_updates(**learner: object) -> tuple[TorchBackend, Rollout]:
    """A learner with Adam moments and statistics, and its next rollout."""
    backend = small_backend(model={"actor": {"gain": 1.0}}, learner=learner)
    for update in range(2):
        backend.update(play(backend, random_world(16, 8), update=update), knobs())
    return backend, play(backend, random_world(16, 8, seed=1), update=2)


def kl_now(backend: TorchBackend, rollout: Rollout) -> float:
    """Exact KL between the rollout's policy and the model's, over all rows (no core)."""
    features = backend.model.encoder(backend.model.normaliser(rollout.obs))
    return float(law_kl(backend.model.law, rollout.params, backend.model.policy(features, None)).mean().detach())


# ------------------------------------------------------------------ all or nothing


def test_rollback_restores_everything_bit_for_bit() -> None:
    """000-6, 004-2: a KL above max_kl undoes weights, Adam, return scale and normaliser. Without it, all move."""
    backend, rollout = after_two_updates(max_kl=1e-9, target_kl=None)
    before = snapshot(backend)
    report = backend.update(rollout, knobs(0.01))
    assert not report.committed and report.kl > 1e-9
    assert report.reason is not None and "above learner.max_kl 1e-09" in report.reason
    assert same(snapshot(backend), before)
    free, again = after_two_updates(target_kl=None)
    start = snapshot(free)
    assert free.update(again, knobs(0.01)).committed
    moved = [name for name, tensor in snapshot(free).items() if not torch.equal(tensor, start[name])]
    assert {"return_scale.mu", "normaliser.mean", "actor.head.weight", "optimiser/actor.head.weight/exp_avg"} <= set(
        moved
    )


def test_rollback_of_the_first_update_leaves_no_optimiser_state() -> None:
    """Rejects a restore that keeps the step count of an update that did not happen."""
    backend = small_backend(learner={"max_kl": 1e-9, "target_kl": None})
    assert not backend.update(play(backend, random_world()), knobs(0.05)).committed
    assert backend.optimiser.tensors() == {}
    assert not backend.model.return_scale.initialised and int(backend.model.normaliser.version) == 0


def test_after_a_rollback_the_next_update_is_as_if_it_had_not_happened() -> None:
    backend, rollout = after_two_updates(max_kl=1e-9, target_kl=None)
    backend.update(rollout, knobs(0.05))
    twin, same_rollout = after_two_updates(max_kl=1e-9, target_kl=None)
    for learner in (backend, twin):
        learner.config = learner.config.model_copy(update={"max_kl": 1.0})
    backend.update(rollout, knobs())
    twin.update(same_rollout, knobs())
    assert same(snapshot(backend), snapshot(twin))


# ------------------------------------------------------------------ KL control


def test_stop_at_the_first_minibatch_is_safe() -> None:
    """000-6: a rollout of another policy. No step, no NaN, committed, weights unchanged except the return scale's."""
    backend, rollout = after_two_updates()
    moved = dataclasses.replace(rollout, params=rollout.params + 3 * torch.randn(16, 8, 4))
    actor = {name: p.detach().clone() for name, p in backend.model.actor.named_parameters()}
    report = backend.update(moved, knobs(0.1))
    assert report.committed and report.stopped_early and report.kl > 1.5 * 0.02
    assert report.metrics["policy/epochs"] == 0.0 and report.metrics["policy/stopped_early"] == 1.0
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert all(torch.equal(p, actor[name]) for name, p in backend.model.actor.named_parameters())


def test_epochs_stop_above_the_target_and_recover() -> None:
    """A large step is stopped early; the next update with a small step runs all epochs. Rejects a latch."""
    backend, rollout = after_two_updates(target_kl=0.01, epochs=6)
    wild = backend.update(rollout, knobs(0.03))
    assert wild.stopped_early and wild.metrics["policy/epochs"] < 6
    calm = backend.update(play(backend, random_world(16, 8, seed=2), update=3), knobs(1e-5))
    assert not calm.stopped_early and calm.metrics["policy/epochs"] == 6
    never, rollout = after_two_updates(target_kl=None, epochs=6, max_kl=100)
    assert never.update(rollout, knobs(0.03)).metrics["policy/epochs"] == 6


def test_kl_after_the_update_is_that_of_the_policy_it_leaves() -> None:
    """One minibatch: the reported KL equals a computation from scratch. Rejects the KL before the step (0 here)."""
    backend, rollout = after_two_updates(epochs=1, minibatches=1, target_kl=None, max_kl=100)
    normaliser = {name: buffer.clone() for name, buffer in backend.model.normaliser.named_buffers()}
    report = backend.update(rollout, knobs(0.01))
    assert report.metrics["policy/kl"] == pytest.approx(0.0, abs=1e-9)
    backend.model.normaliser.load_state_dict(normaliser)  # the one that the rollout was made with
    assert report.kl == pytest.approx(kl_now(backend, rollout), rel=1e-4) and report.kl > 1e-4
    assert STOP_FACTOR == 1.5


def test_kl_after_the_update_is_of_the_whole_rollout_as_declared() -> None:
    """Four minibatches: rejects the KL on the last of them, which the declaration of the metric used to name."""
    backend, rollout = after_two_updates(epochs=1, minibatches=4, target_kl=None, max_kl=100)
    normaliser = {name: buffer.clone() for name, buffer in backend.model.normaliser.named_buffers()}
    report = backend.update(rollout, knobs(0.01))
    backend.model.normaliser.load_state_dict(normaliser)  # the one that the rollout was made with
    assert report.metrics["policy/kl_after"] == pytest.approx(kl_now(backend, rollout), rel=1e-4)
    assert METRICS["policy/kl_after"].meaning == "exact KL(old||new) after the update, mean over the whole rollout"


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_group_norms_equal_manual_sums(core: str) -> None:
    """001-7: each parameter once, per group and per LSTM layer. Rejects a norm over a sum of parameters' norms."""
    model = {"core": {"kind": core, **({"layers": 2} if core == "lstm" else {})}}
    backend = small_backend(model=model)
    rollout = play(backend, random_world())
    whole_batch_losses(backend, rollout, prepared(backend, rollout)).total.backward()
    norms = group_norms(backend.model)
    by_name = gradients(backend)

    def manual(*prefixes: str) -> float:
        parts = [g.double().square().sum() for name, g in by_name.items() if name.startswith(prefixes)]
        assert parts
        return math.sqrt(float(sum(parts)))

    expected = {
        "encoder": manual("encoder"),
        "actor": manual("actor"),
        "critic_0": manual("critics.0"),
        "critic_1": manual("critics.1"),
    }
    if core == "lstm":
        expected["core"] = manual("core")
        for layer in (0, 1):
            names = [f"core.net.{kind}_l{layer}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            expected[f"core.layer_{layer}"] = manual(*names)
    assert norms == pytest.approx(expected, rel=1e-9)
    total = math.sqrt(sum(norms[group] ** 2 for group in backend.model.groups()))
    assert clip_global_norm(list(backend.model.parameters()), None)[0] == pytest.approx(total, rel=1e-9)


def test_reported_norms_are_means_over_the_steps() -> None:
    backend, rollout = after_two_updates(epochs=1, minibatches=1, max_grad_norm=None)
    report = backend.update(rollout, knobs())
    assert report.metrics["grad/norm/actor"] == pytest.approx(float(group_norms(backend.model)["actor"]), rel=1e-6)
    assert report.metrics["grad/norm_before"] == report.metrics["grad/norm_before_max"]


@pytest.mark.parametrize("bound", [1e-3, 0.1, None])
def test_gradient_norm_after_clipping(bound: float | None) -> None:
    """000-3: at most the bound; null leaves the gradient alone; 0 is refused by the configuration."""
    backend, rollout = after_two_updates(max_grad_norm=bound, epochs=1, minibatches=1)
    metrics = backend.update(rollout, knobs()).metrics
    left = math.sqrt(sum(float(g.double().square().sum()) for g in gradients(backend).values()))
    assert metrics["grad/norm_after"] == pytest.approx(left, rel=1e-6)
    if bound is None:
        assert metrics["grad/norm_after"] == metrics["grad/norm_before"] > 0.1
    else:
        assert metrics["grad/norm_before"] > bound >= metrics["grad/norm_after"] * (1 - 1e-6)
        assert metrics["grad/norm_after"] == pytest.approx(bound, rel=1e-5)


def test_max_grad_norm_zero_is_refused() -> None:
    with pytest.raises(Exception, match="max_grad_norm"):
        small_backend(learner={"max_grad_norm": 0})


# ------------------------------------------------------------------ entropy, learning rate, numbers


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box", "squashed"])
def test_entropy_bonus_raises_entropy(action: str) -> None:
    """000-4, 004-10: one update with nothing but the bonus. Rejects the wrong sign, which lowers it (asserted)."""
    squashed = action == "squashed"
    after = {}
    for weight in (0.0, 1.0, -1.0):
        backend = small_backend(
            model={
                "actor": {"gain": 1.0, **({"box": "squashed"} if squashed else {})},
                "observations": {"kind": "none"},
            },
            learner={"epochs": 1, "minibatches": 1, "target_kl": None},
            action="box" if squashed else action,
        )
        world = random_world(8, 16, end=0.0)
        rollout = play(backend, dataclasses.replace(world, reward=torch.zeros_like(world.reward)))
        ready = prepared(backend, rollout)
        for name, term in whole_batch_losses(backend, rollout, ready, entropy_weight=weight).terms.items():
            if name == "entropy":
                term.backward()
        backend.optimiser.torch.param_groups[0]["lr"] = 1e-3
        backend.optimiser.step()
        after[weight] = whole_batch_losses(backend, rollout, ready).means["policy/entropy"]
    assert after[1.0] > after[0.0] > after[-1.0]


def test_entropy_is_reported_positive_and_subtracted_once() -> None:
    """004-10. loss/entropy = - weight x entropy."""
    backend = small_backend(learner={"epochs": 1, "minibatches": 1})
    metrics = backend.update(play(backend, random_world()), knobs(entropy_weight=0.5)).metrics
    assert 0 < metrics["policy/entropy"] <= math.log(4) + 1e-6
    assert metrics["loss/entropy"] == pytest.approx(-0.5 * metrics["policy/entropy"], rel=1e-5)
    assert metrics["policy/entropy_min"] <= metrics["policy/entropy"] <= metrics["policy/entropy_max"]


def test_learning_rate_of_the_knobs_is_the_one_that_is_used() -> None:
    """Rejects an optimiser that keeps its first rate: steps of Adam's first update are proportional to it."""
    moves = {}
    for rate in (1e-4, 2e-4):
        backend = small_backend(learner={"epochs": 1, "minibatches": 1, "learning_rate": 0.5})
        before = backend.model.actor.head.weight.detach().clone()
        backend.update(play(backend, random_world()), knobs(rate))
        moves[rate] = (backend.model.actor.head.weight - before).abs().max().item()
    assert moves[1e-4] <= 1.01e-4
    assert moves[2e-4] / moves[1e-4] == pytest.approx(2.0, rel=1e-2)


def test_first_log_ratio_is_zero_and_later_ones_are_not() -> None:
    """FORMULAS 3: within 1e-5 before the first step, on stored log-probs. Rejects a recomputed old log-prob (later)."""
    for core in ("none", "lstm", "gru"):
        backend = small_backend(model={"core": {"kind": core}, "actor": {"gain": 1.0}})
        for update in range(3):
            world = random_world(16, 8, seed=update, next_step=True)
            metrics = backend.update(play(backend, world, update=update), knobs(3e-3)).metrics
            assert metrics["policy/first_log_ratio"] <= 1e-5
            assert metrics["policy/log_ratio_max"] > 1e-3


def test_log_ratio_clamp_is_measured_and_normal_running_stays_far_from_it() -> None:
    """000-1: stored log-probs 25 too low: fraction 1, loss finite; normal: fraction 0 and |ln ratio| within 5."""
    backend, rollout = after_two_updates()
    normal = backend.update(rollout, knobs()).metrics
    assert normal["policy/log_ratio_clamp_fraction"] == 0.0 and normal["policy/log_ratio_max"] < 5
    stale = dataclasses.replace(rollout, log_prob=rollout.log_prob - 25)
    broken = backend.update(stale, knobs()).metrics
    assert broken["policy/log_ratio_clamp_fraction"] == 1.0
    assert math.isfinite(broken["loss/policy"]) and broken["policy/ratio_max"] == pytest.approx(math.exp(20), rel=1e-5)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("action", ["discrete", "box"])
def test_nan_and_infinite_log_ratios_are_counted_apart(kind: str, action: str) -> None:
    """001-6b: 3 stored log-probs are NaN, 4 are +inf and 1 is -inf. Rejects one count for both: a NaN is a broken
    computation, an infinity a probability of 0."""
    backend = learner_of(kind, action=action, learner={"epochs": 1, "minibatches": 1})
    rollout = play(backend, random_world(steps=16, envs=8))
    ready = prepared(backend, rollout)
    log_prob = ready.log_prob.clone()
    log_prob[[3, 50, 99]] = math.nan
    log_prob[[0, 7, 60, 100]] = math.inf
    log_prob[80] = -math.inf
    epochs = backend.epochs(rollout, dataclasses.replace(ready, log_prob=log_prob), knobs())
    assert run_epochs(backend, epochs, rollout) is None
    metrics = epochs.metrics()
    assert metrics["policy/nan_fraction"] == 3 / 128
    assert metrics["policy/infinite_fraction"] == 5 / 128
    assert metrics["policy/excluded_fraction"] == 8 / 128


def test_fractions_are_reported_and_move() -> None:
    """000-8, 003-C1: every clip has its active fraction; small steps give 0, large ones more."""
    names = [
        "policy/clip_fraction",
        "policy/dual_clip_fraction",
        "policy/log_ratio_clamp_fraction",
        "policy/excluded_fraction",
        "policy/nan_fraction",
        "policy/infinite_fraction",
        "critic/clip_fraction",
        "critic/clip_loss_fraction",
    ]
    found = {}
    for rate in (1e-6, 0.05):
        backend = small_backend(
            model={"actor": {"gain": 1.0}, "critic": {"clip": {"kind": "mean_only", "range": 0.05}}},
            learner={"target_kl": None, "max_kl": 100, "epochs": 8, "dual_clip": 1.3},
        )
        for update in range(2):
            metrics = backend.update(play(backend, random_world(16, 8), update=update), knobs(rate)).metrics
        found[rate] = metrics
    assert all(found[1e-6][name] == 0.0 for name in names)
    for name in (*names[:2], "critic/clip_fraction", "critic/clip_loss_fraction"):
        assert 0 < found[0.05][name] < 1, name
    assert found[0.05]["critic/loss"] > found[0.05]["critic/loss_unclipped"]
    assert found[1e-6]["critic/loss"] == pytest.approx(found[1e-6]["critic/loss_unclipped"])
    assert found[0.05]["advantage/min"] < found[0.05]["advantage/mean"] < found[0.05]["advantage/max"]


def test_imitation_share_is_reported() -> None:
    backend = small_backend(learner={"awr": {"kind": "on", "weight": 1.0}})
    metrics = backend.update(play(backend, random_world()), knobs()).metrics
    assert 0 < metrics["loss/awr_share"] < 1
    assert "loss/awr" not in small_backend().update(play(small_backend(), random_world()), knobs()).metrics


def test_means_are_weighted_by_rows() -> None:
    """Rejects averaging minibatch means with equal weights: counts add up over microbatches of unequal size."""
    backend = small_backend(learner={"epochs": 1, "minibatches": 1, "microbatches": 5})
    twin = small_backend(learner={"epochs": 1, "minibatches": 1, "microbatches": 1})
    world = random_world(12, 4)
    a, b = (learner.update(play(learner, world), knobs()).metrics for learner in (backend, twin))
    for name in ("policy/entropy", "critic/loss", "loss/policy", "critic/disagreement"):
        assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-7), name


def test_constant_rewards_give_no_policy_gradient_and_are_counted() -> None:
    """001-2, 004-8: advantages without spread become 0 and are counted, instead of amplified rounding."""
    backend = small_backend(learner={"epochs": 1, "minibatches": 1, "gamma": 1e-9, "lambda": 0.0})
    world = random_world(8, 8, end=0.0)
    rollout = play(backend, dataclasses.replace(world, reward=torch.full_like(world.reward, 0.1)))
    report = backend.update(rollout, knobs(measure_terms=True))
    assert report.metrics["advantage/no_signal_groups"] == 1.0
    assert report.term_gradients["policy"]["actor"] == 0.0


def test_switched_off_entropy_is_no_dead_term() -> None:
    """A weight of 0 switches the term off: it must not be reported as a term that teaches nothing."""
    backend = small_backend()
    report = backend.update(play(backend, random_world()), knobs(entropy_weight=0.0, measure_terms=True))
    assert "entropy" not in report.term_gradients
    assert report.metrics["policy/entropy"] > 0


def test_tiny_gradients_move_critics_in_full_steps_and_the_policy_in_short_ones() -> None:
    """The outermost quantiles have gradients of 5e-6. Rejects one epsilon of 1e-5 for all (the tail learns at a third
    of the speed), of 1e-8 for all (a policy without advantages walks at full speed), and a parameter in no group."""
    backend = small_backend()
    groups = backend.model.groups()
    steps = [id(p) for group in backend.optimiser.torch.param_groups for p in group["params"]]
    assert sorted(steps) == sorted(id(p) for p in backend.model.parameters())
    before = {name: [p.detach().clone() for p in parameters] for name, parameters in groups.items()}
    for group in backend.optimiser.torch.param_groups:
        group["lr"] = 1e-3
    for parameter in backend.model.parameters():
        parameter.grad = torch.full_like(parameter, 5e-6)
    backend.optimiser.step()
    for name, parameters in groups.items():
        moved = torch.cat([(b - p.detach()).flatten() for b, p in zip(before[name], parameters, strict=True)])
        expected = 1e-3 if name.startswith("critic_") else 1e-3 / 3
        torch.testing.assert_close(moved, torch.full_like(moved, expected), rtol=0.02, atol=1e-7)

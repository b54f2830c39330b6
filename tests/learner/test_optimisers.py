"""Every optimiser inside the learner: groups, heads of the return scale, checkpoints, roll-back, resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.learner.batches import move_scale
from tailwise.learner.lasting import Lasting
from tailwise.learner.optimisers import StepSize, scaled_heads
from tailwise.learner.ppo import TorchBackend
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.metric_store import differences_without_time, read
from tests.support import bits, knobs, merged, play, random_world, same, small_backend, small_run, snapshot

KINDS: dict[str, dict[str, Any]] = {
    "adam": {"kind": "adam"},
    "adamw": {"kind": "adamw"},
    "adamw to the start": {"kind": "adamw", "weight_decay": 0.5, "decay_to": "initial", "shrink_perturb": 1e-3},
    "upgd": {"kind": "upgd"},
    "upgd_w": {"kind": "upgd_w", "weight_decay": 0.5, "decay_to": "initial"},
    "ada_upgd": {"kind": "ada_upgd", "shrink_perturb": 1e-3},
}
STRONG = {"weight_decay": 5.0, "decay_to": "zero", "shrink_perturb": 0.5}


def backend_of(kind: str, updates: int = 0, **options: Any) -> TorchBackend:
    backend = small_backend(learner={"optimiser": KINDS[kind], **options.pop("learner", {})}, **options)
    for update in range(updates):
        assert backend.update(play(backend, random_world(seed=update), update=update), knobs()).committed
    return backend


def test_adam_is_the_default_and_that_of_torch_bit_for_bit() -> None:
    """The weights after three updates are those of two groups of torch's Adam, as they always were."""
    backend, plain = backend_of("adam"), small_backend()
    groups = plain.model.groups()
    critics = [p for name, members in groups.items() if name.startswith("critic_") for p in members]
    others = [p for name, members in groups.items() if not name.startswith("critic_") for p in members]
    adam = torch.optim.Adam([{"params": others, "eps": 1e-5}, {"params": critics, "eps": 1e-8}], lr=3e-4)
    plain.optimiser.torch.step = adam.step  # type: ignore[method-assign]
    plain.optimiser.torch.state = adam.state
    for update in range(3):
        for each in (backend, plain):
            assert each.update(play(each, random_world(seed=update), update=update), knobs()).committed
    assert same(snapshot(backend), snapshot(plain))


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_parameter_is_in_one_group_under_its_name_and_moves(kind: str) -> None:
    backend = backend_of(kind, model={"core": {"kind": "lstm", "hidden": 4}})
    groups = backend.optimiser.torch.param_groups
    assert {group["of"] for group in groups} == set(backend.model.groups())
    placed = [id(p) for group in groups for p in group["params"]]
    assert sorted(placed) == sorted(id(p) for p in backend.model.parameters())
    for group in groups:
        assert group["eps"] == (1e-8 if group["of"].startswith("critic_") else 1e-5)
        assert {id(p) for p in group["params"]} <= {id(p) for p in backend.model.groups()[group["of"]]}
    before = {name: p.detach().clone() for name, p in backend.model.named_parameters()}
    assert backend.update(play(backend, random_world()), knobs()).committed
    assert all(not torch.equal(before[name], p) for name, p in backend.model.named_parameters())


@pytest.mark.parametrize("kind", ["adamw", "ada_upgd", "upgd_w"])
@pytest.mark.parametrize("returns", ["popart", "none"])
def test_heads_of_the_return_scale_neither_decay_nor_shrink(kind: str, returns: str) -> None:
    """Without gradients only decay and fresh weights move anything. Rejects decay of a head, which would pull its
    predictions to the centre of the return scale; without a scale heads are weights like all others."""
    backend = small_backend(
        model={"returns": {"kind": returns}}, learner={"optimiser": {"kind": kind, **STRONG, **noiseless(kind)}}
    )
    heads = scaled_heads(backend.model)
    assert len(heads) == (8 if returns == "popart" else 0)  # two critics, mean and law, weight and bias
    before = {p: p.detach().clone() for p in backend.model.parameters()}
    for p in before:
        p.grad = torch.zeros_like(p)
    backend.optimiser.step()
    for p, old in before.items():
        assert torch.equal(p, old) == (p in heads or not bool(old.any()))


def noiseless(kind: str) -> dict[str, Any]:
    return {"noise": 0.0} if "upgd" in kind else {}


@pytest.mark.parametrize("kind", ["adamw", "upgd", "ada_upgd"])
def test_state_follows_the_return_scale(kind: str) -> None:
    """A squared error's gradient and its head scale with r = s/s': m by r, v and the utility (gradient x weight) by
    r^2. A quantile's gradient does not scale but its head does: utility by r, m and v not at all."""
    backend = backend_of(kind, 3)
    first, old = snapshot(backend), float(backend.model.return_scale.sigma)
    move_scale(backend.model, backend.optimiser, 1e3 * torch.randn(500, generator=torch.Generator().manual_seed(1)))
    now, ratio = snapshot(backend), old / float(backend.model.return_scale.sigma)
    assert ratio < 0.1
    powers = {
        "mean_head": {"exp_avg": 1, "exp_avg_sq": 2, "utility": 2},
        "law_head": {"exp_avg": 0, "exp_avg_sq": 0, "utility": 1},
        "body.0": {"exp_avg": 0, "exp_avg_sq": 0, "utility": 0},
    }
    checked = 0
    for part, keys in powers.items():
        for key, power in keys.items():
            for end in ("weight", "bias"):
                name = f"optimiser/critics.1.{part}.{end}/{key}"
                if name not in first:
                    continue
                assert bool(first[name].any())
                torch.testing.assert_close(now[name], first[name] * ratio**power, rtol=1e-5, atol=0)
                checked += 1
    assert checked == {"adamw": 12, "upgd": 6, "ada_upgd": 18}[kind]
    assert backend.update(play(backend, random_world(seed=9), update=3), knobs()).committed


@pytest.mark.parametrize("kind", list(KINDS))
def test_state_goes_through_names_and_continues_bit_for_bit(kind: str) -> None:
    """Tensors by name into another learner, as a checkpoint does. Rejects an initial weight taken anew: the other
    learner was built with another seed."""
    backend, other = backend_of(kind, 2), backend_of(kind, seed=5)
    other.streams = backend.streams
    if isinstance(other.optimiser.torch, Lasting):
        other.optimiser.torch.streams = backend.streams
    state = backend.optimiser.tensors()
    other.optimiser.check(state, fresh=False)
    other.model.load_state_dict(backend.model.state_dict())
    other.optimiser.load(state)
    assert same(snapshot(backend), snapshot(other))
    for each in (backend, other):
        assert each.update(play(each, random_world(seed=7), update=2), knobs()).committed
    assert same(snapshot(backend), snapshot(other))


@pytest.mark.parametrize("kind", list(KINDS))
def test_state_of_another_optimiser_is_refused(kind: str) -> None:
    backend = backend_of(kind)
    backend.optimiser.check({}, fresh=True)
    for other in KINDS:
        state = backend_of(other, 1).optimiser.tensors()
        if set(state) == set(backend_of(kind, 1).optimiser.tensors()):
            continue
        with pytest.raises(CheckpointError, match="does not fit this model: missing"):
            backend.optimiser.check(state, fresh=False)
    state = backend_of(kind, 1).optimiser.tensors()
    name = next(n for n in state if n.endswith("critics.0.body.0.weight/" + n.rsplit("/", 1)[1]) and "step" not in n)
    with pytest.raises(CheckpointError, match="the model needs"):
        backend.optimiser.check({**state, name: state[name][:1]}, fresh=False)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("after", [0, 2])
def test_a_rolled_back_update_leaves_everything_as_it_was(kind: str, after: int) -> None:
    """Before and after the first step; and the update after it is that of a learner that was never disturbed."""
    backend, quiet = backend_of(kind, after), backend_of(kind, after)
    config, before = backend.config, snapshot(backend)
    backend.config = config.model_copy(update={"max_kl": 1e-12, "target_kl": None})
    report = backend.update(play(backend, random_world(seed=9), update=after), knobs(0.05))
    assert not report.committed and report.went_too_far
    assert same(before, snapshot(backend))
    backend.config = config
    for each in (backend, quiet):
        assert each.update(play(each, random_world(seed=4), update=after), knobs()).committed
    assert same(snapshot(backend), snapshot(quiet))


@pytest.mark.parametrize("kind", list(KINDS))
def test_factors_act_through_the_step_size(kind: str) -> None:
    """Schedules and health act on all groups, a noise factor on its own group alone. Rejects an optimiser that keeps
    the learning rate it was built with."""
    backend = backend_of(kind)
    moved = {}
    for name, step_size in {
        "whole": StepSize(1e-3, 1.0, 1.0, 1.0),
        "half": StepSize(1e-3, 1.0, 1.0, 0.5),
        "actor": StepSize(1e-3, 1.0, 1.0, 1.0, {"actor": 0.5}),
    }.items():
        fresh = small_backend(learner={"optimiser": {**KINDS[kind], **plain(kind)}})
        g = torch.Generator().manual_seed(3)
        before = {p: p.detach().clone() for p in fresh.model.parameters()}
        for p in before:
            p.grad = torch.randn(p.shape, generator=g)
        fresh.optimiser.use(step_size)
        fresh.optimiser.step()
        moved[name] = {
            group: torch.cat([(before[p] - p.detach()).reshape(-1) for p in members])
            for group, members in fresh.model.groups().items()
        }
    for group in backend.model.groups():
        whole, half = moved["whole"][group], moved["half"][group]
        assert float(whole.abs().max()) > 1e-4
        torch.testing.assert_close(half, whole / 2, rtol=1e-3, atol=1e-6)
        expected = whole / 2 if group == "actor" else whole
        torch.testing.assert_close(moved["actor"][group], expected, rtol=1e-3, atol=1e-6)


def plain(kind: str) -> dict[str, Any]:
    """Nothing but the step: decay and fresh weights do not scale with the noise factor."""
    keys = {key for key in ("weight_decay", "shrink_perturb") if key in KINDS[kind]}
    return dict.fromkeys(keys | ({"weight_decay"} if kind in ("adamw", "ada_upgd") else set()), 0.0)


class Stopper(Callback):
    """Ends a run after its third update."""

    def on_update(self, progress: Progress) -> bool:
        return progress.update < 3


RUN = {"run": {"total_steps": 160, "environments": 4, "rollout_steps": 8, "checkpoint_every": 1}}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "adam"])
def test_a_resumed_run_equals_one_that_was_not_stopped(kind: str, tmp_path: Path) -> None:
    """With noise of UPGD, fresh weights, variance scaling and its averages. Rejects draws that depend on what was drawn
    before, and averages that begin anew."""
    scaling = {"microbatches": 2, "variance_scaling": {"kind": "on", "low": 0.01}}
    config = small_run(**merged(RUN, {"learner": {"optimiser": KINDS[kind], **scaling}, "backend": "torch"}))
    whole = PPO("CartPole-v1", config, run_dir=tmp_path / "whole")
    whole.learn()
    stopped = PPO("CartPole-v1", config, run_dir=tmp_path / "run")
    stopped.trainer.callbacks.append(Stopper())
    stopped.learn()
    assert stopped.trainer.update == 3
    resumed, notes = PPO.resume(tmp_path / "run")
    assert notes == []
    resumed.learn()
    assert resumed.trainer.update == whole.trainer.update == 5
    for (name, first), (_, second) in zip(
        whole.model.named_parameters(), resumed.model.named_parameters(), strict=True
    ):
        assert bits(first) == bits(second), name
    assert resumed.trainer.controllers.to_json() == whole.trainer.controllers.to_json()
    files = [tmp_path / name / "metrics.jsonl" for name in ("whole", "run")]
    assert differences_without_time(*files) == []
    factors = read(tmp_path / "run")["step/noise_factor/actor"].tolist()
    assert len(factors) == 5 and math.isnan(factors[0]) and 0.01 <= factors[4] < 1


@pytest.mark.parametrize(
    "options", [{"optimiser": {"kind": "upgd"}}, {"variance_scaling": {"kind": "on"}, "microbatches": 2}]
)
def test_fused_refuses_and_auto_says_why_torch(options: dict[str, Any]) -> None:
    key = "optimiser" if "optimiser" in options else "variance_scaling"
    with pytest.raises(ConfigError, match=rf"backend fused: learner\.{key}\.kind \w+ is not covered; use "):
        small_run(backend="fused", learner=options)
    agent = PPO("CartPole-v1", small_run(backend="auto", learner=options))
    assert agent.trainer.backend_choice.startswith(f"torch, because learner.{key}.kind")

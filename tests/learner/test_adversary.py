"""SA-PPO: the worst move is found, stays in its budget, trains the actor alone, works with everything (ledger H7)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from benchmarks.toy_envs import DICT_REACH
from tailwise.core.config import parse
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.learner import ppo
from tailwise.learner.adversary import (
    EXCESS,
    NAME,
    Box,
    Budgets,
    Entries,
    SaPpoLoss,
    divergence,
    raw_budgets,
    search,
    std_budgets,
    without_weights,
)
from tailwise.learner.config import LearnerConfig, SaPpo, StdBudget
from tailwise.learner.losses import Inputs, View
from tailwise.learner.ppo import TorchBackend
from tailwise.model.action_spec import ActionSpec
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.observation import ObservationSpec
from tailwise.run.agent import PPO
from tests.support import (
    ACTIONS,
    SMALL_RUN,
    bits,
    knobs,
    merged,
    play,
    random_world,
    small_backend,
    small_model,
    small_run,
    snapshot,
)

SPACES = {**ACTIONS, "weights": spaces.Box(-1.0, 1.0, (3,), np.float32)}
KINDS = ("discrete", "multidiscrete", "box", "squashed", "weights")
CORES = ("none", "lstm", "gru")
SIZES = (0.2, 0.0, 0.05)  # of the three entries of an observation


def adversary(**values: Any) -> SaPpo:
    config = parse(LearnerConfig, {"adversary": {"kind": "sa_ppo", "ramp": 0.0, **values}}, source="test").adversary
    assert isinstance(config, SaPpo)
    return config


def budgets(sizes: tuple[float, ...] = SIZES) -> Budgets:
    return Budgets(torch.tensor(sizes), torch.zeros(len(sizes)))


def backend_of(
    kind: str,
    core: str,
    loss: SaPpoLoss | None,
    *,
    model: dict[str, Any] | None = None,
    learner: dict[str, Any] | None = None,
) -> TorchBackend:
    """A learner whose policy says something (gain 1) on an action space, with the loss or without."""
    streams = Streams(0)
    box = {"box": "squashed"} if kind == "squashed" else {}
    changes = merged({"core": {"kind": core}, "actor": {"gain": 1.0, **box}}, model or {})
    network = ActorCritic(
        small_model(**changes),
        ObservationSpec.from_space(spaces.Box(-np.inf, np.inf, (3,), np.float32)),
        ActionSpec.from_space(SPACES["box" if kind == "squashed" else kind]),
        init_seed=streams.integer("init"),
    )
    options = {"epochs": 2, "minibatches": 2, "target_kl": None, **(learner or {})}
    auxiliary = () if loss is None else ((NAME, loss),)
    return TorchBackend(network, parse(LearnerConfig, options, source="test"), streams, auxiliary=auxiliary)


def weights(backend: TorchBackend) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in snapshot(backend).items()}


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_core_and_action_space(kind: str, core: str) -> None:
    """H7: the term trains the actor and never a critic, stays in its budget, and changes the weights."""
    world = random_world(steps=10, envs=4, choices=4 if kind == "discrete" else 0, next_step=True)
    after = []
    for loss in (SaPpoLoss(adversary(weight=1.0), budgets()), None):
        backend = backend_of(kind, core, loss)
        report = backend.update(play(backend, world), knobs(1e-3, measure_terms=True))
        assert report.committed, report.reason
        after.append(weights(backend))
        if loss is None:
            assert NAME not in report.term_gradients and "policy/adversary_kl" not in report.metrics
            continue
        assert report.term_gradients[NAME]["actor"] > 0.0
        assert report.term_gradients[NAME]["critic_0"] == report.term_gradients[NAME]["critic_1"] == 0.0
        assert report.metrics["policy/adversary_kl"] > 0.0
        assert report.metrics["adversary/largest_perturbation"] <= max(SIZES) + EXCESS
        assert report.metrics["adversary/excess"] <= EXCESS
        assert report.metrics["adversary/epsilon"] == pytest.approx((0.2 + 0.05) / 2)  # of those that may move
    assert after[0] != after[1]


# ------------------------------------------------------------------ the search


def linear_policy() -> ActorCritic:
    """mean = W s + b of observations as they are: the worst move is known."""
    network = ActorCritic(
        small_model(
            encoder={"hidden": []}, actor={"hidden": [], "gain": 1.0, "log_std": -1.0}, observations={"kind": "none"}
        ),
        ObservationSpec.from_space(spaces.Box(-np.inf, np.inf, (3,), np.float32)),
        ActionSpec.from_space(spaces.Box(-1.0, 1.0, (1,), np.float32)),
        init_seed=3,
    )
    with torch.no_grad():
        network.actor.head.weight.copy_(torch.tensor([[0.5, -2.0, 1.0]]))
    return network


def fixed_noise(name: str, draws: int) -> torch.Tensor:
    return torch.from_numpy(Streams(1).uniforms(name, update=0, environments=5, steps=1, draws=draws))


@pytest.mark.parametrize("langevin", [False, True])
def test_the_worst_move_of_a_linear_policy_is_found(langevin: bool) -> None:
    """(eps . |w|)^2 / std^2. Rejects a search downhill (0 to start with, and never more than the start), one without
    steps, and one whose last steps do not reach the corner."""
    model, budget = linear_policy(), torch.tensor([0.2, 0.1, 0.05])
    obs, blank = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(5, 0, 0)
    start = torch.zeros(1, 5, dtype=torch.bool)
    clean = model.policy(model.latent(obs, blank, start).features[0], None)

    def objective(place: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
        params = model.policy(model.latent_of(place, blank, start).features[0], None)
        return sign * divergence(model.law, clean, params).sum()

    box = Box.around(model, obs, budget)
    worst = search(box, objective, steps=10, noise=fixed_noise, langevin=langevin)
    best = (0.2 * 0.5 + 0.1 * 2.0 + 0.05 * 1.0) ** 2 * np.exp(2.0)
    assert float(objective(worst).detach()) / 5 == pytest.approx(best, rel=0.05 if langevin else 1e-4)
    assert float(((worst - obs).abs() - budget).max()) <= EXCESS
    downhill = search(box, lambda place: objective(place, -1.0), steps=10, noise=fixed_noise, langevin=langevin)
    assert float(objective(downhill).detach()) / 5 < 0.1 * best


def test_divergence_of_gaussians_is_twice_the_kl_of_their_means_and_leaves_std_alone() -> None:
    model = linear_policy()
    clean, moved = torch.tensor([[0.1, -1.0]]), torch.tensor([[0.4, -1.0]], requires_grad=True)
    distance = divergence(model.law, clean, moved)
    assert float(distance) == pytest.approx((0.3 / np.exp(-1.0)) ** 2, rel=1e-5)
    (slope,) = torch.autograd.grad(distance.sum(), moved)
    assert float(slope[0, 0]) > 0.0 and float(slope[0, 1]) == 0.0


def test_nothing_leaves_the_budget_or_what_the_network_can_see() -> None:
    """At the clip of the normaliser a move outwards is none."""
    model = backend_of("box", "none", None).model
    edge = torch.tensor([[[10.0, -10.0, 0.0]]])
    box = Box.around(model, edge, torch.tensor(SIZES))
    place, _ = box.moved(torch.tensor([[[9.0, -9.0, 9.0]]]))
    assert place.tolist() == [[[10.0, -10.0, pytest.approx(0.05)]]]
    place, _ = box.moved(torch.tensor([[[-9.0, 9.0, -9.0]]]))
    assert place.tolist() == [[[pytest.approx(9.8), -10.0, pytest.approx(-0.05)]]]  # the second may not move at all


def view_of(core: str, kind: str = "box") -> tuple[ActorCritic, View, torch.Tensor]:
    """A view of sequences with an episode that begins in the middle of them; the observations [T, B, D]."""
    backend = backend_of(kind, core, None)
    model, start = backend.model, torch.zeros(6, 2, dtype=torch.bool)
    start[3, 0] = True
    g = torch.Generator().manual_seed(0)
    obs, state = torch.randn(6, 2, 3, generator=g), torch.randn(2, *model.state_shape, generator=g) * 0.3

    def noise(name: str, draws: int) -> torch.Tensor:
        return torch.from_numpy(Streams(0).uniforms(name, update=0, environments=2, steps=6, draws=draws))

    inputs = Inputs(obs, state, start, torch.arange(12), noise)
    features = inputs.encode(model)
    batch = play_batch(backend, features)
    return model, View(inputs, features, model.policy(features, None), batch), obs


def play_batch(backend: TorchBackend, features: torch.Tensor) -> Any:
    from tailwise.learner.losses import Batch

    n = len(features)
    blank = torch.zeros(n)
    return Batch(torch.zeros(n, 2), blank, torch.zeros(n, 4), None, blank, blank, None, torch.zeros(n, 2), None, None)


def test_inner_gradients_reach_no_weight() -> None:
    """Rejects a search by `backward`: its gradients would be added to those of the step."""
    model, view, _ = view_of("lstm")
    term = SaPpoLoss(adversary(steps=4), budgets())(model, view)
    assert term is not None and float(term) > 0.0
    assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == []
    assert all(parameter.requires_grad for parameter in model.parameters())
    term.backward()
    assert model.actor.head.weight.grad is not None and float(model.actor.head.weight.grad.abs().max()) > 0.0
    with pytest.raises(RuntimeError, match="planned"), without_weights(model):
        raise RuntimeError("planned")
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_memory_carries_the_moves_through_an_episode_and_not_into_the_next() -> None:
    """Rejects a search that begins every row, or every sequence, with an empty memory."""
    model, view, obs = view_of("lstm")
    place = obs.clone().requires_grad_()
    params = model.policy(view.inputs.encode_normalised(model, place), None).reshape(6, 2, -1)
    (slope,) = torch.autograd.grad(params[4, :, :2].square().sum(), place)
    assert float(slope[1, 1].abs().max()) > 0.0  # the same episode, three steps before
    assert float(slope[1, 0].abs().max()) == 0.0 and float(slope[3, 0].abs().max()) > 0.0  # begun at step 3
    blank = Inputs(obs, torch.zeros_like(view.inputs.state), view.inputs.start, view.inputs.inside)
    assert float((view.features - blank.encode(model)).abs().max()) > 1e-3  # the state before step 0 counts
    # With every entry still the features are those of the rollout.
    again = view.inputs.encode_normalised(model, model.normaliser(obs))
    assert torch.equal(again, view.features)


# ------------------------------------------------------------------ budgets


def test_budgets_by_name() -> None:
    entries = Entries(
        ("return_1", "return_20", "volatility_20", "exposure", "drawdown"), (True, True, True, False, False)
    )
    sizes = std_budgets(StdBudget(size=0.1, entries={"return_2*": 0.3, "*_20": 0.0, "drawdown": 0.02}), entries)
    assert sizes.normalised.tolist() == pytest.approx([0.1, 0.3, 0.0, 0.0, 0.02])
    with pytest.raises(ConfigError, match=r"name 'retrun_1', which is none; did you mean 'return_1'"):
        std_budgets(StdBudget(entries={"retrun_1": 0.1}), entries)
    with pytest.raises(ConfigError, match="is 0 for every entry"):
        std_budgets(StdBudget(size=0.0), entries)


def test_raw_budgets_follow_the_normaliser() -> None:
    """A move of 0.2 of an entry with standard deviation 4 is 0.05 for the network; one without spread cannot move."""
    model = backend_of("box", "none", None).model
    with torch.no_grad():
        model.normaliser.variance.copy_(torch.tensor([16.0, 1.0, 0.0]))
    assert raw_budgets([0.2, 0.0, 0.3]).in_std(model.normaliser).tolist() == pytest.approx([0.05, 0.0, 0.0])
    assert budgets((0.2, 0.1, 0.3)).in_std(model.normaliser).tolist() == pytest.approx([0.2, 0.1, 0.0])


def test_the_ramp_reads_its_own_base() -> None:
    """Rejects a budget that is multiplied from update to update; before training begins there is no term."""
    model, view, _ = view_of("none")
    loss = SaPpoLoss(adversary(ramp=0.5), budgets())
    for progress, share in ((0.25, 0.5), (0.25, 0.5), (0.5, 1.0), (1.0, 1.0), (0.1, 0.2)):
        assert loss.budget(model, progress).tolist() == pytest.approx([size * share for size in SIZES])
    assert loss(model, View(view.inputs, view.features, view.params, view.batch, 0.0)) is None


# ------------------------------------------------------------------ what it does


def test_training_against_the_adversary_calms_the_policy() -> None:
    """Thirty updates without advantages: the divergence at the worst move falls. Rejects a term with the wrong sign,
    under which it grows, and one that is reported and does not train."""
    ratio = {}
    for weight, sign in ((3.0, 1.0), (3.0, -1.0), (1e-9, 1.0)):
        loss = SaPpoLoss(adversary(weight=weight, steps=4), budgets())
        term = loss if sign > 0 else lambda model, view, loss=loss: -loss(model, view)  # type: ignore[operator]
        backend = backend_of("discrete", "none", None, learner={"max_kl": 100.0, "value_weight": 1e-6})
        backend.auxiliary = ((NAME, term),)
        backend.mix_advantages = lambda mean, risk, multiplier: 0.0 * mean
        world = random_world(steps=8, envs=4)
        course = [
            backend.update(play(backend, world, update=k), knobs(3e-3, entropy_weight=0.0)).metrics for k in range(30)
        ]
        ratio[weight * sign] = course[-1]["policy/adversary_kl"] / course[0]["policy/adversary_kl"]
    assert ratio[3.0] < 0.3 and ratio[-3.0] > 3.0 and 0.8 < ratio[1e-9] < 1.2, ratio


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_noise_does_not_depend_on_how_a_rollout_is_cut(core: str) -> None:
    """The same moves for four microbatches as for one. Rejects noise that is drawn in the order of computation."""
    reports = []
    for microbatches in (1, 2):
        backend = backend_of(
            "box",
            core,
            SaPpoLoss(adversary(weight=1.0), budgets()),
            learner={"epochs": 1, "minibatches": 1, "microbatches": microbatches},
        )
        reports.append(backend.update(play(backend, random_world(steps=8, envs=4)), knobs(1e-3)).metrics)
    assert reports[0]["policy/adversary_kl"] == pytest.approx(reports[1]["policy/adversary_kl"], rel=1e-5)


# ------------------------------------------------------------------ everything together

OPTIONS: dict[str, dict[str, Any]] = {
    "core": {core: {"model": {"core": {"kind": core}}} for core in CORES},
    "critic": {
        "quantile": {},
        "categorical": {
            "model": {"critic": {"kind": "categorical", "hidden": [8], "atoms": 11, "particles": 8,
                                 "minibatch_particles": 4}}
        },
        "scalar": {"model": {"critic": {"kind": "scalar", "hidden": [8]}}, "risk": {"mode": "off"}},
    },
    "action": {
        "discrete": {"env": {"id": "CartPole-v1"}},
        "box": {"env": {"id": DICT_REACH}},
        "squashed": {"env": {"id": DICT_REACH}, "model": {"actor": {"box": "squashed"}}},
    },
    "method": {method: {"learner": {"adversary": {"method": method}}} for method in ("pgd", "sgld")},
    "risk": {
        "report": {},
        "penalty": {"risk": {"mode": "penalty", "alpha": 0.25, "weight": 2.0}},
    },
    "other": {
        "nothing": {},
        "awr": {"learner": {"awr": {"kind": "on", "weight": 1.0}}},
        "microbatches": {"learner": {"microbatches": 2}},
        "layer norm": {"model": {"norm": "layer"}},
        "clip": {"model": {"critic": {"clip": {"kind": "mean_only", "range": 0.05}}}},
    },
}  # fmt: skip


def impossible(choice: dict[str, str]) -> bool:
    return choice["critic"] == "scalar" and choice["risk"] == "penalty"


def pairwise() -> list[dict[str, str]]:
    """Few combinations in which every possible pair of options occurs."""
    names = list(OPTIONS)
    whole = [dict(zip(names, values, strict=True)) for values in itertools.product(*OPTIONS.values())]
    whole = [choice for choice in whole if not impossible(choice)]

    def pairs(choice: dict[str, str]) -> set[tuple[Any, ...]]:
        return set(itertools.combinations(choice.items(), 2))

    missing, chosen = set().union(*map(pairs, whole)), []
    while missing:
        best = max(whole, key=lambda choice: len(pairs(choice) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


PAIRWISE = pairwise()


@pytest.mark.parametrize("choice", PAIRWISE, ids=lambda choice: "-".join(choice.values()))
def test_options_compose(choice: dict[str, str]) -> None:
    """Two updates: all numbers finite, committed, and other weights than without the adversary."""
    changes: dict[str, Any] = {"learner": {"adversary": {"kind": "sa_ppo", "weight": 1.0, "ramp": 0.0}}}
    changes = merged(changes, {"run": {"total_steps": 64}})
    for name, value in choice.items():
        changes = merged(changes, OPTIONS[name][value])
    off = merged(changes, {"learner": {"adversary": {"kind": "none"}}})
    after = []
    for config in (small_run(**changes), small_run(**off)):
        agent = PPO(config.env.gym_id, config)
        agent.learn()
        assert [row["update/committed"] for row in agent.history] == [1.0, 1.0]
        assert all(np.isfinite(value) for row in agent.history for value in row.values())
        after.append({name: bits(tensor) for name, tensor in agent.model.state_dict().items()})
    assert after[0] != after[1]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_resumes_bit_for_bit(tmp_path: Path, core: str) -> None:
    """The ramp and the noise go on where they were."""
    settings = {
        "model": {"core": {"kind": core}},
        "learner": {"adversary": {"kind": "sa_ppo", "weight": 1.0, "method": "sgld", "ramp": 1.0}},
        "run": {"checkpoint_every": 1},
    }
    whole, part = (PPO("CartPole-v1", merged(SMALL_RUN, settings), run_dir=tmp_path / n) for n in ("whole", "part"))
    whole.learn(160)
    part.trainer.total_steps = 160
    while part.trainer.update < 2:
        part.trainer.begin()
        metrics, alerts = part.trainer._one_update(160, 0.0)
        part.trainer._record(metrics, alerts, last=False)
    resumed, notes = PPO.resume(tmp_path / "part")
    assert notes == [] and resumed.trainer.update == 2
    resumed.learn()
    assert resumed.trainer.steps == 160
    for name, tensor in whole.model.state_dict().items():
        assert bits(tensor) == bits(resumed.model.state_dict()[name]), name


def test_backend_says_why_it_is_torch_and_fused_is_refused() -> None:
    on = {"learner": {"adversary": {"kind": "sa_ppo"}}}
    agent = PPO("CartPole-v1", merged(SMALL_RUN, {**on, "backend": "auto"}))
    assert agent.trainer.backend_choice.startswith("torch, because learner.adversary.kind sa_ppo is not covered")
    with pytest.raises(ConfigError, match=r"backend fused: learner\.adversary\.kind sa_ppo is not covered"):
        small_run(**on, backend="fused")


def test_a_first_fit_of_the_geometry_does_not_add_the_term_twice() -> None:
    """`learn(steps)` may build the trainer again, with what the user gave and what the configuration names."""
    agent = PPO("CartPole-v1", {"learner": {"adversary": {"kind": "sa_ppo", "ramp": 0.0}}, "backend": "torch"})
    agent.learn(256)
    assert [name for name, _ in agent.trainer.backend.auxiliary] == [NAME]
    assert agent.history[-1]["adversary/excess"] <= EXCESS


def test_a_still_adversary_is_no_dead_term() -> None:
    """Where the policy is blind, the worst move changes nothing; that is no broken loss."""
    backend = small_backend(learner={"target_kl": None})
    with torch.no_grad():
        backend.model.actor.head.weight.zero_()
    backend.auxiliary = ((NAME, SaPpoLoss(adversary(), budgets())),)
    report = ppo.update(backend, play(backend, random_world()), knobs(measure_terms=True))
    assert report.committed and NAME not in report.term_gradients

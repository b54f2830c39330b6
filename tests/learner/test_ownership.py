"""Which loss term reaches which parameter group, exactly: the matrix that finds a term that trains nobody."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tailwise.learner.losses import compute_losses
from tailwise.learner.optimisers import owner_of, term_gradients
from tests.support import knobs, play, prepared, random_world, small_backend, whole_batch_losses

CRITICS: dict[str, dict[str, Any]] = {
    "quantile": {"kind": "quantile", "hidden": [8], "quantiles": 8, "minibatch_particles": 4},
    "quantile-mean": {"kind": "quantile", "hidden": [8], "quantiles": 8, "minibatch_particles": 4, "mean": "quantiles"},
    "categorical": {"kind": "categorical", "hidden": [8], "atoms": 11, "particles": 8, "minibatch_particles": 4},
    "scalar": {"kind": "scalar", "hidden": [8]},
}


def expected_groups(term: str, *, core: str, action: str) -> set[str]:
    """The groups on which a term must have a gradient; on all others it must be exactly zero."""
    trunk = {"encoder"} | ({"core"} if core != "none" else set())
    if term == "entropy" and action == "box":
        return {"actor"}  # the entropy of a Gaussian is a function of ln(std) alone
    return trunk | {owner_of(term)}


def expected_terms(critic: str, twin: bool) -> set[str]:
    kinds = {
        "quantile": ("mean", "law"),
        "quantile-mean": ("law",),
        "categorical": ("mean", "law"),
        "scalar": ("mean",),
    }
    return {"policy", "entropy", "awr"} | {f"{kind}_{i}" for kind in kinds[critic] for i in range(2 if twin else 1)}


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("critic", list(CRITICS))
@pytest.mark.parametrize("twin", [True, False], ids=["twin", "single"])
@pytest.mark.parametrize("action", ["discrete", "box"])
def test_matrix(core: str, critic: str, twin: bool, action: str) -> None:
    """H1, H2, 000-9, 001-3: zero and non-zero asserted for every term and group; a detached term fails (see below)."""
    backend = small_backend(
        model={"core": {"kind": core}, "critic": {**CRITICS[critic], "twin": twin}},
        learner={"awr": {"kind": "on"}},
        action=action,
    )
    rollout = play(backend, random_world())
    matrix = term_gradients(whole_batch_losses(backend, rollout, prepared(backend, rollout)).terms, backend.model)
    assert set(matrix) == expected_terms(critic, twin)
    for term, row in matrix.items():
        reached = {group for group, norm in row.items() if norm != 0.0}
        assert reached == expected_groups(term, core=core, action=action), (term, row)


def test_detached_features_would_be_noticed() -> None:
    """The wrong version of H1: critics that read features without gradient leave the trunk untrained."""
    backend = small_backend()
    rollout = play(backend, random_world())
    ready = prepared(backend, rollout)
    rows = rollout.valid.reshape(-1).nonzero().squeeze(-1)
    obs = ready.obs.reshape(-1, 3)[rows]
    features = backend.model.latent(obs[None], torch.zeros(len(rows), 0, 0), torch.zeros(1, len(rows)).bool()).features[
        0
    ]
    draws = ready.draws(backend.streams, backend.model, update=0, epoch=0)
    losses = compute_losses(
        backend.model, features.detach(), ready.batch(rows, draws), backend.config, entropy_weight=0.01
    )
    row = term_gradients(losses.terms, backend.model)["mean_0"]
    assert row["encoder"] == 0.0 and row["critic_0"] > 0.0


def test_update_reports_the_matrix_when_asked() -> None:
    backend = small_backend()
    rollout = play(backend, random_world())
    assert backend.update(rollout, knobs()).term_gradients == {}
    report = backend.update(play(backend, random_world(), update=1), knobs(measure_terms=True))
    assert set(report.term_gradients) == {"policy", "entropy", "mean_0", "law_0", "mean_1", "law_1"}
    assert report.term_gradients["mean_0"]["critic_1"] == 0.0 and report.term_gradients["mean_0"]["critic_0"] > 0.0


def test_measuring_does_not_change_the_update() -> None:
    """Rejects a diagnostic that leaves gradients behind: it would be added to the step."""
    states = []
    for measure in (False, True):
        backend = small_backend()
        backend.update(play(backend, random_world()), knobs(measure_terms=measure))
        states.append(backend.model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_every_parameter_is_trained_by_an_update() -> None:
    """Rejects a group that no term reaches: after one update every weight tensor has moved."""
    for core in ("none", "gru"):
        backend = small_backend(model={"core": {"kind": core}}, action="box")
        before = {name: p.detach().clone() for name, p in backend.model.named_parameters()}
        assert backend.update(play(backend, random_world()), knobs()).committed
        still = [name for name, p in backend.model.named_parameters() if torch.equal(p, before[name])]
        assert still == []

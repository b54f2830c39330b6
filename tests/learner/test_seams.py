"""The two seams of the update: `mix_advantages` (risk) and `auxiliary` (further losses) really reach the parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tailwise.learner.losses import View
from tailwise.model.actor_critic import ActorCritic
from tests.support import knobs, play, random_world, small_backend, snapshot


def pull_to_first_action(model: ActorCritic, view: View) -> Tensor:
    """A loss that wants the first action, whatever the rewards say."""
    return -5.0 * torch.log_softmax(view.params, -1)[:, 0].mean()


def probability_of_first_action(auxiliary: bool) -> tuple[float, dict[str, dict[str, float]]]:
    backend = small_backend(learner={"target_kl": None})
    if auxiliary:
        backend.auxiliary = (("teacher", pull_to_first_action),)
    world = random_world(steps=16, envs=8)
    report = backend.update(play(backend, world), knobs(3e-2, measure_terms=True))
    assert report.committed
    start = torch.zeros(8, dtype=torch.bool)
    after = backend.act(world.obs[0], backend.model.initial_state(8), start, None, None)
    return float(after.params.softmax(-1)[:, 0].mean()), report.term_gradients


def test_an_auxiliary_loss_moves_the_policy_and_is_measured() -> None:
    """Rejects a seam that is called and whose value is dropped."""
    without, terms = probability_of_first_action(False)
    assert "teacher" not in terms
    moved, terms = probability_of_first_action(True)
    assert terms["teacher"]["actor"] > 0.0
    assert terms["teacher"]["critic_0"] == 0.0
    assert moved > without + 0.02


def test_mixed_advantages_are_the_ones_that_train() -> None:
    """Turning the sign at the seam turns the step. Rejects advantages that bypass `mix_advantages`."""
    changes = []
    for sign in (1.0, -1.0):
        backend = small_backend(learner={"target_kl": None, "epochs": 1, "minibatches": 1})
        backend.mix_advantages = lambda mean, risk, multiplier, sign=sign: sign * mean
        rollout = play(backend, random_world(steps=16, envs=8))
        before = snapshot(backend)["actor.head.weight"]
        assert backend.update(rollout, knobs(1e-3, entropy_weight=0.0)).committed
        changes.append(backend.model.state_dict()["actor.head.weight"] - before)
    cosine = torch.nn.functional.cosine_similarity(changes[0].reshape(1, -1), changes[1].reshape(1, -1))
    assert float(cosine) < -0.99


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_an_auxiliary_loss_can_ask_for_other_observations(core: str) -> None:
    """What an adversary needs: features of moved observations, from the same hidden states, and their gradient by the
    observations. Rejects a view whose rows are not those of the batch, or whose state was lost."""
    gaps, slopes = [], []

    def adversary(model: ActorCritic, view: View) -> Tensor:
        again = view.inputs.encode(model)
        gaps.append(float((again - view.features).detach().abs().max()))
        moved = view.inputs.obs.clone().requires_grad_()
        params = model.policy(view.inputs.encode(model, moved), view.batch.mask)
        (slope,) = torch.autograd.grad(params.square().sum(), moved)
        slopes.append(float(slope.abs().max()))
        assert params.shape == view.params.shape == (len(view.batch.action), params.shape[-1])
        return 0.0 * view.params.sum()

    backend = small_backend(model={"core": {"kind": core}, "actor": {"gain": 1.0}})
    backend.auxiliary = (("adversary", adversary),)
    assert backend.update(play(backend, random_world(steps=8, envs=4)), knobs()).committed
    assert max(gaps) == 0.0 and min(slopes) > 0.0

"""The two seams of the update: `mix_advantages` (risk) and `auxiliary` (further losses) really reach the parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from tailwise.learner.losses import Batch
from tailwise.model.actor_critic import ActorCritic
from tests.support import knobs, play, random_world, small_backend, snapshot


def pull_to_first_action(model: ActorCritic, features: Tensor, params: Tensor, batch: Batch) -> Tensor:
    """A loss that wants the first action, whatever the rewards say."""
    return -5.0 * torch.log_softmax(params, -1)[:, 0].mean()


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

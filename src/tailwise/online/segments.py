"""What a policy did, in order: segments of consecutive decisions that carry all that an update needs of their author.

A segment is a rollout (observations, actions, the log-probabilities they were drawn with, rewards, ends of episodes,
critic outputs) with the policy that made it and what was seen after its last step. The value that the last step is
bootstrapped with belongs to that later observation; a value of the last observation itself would make every segment
promise what it already had, and `check` refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from tailwise.core.errors import ShapeError
from tailwise.learner.backend import Backend, Knobs, UpdateReport
from tailwise.learner.losses import law_kl
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.collector import Collector

_TOLERANCE = 1e-4  # of a value, between kernels for many rows and for few


@dataclass(frozen=True)
class Segment:
    """Consecutive decisions of one policy.

    rollout   the decisions, T steps of B accounts
    version   update of the learner at which the policy that made them was frozen; 0: the deployed policy
    number    place in the order of segments
    next_obs, next_start, next_state   what follows the last step [B, D], [B], [B, S, H]
    """

    rollout: Rollout
    version: int
    number: int
    next_obs: Tensor
    next_start: Tensor
    next_state: Tensor

    def check(self, backend: Backend) -> None:
        """Refuse a bootstrap that is not the value of what follows; backend: of the policy that made the segment."""
        features = backend.encode(self.next_obs, self.next_state, self.next_start)
        expected, stored = backend.values(features).mean, self.rollout.critic.mean[-1]
        if not torch.allclose(expected, stored, atol=_TOLERANCE, rtol=_TOLERANCE):
            worst = float((expected - stored).abs().max())
            raise ShapeError(
                f"segment {self.number}: its bootstrap value is {worst:.3g} away from the value of what follows its "
                "last step; it belongs to another observation or another policy."
            )

    def follows(self, before: Segment) -> bool:
        """Whether this segment begins where `before` ended, with the same policy."""
        return bool(
            self.number == before.number + 1
            and self.version == before.version
            and torch.equal(self.rollout.state, before.next_state)
            and torch.equal(self.rollout.obs[0], before.next_obs)
            and torch.equal(self.rollout.start[0], before.next_start)
        )


def collect(collector: Collector, count: int, *, version: int = 0) -> Iterator[Segment]:
    """The next `count` segments of the collector's policy; accounts and hidden states go on from each to the next."""
    for number in range(count):
        rollout, _ = collector.collect(number)
        driver = collector.driver
        yield Segment(
            rollout,
            version,
            number,
            torch.from_numpy(driver.obs.copy()).to(rollout.reward.dtype),
            torch.from_numpy(driver.episode_start.copy()),
            collector.state.clone(),
        )


def check_order(segments: Sequence[Segment]) -> None:
    """Raise unless every segment begins where the one before ended."""
    for before, now in pairwise(segments):
        if not now.follows(before):
            raise ShapeError(
                f"segment {now.number} does not begin where segment {before.number} ended; hidden states and returns "
                "of running episodes would be wrong. Give the segments of one policy in their order."
            )


def learn_from(backend: Backend, segment: Segment, knobs: Knobs, *, update: int, staleness: int) -> UpdateReport | None:
    """Update on a segment with the code of training; None where its policy is more than `staleness` updates old.

    update: of the learner, which keys the random streams.
    """
    if update - segment.version > staleness:
        return None
    return backend.update(replace(segment.rollout, update=update), knobs)


@torch.no_grad()
def kl_from(segments: Sequence[Segment], model: ActorCritic) -> float:
    """Mean KL(policy of the segments || model) over their decisions, nats."""
    total, count = 0.0, 0
    for one in segments:
        rollout = one.rollout
        latent = model.latent(rollout.obs, rollout.state, rollout.start)
        kl = law_kl(model.law, rollout.params, model.policy(latent.features, rollout.mask))
        total += float(kl[rollout.valid].double().sum())
        count += int(rollout.valid.sum())
    return total / count

"""What is measured on a rollout: decisions, hidden units, rewards, and what environments say in their infos.

Only torch modules and stored data are read, so the numbers are the same for every backend.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tailwise.core.errors import EnvironmentContractError
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.distributions import CategoricalLaw

Array = npt.NDArray[Any]

PROBED_ROWS = 128
PROBED_STEPS = 16  # a recurrent core goes through them one by one
NOT_ALLOWED = float(np.finfo(np.float32).min)  # the logit of an action that the mask forbids
PEAK_UNITS_PER_MB = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kilobytes
DEAD_SPREAD = 1e-4  # standard deviation of a unit's output; tanh at its end, or a ReLU that is off

_ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.SiLU)
PARTS, BASE, EQUITY = "reward_parts", "base", "equity"


def rows_of(rollout: Rollout, part: Tensor) -> Array:
    """The real transitions [n, ...] of a part [T, B, ...] of a rollout; a view where all of them are real."""
    flat = _flat(part)
    return flat if rollout.all_valid else flat[rollout.valid.numpy().reshape(-1)]


def _flat(part: Tensor) -> Array:
    """Part [T, B, ...] as an array [T x B, ...]."""
    return part.numpy().reshape(-1, *part.shape[2:])


class Counts(NamedTuple):
    """What the real transitions of a rollout come to.

    - smallest, largest, mean: of the rewards; mean is not finite where a reward is not
    - logit_norm: mean distance of logits from their mean; None where actions are not categorical
    - top_share: share of the action that was taken most; None where there was no choice
    - largest_entropy: that decisions could have, components summed, nats; None where it is unbounded
    """

    smallest: float
    largest: float
    mean: float
    logit_norm: float | None = None
    top_share: float | None = None
    largest_entropy: float | None = None


class Counter:
    """Goes through rollouts of a model, each in one pass of compiled code."""

    def __init__(self, model: ActorCritic) -> None:
        from tailwise.core.loops import rollouts  # imports numba: on first use

        law = model.law
        self._entropy = law.max_entropy if isinstance(law, CategoricalLaw) else None
        self._sizes = np.array(law.sizes if isinstance(law, CategoricalLaw) else (), dtype=np.int64)
        self._scratch = np.empty(int(self._sizes.sum()), dtype=np.int64)
        self._found = np.empty(rollouts.FOUND)
        self._no_mask = np.empty((0, len(self._scratch)), dtype=np.bool_)
        self._no_action = np.empty((0, 0), dtype=np.int64)
        self._count = rollouts.count_rollout

    def warm_up(self) -> None:
        """Compile or load the pass, which takes milliseconds, before the first update; a rollout of nothing does."""
        components, choices = len(self._sizes), len(self._scratch)
        self._count(
            np.empty(0, dtype=np.bool_),
            np.empty(0, dtype=np.float32),
            np.empty((0, choices), dtype=np.float32),
            np.empty((0, components), dtype=np.int64),
            self._no_mask,
            self._sizes,
            PROBED_ROWS,
            NOT_ALLOWED,
            self._scratch,
            self._found,
        )

    def count(self, rollout: Rollout) -> Counts:
        """Look at a rollout."""
        categorical, mask = len(self._sizes) > 0, rollout.mask
        self._count(
            rollout.valid.numpy().reshape(-1),
            rollout.reward.numpy().reshape(-1),
            _flat(rollout.params),
            _flat(rollout.action) if categorical else self._no_action,
            _flat(mask) if categorical and mask is not None else self._no_mask,
            self._sizes,
            PROBED_ROWS,
            NOT_ALLOWED,
            self._scratch,
            self._found,
        )
        kept, smallest, largest, total, norm, share, entropy = self._found.tolist()
        if not categorical:
            return Counts(smallest, largest, total / kept)
        return Counts(
            smallest,
            largest,
            total / kept,
            norm,
            None if math.isnan(share) else share,
            self._entropy if mask is None else entropy,
        )


def _through(stack: nn.Module, x: Tensor, outputs: list[Tensor]) -> Tensor:
    """Output of a stack for x [..., I]; what its activations gave is added to `outputs`."""
    if not isinstance(stack, nn.Sequential):
        x = stack(x)
        outputs.append(x)
        return x
    for layer in stack:
        x = layer(x)
        if isinstance(layer, _ACTIVATIONS):
            outputs.append(x)
    return x


@dataclass(frozen=True)
class Hidden:
    """What hidden units answered to some observations: layers, each [T, B, units] or
    [T x B, units], and what actor and critics read."""

    layers: list[Tensor]
    features: Tensor


@torch.inference_mode()
def hidden_units(model: ActorCritic, rollout: Rollout) -> Hidden | None:
    """Of the first rows of a rollout; None when observations do not vary."""
    envs = min(PROBED_ROWS // PROBED_STEPS, rollout.envs)
    steps = min(rollout.steps, PROBED_ROWS // envs)
    obs = rollout.obs[:steps, :envs].reshape(steps * envs, -1)
    x = model.normaliser(torch.nan_to_num(obs, nan=0.0, posinf=0.0, neginf=0.0))
    if steps * envs < 2 or not np.ptp(x.numpy(), axis=0).any():
        return None
    outputs: list[Tensor] = []
    x = _through(model.encoder, x, outputs)
    if model.core is not None:
        x, _ = model.core(x.view(steps, envs, -1), rollout.state[:envs], rollout.start[:steps, :envs])
        outputs.append(x)
    _through(model.actor.body, x, outputs)
    for critic in model.critic_heads():
        _through(critic.body, x, outputs)
    return Hidden(outputs, x)


def dead_units(hidden: Hidden | None) -> float | None:
    """Share of hidden units whose output does not depend on the observation; None where there are none."""
    if hidden is None or not hidden.layers:
        return None
    dead = [_spread(part.numpy().reshape(-1, part.shape[-1])) < DEAD_SPREAD for part in hidden.layers]
    return sum(int(np.count_nonzero(part)) for part in dead) / sum(map(len, dead))


def _spread(values: Array) -> Array:
    """Standard deviation of each column of values [n, U]; torch takes several times as long for the columns."""
    centred = values - values.mean(0)
    return np.asarray(np.sqrt((centred * centred).sum(0) / (len(values) - 1)))


def decisions(model: ActorCritic, rollout: Rollout, counts: Counts) -> dict[str, float]:
    """How actions are spread, and the size of logits."""
    if counts.logit_norm is None:
        return _bounds(model, rows_of(rollout, rollout.action))
    metrics = {"policy/logit_norm": counts.logit_norm}
    if counts.top_share is not None:
        metrics["action/top_share"] = counts.top_share
    return metrics


def _bounds(model: ActorCritic, action: Array) -> dict[str, float]:
    spec = model.action
    if model.law.squashed or not (np.isfinite(spec.low).all() and np.isfinite(spec.high).all()):
        return {}
    action = spec.in_env_units(action)
    return {"action/at_bound": float(((action <= spec.low) | (action >= spec.high)).mean())}


def rewards(counts: Counts, earlier: float) -> dict[str, float]:
    """Size of rewards; nothing where one is not finite.

    earlier: the largest |reward| of earlier rollouts, 0 when there is none.
    """
    if not math.isfinite(counts.mean):
        return {}
    largest = max(abs(counts.smallest), abs(counts.largest))
    metrics = {"reward/mean": counts.mean, "reward/largest": largest}
    if earlier > 0:
        metrics["reward/jump"] = largest / earlier
    return metrics


def memory_mb() -> float:
    """The most memory that this process had so far, in MB.

    The peak and not the present: it grows with a leak just the same, and asking costs 1 us instead of 60 for a file of
    /proc, in updates of 20 ms.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / PEAK_UNITS_PER_MB


class StepFacts:
    """Sums over one rollout. An environment may give info["reward_parts"] = {"base": ..., "shaping name": ...} and
    info["equity"]; without them nothing is told."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}  # sum of |part|
        self.counts: dict[str, int] = {}
        self.equity_jump: float | None = None
        self.seconds = 0.0  # that looking took
        self._equity: npt.NDArray[np.float64] | None = None

    def absorb(self, infos: Mapping[str, Any], episode_start: npt.NDArray[np.bool_]) -> None:
        """Take in the infos of one vector step; episode_start [B]: rows whose account is a new one."""
        clock = time.perf_counter()
        self._absorb(infos, episode_start)
        self.seconds += time.perf_counter() - clock

    def _absorb(self, infos: Mapping[str, Any], episode_start: npt.NDArray[np.bool_]) -> None:
        parts = infos.get(PARTS)
        if isinstance(parts, Mapping):
            for name, values in parts.items():
                if not str(name).startswith("_"):
                    self._add(str(name), _numbers(values, f"info['{PARTS}']['{name}']"))
        equity = infos.get(EQUITY)
        if equity is None and isinstance(infos.get("parts"), Mapping):
            equity = infos["parts"].get(EQUITY)
        if equity is not None:
            self._compare_equity(_numbers(equity, f"info['{EQUITY}']"), episode_start)

    def _add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        finite = values[np.isfinite(values)]
        self.parts[name] = self.parts.get(name, 0.0) + float(np.abs(finite).sum())
        self.counts[name] = self.counts.get(name, 0) + finite.size

    def _compare_equity(self, equity: npt.NDArray[np.float64], episode_start: npt.NDArray[np.bool_]) -> None:
        before, self._equity = self._equity, equity
        if before is None or before.shape != equity.shape or equity.shape != episode_start.shape:
            return
        comparable = ~episode_start & (before > 0) & (equity > 0) & np.isfinite(equity) & np.isfinite(before)
        if comparable.any():
            jump = float(np.abs(np.log(equity[comparable] / before[comparable])).max())
            self.equity_jump = max(jump, self.equity_jump or 0.0)

    @classmethod
    def of_all(cls, groups: Sequence[StepFacts]) -> StepFacts:
        """What groups of environments told, side by side."""
        whole = cls()
        for one in groups:
            for name, total in one.parts.items():
                whole.parts[name] = whole.parts.get(name, 0.0) + total
                whole.counts[name] = whole.counts.get(name, 0) + one.counts[name]
            if one.equity_jump is not None:
                whole.equity_jump = max(one.equity_jump, whole.equity_jump or 0.0)
            whole.seconds += one.seconds
        return whole

    def metrics(self) -> dict[str, float]:
        """Means of the parts, how the largest shaping part compares with the base, and the largest jump of equity."""
        means = {name: self.parts[name] / count for name, count in self.counts.items() if count}
        metrics = {f"reward/part/{name}": value for name, value in means.items()}
        shaping = [value for name, value in means.items() if name != BASE]
        if shaping and means.get(BASE, 0.0) > 0:
            metrics["reward/shaping_share"] = max(shaping) / means[BASE]
        if self.equity_jump is not None:
            metrics["env/equity_jump"] = self.equity_jump
        return metrics


def _numbers(values: Any, name: str) -> npt.NDArray[np.float64]:
    """float64 [B] of what the environments gave under `name`; NaN where one gave None."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EnvironmentContractError(
            f"An environment gave {name} that is no number ({error}); give numbers, or leave it out."
        ) from error

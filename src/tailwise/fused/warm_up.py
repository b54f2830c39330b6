"""Compile everything the first update needs before training, and report it.

The first run on a machine takes as long for it as for a small training run, and times of the first update should be
those of an update.

numba caches machine code by kernel; the names of its files tell whether it is there, without loading any.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tailwise.core.compiled import cache_folder
from tailwise.core.streams import Streams
from tailwise.fused.layout import NO_CORE
from tailwise.learner.backend import Backend, Knobs
from tailwise.learner.decisions import Ahead
from tailwise.learner.optimisers import StepSize
from tailwise.learner.rollout import Rollout

Tell = Callable[[str], None]

# Those that take longest, in the order of their first use; with them come the rest.
KERNELS = ("inference.act", "adam.adam_step")
PARTICLE_KERNELS = ("targets.particle_targets",)
PLAIN_KERNELS = ("minibatch.learn_rows", "inference.sum_kl")
CORE_KERNELS = ("minibatch.learn_sequences", "inference.sum_kl_along")
LOADING = 0.5  # CPU-seconds that loading machine code may take; compiling takes several


def kernels_are_kept(*, core: int, particles: bool) -> bool:
    """Whether an earlier process has compiled the kernels that a run needs; particles: whether critics learn from
    them."""
    folder = cache_folder()
    if folder is None:
        return False
    needed = KERNELS + (PLAIN_KERNELS if core == NO_CORE else CORE_KERNELS) + (PARTICLE_KERNELS if particles else ())
    return all(any(folder.glob(f"fused_*/{name}-*.nbi")) for name in needed)


def compile_kernels(throwaway: Backend, tell: Tell, venv: Any = None) -> None:
    """Compile the kernels by using them once, in a rollout of two steps and its update by a learner that is then thrown
    away; and the code that steps through `venv` by itself, without a step."""
    tell("compiling the fused kernels, once per machine and version; it takes a fraction of a minute of one core ...")
    begun = time.process_time()
    ahead = None if venv is None else throwaway.ahead(venv)
    stages = 2 if ahead is None else 3

    def done(stage: int, what: str) -> None:
        tell(f"compiled {stage} of {stages}, {what}, after {time.process_time() - begun:.1f} CPU-seconds")

    if ahead is not None:
        ahead.compile(venv.num_envs)
        done(1, "the rollout of this market")
    rollout = two_decisions(throwaway)
    done(stages - 1, "decisions")
    throwaway.update(rollout, Knobs(StepSize(1e-4, 1.0, 1.0, 1.0), 0.01))
    done(stages, "updates")
    tell(f"compiled the fused kernels in {time.process_time() - begun:.1f} CPU-seconds; the next start will not")


def compile_ahead(ahead: Ahead, envs: int, tell: Tell) -> None:
    """Load the code that steps through `envs` environments by itself; report if it had to be compiled, which shows
    afterwards: the names of files do not say for which network."""
    begun = time.process_time()
    ahead.compile(envs)
    taken = time.process_time() - begun
    if taken > LOADING:
        tell(f"compiled the rollout of this market in {taken:.1f} CPU-seconds; the next start will not")


def two_decisions(backend: Backend) -> Rollout:
    """Act twice in two environments that show zeros and random rewards; what can be learnt from it."""
    model = backend.model
    steps, envs = 2, 2
    ids, state = np.arange(envs), model.initial_state(envs)
    decisions = backend.begin(0, ids, steps, state)
    obs, fresh = np.zeros((envs, model.observation.size), dtype=np.float32), np.zeros(envs, dtype=np.bool_)
    for t in range(steps):
        backend.decide(decisions, t, obs, fresh, None)
    decisions.features[steps] = backend.encode(torch.from_numpy(obs), decisions.state, torch.from_numpy(fresh))
    no = torch.zeros(steps, envs, dtype=torch.bool)
    reward = torch.from_numpy(Streams(0).normals("reward", update=0, environments=envs, steps=steps, draws=1))
    nowhere = torch.zeros(0, 2, dtype=torch.int64)
    return Rollout(
        obs=torch.zeros(steps, envs, model.observation.size),
        action=decisions.action,
        log_prob=decisions.log_prob,
        params=decisions.params,
        mask=None,
        reward=reward[..., 0].float(),
        terminated=no,
        truncated=no,
        valid=~no,
        start=no,
        state=state,
        critic=backend.record(decisions.features, decisions.features[0, :0], nowhere),
        environment=torch.from_numpy(ids),
        update=0,
    )

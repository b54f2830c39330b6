"""Whole stretches of a rollout in one call: the policy and a compiled market take turns without Python in between.

Covers markets with one asset whose steps say nothing but observation, reward and end, and whose actions are a choice of
positions or a Gaussian exposure; everything else is driven step by step. A stretch lasts until an episode ends: Python
then writes down what ended. Environments do not depend on one another, so workers share them, and results are the same
for any number of workers.
docs/decisions/0012-rollouts-that-run-ahead.md says what that gave, and why there is a loop for each market.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtri
from torch import Tensor

from tailwise.core.compiled import compiled_for, kernel
from tailwise.core.loops import BROKEN_ACTION, BROKEN_OBSERVATION, ENDED
from tailwise.core.loops.arrays import take_step
from tailwise.fused.inference import Inputs, Outputs, StepMemory, act
from tailwise.fused.layout import NO_CORE, Parameters
from tailwise.fused.rows import Standard
from tailwise.learner.decisions import Decisions, End, Shown, Stretch
from tailwise.market.action_kinds import multiply_by_base, read_exposures
from tailwise.market.engine import look_up, step_accounts
from tailwise.market.env import MarketEnv
from tailwise.market.simulator import MarketArrays
from tailwise.model.action_spec import ActionSpec

if TYPE_CHECKING:
    from tailwise.fused.backend import FusedBackend

# Not those of Python: numba would compile a kernel again for that very value.
_TRUE, _FALSE = np.bool_(True), np.bool_(False)
_NO_MASK = np.zeros((0, 0), dtype=np.bool_)


class Policy(NamedTuple):
    """What `act` computes with; log_std: as there; memory: of one worker; clean float32 [B, D]: for observations
    without their broken numbers; mask: of no rows; box float64 [4]: middle, half range, low and high of a Box action.
    """

    parameters: Parameters
    log_std: np.ndarray | None
    standard: Standard
    memory: StepMemory
    clean: np.ndarray
    mask: np.ndarray
    box: np.ndarray


class Decided(NamedTuple):
    """What `act` draws with, and where it writes: noise [T, B, 1], [T, 0, 0] for the most likely action; choice [T, B]
    of Discrete, else [T, 0]; action [T, B, 1] of Box, else [T, 0, 0]; log_prob [T, B], params [T, B, K], features
    [T+1, B, H], state [B, S, H]."""

    noise: np.ndarray
    choice: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray
    params: np.ndarray
    features: np.ndarray
    state: np.ndarray


@kernel(inline=True)
def decide(
    policy: Policy, decided: Decided, state: np.ndarray | None, shown: Shown, t: int, first: int, end: int, finite: bool
) -> None:
    """`act` at step t in the environments `first` to `end`; state: theirs, None without a core."""
    mine = slice(first, end)
    obs = shown.obs[t, mine]
    if not finite:  # a broken entry counts as 0; the rollout keeps it, and the learner refuses it
        clean = policy.clean[mine]
        for i in range(obs.shape[0]):
            for j in range(obs.shape[1]):
                clean[i, j] = obs[i, j] if np.isfinite(obs[i, j]) else np.float32(0.0)
        obs = clean
    inputs = Inputs(obs, shown.start[t, mine], policy.mask, decided.noise[t, mine])
    outputs = Outputs(
        decided.choice[t, mine],
        decided.action[t, mine],
        decided.log_prob[t, mine],
        decided.params[t, mine],
        decided.features[t, mine],
        decided.state[mine],
    )
    act(policy.parameters, policy.log_std, policy.standard, inputs, state, policy.memory, outputs)


@kernel(inline=True)
def write_step(
    shown: Shown,
    t: int,
    mine: slice,
    obs: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
) -> int:
    """`take_step` for step t of some environments, whose episodes begin again in the step that ends them."""
    start = shown.last_start if t + 1 == shown.reward.shape[0] else shown.start[t + 1]
    return take_step(  # type: ignore[no-any-return]
        reward,
        terminated,
        truncated,
        obs,
        _FALSE,
        shown.pending[mine],
        shown.returns[mine],
        shown.lengths[mine],
        shown.reward[t, mine],
        shown.terminated[t, mine],
        shown.truncated[t, mine],
        shown.valid[t, mine],
        start[mine],
    )


@kernel(inline=True)
def name_exposures(actions: np.ndarray, box: np.ndarray, market: MarketArrays, first: int, end: int) -> int:
    """Targets of the accounts `first` to `end` from raw actions float32 [n, 1], as by `ActionSpec.to_env`: the first
    of them whose action is NaN, or -1."""
    targets = market.targets[first:end]
    for i in range(actions.shape[0]):
        value = np.minimum(np.maximum(box[0] + box[1] * np.float64(actions[i, 0]), box[2]), box[3])
        targets[i] = np.float64(np.float32(value))  # what the environment is given
    return read_exposures(  # type: ignore[no-any-return]
        targets,
        market.low,
        market.high,
        market.accounts[first:end],
        market.base,
        market.bars,
        market.rules,
        market.narrowed,
        targets,
    )


@kernel(inline=True)
def step_market(shown: Shown, market: MarketArrays, t: int, first: int, end: int) -> int:
    """Step t of the accounts `first` to `end` towards their targets: its events."""
    mine, last = slice(first, end), t + 1 == shown.reward.shape[0]
    obs = (shown.last_obs if last else shown.obs[t + 1])[mine]
    accounts, unit, reward = market.accounts[mine], market.unit[mine], market.reward[mine]
    terminated, truncated = market.terminated[mine], market.truncated[mine]
    for i in range(accounts.shape[0]):
        unit[i] = market.units[accounts[i].symbol]  # before the next episode
    step_accounts(
        accounts,
        market.pending[mine],
        market.targets[mine],
        market.bars,
        market.features,
        market.rules,
        None,
        _TRUE,
        None,
        market.last_rows,
        market.start_rows[mine],
        market.start_symbols[mine],
        _TRUE,
        obs,
        market.final[mine],
        reward,
        terminated,
        truncated,
        market.ledgers,
    )
    for i in range(accounts.shape[0]):
        reward[i] /= unit[i]
    return write_step(shown, t, mine, obs, reward, terminated, truncated)  # type: ignore[no-any-return]


@kernel
def market_ahead(
    policy: Policy,
    decided: Decided,
    state: np.ndarray | None,
    shown: Shown,
    market: MarketArrays,
    t: int,
    first: int,
    end: int,
    finite: bool,
) -> tuple[int, int, int]:
    """Steps from t on of the environments `first` to `end`, to the first end of an episode: (the step after, its
    events (`core.loops`), those of all steps together). state: of these environments, None without a core."""
    steps, mine = shown.reward.shape[0], slice(first, end)
    events, together = 0 if finite else BROKEN_OBSERVATION, 0
    while t < steps:
        decide(policy, decided, state, shown, t, first, end, events & BROKEN_OBSERVATION == 0)
        targets = market.targets[mine]
        look_up(market.positions, decided.choice[t, mine], targets)  # `act` chooses one of them, also where p is NaN
        if market.base.shape[0] > 0:
            multiply_by_base(targets, market.accounts[mine], market.base)
        events = step_market(shown, market, t, first, end)
        together |= events
        t += 1
        if events & ENDED:
            break
    return t, events, together


@kernel
def exposure_ahead(
    policy: Policy,
    decided: Decided,
    state: np.ndarray | None,
    shown: Shown,
    market: MarketArrays,
    t: int,
    first: int,
    end: int,
    finite: bool,
) -> tuple[int, int, int]:
    """`market_ahead` where actions name exposures. It also stops before a step with an action that is NaN."""
    steps = shown.reward.shape[0]
    events, together = 0 if finite else BROKEN_OBSERVATION, 0
    while t < steps:
        decide(policy, decided, state, shown, t, first, end, events & BROKEN_OBSERVATION == 0)
        if name_exposures(decided.action[t, first:end], policy.box, market, first, end) >= 0:
            return t, BROKEN_ACTION, together | BROKEN_ACTION
        events = step_market(shown, market, t, first, end)
        together |= events
        t += 1
        if events & ENDED:
            break
    return t, events, together


class Loop(NamedTuple):
    """The compiled loop of one kind of market.

    code     a kernel with the arguments of `market_ahead`, in which `market` is what `arrays` returns
    arrays   the market as it stands, with scratch memory of one worker; has `final` [B, D], the last observations
    ended    called with the rows [n] whose episodes ended and began again
    """

    code: Any
    arrays: Callable[[], Any]
    ended: Callable[[np.ndarray], None]


class FusedAhead:
    """See `Ahead`."""

    def __init__(self, backend: FusedBackend, loop: Loop) -> None:
        self._backend, self._loop = backend, loop
        self._compiled: Callable[..., tuple[int, int, int]] | None = None

    def same_as(self, other: FusedAhead) -> bool:
        """Whether the other one runs through the same market."""
        return self._loop.arrays == other._loop.arrays

    def compile(self, envs: int) -> None:
        """Have the code compiled for these environments, without a step."""
        backend = self._backend
        decisions = backend.begin(0, np.arange(envs), 1, backend.model.initial_state(envs))
        obs, flags = np.zeros((1, envs, backend.model.observation.size), np.float32), np.zeros((1, envs), np.bool_)
        shown = Shown(
            obs=obs,
            start=flags,
            reward=np.zeros((1, envs)),
            terminated=flags,
            truncated=flags,
            valid=flags,
            last_obs=obs[0],
            last_start=flags[0],
            pending=flags[0],
            returns=np.zeros(envs),
            lengths=np.zeros(envs, dtype=np.int64),
        )
        memory = backend.workers.step_memories(envs)[0]
        self._find((*self._arguments(decisions, shown, memory), 0, 0, envs, True))

    def begin(self, noise: np.ndarray, state: Tensor) -> Decisions:
        """See `Ahead.begin`."""
        backend = self._backend
        backend.lay_out(backend.bound.laid.to_act)
        return Decisions(backend.model, noise if backend.model.law.discrete else ndtri(noise), state)

    def run(self, decisions: Decisions, shown: Shown, *, finite: bool) -> Stretch:
        """See `Ahead.run`."""
        envs, workers = shown.reward.shape[1], self._backend.workers
        memories = workers.step_memories(envs)
        ends: list[list[End]] = [[] for _ in memories]
        broken_actions: list[tuple[int, int]] = []
        events, last = [0] * len(memories), [0] * len(memories)
        arguments = [self._arguments(decisions, shown, memory) for memory in memories]
        code = self._find((*arguments[0], 0, 0, envs, finite))

        def work(part: np.ndarray, k: int) -> None:
            first, end, t, sound = int(part[0]), int(part[-1]) + 1, 0, finite
            policy, decided, state, _, market = arguments[k]
            mine = None if state is None else state[first:end]
            while t < len(shown.reward):
                t, last[k], together = code(policy, decided, mine, shown, market, t, first, end, sound)
                events[k] |= together
                if last[k] & BROKEN_ACTION:
                    row = int(np.argmax(np.isnan(decisions.actions[t, first:end, 0])))
                    broken_actions.append((t, first + row))
                    break
                sound = not last[k] & BROKEN_OBSERVATION
                if last[k] & ENDED:
                    ends[k].append(self._end(t - 1, first, end, decisions, shown, market.final))

        workers.run(np.arange(envs), work)
        in_order = sorted((end for some in ends for end in some), key=lambda end: (end.step, int(end.rows[0])))
        broken = int(np.bitwise_or.reduce(last)) & BROKEN_OBSERVATION
        first_broken = min(broken_actions, default=None)
        return Stretch(in_order, int(np.bitwise_or.reduce(events)), not broken, first_broken)

    def _arguments(self, decisions: Decisions, shown: Shown, memory: StepMemory) -> tuple[Any, ...]:
        """Of the code, but for the numbers at the end; the state is that of all environments."""
        backend = self._backend
        clean, d = np.empty_like(shown.last_obs), decisions
        steps, envs, _ = d.actions.shape
        if backend.log_std is None:
            box, choice, action = np.zeros(4), d.actions.reshape(steps, envs), np.empty((steps, 0, 0), np.float32)
        else:
            box, choice, action = _box(backend.model.action), np.empty((steps, 0), np.int64), d.actions
        policy = Policy(backend.parameters, backend.log_std, backend.standard(), memory, clean, _NO_MASK, box)
        decided = Decided(d.noise, choice, action, d.log_probs, d.parameters, d.looks, d.states)
        state = None if backend.bound.network.core == NO_CORE else decisions.states
        return policy, decided, state, shown, self._loop.arrays()

    def _end(self, t: int, first: int, end: int, decisions: Decisions, shown: Shown, final: np.ndarray) -> End:
        """Return the episodes of environments `first` to `end` that ended in step t, and begin new ones."""
        terminated = shown.terminated[t]
        rows = (terminated[first:end] | shown.truncated[t, first:end]).nonzero()[0] + first
        cut = rows[~terminated[rows]]
        ended = End(t, rows, shown.returns[rows], shown.lengths[rows], cut, final[cut], decisions.states[cut])
        shown.returns[rows] = 0.0
        shown.lengths[rows] = 0
        self._loop.ended(rows)
        return ended

    def _find(self, arguments: tuple[Any, ...]) -> Callable[..., tuple[int, int, int]]:
        """The machine code; the types of the arguments are the same in all rollouts."""
        if self._compiled is None:
            self._compiled = compiled_for(self._loop.code, arguments)
        return self._compiled


def _box(action: ActionSpec) -> np.ndarray:
    """`Policy.box` of a Box with one component."""
    return np.concatenate([*action.units, action.low, action.high])


def ahead_of(backend: FusedBackend, venv: Any) -> FusedAhead | None:
    """For exactly the markets whose steps are compiled; None for everything else, also for what inherits or replaces
    their steps.

    Ours is `MarketEnv`; a vector environment of somebody else offers its own by a method `ahead_loop() -> Loop`.
    """
    law = backend.model.law
    if law.squashed or "step" in vars(venv):  # numpy's tanh is not the one of compiled code
        return None
    if type(venv) is MarketEnv and venv.simulator.reports_only_reward:
        simulator = venv.simulator
        code = market_ahead if law.discrete else exposure_ahead
        return FusedAhead(backend, Loop(code, simulator.arrays, simulator.prepare_starts))
    if not law.discrete:
        return None
    offered = vars(type(venv)).get("ahead_loop")  # of this very class: one that inherits it may step differently
    return None if offered is None else FusedAhead(backend, offered(venv))

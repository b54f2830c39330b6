"""What a policy loses when somebody moves what it observes: attacks over a sweep of budgets, and what is certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tailwise.core.atomic import write_json
from tailwise.core.config import parse
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.evaluate.attack_bounds import bound_of, why_not_certified
from tailwise.evaluate.attack_learned import train_adversary
from tailwise.evaluate.attack_moves import Attack, AttackedPlayer, Moment, Moved, RandomAttack, searches
from tailwise.evaluate.opened_run import first_free, open_run
from tailwise.evaluate.statistics import path_statistics
from tailwise.learner.adversary import Budgets, Entries, raw_budgets, std_budgets
from tailwise.learner.config import StdBudget
from tailwise.model.action_spec import ActionSpec
from tailwise.run.agent import Policy
from tailwise.run.play import Player
from tailwise.run.worlds import World, play_world, trade_window

ATTACKS = ("random", "critic", "mad", "pgd", "learned")
BUDGETS = {"std": (0.02, 0.05, 0.1, 0.2), "bps": (1.0, 2.0, 5.0, 10.0)}
Unit = Literal["std", "bps"]
PathUnit = Literal["volatility"]
PATH_UNIT: PathUnit = "volatility"


@dataclass(frozen=True)
class AttackPlan:
    """What is tried.

    budgets     largest moves of an entry; None: four of them, by the unit
    unit        std: standard deviations of the policy's normaliser; bps: basis points of the prices of a market
    entries     other budgets by name of an entry, as shares of the budget (unit std); * and ? stand for any characters
    attacks     names of ATTACKS
    steps       of the searches by gradients
    adversary_steps   environment steps that the learned adversary trains for, per budget
    episodes    None: evaluate.episodes; a market's test window is played whole, once
    seed        of episodes, noise and the adversary; None: the run's
    """

    budgets: Sequence[float] | None = None
    unit: Unit = "std"
    entries: Mapping[str, float] | None = None
    attacks: Sequence[str] = ATTACKS
    steps: int = 10
    adversary_steps: int = 50_000
    episodes: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.attacks if name not in ATTACKS]
        if unknown:
            raise ConfigError(f"the attack '{unknown[0]}' is not known; choose from {', '.join(ATTACKS)}")
        if self.unit not in BUDGETS:
            raise ConfigError(f"the unit of the budgets is '{self.unit}'; choose std or bps")
        wrong = [budget for budget in self.sizes if not 0 < budget <= 1000]
        if wrong:
            raise ConfigError(f"the budget {wrong[0]:g} of an attack is not above 0 and at most 1000")
        if self.entries and self.unit != "std":
            raise ConfigError("entries are shares of a budget in standard deviations; leave them out with unit bps")
        if self.steps < 1 or self.adversary_steps < 1:
            raise ConfigError(
                f"steps is {self.steps} and adversary_steps {self.adversary_steps}; both must be at least 1"
            )

    @property
    def sizes(self) -> tuple[float, ...]:
        """The budgets, smallest first."""
        return tuple(sorted(BUDGETS[self.unit] if self.budgets is None else self.budgets))


@dataclass(frozen=True)
class Outcome:
    """One attack with one budget, or nothing at all ("none", 0).

    mean_return, standard_error, returns   of the episodes, sums of rewards; of a market log-returns of its test window
    tail       of a market, mean over its accounts: CVaR of discounted log-returns as its risk section has it
    lost       share of what the policy had over random actions; None where it had nothing
    changed    discrete actions: share of the decisions that the attack turned; Box: mean change of the action, in the
               units of the environment (of a market: exposure or weight)
    largest_move   of an entry, in standard deviations, or of a bar, in its volatility; excess: beyond the budget
    market     of shifted paths: log-return of the bars themselves over the window, mean over symbols
    """

    attack: str
    budget: float
    mean_return: float
    standard_error: float | None
    returns: tuple[float, ...]
    tail: float | None
    lost: float | None
    changed: float
    largest_move: float
    excess: float
    market: float | None = None


@dataclass(frozen=True)
class Certificate:
    """What interval bounds say about single decisions of play without attack.

    held     discrete actions: share of the decisions that no move within the budget turns
    largest  Box: mean over decisions of the largest change of the action that is possible at all
    """

    budget: float
    held: float | None
    largest: float | None


@dataclass(frozen=True)
class AttackResult:
    """A frozen policy under attack. clean: without; random_actions: mean return of actions by chance.

    entries   of the observations that move; of shifted paths the symbols
    """

    run_dir: str
    checkpoint: str
    environment: str
    unit: Unit | PathUnit
    entries: tuple[str, ...]
    deterministic: bool
    seed: int
    discrete: bool
    random_actions: float
    clean: Outcome
    outcomes: tuple[Outcome, ...]
    certificates: tuple[Certificate, ...]
    not_certified: str | None
    notes: tuple[str, ...] = ()
    file: Path | None = None
    page: Path | None = None

    @property
    def budgets(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(one.budget for one in self.outcomes))

    def strongest(self, budget: float) -> Outcome:
        """The attack under which the mean return is lowest."""
        return min((one for one in self.outcomes if one.budget == budget), key=lambda one: one.mean_return)

    def to_json(self) -> dict[str, Any]:
        parts = asdict(self)
        return {**parts, "file": _text(self.file), "page": _text(self.page)}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def attack_run(
    run: str | Path, plan: AttackPlan | None = None, *, checkpoint: str | None = None, trust: bool = False
) -> AttackResult:
    """Attack the policy of a run and keep the result as RUN/evaluations/attack-<n>.json."""
    opened = open_run(run, checkpoint, trust=trust)
    result = attack_policy(opened.single("attacked"), plan or AttackPlan())
    file = first_free(opened.run, "attack", ".json")
    result = replace(result, run_dir=str(opened.run), checkpoint=opened.name, notes=opened.notes, file=file)
    write_json(file, result.to_json())
    return result


def attack_policy(policy: Policy, plan: AttackPlan) -> AttackResult:
    """Attack a policy in the environment that it was trained for, on the episodes of the test."""
    model, world = policy.model, policy.world()
    seed = policy.config.seed if plan.seed is None else plan.seed
    judge = _Judge(policy, world, plan, seed)
    driver = world.eval_env("test", episodes=1, seed=seed)
    try:
        entries = world.entries(driver)
        action = driver.spaces.action
    finally:
        driver.close()
    budgets = [_budgets(plan, size, entries, world).in_std(model.normaliser) for size in plan.sizes]
    chance = judge.play(chance_player(action, seed)).mean_return
    plain = judge.player(None, torch.zeros(len(entries.names)))
    clean = judge.play(plain)
    outcomes, certificates, reason = [], [], why_not_certified(model)
    for size, budget in zip(plan.sizes, budgets, strict=True):
        for attack in _attacks(plan, policy, world, budget, seed=seed, deterministic=policy.deterministic):
            player = judge.player(attack, budget)
            outcome = judge.play(player, attack.name, size)
            outcomes.append(_with_moves(outcome, player.moved, clean=clean.mean_return, chance=chance))
        if reason is None:
            certificates.append(_certificate(policy, plain.seen, budget, size))
    return AttackResult(
        run_dir="",
        checkpoint="",
        environment=world.name,
        unit=plan.unit,
        entries=tuple(name for name, size in zip(entries.names, budgets[-1].tolist(), strict=True) if size > 0),
        deterministic=policy.deterministic,
        seed=seed,
        discrete=model.law.discrete,
        random_actions=chance,
        clean=clean,
        outcomes=tuple(outcomes),
        certificates=tuple(certificates),
        not_certified=reason,
    )


def _budgets(plan: AttackPlan, size: float, entries: Entries, world: World) -> Budgets:
    if plan.unit == "bps":
        return raw_budgets(world.moves_of_prices(size))
    shares = {name: size * share for name, share in (plan.entries or {}).items()}
    return std_budgets(parse(StdBudget, {"size": size, "entries": shares}, source="attack"), entries)


def _attacks(
    plan: AttackPlan, policy: Policy, world: World, budget: torch.Tensor, *, seed: int, deterministic: bool
) -> list[Attack]:
    known: dict[str, Attack] = {"random": RandomAttack(), **{one.name: one for one in searches(plan.steps)}}
    if "learned" in plan.attacks:
        steps = plan.adversary_steps
        known["learned"] = train_adversary(policy, world, budget, steps=steps, seed=seed, deterministic=deterministic)
    return [known[name] for name in dict.fromkeys(plan.attacks)]


@dataclass(frozen=True)
class _Judge:
    """Plays the test of a policy's world."""

    policy: Policy
    world: World
    plan: AttackPlan
    seed: int

    def player(self, attack: Attack | None, budget: torch.Tensor) -> AttackedPlayer:
        deterministic = self.policy.deterministic
        return AttackedPlayer(self.policy.model, attack, budget, deterministic=deterministic, seed=self.seed)

    def play(self, player: Player, name: str = "none", budget: float = 0.0) -> Outcome:
        config = self.policy.config
        tail = None
        if config.env.judged_whole:
            paths = trade_window(player, self.world.market(), "test", seed=self.seed)
            returns = np.array([float(np.log(path.wealth[-1])) for path in paths])
            alpha = 0.05 if config.tail_alpha is None else config.tail_alpha
            tails = [path_statistics(path, alpha=alpha, gamma=config.learner.gamma).cvar_return for path in paths]
            known = [value for value in tails if value is not None]
            tail = float(np.mean(known)) if known else None
        else:
            episodes = config.evaluate.episodes if self.plan.episodes is None else self.plan.episodes
            returns = play_world(player, self.world, episodes=episodes, seed=self.seed).returns
        count = len(returns)
        error = float(returns.std(ddof=1) / np.sqrt(count)) if count > 1 else None
        values = tuple(returns.tolist())
        return Outcome(name, budget, float(returns.mean()), error, values, tail, None, 0.0, 0.0, 0.0)


def _with_moves(outcome: Outcome, moved: Moved, *, clean: float, chance: float) -> Outcome:
    lost = (clean - outcome.mean_return) / (clean - chance) if clean > chance else None
    return replace(
        outcome, lost=lost, changed=moved.mean_change, largest_move=moved.largest, excess=max(moved.excess, 0.0)
    )


def _certificate(policy: Policy, seen: Sequence[Moment], budget: torch.Tensor, size: float) -> Certificate:
    """Interval bounds of the decisions that were taken without attack, with the box of a budget around each."""
    bounds = [bound_of(policy.model, replace(one, box=replace(one.box, budget=budget))) for one in seen]
    mean = float(np.concatenate(bounds).mean())
    return Certificate(size, 1.0 - mean, None) if policy.model.law.discrete else Certificate(size, None, mean)


def chance_player(action: ActionSpec, seed: int) -> Player:
    """Plays actions by chance."""
    return _ChancePlayer(action, seed)


class _ChancePlayer:
    """Actions by chance: any allowed choice, any place within the bounds (within one of the middle without bounds)."""

    def __init__(self, action: ActionSpec, seed: int) -> None:
        self.action, self.streams = action, Streams(seed)

    def begin(self, rows: int) -> None:
        """Nothing to begin."""

    def act(self, obs: Any, episode_start: Any, mask: Any, step: int) -> Any:
        action = self.action
        draws = self.streams.uniforms(
            "attack/chance", update=0, environments=len(obs), steps=1, draws=action.components, first_step=step
        )[0]
        if action.kind == "box":
            return action.to_env((2.0 * draws - 1.0).astype(np.float32), squashed=False)
        chosen, first = [], 0
        for component, choices in enumerate(action.sizes):
            allowed = np.ones((len(obs), choices)) if mask is None else mask[:, first : first + choices].astype(float)
            levels = np.cumsum(allowed, axis=1) / allowed.sum(axis=1, keepdims=True)
            chosen.append((levels <= draws[:, component : component + 1]).sum(axis=1))
            first += choices
        return action.to_env(np.stack(chosen, axis=1), squashed=False)

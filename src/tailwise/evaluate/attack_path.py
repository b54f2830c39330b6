"""What a policy loses on other paths of its test bars, within a budget: random ones, and the worst that was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tailwise.core.atomic import write_json
from tailwise.core.errors import ConfigError
from tailwise.evaluate.attack import PATH_UNIT, AttackResult, Outcome, chance_player
from tailwise.evaluate.opened_run import first_free, open_run
from tailwise.evaluate.statistics import path_statistics
from tailwise.market.path import AccountPath
from tailwise.market.shifts import ShiftBudget
from tailwise.run.agent import Policy
from tailwise.run.path_worlds import PathSearch, ShiftedPath, refuse_portfolio, shifted_world
from tailwise.run.play import ModelPlayer, Player
from tailwise.run.worlds import MarketWorld, trade_window

PATH_ATTACKS = ("random path", "worst path")
PATH_BUDGETS = (0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True)
class PathPlan:
    """What is tried.

    budgets  largest mean |shift| of the bars of the test window, in units of the volatility of each
    largest  largest |shift| of a single bar, as a multiple of the budget
    steps    of the search, each with a playback of the window
    draws    random paths that use up the same budget; the worst of them counts
    seed     of the random paths and of sampled actions; None: the run's
    """

    budgets: Sequence[float] | None = None
    largest: float = 4.0
    steps: int = 10
    draws: int = 10
    seed: int | None = None

    def __post_init__(self) -> None:
        wrong = [budget for budget in self.sizes if not 0 < budget <= 1]
        if wrong:
            raise ConfigError(
                f"the budget {wrong[0]:g} of a path is not above 0 and at most 1; it is the mean |shift| of a bar, in "
                "units of its volatility"
            )
        if not 1 <= self.largest <= 100:
            raise ConfigError(f"largest is {self.largest:g}, a multiple of the budget; it must be from 1 to 100")
        if self.steps < 1 or self.draws < 1:
            raise ConfigError(f"steps is {self.steps} and draws {self.draws}; both must be at least 1")

    @property
    def sizes(self) -> tuple[float, ...]:
        """The budgets, smallest first."""
        return tuple(sorted(PATH_BUDGETS if self.budgets is None else self.budgets))


def attack_path_run(
    run: str | Path, plan: PathPlan | None = None, *, checkpoint: str | None = None, trust: bool = False
) -> AttackResult:
    """Attack the path of a run's test bars and keep the result as RUN/evaluations/attack-<n>.json."""
    opened = open_run(run, checkpoint, trust=trust)
    result = attack_path(opened.single("attacked"), plan or PathPlan())
    file = first_free(opened.run, "attack", ".json")
    result = replace(result, run_dir=str(opened.run), checkpoint=opened.name, notes=opened.notes, file=file)
    write_json(file, result.to_json())
    return result


def attack_path(policy: Policy, plan: PathPlan) -> AttackResult:
    """Attack the path of the test bars that a policy trades, whole and with all costs."""
    if policy.config.env.kind != "market":
        raise ConfigError(
            f"{policy.world().name} is not a market, so there is no path of bars to shift; use the kind observations"
        )
    world = policy.world().market()
    refuse_portfolio(world)
    seed = policy.config.seed if plan.seed is None else plan.seed

    def player() -> ModelPlayer:
        return ModelPlayer(policy.model, deterministic=policy.deterministic, seed=seed)

    judge = _Judge(policy, world, seed)
    chance = judge.play(chance_player(policy.model.action, seed), world).mean_return
    plain = judge.trade(player(), world)
    clean = judge.outcome(plain, world)
    outcomes = []
    for size in plan.sizes:
        search = PathSearch(world, "test", player, ShiftBudget(size, size * plan.largest), seed=seed)
        drawn = [path for path, _ in search.play_all([search.random(draw) for draw in range(plan.draws)])]
        _, worst = search.worst(steps=plan.steps)
        for name, path in zip(PATH_ATTACKS, (_worst_of(drawn), worst), strict=True):
            other = shifted_world(world, "test", path.shifts)
            lived = judge.trade(player(), other)
            largest = max(float(np.abs(own).max()) for own in path.shifts)
            excess = max(search.budget.excess(own) for own in path.shifts)
            outcome = judge.outcome(lived, other)
            outcomes.append(
                replace(
                    outcome,
                    attack=name,
                    budget=size,
                    lost=_lost(outcome.mean_return, clean.mean_return, chance),
                    changed=_changed(plain, lived),
                    largest_move=largest,
                    excess=max(excess, 0.0),
                )
            )
    return AttackResult(
        run_dir="",
        checkpoint="",
        environment=world.name,
        unit=PATH_UNIT,
        entries=tuple(bars.symbol for bars in world.dataset.bars),
        deterministic=policy.deterministic,
        seed=seed,
        discrete=False,
        random_actions=chance,
        clean=clean,
        outcomes=tuple(outcomes),
        certificates=(),
        not_certified="interval bounds hold for single observations, and a shifted path moves all of them",
    )


@dataclass(frozen=True)
class _Judge:
    """Plays the test window of a market."""

    policy: Policy
    world: MarketWorld
    seed: int

    def trade(self, player: Player, world: MarketWorld) -> list[AccountPath]:
        return trade_window(player, world, "test", seed=self.seed)

    def play(self, player: Player, world: MarketWorld) -> Outcome:
        return self.outcome(self.trade(player, world), world)

    def outcome(self, paths: Sequence[AccountPath], world: MarketWorld) -> Outcome:
        """Mean over the accounts; market: of the log-returns of the bars themselves."""
        config = self.policy.config
        alpha = 0.05 if config.tail_alpha is None else config.tail_alpha
        returns = np.array([float(np.log(path.wealth[-1])) for path in paths])
        tails = [path_statistics(path, alpha=alpha, gamma=config.learner.gamma).cvar_return for path in paths]
        known = [value for value in tails if value is not None]
        tail = float(np.mean(known)) if known else None
        moved = [
            float(np.log(bars.close[window.end - 1] / bars.close[max(window.first - 1, 0)]))
            for bars, window in zip(world.dataset.bars, world.dataset.window("test"), strict=True)
        ]
        count = len(returns)
        error = float(returns.std(ddof=1) / np.sqrt(count)) if count > 1 else None
        values = tuple(returns.tolist())
        return Outcome(
            "none", 0.0, float(returns.mean()), error, values, tail, None, 0.0, 0.0, 0.0, float(np.mean(moved))
        )


def _lost(mean: float, clean: float, chance: float) -> float | None:
    return (clean - mean) / (clean - chance) if clean > chance else None


def _worst_of(paths: Sequence[ShiftedPath]) -> ShiftedPath:
    """The worst path of each symbol."""
    returns = np.array([path.log_return for path in paths])
    chosen = returns.argmin(axis=0)
    shifts = tuple(paths[draw].shifts[symbol] for symbol, draw in enumerate(chosen.tolist()))
    return ShiftedPath(shifts, returns.min(axis=0))


def _changed(before: Sequence[AccountPath], after: Sequence[AccountPath]) -> float:
    """Mean |difference| of the target exposures, over the bars that both accounts lived through."""
    moves = []
    for one, other in zip(before, after, strict=True):
        both = min(len(one), len(other))
        moves.append(np.abs(one.target[:both] - other.target[:both]).reshape(-1))
    return float(np.concatenate(moves).mean())

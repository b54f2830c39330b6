"""A trained policy on bars that it never saw, beside rules that anybody could have followed; whether it kept its limit.

The limit is judged by the measure of realised returns over the horizon that the run was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from tailwise.bars.bars import Bars
from tailwise.core.numerics import tail_horizon
from tailwise.evaluate.backtest import (
    backtest_portfolio,
    equal_weights,
    min_cvar_weights,
    play_rule,
)
from tailwise.evaluate.draws import RANDOM_POSITIONS, SAMPLED_ACTIONS, Draws, median_draw, random_draws, sampled_wealth
from tailwise.evaluate.statistics import Floats, PathStatistics, empirical_cvar, forward_returns, path_statistics
from tailwise.evaluate.words import BASE_RULE, RANDOM, held, small_percent
from tailwise.learner.risk import utility_at
from tailwise.learner.risk_config import CvarMeasure, Measure, RiskConstraint, WangMeasure
from tailwise.market.base import buy_and_hold, flat, momentum, volatility_target
from tailwise.market.costs import CostConfig
from tailwise.market.dataset import scaled_exposures
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath
from tailwise.run.config import Config
from tailwise.run.limits import limit_of, scales_of
from tailwise.run.policy import Trader
from tailwise.run.risk_words import share
from tailwise.run.worlds import MarketWorld

POLICY = "policy"
SAMPLED, MOST_LIKELY = "policy, sampled", "policy, most likely"  # the same policy, played the other way
_THE_OTHER_WAY = {
    SAMPLED: "with sampled actions, which are what the limit steers in training,",
    MOST_LIKELY: "with the most likely action in place of sampled ones",
}
ALWAYS_IN = ("buy and hold", "equal weights")  # the rule beside which a limit is judged, of one asset or several
BASELINES: Mapping[str, Callable[[Bars], npt.NDArray[np.float64]]] = {
    "buy and hold": buy_and_hold,
    "flat": flat,
    "volatility target 10%": volatility_target,
    "momentum": momentum,
}
SMALLEST_CVAR = "smallest CVaR"
MOST_RETURNS = 1000  # that the weights of the smallest CVaR look back over
DEFAULT_ALPHA = 0.05  # of the tails that are printed when the run itself does not report one


@dataclass(frozen=True)
class LimitVerdict:
    """Realised against allowed, both log-returns. Neighbouring returns overlap: `horizons` tells how many do not."""

    measure: str  # kind: cvar, wang or mean
    statistic: str  # what of the returns is compared, in words
    limit: float
    alpha: float
    gamma: float
    horizon: int  # bars
    realised: float | None  # None: the window is shorter than the horizon
    returns: int  # discounted forward returns that were realised
    horizons: int  # that fit into the window without overlap

    @property
    def kept(self) -> bool | None:
        """Whether the realised measure is at least the limit; None when nothing was realised."""
        return None if self.realised is None else self.realised >= self.limit

    def sentence(self, where: str = "out of sample") -> str:
        """Kept or missed, with the numbers."""
        realised, limit = self._texts
        allowed = f"the limit is {limit}"
        if self.realised is None:
            return (
                f"limit not judged {where}: the window is shorter than the {self.horizon} bars over which a discounted "
                f"return is realised; {allowed}"
            )
        fit = "1 horizon fits" if self.horizons == 1 else f"{self.horizons} horizons fit"
        return (
            f"limit {'kept' if self.kept else 'missed'} {where}{self.by}: {self.statistic} "
            f"{realised}, {allowed}; {fit} into the window without overlap"
        )

    @property
    def _texts(self) -> tuple[str, str]:
        """Realised and allowed, with as many digits as tell them apart."""
        realised = self.limit if self.realised is None else self.realised
        texts, digits = (small_percent(realised), small_percent(self.limit)), 3
        while texts[0] == texts[1] and realised != self.limit:
            digits += 1
            texts = f"{100 * realised:.{digits}g}%", f"{100 * self.limit:.{digits}g}%"
        return texts

    @property
    def short(self) -> str | None:
        """The same in a few words, for a second path; None when it cannot be told."""
        if self.realised is None:
            return None
        return f"{'kept' if self.kept else 'missed'}{self.by} ({small_percent(self.realised)})"

    @property
    def by(self) -> str:
        """The size of a miss, in words; empty without one."""
        if self.realised is None or self.kept:
            return ""
        points = 100 * (self.limit - self.realised)
        return f" by {points:.1f} percentage points" if points >= 0.1 else f" by {points:.1g} percentage points"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kept": self.kept}


def judge_limit(path: AccountPath, config: Config, *, level: float | None = None) -> LimitVerdict | None:
    """Judge the limit on one path; None unless risk acts as a constraint.

    It is judged on the measure that the run was given, whichever that is. level: the limit as a number, where that of
    the configuration is relative to train bars which it has not seen.
    """
    constraint = config.risk
    if not isinstance(constraint, RiskConstraint):
        return None
    limit = limit_of(config, path.symbol) if level is None else level
    assert limit is not None  # a constraint has one
    gamma = config.learner.gamma
    forward = forward_returns(path, gamma)
    horizon = tail_horizon(gamma)
    measure = constraint.measure
    return LimitVerdict(
        measure=measure.kind,
        statistic=_statistic(measure, constraint.alpha, horizon),
        limit=limit,
        alpha=constraint.alpha,
        gamma=gamma,
        horizon=horizon,
        realised=_measured(measure, forward, constraint.alpha) if len(forward) else None,
        returns=len(forward),
        horizons=path.planned // horizon,
    )


def rule_sentence(name: str, verdict: LimitVerdict) -> str | None:
    """Whether a rule that knows no limit kept it too: then the window did not put it to the test."""
    if verdict.realised is None:
        return None
    value = small_percent(verdict.realised)
    if verdict.kept:
        return f"{name} kept it too ({value}): these bars were too calm to put the limit to the test"
    return f"{name} missed it{verdict.by} ({value}): these bars put the limit to the test"


def _measured(measure: Measure, values: Floats, alpha: float) -> float:
    if isinstance(measure, CvarMeasure):
        return empirical_cvar(values, alpha)
    return utility_at(measure, torch.from_numpy(values), alpha).value


def _statistic(measure: Measure, alpha: float, horizon: int) -> str:
    returns = f"discounted {horizon}-bar log-returns"
    if isinstance(measure, CvarMeasure):
        return f"the worst {share(alpha)} of {returns} averaged"
    if isinstance(measure, WangMeasure):
        return f"Wang's distorted mean (eta {measure.eta:g}) of {returns} was"
    return f"{returns} averaged"


@dataclass(frozen=True)
class Judgement:
    """One symbol: paths and statistics by name, the policy first."""

    symbol: str
    label: str
    paths: Mapping[str, AccountPath]
    statistics: Mapping[str, PathStatistics]
    limits: Mapping[str, LimitVerdict]  # empty unless the run has a limit
    purpose: str = "test"
    draws: Mapping[str, Draws] = field(default_factory=dict)  # what chance gives, by what is drawn
    loan_rate: float = 0.0  # what borrowed money costs the account, a year

    @property
    def reference(self) -> str:
        """The rule that is always in the market."""
        return always_in(self.paths)

    def limit_sentences(self) -> list[str]:
        """Kept or missed, played both ways, and whether these bars put the limit to the test."""
        if not self.limits:
            return []
        where = "out of sample" if self.purpose == "test" else f"on the {self.purpose} window"
        sentences = [self.limits[POLICY].sentence(where)]
        for name, how in _THE_OTHER_WAY.items():
            if name in self.limits and self.limits[name].short is not None:
                sentences.append(f"{how} it is {self.limits[name].short}")
        rule = rule_sentence(self.reference, self.limits[self.reference])
        return [
            *sentences,
            *([rule] if rule else []),
            f"an account that holds nothing keeps any limit below 0: the policy held {held(self.statistics[POLICY])} "
            f"on average ({self.reference} {held(self.statistics[self.reference])}), as multiples of equity",
        ]

    @property
    def left_out(self) -> list[str]:
        """A sentence for each baseline that could not be played."""
        if len(self.paths[POLICY].assets) == 1 or SMALLEST_CVAR in self.paths:
            return []
        return ["The portfolio of the smallest CVaR is left out: it needs skfolio; pip install 'tailwise[portfolio]'."]

    @property
    def time(self) -> npt.NDArray[np.datetime64]:
        """Open times of the bars of the window (a ruined account has fewer)."""
        return max((path.time for path in self.paths.values()), key=len)

    def to_json(self) -> dict[str, Any]:
        time = self.time
        return {
            "symbol": self.symbol,
            "label": self.label,
            "first_bar": str(time[0]),
            "last_bar": str(time[-1]),
            "statistics": {name: asdict(numbers) for name, numbers in self.statistics.items()},
            "limits": {name: verdict.to_json() for name, verdict in self.limits.items()},
            "verdict": self.limit_sentences(),
            "draws": {name: one.to_json() for name, one in self.draws.items()},
        }


def always_in(names: Container[str]) -> str:
    """Return the rule among `names` that is always in the market."""
    return next(name for name in ALWAYS_IN if name in names)


def judge_policy(
    policy: Trader,
    purpose: Literal["train", "select", "test"] = "test",
    *,
    deterministic: bool = True,
    seed: int | None = None,
    market: MarketWorld | None = None,
    sampled: bool = False,
) -> list[Judgement]:
    """Play the window of `purpose`, every symbol whole, and the baselines over the same bars with the same costs.

    The baselines have the same account, costs, stops and margin; only their targets differ. seed and market: as in
    `Policy.trade`. A policy with a limit is also played the other way, because the limit steers sampled actions.
    sampled: also play it many times with sampled actions, for what the luck of the sampling gives.
    """
    world = policy.market() if market is None else market
    played = policy.trade(purpose, deterministic=deterministic, seed=seed, market=world)
    others, drawn = _baselines(world, purpose, played)
    if sampled:
        wealth = sampled_wealth(policy, world, purpose, seed=world.config.seed if seed is None else seed)
        for number, path in enumerate(played if wealth is not None else []):
            assert wealth is not None
            drawn[number][SAMPLED_ACTIONS] = Draws.of(SAMPLED_ACTIONS, wealth[number] - 1, float(path.wealth[-1]) - 1)
    if isinstance(policy.config.risk, RiskConstraint):
        name = SAMPLED if deterministic else MOST_LIKELY
        again = policy.trade(purpose, deterministic=not deterministic, seed=seed, market=world)
        others = [{name: path} | rules for path, rules in zip(again, others, strict=True)]
    return [
        _judgement({POLICY: path} | rest, policy.config, purpose, draws)
        for path, rest, draws in zip(played, others, drawn, strict=True)
    ]


def judge_rule(
    path: AccountPath,
    bars: Bars,
    costs: CostConfig | None = None,
    *,
    config: MarketEnvConfig | None = None,
    alpha: float = DEFAULT_ALPHA,
    gamma: float = 0.99,
    seed: int = 0,
) -> Judgement:
    """Judge the path of a rule (`backtest`) beside the baselines over the same bars with the same account and costs."""
    first = int(np.searchsorted(bars.time, path.time[0])) - 1
    others, draws = _rules(bars, path, costs, config, first=first, last=first + path.planned, seed=seed)
    paths = {POLICY: path} | others
    numbers = {name: path_statistics(one, alpha=alpha, gamma=gamma) for name, one in paths.items()}
    return Judgement(path.symbol, path.label, paths, numbers, {}, "backtest", draws, (costs or CostConfig()).loan_rate)


def _judgement(paths: Mapping[str, AccountPath], config: Config, purpose: str, draws: Mapping[str, Draws]) -> Judgement:
    alpha, gamma = config.tail_alpha or DEFAULT_ALPHA, config.learner.gamma
    verdicts = {name: judge_limit(path, config) for name, path in paths.items()}
    return Judgement(
        symbol=paths[POLICY].symbol,
        label=paths[POLICY].label,
        paths=paths,
        statistics={name: path_statistics(path, alpha=alpha, gamma=gamma) for name, path in paths.items()},
        limits={name: verdict for name, verdict in verdicts.items() if verdict is not None},
        purpose=purpose,
        draws=draws,
        loan_rate=0.0 if config.costs is None else config.costs.loan_rate,
    )


def _baselines(
    world: MarketWorld, purpose: Literal["train", "select", "test"], played: Sequence[AccountPath]
) -> tuple[list[dict[str, AccountPath]], list[dict[str, Draws]]]:
    """Play the rules for each account that a policy has in this window: paths by name, and what chance gives. played:
    its own paths."""
    tables = world.dataset.tables(purpose, together=world.portfolio)
    if world.portfolio:
        label, alpha = world.dataset.label, world.config.tail_alpha or DEFAULT_ALPHA
        weights = {"equal weights": equal_weights(tables), "flat": np.zeros(len(tables))}
        if find_spec("skfolio") is not None:  # an extra; the report says so where it is missing
            # A year, if that is neither too few bars for a tail nor more than an optimiser can bear.
            year = round(world.dataset.bars[0].frequency.periods_per_year)
            window = max(min(year, MOST_RETURNS), math.ceil(2 / alpha))
            weights[SMALLEST_CVAR] = min_cvar_weights(tables, alpha=alpha, window=window, costs=world.costs)
        rules = {
            name: backtest_portfolio(w, tables, world.costs, config=world.settings, label=label)
            for name, w in weights.items()
        }
        return [rules], [{}]
    each = [
        _rules(
            bars,
            path,
            world.costs,
            world.settings,
            first=table.first_valid,
            last=len(table.close) - 1,
            seed=world.config.seed,
            scales=scales_of(world.config),
        )
        for bars, table, path in zip(world.dataset.bars, tables, played, strict=True)
    ]
    return [paths for paths, _ in each], [draws for _, draws in each]


def _rules(
    bars: Bars,
    path: AccountPath,
    costs: CostConfig | None,
    config: MarketEnvConfig | None,
    *,
    first: int,
    last: int,
    seed: int,
    scales: Mapping[str, float] | None = None,
) -> tuple[dict[str, AccountPath], dict[str, Draws]]:
    """Play the rules for one asset: paths by name, and what random positions give. path: what these imitate, of whose
    draws the median one is shown. scales: of the base rule of each symbol (`scales_of`)."""
    targets = {name: rule(bars) for name, rule in BASELINES.items()}
    if config is not None and config.base is not None:
        targets[BASE_RULE] = scaled_exposures(config.base, bars, scales or {})
    drawn, wealth = random_draws(bars, path, costs, config, first=first, last=last, seed=seed)
    targets[RANDOM] = drawn[median_draw(wealth)]
    paths = {name: play_rule(t, bars, costs, config=config, first=first, last=last) for name, t in targets.items()}
    return paths, {RANDOM_POSITIONS: Draws.of(RANDOM_POSITIONS, wealth[:, -1] - 1, float(path.wealth[-1]) - 1)}

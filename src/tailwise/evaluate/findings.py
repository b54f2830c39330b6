"""What can be said about one account beyond its numbers: intervals, comparisons, odds, stress tests, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.evidence import (
    AccountOdds,
    Comparison,
    DeflatedSharpe,
    PathEvidence,
    compare_paths,
    odds_of_next_year,
    path_evidence,
)
from tailwise.evaluate.judgement import MOST_LIKELY, POLICY, SAMPLED, Judgement, LimitVerdict
from tailwise.evaluate.members import Members
from tailwise.evaluate.statistics import annualisation_doubt
from tailwise.evaluate.stress import StressResult, policy_player, rule_player, stress
from tailwise.evaluate.windows import Windows
from tailwise.evaluate.words import NEVER_ACTED, bounds, earned, listed, percent, plain, reservations
from tailwise.market.base import buy_and_hold
from tailwise.market.leaks.features import LeakVerdict
from tailwise.run.checkpoint import Training
from tailwise.run.policy import Trader
from tailwise.run.worlds import MarketWorld

LEAST_REPETITIONS, MOST_REPETITIONS = 200, 1000
_RESAMPLED = 4_000_000  # values per statistic: more bars get fewer resamples, so that minutes do not become hours
_FUTURES, _DRAWN = 2000, 20_000_000  # resampled futures, and values of all of them together


@dataclass(frozen=True)
class Trials:
    """How many policies were tried on these data before this one was chosen, itself included."""

    counted: int = 1
    sharpes: Sequence[float] = ()
    source: str = "no other trial on these data is known"


@dataclass(frozen=True)
class Findings:
    """The evidence of one judgement."""

    judged: Judgement
    evidence: PathEvidence
    against: Mapping[str, Comparison]  # the policy minus each baseline
    odds: Mapping[str, AccountOdds]  # of the policy and the rule that is always in
    repetitions: int
    doubt: str | None  # about the bars per year
    trials: Trials
    stressed: Mapping[str, Sequence[StressResult]] = field(default_factory=dict)
    not_stressed: str | None = None  # why there are no stress tests
    rhythm: str = ""  # a sentence: bars per year, and where that number came from
    trained: Training | None = None  # the training behind the policy; None for a rule
    leak_check: LeakVerdict | None = None  # of the policy's own features; None: it has none
    windows: Windows | None = None  # the policy on train, select and test bars; None for a rule
    members: Members | None = None  # of an ensemble: each by itself; None for one policy

    def to_json(self) -> dict[str, Any]:
        """What the judgement says, and the evidence beside it."""
        return {
            **self.judged.to_json(),
            "evidence": self.evidence.to_json(),
            **({} if self.windows is None else self.windows.to_json()),
            **({} if self.members is None else self.members.to_json()),
            "leak_check": None if self.leak_check is None else self.leak_check.model_dump(mode="json"),
            "against": {name: comparison.to_json() for name, comparison in self.against.items()},
            "odds": {name: asdict(odds) for name, odds in self.odds.items()},
            "stress": {
                name: [
                    {"group": row.group, "value": row.value, "label": row.label, "statistics": asdict(row.statistics)}
                    for row in rows
                ]
                for name, rows in self.stressed.items()
            },
        }


def weigh(
    judged: Judgement,
    *,
    trials: Trials | None = None,
    stressed: Mapping[str, Sequence[StressResult]] | None = None,
    not_stressed: str | None = None,
    rhythm: str = "",
    trained: Training | None = None,
    leak_check: LeakVerdict | None = None,
    windows: Windows | None = None,
    members: Members | None = None,
    seed: int = 0,
) -> Findings:
    """Compute intervals of the policy, its differences to every baseline, and odds; stressed: of stress tests."""
    policy, tried = judged.paths[POLICY], trials or Trials()
    alpha = judged.statistics[POLICY].alpha
    count = repetitions_for(policy.planned)
    return Findings(
        judged=judged,
        evidence=path_evidence(
            policy, alpha=alpha, trials=tried.counted, trial_sharpes=tried.sharpes, repetitions=count, seed=seed
        ),
        against={
            name: compare_paths(policy, path, repetitions=count, seed=seed)
            for name, path in judged.paths.items()
            if name != POLICY and not name.startswith(f"{POLICY}, ")
        },
        odds={
            name: odds_of_next_year(path, repetitions=_futures_for(path.planned), seed=seed)
            for name, path in judged.paths.items()
            if name in (POLICY, judged.reference) and path.planned > 1
        },
        repetitions=count,
        doubt=annualisation_doubt(policy),
        trials=tried,
        stressed=stressed or {},
        not_stressed=not_stressed,
        rhythm=rhythm,
        trained=trained,
        leak_check=leak_check,
        windows=windows,
        members=members,
    )


def repetitions_for(bars: int) -> int:
    """Resamples per interval: a thousand for daily bars, at least two hundred however long the window is."""
    return int(np.clip(_RESAMPLED // bars, LEAST_REPETITIONS, MOST_REPETITIONS))


def _futures_for(bars: int) -> int:
    return int(np.clip(_DRAWN // bars, LEAST_REPETITIONS, _FUTURES))


def stress_policy(
    policy: Trader, judged: Judgement, symbol: int, *, world: MarketWorld, deterministic: bool, seed: int
) -> tuple[dict[str, list[StressResult]], str | None]:
    """Play every scenario with the policy and with buy and hold; return nothing and the reason where that cannot be."""
    numbers = judged.statistics[POLICY]
    try:
        player = policy_player(
            policy,
            symbol=symbol,
            deterministic=deterministic,
            seed=seed,
            market=world,
            base=judged.paths[POLICY],
        )
    except (ConfigError, DataError) as error:
        return {}, str(error)
    bars, costs = player.bars, player.costs
    window = world.dataset.window("test")[symbol]
    tables = world.dataset.tables("test")[symbol]
    end = None if window.end == len(bars) else bars.time[window.end]
    rule = rule_player(buy_and_hold, config=world.settings, start=bars.time[tables.first_valid], end=end)
    alpha, gamma = numbers.alpha, policy.config.learner.gamma
    return {
        POLICY: stress(player.play, bars, costs, alpha=alpha, gamma=gamma, play_many=player.play_many),
        "buy and hold": stress(rule, bars, costs, alpha=alpha, gamma=gamma),
    }, None


def headline_of(findings: Findings) -> tuple[str, str]:
    """The headline of one account, and its colour; where own features may look ahead, that comes first."""
    judged = findings.judged
    trained = findings.trained
    reserved = reservations(judged.statistics[POLICY].mean_exposure, None if trained is None else trained.updates)
    acted = None if trained is None else trained.limit_acted
    sentence, colour = headline(findings.evidence, findings.against, judged.limits, reserved, limit_acted=acted)
    if findings.leak_check is None or not findings.leak_check.doubtful:
        return sentence, colour
    return unchecked_headline(sentence), "bad"


def headline(
    evidence: PathEvidence,
    against: Mapping[str, Comparison],
    limits: Mapping[str, LimitVerdict],
    reserved: Sequence[str],
    *,
    limit_acted: bool | None = None,
) -> tuple[str, str]:
    """One sentence, and 'good', 'bad' or '' for its colour.

    limits: by name of the path, the policy's first; reserved: what keeps the result from being praised;
    limit_acted: whether the limit ever acted in training (None: not known, or there is none).
    """
    earns = earned(evidence.verdict, evidence.mean_return.estimate, reserved)
    better, worse, alike = (_named(against, word) for word in ("better", "worse", "no evidence"))
    if not against:
        beaten = ""
    elif len(better) == len(against):
        beaten = "it beats every baseline beyond noise"
    elif worse:
        beaten = f"it is worse than {listed(worse)} beyond noise"
    elif better:
        beaten = f"it beats {listed(better)} beyond noise, but not {listed(alike)}"
    else:
        beaten = "it cannot be told apart from any baseline"
    if beaten:
        # After a reservation "and" would go on with it.
        beaten = f"; {beaten}" if reserved or (better and alike and not worse) else f", and {beaten}"
    kept = limits[POLICY].kept if POLICY in limits else None
    missed = kept is False or any(limits[name].kept is False for name in (SAMPLED, MOST_LIKELY) if name in limits)
    if evidence.verdict == "below zero" or worse or missed:
        colour = "bad"
    else:
        praised = evidence.verdict == "above zero" and len(better) == len(against) and not reserved
        colour = "good" if praised else ""
    return f"{earns}{beaten}{_limit(limits, kept, limit_acted)}.", colour


def unchecked_headline(sentence: str) -> str:
    """Replace the headline `sentence` where own features may look ahead."""
    return f"No evidence of anything: its own features were not checked for look-ahead. ({sentence})"


def _limit(limits: Mapping[str, LimitVerdict], kept: bool | None, acted: bool | None) -> str:
    """Whether the limit was kept, as the end of a sentence; played the other way too, where that differs."""
    if kept is None:
        return "; the limit could not be judged" if limits else ""
    sentence = f"; the limit was {'kept' if kept else 'missed'}"
    for name, how in ((SAMPLED, "with sampled actions"), (MOST_LIKELY, "with the most likely action")):
        if name in limits and limits[name].kept is not None and limits[name].kept != kept:
            sentence += f", but {'missed' if kept else 'kept'} {how}"
    return f"{sentence} ({NEVER_ACTED})" if acted is False else sentence


def verdict_sentences(findings: Findings, tested: str) -> list[str]:
    """What was tested, what it earned, after how many trials, the limit; a sentence or two each."""
    judged, evidence = findings.judged, findings.evidence
    level = f"{100 * evidence.mean_return.level:g}%"
    mean = evidence.mean_return
    if mean.low is None:
        why = "its equity hardly ever moved" if evidence.deflated is None else "too few bars or moves"
        result = f"Mean log-return {percent(mean.estimate)} per year; no interval: {why}."
    else:
        ratio = f"{plain(evidence.sharpe.estimate)} ({bounds(evidence.sharpe, plain)})"
        result = (
            f"Mean log-return {percent(mean.estimate)} per year, {level} interval {bounds(mean, percent)}; Sharpe "
            f"ratio {ratio}."
        )
    limit = [sentence[0].upper() + sentence[1:] + "." for sentence in judged.limit_sentences()]
    return [tested, *limit, result, trials_sentence(evidence.deflated, findings.trials)]


def trials_sentence(deflated: DeflatedSharpe | None, trials: Trials) -> str:
    """How many were tried, and what that leaves of the Sharpe ratio."""
    count = trials.counted if deflated is None else deflated.trials
    counted = f"{'1 trial is' if count == 1 else f'{count:,} trials are'} counted on these data ({trials.source})"
    if deflated is None:
        return f"{counted}."
    if deflated.trials == 1:
        return (
            f"{counted}: the probability that the true Sharpe ratio is above 0 is "
            f"{percent(deflated.probabilistic, 0)}. What was tried elsewhere and left out would lower it."
        )
    return (
        f"{counted}: the best of so many without edge is expected to show a Sharpe ratio of "
        f"{plain(deflated.expected_best)}; the probability that the true one lies above that is "
        f"{percent(deflated.deflated, 0)}."
    )


def _named(against: Mapping[str, Comparison], verdict: str) -> list[str]:
    return [name for name, one in against.items() if one.verdict == verdict]

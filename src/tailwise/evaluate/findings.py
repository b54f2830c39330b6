"""What can be said about one account beyond its numbers: what it earned beyond its exposure, intervals, comparisons at
the same tail, odds, stress tests, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.bootstrap import LEVEL
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
from tailwise.evaluate.regression import Regression, beyond_exposure, regressions
from tailwise.evaluate.same_tail import SameTail, same_tail
from tailwise.evaluate.statistics import annualisation_doubt
from tailwise.evaluate.stress import StressResult, policy_player, rule_player, stress
from tailwise.evaluate.windows import Windows
from tailwise.evaluate.words import (
    BASE_RULE,
    EQUAL_WEIGHT,
    EXPOSURES,
    NEVER_ACTED,
    bounds,
    earned,
    exposures,
    limit_word,
    listed,
    percent,
    plain,
    reservations,
    signed_percent,
)
from tailwise.market.base import buy_and_hold
from tailwise.market.leaks.features import LeakVerdict
from tailwise.run.checkpoint import Training
from tailwise.run.policy import Trader
from tailwise.run.trials import Trials
from tailwise.run.worlds import MarketWorld

LEAST_REPETITIONS, MOST_REPETITIONS = 200, 1000
_RESAMPLED = 4_000_000  # values per statistic: more bars get fewer resamples, so that minutes do not become hours
MOST_FUTURES, _DRAWN = 2000, 20_000_000  # resampled futures, and values of all of them together
_OTHERS = (BASE_RULE, EQUAL_WEIGHT)  # what a policy is regressed on besides the rule that is always in the market


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
    beyond: Mapping[str, Regression] = field(default_factory=dict)  # the policy regressed on rules, the reference first
    same_tail: Mapping[str, SameTail] = field(default_factory=dict)  # rules held at the tail of the policy

    def to_json(self) -> dict[str, Any]:
        """What the judgement says, and the evidence beside it."""
        return {
            **self.judged.to_json(),
            "beyond_exposure": {name: one.to_json() for name, one in self.beyond.items()},
            "evidence": self.evidence.to_json(),
            **({} if self.windows is None else self.windows.to_json()),
            **({} if self.members is None else self.members.to_json()),
            "leak_check": None if self.leak_check is None else self.leak_check.model_dump(mode="json"),
            "against": {name: comparison.to_json() for name, comparison in self.against.items()},
            "same_tail": {name: one.to_json() for name, one in self.same_tail.items()},
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
    gamma: float = 0.99,
    seed: int = 0,
) -> Findings:
    """Compute intervals of the policy, its differences to every baseline, and odds; stressed: of stress tests; gamma:
    discount per bar of the long tail."""
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
        beyond=regressions(judged.paths, POLICY, [judged.reference, *_OTHERS], repetitions=count, seed=seed),
        same_tail=same_tail(
            judged.paths,
            POLICY,
            alpha=alpha,
            gamma=gamma,
            repetitions=count,
            loan_rate=judged.loan_rate,
            seed=seed,
        ),
    )


SYMBOL_HEADS = (
    "symbol",
    "alpha a year",
    f"{100 * LEVEL:g}% interval",
    "beta",
    "return per year",
    "Sharpe",
    EXPOSURES,
    "turnover/year",
    "limit",
)


def repetitions_for(bars: int) -> int:
    """Resamples per interval: a thousand for daily bars, at least two hundred however long the window is."""
    return int(np.clip(_RESAMPLED // bars, LEAST_REPETITIONS, MOST_REPETITIONS))


def _futures_for(bars: int) -> int:
    return int(np.clip(_DRAWN // bars, LEAST_REPETITIONS, MOST_FUTURES))


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
    sentence, colour = headline(
        findings.evidence,
        findings.beyond.get(judged.reference),
        {name: one.verdict for name, one in findings.same_tail.items()},
        judged.limits,
        reserved,
        limit_acted=acted,
    )
    if findings.leak_check is None or not findings.leak_check.doubtful:
        return sentence, colour
    return unchecked_headline(sentence), "bad"


def headline(
    evidence: PathEvidence,
    beyond: Regression | None,
    same_tail: Mapping[str, str],
    limits: Mapping[str, LimitVerdict],
    reserved: Sequence[str],
    *,
    limit_acted: bool | None = None,
) -> tuple[str, str]:
    """One sentence, and 'good', 'bad' or '' for its colour.

    beyond: the policy regressed on the rule that is always in the market, None where that one never moved; same_tail:
    'better', 'worse' or 'no evidence' against each rule at the tail of the policy; limits: by name of the path, the
    policy's first; reserved: what keeps the result from being praised; limit_acted: whether the limit ever acted in
    training (None: not known, or there is none).
    """
    if beyond is None:
        earns, verdict = earned(evidence.verdict, evidence.mean_return.estimate, reserved), evidence.verdict
    else:
        earns, verdict = beyond_exposure(beyond, reserved), beyond.verdict
    better, worse, alike = (
        [name for name, one in same_tail.items() if one == word] for word in ("better", "worse", "no evidence")
    )
    if not same_tail:
        beaten = ""
    elif len(better) == len(same_tail):
        beaten = "at the same tail it beats every rule beyond noise"
    elif worse:
        beaten = f"at the same tail it is worse than {listed(worse)} beyond noise"
    elif better:
        beaten = f"at the same tail it beats {listed(better)} beyond noise, but not {listed(alike)}"
    else:
        beaten = "at the same tail it cannot be told apart from any rule"
    if beaten:
        beaten = f"; {beaten}"
    kept = limits[POLICY].kept if POLICY in limits else None
    missed = kept is False or any(limits[name].kept is False for name in (SAMPLED, MOST_LIKELY) if name in limits)
    if "below zero" in (verdict, evidence.verdict) or worse or missed:
        colour = "bad"
    else:
        colour = "good" if verdict == "above zero" and not reserved else ""
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


def meaning_of(findings: Findings) -> list[str]:
    """What the words of the headline mean, and whether the limit was kept, in a sentence each."""
    judged, reference = findings.judged, findings.judged.reference
    sentences = []
    beyond = findings.beyond.get(reference)
    if beyond is not None:
        sentences.append(
            f"Beyond its exposure: it moved like {plain(beyond.beta.estimate)} times {reference}; what it earned "
            "besides is alpha. An interval that holds 0 can be luck."
        )
    if POLICY in judged.limits:
        sentence = judged.limits[POLICY].sentence("out of sample" if judged.purpose == "test" else "")
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
    return sentences


def symbols_beyond_noise(findings: Sequence[Findings]) -> tuple[int, int, float]:
    """How many symbols have an alpha above and below 0 beyond noise, and how many of each chance alone would show."""
    words = [findings_beyond(one) for one in findings]
    outer = (1 - findings[0].evidence.mean_return.level) / 2
    return words.count("above zero"), words.count("below zero"), outer * len(findings)


def alpha_of(findings: Findings) -> float:
    """Alpha a year against the rule that is always in the market; 0 where that never moved."""
    beyond = findings.beyond.get(findings.judged.reference)
    return 0.0 if beyond is None else beyond.alpha.estimate


def findings_beyond(findings: Findings) -> str:
    """The verdict on alpha against the rule that is always in; 'no evidence' where that never moved."""
    beyond = findings.beyond.get(findings.judged.reference)
    return "no evidence" if beyond is None else beyond.verdict


def symbol_row(findings: Findings) -> tuple[str, ...]:
    """One symbol in a line: alpha, its interval, beta, return, Sharpe ratio, exposures, turnover, limit."""
    numbers, beyond = findings.judged.statistics[POLICY], findings.beyond.get(findings.judged.reference)
    limit = findings.judged.limits.get(POLICY)
    acted = None if findings.trained is None else findings.trained.limit_acted
    return (
        findings.judged.symbol,
        "-" if beyond is None else signed_percent(beyond.alpha.estimate),
        "-" if beyond is None else bounds(beyond.alpha, signed_percent),
        "-" if beyond is None else plain(beyond.beta.estimate),
        percent(findings.evidence.mean_return.estimate),
        plain(numbers.sharpe),
        exposures(numbers),
        plain(numbers.turnover, 1),
        "-" if limit is None else limit_word(limit.kept, acted),
    )


def verdict_sentences(findings: Findings) -> list[str]:
    """What it earned beyond its exposure and in all, what chance gives, the limit, after how many trials."""
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
    chance = [one.sentence for one in judged.draws.values()]
    beyond = [one.sentence for one in findings.beyond.values()]
    return [*beyond, *limit, result, *chance, *trials_sentences(evidence.deflated, findings.trials)]


def trials_sentences(deflated: DeflatedSharpe | None, trials: Trials) -> list[str]:
    """How many were tried, what that leaves of the Sharpe ratio, and what was tried on other bars."""
    sentences = [_trials_here(deflated, trials)]
    if trials.symbols > 1:
        sentences.append(
            f"It is one of {trials.symbols} symbols: each of them counts as a trial, because the best of them is what "
            "one would look at."
        )
    if trials.elsewhere:
        count = "1 more trial is" if trials.elsewhere == 1 else f"{trials.elsewhere:,} more trials are"
        sentences.append(
            f"{count} counted there on bars that share none with these; choosing the best symbol or market among them "
            "is a choice that these numbers do not know."
        )
    return sentences


def _trials_here(deflated: DeflatedSharpe | None, trials: Trials) -> str:
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

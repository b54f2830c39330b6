"""The verdict on a policy in words: what was tested, is it more than noise, is the limit kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailwise.evaluate.evidence import Comparison, PathEvidence
from tailwise.evaluate.findings import Findings, Trials
from tailwise.evaluate.judgement import MOST_LIKELY, POLICY, SAMPLED
from tailwise.evaluate.limit import LimitVerdict
from tailwise.evaluate.sharpe import DeflatedSharpe
from tailwise.evaluate.words import NEVER_ACTED, bounds, earned, listed, percent, plain, reservations


def headline_of(found: Findings) -> tuple[str, str]:
    """The headline of one account, and its colour; where own features may look ahead, that comes first."""
    judged = found.judged
    trained = found.trained
    reserved = reservations(judged.statistics[POLICY].mean_exposure, None if trained is None else trained.updates)
    acted = None if trained is None else trained.limit_acted
    sentence, colour = headline(found.evidence, found.against, judged.limits, reserved, limit_acted=acted)
    if found.leak_check is None or not found.leak_check.doubtful:
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
    told = earned(evidence.verdict, evidence.mean_return.estimate, reserved)
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
    return f"{told}{beaten}{_limit(limits, kept, limit_acted)}.", colour


def unchecked_headline(sentence: str) -> str:
    """What takes the place of `sentence` where own features may look ahead."""
    return f"No evidence of anything: its own features were not checked for look-ahead. ({sentence})"


def _limit(limits: Mapping[str, LimitVerdict], kept: bool | None, acted: bool | None) -> str:
    """Whether the limit was kept, as the end of a sentence; played the other way too, where that differs."""
    if kept is None:
        return "; the limit could not be judged" if limits else ""
    said = f"; the limit was {'kept' if kept else 'missed'}"
    for name, how in ((SAMPLED, "with sampled actions"), (MOST_LIKELY, "with the most likely action")):
        if name in limits and limits[name].kept is not None and limits[name].kept != kept:
            said += f", but {'missed' if kept else 'kept'} {how}"
    return f"{said} ({NEVER_ACTED})" if acted is False else said


def verdict_sentences(found: Findings, tested: str) -> list[str]:
    """What was tested, what it earned, after how many trials, the limit; a sentence or two each."""
    judged, evidence = found.judged, found.evidence
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
    return [tested, *limit, result, trials_sentence(evidence.deflated, found.trials)]


def trials_sentence(deflated: DeflatedSharpe | None, trials: Trials) -> str:
    """How many were tried, and what that leaves of the Sharpe ratio."""
    count = trials.counted if deflated is None else deflated.trials
    told = "1 trial is counted" if count == 1 else f"{count:,} trials are counted"
    said = f"{told} on these data ({trials.source})"
    if deflated is None:
        return f"{said}."
    if deflated.trials == 1:
        return (
            f"{said}: the probability that the true Sharpe ratio is above 0 is {percent(deflated.probabilistic, 0)}. "
            "What was tried elsewhere and left out would lower it."
        )
    return (
        f"{said}: the best of so many without edge is expected to show a Sharpe ratio of "
        f"{plain(deflated.expected_best)}; the probability that the true one lies above that is "
        f"{percent(deflated.deflated, 0)}."
    )


def _named(against: Mapping[str, Comparison], verdict: str) -> list[str]:
    return [name for name, one in against.items() if one.verdict == verdict]

"""Check the course of a run: progress, alerts, healthy ranges, limit, calibration, speed, memory, evaluations."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tailwise.core.errors import DataError
from tailwise.core.metrics import find_spec
from tailwise.doctor.check import Check, Verdict
from tailwise.evaluate.words import NEVER_ACTED
from tailwise.learner.risk_config import RiskConstraint
from tailwise.run.config import Config
from tailwise.run.risk_words import training_verdict
from tailwise.run.run_files import ATTACKED, LARGE, EvaluationSummary, read_stored
from tailwise.run.run_folder import read_health_events

Rows = Sequence[dict[str, Any]]
JUDGED = 20  # newest updates, over which the limit is judged
NEWEST = 0.2  # share of the run that says where it stands now
SLOWER = 0.5  # of the speed at first; a lower one is a warning
GROWN = 1.25  # of the memory after the first fifth; more is a warning


def series_of(rows: Rows, name: str) -> list[float]:
    """A metric over the updates that have it; NaN where it was undefined."""
    return [math.nan if row[name] is None else float(row[name]) for row in rows if name in row]


def check_progress(run: Path, rows: Rows, config: Config | None) -> Check:
    """Check how many of its steps the run has done."""
    meaning = "a run ends when all its steps are done, when evaluations stop improving, or when something stops it"
    if config is None or not rows:
        return Check("progress", "unknown", "no updates to speak of", meaning, "train, then ask again")
    steps, total = rows[-1]["steps"], config.run.total_steps
    evidence = f"{steps:,} of {total:,} steps in {rows[-1]['update']:,} updates"
    course = tuple(series_of(rows, "episode/return"))
    if steps >= total:
        return Check("progress", "ok", f"{evidence}; sparkline: return of episodes", meaning, series=course)
    advice = f"continue it with: tailwise resume {shlex.quote(str(run))}, unless it was stopped on purpose"
    return Check("progress", "unknown", f"{evidence}: running, interrupted or stopped early", meaning, advice, course)


def check_alerts(run: Path, rows: Rows) -> list[Check]:
    """List one check per rule that fired, or a single one if none did."""
    meaning = "health rules look at every update; alerts.jsonl keeps what they found"
    try:
        health = read_health_events(run)
    except (DataError, OSError) as error:
        return [Check("alerts", "fail", str(error), meaning, "restore the file")]
    if health.damaged:
        evidence = f"{len(health.damaged)} lines are no alerts: {health.damaged[0]}"
        return [Check("alerts", "fail", evidence, meaning, "restore the file; resume sets such lines aside")]
    loud = [event for event in health.events if event["severity"] != "info"]
    if not loud:
        return [Check("alerts", "ok", f"no rule of severity warn or error fired in {len(rows)} updates", meaning)]
    return [
        _alert(rule, [e for e in loud if e["rule"] == rule], rows) for rule in dict.fromkeys(e["rule"] for e in loud)
    ]


def _alert(rule: str, events: list[dict[str, Any]], rows: Rows) -> Check:
    raised = [event for event in events if event.get("event", "raised") == "raised"]
    last = (raised or events)[-1]
    over = events[-1].get("event") == "cleared"
    acted = [event for event in events if event.get("event") == "acted"]
    error = last["severity"] == "error"
    verdict: Verdict = ("warn" if error else "ok") if over else ("fail" if error else "warn")
    times = f"{len(raised)} times, last in update" if len(raised) > 1 else "in update"
    done = f"; {acted[-1].get('evidence')}" if acted else ""
    ended = f"; over since update {events[-1]['update']}" if over else ""
    signal = last.get("signal")
    return Check(
        f"alert {rule}",
        verdict,
        f"{times} {last['update']}: {last.get('evidence')}{done}{ended}",
        "a health rule fired" if signal is None or (spec := find_spec(signal)) is None else f"{signal}: {spec.meaning}",
        str(last.get("advice") or ""),
        tuple(series_of(rows, signal)) if signal else (),
    )


def check_bands(rows: Rows) -> list[Check]:
    """List metrics outside their healthy range in most of the newest updates, after one line for all metrics."""
    newest = rows[-max(1, round(NEWEST * len(rows))) :] if rows else []
    names = dict.fromkeys(name for row in rows for name in row)
    judged, outside = 0, []
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.healthy is None:
            continue
        values = series_of(newest, name)
        if not values:
            continue
        judged += 1
        share = sum(not spec.is_healthy(value) for value in values) / len(values)
        if share > 0.5:
            evidence = (
                f"{share:.0%} of the newest {len(values)} updates {_outside(spec.healthy)}, last {values[-1]:.4g}"
            )
            advice = "see docs/metrics.md and the alerts; a range is advice, an alert is a finding"
            outside.append(
                Check(f"range of {name}", "warn", evidence, spec.meaning, advice, tuple(series_of(rows, name)))
            )
    meaning = "metrics with a healthy range, over the newest fifth of the run"
    if not judged:
        return [Check("ranges", "unknown", "no metric with a healthy range was logged", meaning, "train first")]
    evidence = f"{judged - len(outside)} of {judged} metrics lie in their healthy range"
    return [
        Check("ranges", "warn" if outside else "ok", evidence, meaning, "see the lines below" if outside else ""),
        *outside,
    ]


def _outside(healthy: tuple[float | None, float | None]) -> str:
    """Describe a value outside its healthy range."""
    low, high = healthy
    if low is None or high is None:
        return f"above {high:g}" if low is None else f"below {low:g}"
    return f"not {low:g}" if low == high else f"outside {low:g} to {high:g}"


def check_finite(rows: Rows) -> Check:
    """Look for losses and gradients that were not finite."""
    meaning = "a loss or a gradient that is not finite says that an update could not be made"
    watched = ("loss/", "critic/loss", "grad/norm", "policy/kl")
    bad = [(row["update"], name) for row in rows for name in row if name.startswith(watched) and row[name] is None]
    if not rows:
        return Check("finite", "unknown", "no updates", meaning, "train first")
    if bad:
        update, name = bad[-1]
        evidence = f"{len(bad)} undefined values, the last one {name} in update {update}"
        return Check("finite", "fail", evidence, meaning, "look at rewards and observations around that update")
    return Check("finite", "ok", f"losses and gradients of {len(rows):,} updates are finite", meaning)


def check_limit(rows: Rows, config: Config | None) -> Check:
    """Check whether the tail limit was kept in the newest updates of training."""
    meaning = "the measure of the returns that the learner saw, against risk.limit, over the newest updates"
    if config is None:
        return Check("limit", "unknown", "the configuration cannot be read", meaning, "see configuration")
    if not isinstance(config.acting_risk, RiskConstraint):
        return Check("limit", "ok", "this run has no limit (risk.mode is not constraint)", meaning)
    newest = [{k: math.nan if v is None else v for k, v in row.items()} for row in rows[-JUDGED:]]
    verdict = training_verdict(config, newest)
    course = tuple(series_of(rows, "risk/measure"))
    if verdict is None or "has not begun" in verdict:
        return Check("limit", "unknown", verdict or "no updates", meaning, "train past the warm-up", course)
    if verdict.startswith("limit kept"):
        return Check("limit", "ok", verdict, meaning, series=course)
    advice = "train longer, allow smaller positions, or set the limit to what was achieved"
    return Check("limit", "fail", verdict, meaning, advice, course)


def check_calibration(rows: Rows) -> Check:
    """Compare the predicted distribution of the return with the realised returns."""
    meaning = "5% of the realised returns should lie below the predicted 5% quantile; the limit is steered by that tail"
    covers, gaps = series_of(rows, "calibration/coverage_05"), series_of(rows, "calibration/pit_error")
    known = [value for value in covers if math.isfinite(value)]
    if not known:
        advice = "longer rollouts or a smaller gamma complete more windows; a scalar critic has no law"
        return Check("calibration", "unknown", "no complete window of the discounted return", meaning, advice)
    share = known[-1]
    pit = f"; largest gap of probabilities {gaps[-1]:.3g}" if gaps and math.isfinite(gaps[-1]) else ""
    evidence = f"{share:.1%} lie below the predicted 5% quantile{pit}"
    verdict: Verdict = "ok" if 0.02 <= share <= 0.1 else "warn" if 0.005 <= share <= 0.2 else "fail"
    advice = "" if verdict == "ok" else "train longer or lower learner.learning_rate; do not rely on the predicted tail"
    return Check("calibration", verdict, evidence, meaning, advice, tuple(covers))


def check_speed(rows: Rows) -> Check:
    """Compare the throughput at first and now."""
    meaning = "environment steps per second of wall-clock time; other work on the machine shows here too"
    speeds = [value for value in series_of(rows, "time/steps_per_second") if math.isfinite(value)]
    if len(speeds) < 10:
        return Check("throughput", "unknown", f"{len(speeds)} updates are too few for a trend", meaning, "train on")
    first, now = _ends(speeds)
    evidence = f"median {first:,.0f} steps/s in the first fifth, {now:,.0f} in the last"
    if now < SLOWER * first:
        advice = "look for other work on the machine, a filling disk, or an environment that slows down"
        return Check("throughput", "warn", evidence, meaning, advice, tuple(speeds))
    return Check("throughput", "ok", evidence, meaning, series=tuple(speeds))


def check_memory(rows: Rows) -> Check:
    """Check whether the memory of the process grows."""
    meaning = "largest resident memory of the training process; after the first updates it should stay where it is"
    sizes = [value for value in series_of(rows, "machine/memory") if math.isfinite(value)]
    if len(sizes) < 10:
        return Check("memory", "unknown", f"{len(sizes)} updates are too few for a trend", meaning)
    first, now = _ends(sizes)
    evidence = f"median {first:,.0f} MB in the first fifth, {now:,.0f} MB in the last"
    if now > GROWN * first:
        return Check(
            "memory", "warn", evidence, meaning, "look for an environment that keeps what it made", tuple(sizes)
        )
    return Check("memory", "ok", evidence, meaning, series=tuple(sizes))


def check_evaluation(run: Path) -> Check:
    """Check the newest evaluation, and whether the limit was kept out of sample."""
    meaning = "a policy is judged on episodes or bars that neither trained nor selected it"
    folder = run / "evaluations"
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    played = [path for path in entries if not path.name.startswith(ATTACKED)]
    kept = [path for path in played if path.is_file() or (path / "summary.json").is_file()]
    if not kept:
        return Check("evaluation", "unknown", "never evaluated", meaning, f"tailwise evaluate {shlex.quote(str(run))}")
    newest = max(kept, key=lambda path: path.stat().st_mtime)
    file = newest if newest.suffix == ".json" else newest / "summary.json"
    try:
        summary = read_stored(file, EvaluationSummary, root=run, limit=LARGE)
    except (OSError, DataError) as error:
        return Check("evaluation", "fail", f"{newest.name} cannot be read: {error}", meaning, "evaluate it again")
    if summary.mean_return is not None:
        return Check("evaluation", "ok", f"{newest.name}: mean return {summary.mean_return:.4g}", meaning)
    limits = [judged.limits.get("policy") for judged in summary.symbols]
    verdicts = [None if limit is None else limit.kept for limit in limits]
    sentences = "; ".join(text for judged in summary.symbols for text in judged.verdict[:1])
    count = f"{len(verdicts)} symbol{'' if len(verdicts) == 1 else 's'} judged; the run has no limit"
    words = f"{newest.name}: {sentences or count}"
    if (
        any(kept is not None for kept in verdicts)
        and summary.trained is not None
        and summary.trained.limit_acted is False
    ):
        return Check("evaluation", "warn", f"{words}; {NEVER_ACTED}", meaning, "train past the warm-up of risk.limit")
    if False in verdicts:
        advice = "the limit was missed out of sample: tighten it, or train on more history"
        return Check("evaluation", "fail", words, meaning, advice)
    return Check("evaluation", "ok", words, meaning)


def _ends(values: list[float]) -> tuple[float, float]:
    part = max(1, len(values) // 5)
    return median(values[:part]), median(values[-part:])

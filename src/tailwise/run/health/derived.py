"""Signals that follow from the metrics of the same update, and sentences about them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from tailwise.learner.optimisers import owner_of

CAP_PATIENCE = 10  # updates at the cap before the limit is called out of reach
BROKEN_PATIENCE = 50  # updates with the limit broken, wherever the multiplier is

_TERM = re.compile(r"grad/term/([^/]+)/([^/]+)")


def derive(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """(the metrics and what follows from them, sentences by signal); nothing is added that cannot be known."""
    signals, notes = conclusions(metrics, measured_terms=True)
    return {**metrics, **signals}, notes


def conclusions(metrics: Mapping[str, float], *, measured_terms: bool) -> tuple[dict[str, float], dict[str, str]]:
    """(what follows from the metrics, sentences by signal); measured_terms: whether there may be `grad/term/...`."""
    signals, notes = dict[str, float](), dict[str, str]()
    _non_finite(metrics, signals, notes)
    if measured_terms:
        _dead_terms(metrics, signals, notes)
    _critics(metrics, signals)
    _limit(metrics, signals, notes)
    return signals, notes


def _non_finite(metrics: Mapping[str, float], signals: dict[str, float], notes: dict[str, str]) -> None:
    # A number that is not finite makes the sum so. Finite ones can do that too, hence the second look.
    whole = math.isfinite(sum(metrics.values()))
    broken = [] if whole else sorted(name for name, value in metrics.items() if not math.isfinite(value))
    signals["update/non_finite"] = float(len(broken))
    if broken:
        notes["update/non_finite"] = f"{len(broken)} metrics are NaN or infinite: {', '.join(broken[:5])}"


def _dead_terms(metrics: Mapping[str, float], signals: dict[str, float], notes: dict[str, str]) -> None:
    terms = [(name, value) for name, value in metrics.items() if name.startswith("grad/term/")]
    rows = [(match[1], match[2], value) for name, value in terms if (match := _TERM.fullmatch(name))]
    if not rows:
        return
    # Nothing to learn from is not a broken term, nor are means that all lie within the bounds.
    quiet = {"bounds"} | ({"policy", "awr"} if metrics.get("advantage/largest_normalised") == 0.0 else set())
    quiet |= {"risk"} if metrics.get("risk/spread") == 0.0 else set()
    dead = [
        f"{term} on {group}"
        for term, group, value in rows
        if group == owner_of(term) and value == 0.0 and term not in quiet
    ]
    signals["grad/dead_terms"] = float(len(dead))
    if dead:
        notes["grad/dead_terms"] = f"loss terms with zero gradient on their owner: {', '.join(dead)}"


def _critics(metrics: Mapping[str, float], signals: dict[str, float]) -> None:
    first, second = metrics.get("grad/norm/critic_0"), metrics.get("grad/norm/critic_1")
    if first is None or second is None:
        return
    signals["grad/critic_smallest"] = min(first, second)
    if min(first, second) > 0:
        signals["grad/critic_ratio"] = max(first, second) / min(first, second)


def _limit(metrics: Mapping[str, float], signals: dict[str, float], notes: dict[str, str]) -> None:
    stuck, broken = metrics.get("risk/updates_at_cap", 0.0), metrics.get("risk/updates_broken", 0.0)
    if "risk/updates_at_cap" in metrics or "risk/updates_broken" in metrics:
        signals["risk/out_of_reach"] = float(stuck >= CAP_PATIENCE or broken >= BROKEN_PATIENCE)
    if signals.get("risk/out_of_reach") == 1.0:
        if stuck >= CAP_PATIENCE:
            how = f"the multiplier sits at its cap {metrics['risk/multiplier']:g} for {stuck:.0f} updates"
        else:
            multiplier = metrics["risk/multiplier"]
            how = f"{broken:.0f} updates of the constraint were not enough (multiplier {multiplier:.3g})"
        notes["risk/out_of_reach"] = (
            f"{how} and the limit {metrics['risk/limit']:.4g} is still broken; best achieved: "
            f"{metrics['risk/best_measure']:.4g}"
        )
    if metrics.get("risk/began_calibrated") == 0.0:
        known = "calibration/cvar_predicted" in metrics
        gap = (
            f"predicted CVaR {metrics['calibration/cvar_predicted']:.4g}, realised "
            f"{metrics['calibration/cvar_realised']:.4g}"
            if known
            else "too few windows of the return are complete: the updates so far are short against the horizon"
        )
        notes["risk/began_calibrated"] = f"the constraint began without calibrated critics ({gap})"

"""Rules that turn the numbers of an update into alerts, with evidence and advice. Each fires once until it clears."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailwise.learner.backend import UpdateReport
from tailwise.learner.gradients import owner_of

Metrics = Mapping[str, float]
CAP_PATIENCE = 10  # updates at the cap before the limit is called out of reach
BROKEN_PATIENCE = 50  # updates with the limit broken, wherever the multiplier is


@dataclass(frozen=True)
class Alert:
    """One finding: which rule, how bad, the evidence in a sentence, and what to do."""

    update: int
    rule: str
    severity: str  # "warn" or "error"
    evidence: str
    advice: str

    def to_json(self) -> dict[str, Any]:
        """A flat dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Rule:
    """`finds` looks at one update and returns the evidence, or None."""

    name: str
    severity: str
    advice: str
    finds: Callable[[Metrics, UpdateReport], str | None]


def _above(name: str, limit: float, unit: str = "") -> Callable[[Metrics, UpdateReport], str | None]:
    def finds(metrics: Metrics, report: UpdateReport) -> str | None:
        value = metrics.get(name)
        if value is not None and value > limit:
            return f"{name} is {value:.4g}{unit}, above {limit:g}{unit}"
        return None

    return finds


def _refused(metrics: Metrics, report: UpdateReport) -> str | None:
    return report.reason


def _no_gradient(metrics: Metrics, report: UpdateReport) -> str | None:
    # Nothing to learn from is not a broken term.
    quiet = {"policy", "awr"} if metrics.get("advantage/largest_normalised") == 0.0 else set()
    quiet |= {"risk"} if metrics.get("risk/spread") == 0.0 else set()
    dead = [
        f"{term} on {owner_of(term)}"
        for term, row in report.term_gradients.items()
        if row[owner_of(term)] == 0.0 and term not in quiet
    ]
    return f"loss terms with zero gradient on their owner: {', '.join(dead)}" if dead else None


def _limit_out_of_reach(metrics: Metrics, report: UpdateReport) -> str | None:
    stuck, broken = metrics.get("risk/updates_at_cap", 0.0), metrics.get("risk/updates_broken", 0.0)
    if stuck >= CAP_PATIENCE:
        how = f"the multiplier sits at its cap {metrics['risk/multiplier']:g} for {stuck:.0f} updates"
    elif broken >= BROKEN_PATIENCE:
        how = f"{broken:.0f} updates of the constraint were not enough (multiplier {metrics['risk/multiplier']:.3g})"
    else:
        return None
    return (
        f"{how} and the limit {metrics['risk/limit']:.4g} is still broken; best achieved: "
        f"{metrics['risk/best_measure']:.4g}"
    )


def _began_uncalibrated(metrics: Metrics, report: UpdateReport) -> str | None:
    if metrics.get("risk/active") != 1.0 or metrics["risk/began_calibrated"] == 1.0:
        return None
    known = "calibration/cvar_predicted" in metrics
    gap = (
        f"predicted CVaR {metrics['calibration/cvar_predicted']:.4g}, realised "
        f"{metrics['calibration/cvar_realised']:.4g}"
        if known
        else "too few windows of the return are complete: the updates so far are short against the discounted horizon"
    )
    return f"the constraint began without calibrated critics ({gap})"


def _calibration_off(metrics: Metrics, report: UpdateReport) -> str | None:
    share = metrics.get("calibration/coverage_05")
    if share is None or metrics.get("risk/active") != 1.0 or 0.01 <= share <= 0.15:
        return None
    return f"{share:.1%} of realised returns lie below the predicted 5% quantile"


def _critic_imbalance(metrics: Metrics, report: UpdateReport) -> str | None:
    first, second = metrics.get("grad/norm/critic_0"), metrics.get("grad/norm/critic_1")
    if first is None or second is None:
        return None
    if min(first, second) < 1e-8:
        return f"a critic's gradient vanished: norms {first:.3g} and {second:.3g}"
    ratio = first / second
    return f"the critics' gradient norms differ by a factor of {ratio:.3g}" if ratio > 100 or ratio < 0.01 else None


RULES: tuple[Rule, ...] = (
    Rule("update_refused", "error", "look at the environment's rewards and observations of this update", _refused),
    Rule(
        "loss_without_gradient",
        "error",
        "the term is switched on and teaches nothing: switch it off, or check its weight and its inputs",
        _no_gradient,
    ),
    Rule(
        "no_advantage_signal",
        "warn",
        "every action looked equally good and the policy learnt nothing: no rewards yet, or too short a rollout?",
        _above("advantage/no_signal_groups", 0),
    ),
    Rule(
        "environment_anomaly",
        "warn",
        "the environment returned NaN or infinite numbers; fix its reward or info",
        _above("env/anomalies", 0),
    ),
    Rule(
        "return_scale",
        "warn",
        "returns grew 100-fold since the first rollouts: check the reward for outliers or a change of units",
        _above("return/sigma_over_first", 100, " x"),
    ),
    Rule(
        "log_ratio_clamped",
        "warn",
        "stored log-probabilities do not belong to this policy, or the step is far too large",
        _above("policy/log_ratio_clamp_fraction", 0.01),
    ),
    Rule(
        "first_log_ratio",
        "warn",
        "the policy is not the one that collected: stored hidden states, masks or log-probabilities are not its own",
        _above("policy/first_log_ratio", 1e-3, " nats"),
    ),
    Rule(
        "log_ratio_outlier",
        "warn",
        "a sample's log-probability does not belong to this policy, or the step is far too large",
        _above("policy/log_ratio_max", 20, " nats"),
    ),
    Rule("advantage_outlier", "warn", "one reward dominates the rollout", _above("advantage/largest_normalised", 20)),
    Rule(
        "return_outlier",
        "warn",
        "one return lies far outside the others; check the reward",
        _above("return/largest_normalised", 20),
    ),
    Rule("gradient_norm", "warn", "lower learner.learning_rate", _above("grad/norm_before_max", 50)),
    Rule("critic_loss", "warn", "the critics diverge: lower learner.learning_rate", _above("critic/loss", 1000)),
    Rule(
        "limit_out_of_reach",
        "error",
        "no policy found so far keeps this limit: lower risk.limit to what was achieved, or allow smaller positions",
        _limit_out_of_reach,
    ),
    Rule(
        "constraint_uncalibrated",
        "warn",
        "the limit is steered by a tail that may be wrong: longer rollouts, a smaller gamma or more training",
        _began_uncalibrated,
    ),
    Rule(
        "calibration_off",
        "warn",
        "the predicted law of the return is wrong where the constraint reads it; train longer or lower the step",
        _calibration_off,
    ),
    Rule("critic_imbalance", "warn", "one of the twin critics does not train; compare their losses", _critic_imbalance),
    Rule(
        "observation_outlier",
        "warn",
        "observations left their range by 100 standard deviations",
        _above("obs/outlier_fraction", 0),
    ),
)


class Health:
    """Applies the rules to each update; remembers which are firing, so that an alert appears once."""

    def __init__(self) -> None:
        self.firing: set[str] = set()
        self.refused_in_a_row = 0

    def look(self, update: int, metrics: Metrics, report: UpdateReport) -> list[Alert]:
        """Alerts that are new with this update."""
        self.refused_in_a_row = 0 if report.committed else self.refused_in_a_row + 1
        alerts = []
        for rule in RULES:
            if rule.name == "loss_without_gradient" and not report.term_gradients:
                continue  # not measured in this update: neither fires nor clears
            evidence = rule.finds(metrics, report)
            if evidence is None:
                self.firing.discard(rule.name)
            elif rule.name not in self.firing:
                self.firing.add(rule.name)
                alerts.append(Alert(update, rule.name, rule.severity, evidence, rule.advice))
        return alerts

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"firing": sorted(self.firing), "refused_in_a_row": self.refused_in_a_row}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.firing = set(state["firing"])
        self.refused_in_a_row = int(state["refused_in_a_row"])

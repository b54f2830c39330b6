"""Every metric that Tailwise reports is declared here, once: name, unit, meaning, healthy range.

The metric store refuses names that are not declared, the documentation page is made from this list, and health rules
read their ranges from it. Names under `time/` and `machine/` depend on the machine: they are reported like all others
but excluded wherever two runs are compared for equality.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from tailwise.core.errors import ConfigError

MACHINE_PREFIXES = ("time/", "machine/")  # what two equal runs need not share

# `grad/norm/<group>` declares a family: the part in brackets stands for one name such as `actor` or `core.layer_0`.
_PART = r"(?:[a-z0-9_]|<[a-z_]+>)+"
_NAME = re.compile(rf"^{_PART}(?:/{_PART})+$")
_PLACEHOLDER = re.compile(r"<[a-z_]+>")

Value = TypeVar("Value")


@dataclass(frozen=True)
class MetricSpec:
    """What a metric is.

    name: `group/name`, lower case; a part `<member>` makes it a family.
    unit: the unit of its values, "1" for a pure number.
    meaning: one line, what it is and what a high or low value says.
    healthy: (lowest, highest) value of a healthy run, None for no bound on that side; None when any value is healthy.
    """

    name: str
    unit: str
    meaning: str
    healthy: tuple[float | None, float | None] | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ConfigError(f"metric '{self.name}': a name is written group/name, lower case.")
        if not self.unit or not self.meaning:
            raise ConfigError(f"metric '{self.name}': state unit and meaning; the unit of a pure number is '1'.")
        if self.healthy is not None:
            low, high = self.healthy
            if low is not None and high is not None and low > high:
                raise ConfigError(f"metric '{self.name}': its healthy range runs from {low} down to {high}; swap them.")

    def is_healthy(self, value: float) -> bool:
        """Whether `value` lies in the healthy range, bounds included; NaN never does where there is a range."""
        if self.healthy is None:
            return True
        low, high = self.healthy
        return (low is None or value >= low) and (high is None or value <= high)


def build(declarations: Iterable[MetricSpec]) -> Mapping[str, MetricSpec]:
    """An unchangeable mapping name -> spec; a name that is declared twice is an error."""
    specs: dict[str, MetricSpec] = {}
    for spec in declarations:
        if spec.name in specs:
            raise ConfigError(f"metric '{spec.name}' is declared twice; remove one of the declarations.")
        specs[spec.name] = spec
    return MappingProxyType(specs)


DECLARATIONS: tuple[MetricSpec, ...] = (
    MetricSpec("policy/entropy", "nats", "mean entropy of the policy; falls as it becomes certain", (0.0, None)),
    MetricSpec("policy/entropy_min", "nats", "lowest entropy of the policy at any state of the rollout"),
    MetricSpec("policy/entropy_max", "nats", "highest entropy of the policy at any state of the rollout"),
    MetricSpec("policy/prior_kl", "nats", "exact KL(policy||prior), how far the policy left what it started from"),
    MetricSpec(
        "policy/adversary_kl",
        "nats",
        "exact KL(policy||policy at the moved observation), mean; should not grow",
        (0, 1.0),
    ),
    MetricSpec("policy/kl", "nats", "exact KL(old||new), mean over the minibatches of the update", (0.0, 0.1)),
    MetricSpec(
        "policy/kl_after", "nats", "exact KL(old||new) after the update, mean over the whole rollout", (0.0, 0.2)
    ),
    MetricSpec(
        "policy/kl_of_target", "1", "KL after the update over learner.target_kl (0.05 where that is off)", (0.0, 3.0)
    ),
    MetricSpec("policy/epochs", "epochs", "complete passes over the rollout; fewer than configured after a KL stop"),
    MetricSpec("policy/stopped_early", "0/1", "whether KL ended the update before its last minibatch"),
    MetricSpec(
        "policy/first_log_ratio", "nats", "largest |ln ratio| before the first step; must be rounding", (0.0, 1e-4)
    ),
    MetricSpec("policy/log_ratio_max", "nats", "largest |ln ratio| in the update", (0.0, 5.0)),
    MetricSpec("policy/ratio_max", "1", "largest probability ratio new/old in the update"),
    MetricSpec("policy/clip_fraction", "share", "samples whose gradient the PPO clip removed", (0.0, 0.5)),
    MetricSpec("policy/dual_clip_fraction", "share", "samples whose gradient the dual clip removed", (0.0, 0.05)),
    MetricSpec("policy/log_ratio_clamp_fraction", "share", "samples with |ln ratio| above 20", (0.0, 0.01)),
    MetricSpec("policy/excluded_fraction", "share", "samples without a finite ln ratio", (0.0, 0.0)),
    MetricSpec("policy/nan_fraction", "share", "samples whose ln ratio is NaN: a computation broke", (0.0, 0.0)),
    MetricSpec(
        "policy/infinite_fraction", "share", "samples whose ln ratio is infinite: a probability is 0", (0.0, 0.0)
    ),
    MetricSpec("policy/entropy_share", "share", "entropy over the largest possible one, log K; discrete actions"),
    MetricSpec("policy/logit_norm", "nats", "mean Euclidean norm of the centred, allowed logits", (0.0, 30.0)),
    MetricSpec("policy/logit_range", "nats", "largest minus smallest allowed logit; grows as the policy saturates"),
    MetricSpec("loss/policy", "1", "clipped surrogate, to be minimised"),
    MetricSpec("loss/entropy", "1", "minus weight x entropy"),
    MetricSpec("loss/prior", "1", "weight x KL(policy||prior)"),
    MetricSpec("loss/bounds", "1", "weighted squared distance of Box means from their bounds, half ranges"),
    MetricSpec("loss/awr", "1", "weighted advantage-weighted imitation term"),
    MetricSpec("loss/awr_share", "share", "size of the imitation term among all loss terms"),
    MetricSpec("loss/imitation", "1", "weight x imitation of demonstrations"),
    MetricSpec("loss/imitation_share", "share", "size of the imitation of demonstrations among all loss terms"),
    MetricSpec("imitation/weight", "1", "mean weight exp(A/beta) of the steps of demonstrations; 1 is plain cloning"),
    MetricSpec("imitation/log_prob", "nats", "mean ln probability (density) of the demonstrated actions"),
    MetricSpec("loss/adversary", "1", "weight x largest divergence of the policy under moved observations"),
    MetricSpec("loss/mean_<critic>", "1", "weighted squared error of a critic's mean, normalised return units"),
    MetricSpec("loss/law_<critic>", "1", "weighted distributional loss of a critic, normalised return units"),
    MetricSpec("loss/<auxiliary>", "1", "weighted auxiliary loss that was added through the seam of the learner"),
    MetricSpec("critic/loss", "1", "sum of the critics' losses, unweighted, after value clipping", (None, 1000.0)),
    MetricSpec("critic/loss_unclipped", "1", "the same without value clipping"),
    MetricSpec("critic/clip_fraction", "share", "predictions that value clipping moved"),
    MetricSpec(
        "critic/clip_loss_fraction",
        "share",
        "samples whose clipped value loss exceeds the unclipped one: it is trained on",
    ),
    MetricSpec("critic/disagreement", "return std", "mean |difference| of the twin critics' means"),
    MetricSpec("critic/explained_variance", "1", "1 - var(return - value)/var(return); 1 is perfect, 0 is useless"),
    MetricSpec(
        "critic/unexplained", "1", "variance that critics miss, over that of returns or .09 of its peak", (None, 2.0)
    ),
    MetricSpec("critic/quantile_crossing", "share", "neighbouring quantiles in the wrong order", (0.0, 0.2)),
    MetricSpec("critic/mean_gap", "return std", "mean of quantiles minus the mean head: what rare events hide"),
    MetricSpec("critic/out_of_support", "share", "particles beyond the atoms of a categorical critic", (0.0, 0.05)),
    MetricSpec("advantage/mean", "reward", "mean raw advantage"),
    MetricSpec("advantage/std", "reward", "standard deviation of raw advantages"),
    MetricSpec("advantage/min", "reward", "smallest raw advantage"),
    MetricSpec("advantage/max", "reward", "largest raw advantage"),
    MetricSpec("advantage/largest_normalised", "std", "largest |standardised advantage|", (0.0, 20.0)),
    MetricSpec("advantage/no_signal_groups", "groups", "groups whose advantages had no spread and became 0"),
    MetricSpec("return/mean", "reward", "mean lambda-return over the rollout"),
    MetricSpec("return/std", "reward", "standard deviation of lambda-returns over the rollout"),
    MetricSpec("return/mu", "reward", "centre of the return scale in which critics learn"),
    MetricSpec("return/sigma", "reward", "width of the return scale in which critics learn"),
    MetricSpec("return/sigma_over_first", "1", "width of the return scale relative to the first rollout", (0.0, 100.0)),
    MetricSpec("return/largest_normalised", "return std", "largest |normalised lambda-return|", (0.0, 20.0)),
    MetricSpec("return/record", "1", "farthest return from the centre over the farthest one of earlier updates"),
    MetricSpec("return/std_of_peak", "1", "standard deviation of lambda-returns over its largest so far", (1e-4, None)),
    MetricSpec(
        "return/decline", "std", "fall of the mean return below its recent mean, in its recent std", (None, 3.0)
    ),
    MetricSpec("return/decline_of_peak", "1", "the same fall over the largest return/std so far", (None, 1.0)),
    MetricSpec("reward/mean", "reward", "mean reward per step of the rollout"),
    MetricSpec("reward/largest", "reward", "largest |reward| of the rollout"),
    MetricSpec("reward/jump", "1", "largest |reward| over the largest of all earlier rollouts", (0.0, 10.0)),
    MetricSpec("reward/no_information", "0/1", "all rewards are equal and nothing terminated"),
    MetricSpec("reward/part/<part>", "reward", "mean |part| of the reward, where info tells reward_parts"),
    MetricSpec("reward/shaping_share", "1", "largest mean |shaping part| over the mean |part| named base", (0.0, 1.0)),
    MetricSpec("risk/cvar_return", "reward", "CVaR of the discounted return, pooled over states and particles"),
    MetricSpec(
        "risk/measure",
        "reward",
        "measure that risk acts with, of the pooled return; CVaR at the smoothed VaR",
    ),
    MetricSpec("risk/threshold", "reward", "VaR of the pooled discounted return of this rollout"),
    MetricSpec("risk/spread", "reward", "standard deviation of the pooled discounted return"),
    MetricSpec("risk/limit", "reward", "lowest allowed value of the measure"),
    MetricSpec("risk/violation", "reward", "limit minus measure: above 0 the limit is broken"),
    MetricSpec("risk/multiplier", "1", "weight of the risk advantages beside the mean ones, for the next update"),
    MetricSpec("risk/integral", "1", "the multiplier's integral part"),
    MetricSpec("risk/active", "0/1", "whether the warm-up is over and the constraint acts"),
    MetricSpec("risk/began_calibrated", "0/1", "whether the predicted tail or the measured one agreed with what came"),
    MetricSpec("risk/updates_at_cap", "updates", "in a row at the cap with the limit broken and no closer", (0, 19)),
    MetricSpec("risk/updates_broken", "updates", "in a row in which the smoothed measure broke the limit", (0, 49)),
    MetricSpec("risk/out_of_reach", "0/1", "20 updates at the cap and no closer, or 50 with the limit broken", (0, 0)),
    MetricSpec("risk/best_measure", "reward", "highest value of the measure since the constraint acts"),
    MetricSpec("risk/advantage_std", "reward", "standard deviation of raw risk advantages"),
    MetricSpec("risk/advantage_share", "share", "size of the risk part in the mixed advantages"),
    MetricSpec("calibration/windows", "windows", "completed windows on which calibration is judged"),
    MetricSpec("calibration/coverage_05", "share", "realised returns below the predicted 5% quantile", (0.02, 0.1)),
    MetricSpec("calibration/coverage_50", "share", "realised returns below the predicted median", (0.35, 0.65)),
    MetricSpec("calibration/coverage_95", "share", "realised returns below the predicted 95% quantile", (0.9, 0.98)),
    MetricSpec("calibration/pit_error", "share", "largest gap between realised and predicted probabilities", (0, 0.15)),
    MetricSpec(
        "calibration/pit/<bin>", "share", "realised returns in one tenth of their predicted law; .1 each is right"
    ),
    MetricSpec("calibration/cvar_predicted", "reward", "CVaR of the predicted laws of the windows, pooled"),
    MetricSpec("calibration/cvar_realised", "reward", "CVaR of the returns that then came"),
    MetricSpec("calibration/spread", "reward", "standard deviation of the returns that then came"),
    MetricSpec("calibration/observed", "share", "discount of the windows that rewards covered; the rest was drawn"),
    MetricSpec("calibration/dropped", "windows", "lost so far to a reset, a number not finite or a missing rollout"),
    MetricSpec("grad/norm_before", "1", "global gradient norm before clipping, mean over steps", (0.0, 50.0)),
    MetricSpec("grad/norm_before_max", "1", "largest global gradient norm before clipping", (0.0, 50.0)),
    MetricSpec("grad/norm_after", "1", "global gradient norm after clipping, mean over steps"),
    MetricSpec("grad/norm/<group>", "1", "gradient norm of a parameter group before clipping, mean over steps"),
    MetricSpec("grad/term/<term>/<group>", "1", "gradient norm of one loss term on one parameter group"),
    MetricSpec(
        "grad/term/risk/actor", "1", "gradient norm of what risk adds to the policy's loss, on the actor: its true size"
    ),
    MetricSpec("grad/noise_ratio/<group>", "1", "squared error of a group's mean gradient over its squared size"),
    MetricSpec("grad/noise_scale", "rows", "rows of a minibatch at which noise and signal of its gradient are equal"),
    MetricSpec("grad/dead_terms", "count", "loss terms that are on and have no gradient on their owner", (0.0, 0.0)),
    MetricSpec("grad/critic_smallest", "1", "smaller gradient norm of the twin critics", (1e-8, None)),
    MetricSpec("grad/critic_ratio", "1", "larger over smaller gradient norm of the twin critics", (1.0, 100.0)),
    MetricSpec("model/dead_units", "share", "hidden units that answer every observation alike", (0.0, 0.5)),
    MetricSpec(
        "model/dormant_units", "share", "hidden units with at most 0.025 of their layer's mean activity", (0.0, 0.5)
    ),
    MetricSpec(
        "model/effective_rank", "dimensions", "exp(entropy) of the singular values of the features", (1.0, None)
    ),
    MetricSpec("model/weight_norm", "1", "Euclidean norm of the weights, heads of the return scale left out"),
    MetricSpec("model/weight_growth", "1", "norm of the weights over their initial norm", (0.1, 10.0)),
    MetricSpec("model/weight_distance", "1", "distance from the initial weights over their norm", (0.0, 10.0)),
    MetricSpec("obs/outlier_fraction", "share", "observation entries beyond 100 known standard deviations", (0.0, 0.0)),
    MetricSpec("obs/drift_mean", "std", "largest shift of an entry's mean against the recent rollouts", (0.0, 5.0)),
    MetricSpec("obs/drift_std", "1", "largest |ln ratio| of an entry's spread against the recent rollouts", (0.0, 6.0)),
    MetricSpec("obs/drift_psi", "1", "largest population stability index against the recent rollouts", (0.0, 4.5)),
    MetricSpec("obs/evaluation_drift", "std", "largest shift of an entry between training and evaluation", (0.0, 30.0)),
    MetricSpec(
        "adversary/epsilon", "std", "budget of the adversary, mean over the entries that it may move", (0, None)
    ),
    MetricSpec("adversary/largest_perturbation", "std", "largest move of an entry of the normalised observations"),
    MetricSpec(
        "adversary/excess", "std", "by how much a move exceeds its budget; more than rounding is a bug", (None, 1e-5)
    ),
    MetricSpec(
        "adversary/path_cost", "log-return", "what the worst path that was found takes per train bar", (0.0, None)
    ),
    MetricSpec("adversary/path_shift", "volatility", "mean |shift| per train bar of the worst path that was found"),
    MetricSpec("action/top_share", "share", "most frequent action among decisions with a choice"),
    MetricSpec("action/at_bound", "share", "entries of Box actions at or beyond their bounds"),
    MetricSpec(
        "step/learning_rate", "1", "step size: base x schedule x kl_factor x health_factor, before noise factors"
    ),
    MetricSpec("step/schedule", "1", "factor of the learning-rate schedule"),
    MetricSpec("step/kl_factor", "1", "factor of the KL controller"),
    MetricSpec("step/health_factor", "1", "factor of the health rules"),
    MetricSpec("step/noise_factor/<group>", "1", "factor of variance scaling on the step of a parameter group"),
    MetricSpec("step/at_low_bound", "0/1", "whether the KL controller is at its smallest factor", (0.0, 0.0)),
    MetricSpec("step/at_high_bound", "0/1", "whether the KL controller is at its largest factor"),
    MetricSpec("step/entropy_weight", "1", "weight of the entropy bonus"),
    MetricSpec("step/prior_weight", "1", "weight of the pull to the prior"),
    MetricSpec("env/anomalies", "count", "NaN or infinite rewards and info numbers in the rollout", (0.0, 0.0)),
    MetricSpec(
        "env/equity_jump", "1", "largest |ln ratio| of equity between two steps, where info tells it", (0.0, 0.7)
    ),
    MetricSpec("env/reset_rows", "rows", "steps that only reset an environment (NEXT_STEP autoreset)"),
    MetricSpec("episode/return", "reward", "mean undiscounted return of the last 100 finished episodes"),
    MetricSpec("episode/length", "steps", "mean length of the last 100 finished episodes"),
    MetricSpec("evaluate/return", "reward", "mean return of the fixed evaluation episodes"),
    MetricSpec("evaluate/return_std", "reward", "standard deviation between the fixed evaluation episodes"),
    MetricSpec("evaluate/best", "reward", "best evaluation so far"),
    MetricSpec(
        "update/committed", "0/1", "whether the update was kept; 0 when it was refused or rolled back", (1.0, 1.0)
    ),
    MetricSpec("update/non_finite", "count", "metrics of this update that are NaN or infinite", (0.0, 0.0)),
    MetricSpec("health/firing", "rules", "rules of severity warn or error that fire", (0.0, 0.0)),
    MetricSpec("health/actions", "count", "actions that rules have taken in this run so far", (0.0, 0.0)),
    MetricSpec("machine/memory", "MB", "the most resident memory that the process had so far"),
    MetricSpec("time/elapsed", "s", "wall-clock time since the run, or its resumed part, started"),
    MetricSpec("time/steps_per_second", "steps/s", "environment steps per wall-clock second of this update"),
    MetricSpec("time/rollout", "s", "wall-clock time of collecting this update's rollout"),
    MetricSpec("time/update", "s", "wall-clock time of the optimisation of this update"),
    MetricSpec("time/select_share", "share", "wall-clock time of evaluations on the select episodes, of time/elapsed"),
    MetricSpec("time/health", "s", "wall-clock time of signals, rules and actions in this update"),
)

METRICS: Mapping[str, MetricSpec] = build(DECLARATIONS)


def find_spec(name: str, metrics: Mapping[str, MetricSpec] = METRICS) -> MetricSpec | None:
    """The declaration of a metric: its own, or that of the family it belongs to; None if there is none."""
    if name in metrics:
        return metrics[name]
    for family, spec in metrics.items():
        if "<" in family:
            pattern = "[a-z0-9_.]+".join(re.escape(part) for part in _PLACEHOLDER.split(family))
            if re.fullmatch(pattern, name):
                return spec
    return None


def check_declared(names: Iterable[str], metrics: Mapping[str, MetricSpec] = METRICS) -> None:
    """Raise ConfigError that lists every name without a declaration, with the nearest declared name."""
    problems = []
    for name in names:
        if find_spec(name, metrics) is None:
            near = difflib.get_close_matches(name, list(metrics), n=1)
            problems.append(f"'{name}'" + (f" (did you mean '{near[0]}'?)" if near else ""))
    if problems:
        raise ConfigError(f"metrics without a declaration: {', '.join(problems)}; declare them in core/metrics.py.")


def is_compared(name: str) -> bool:
    """Whether a metric takes part when two runs are compared: all but those under `time/` and `machine/`."""
    return not name.startswith(MACHINE_PREFIXES)


def compared_part(row: Mapping[str, Value]) -> dict[str, Value]:
    """The entries of a row of metrics that take part when two runs are compared for equality."""
    return {name: value for name, value in row.items() if is_compared(name)}

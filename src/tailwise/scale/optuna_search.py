"""Proposals of Optuna's Gaussian process: the return is maximised under the constraint that the tail keeps its limit.

Optuna's study is built anew for every round from the trials that ended, and its sampler is seeded by the round, so that
proposals are a function of the results: nothing of Optuna has to be saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.scale.population import Ranking, Trained
from tailwise.scale.space import Choice, Range, Space, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STARTUP = 6  # trials that are drawn at random before the model proposes


def load_optuna() -> Any:
    """The package, silent; a sentence where it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--search optuna needs the package optuna; install it with: pip install 'tailwise[tune]', or use --search "
            "random."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True)
class OptunaProposer:
    """Constrained Bayesian optimisation.

    A pruned trial counts with the score at which it was pruned, a failed one as the worst result so far.
    """

    space: Space
    ranking: Ranking
    seed: int
    name: str = "optuna"
    exact: bool = False

    def propose(self, first: int, count: int, ended: Sequence[Trained]) -> list[dict[str, Value]]:
        optuna = load_optuna()
        sampler = optuna.samplers.GPSampler(
            seed=Streams(self.seed).integer("tune/optuna", index=first), n_startup_trials=STARTUP
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        distributions = {key: _distribution(optuna, entry) for key, entry in self.space}
        for trial in self._trials(optuna, distributions, ended):
            study.add_trial(trial)
        return [self._values(study.ask(distributions).params) for _ in range(count)]

    def _values(self, params: dict[str, Any]) -> dict[str, Value]:
        return {
            key: entry.at(params[key]) if isinstance(entry, Range) else entry.choices[params[key]]
            for key, entry in self.space
        }

    def _trials(
        self, optuna: Any, distributions: dict[str, BaseDistribution], ended: Sequence[Trained]
    ) -> list[FrozenTrial]:
        """Earlier trials. Trials without any value tell nothing as long as no other has one."""
        values = [one.measured.smoothed for one in ended if one.measured.smoothed is not None]
        if not values:
            return []
        worst = min(values)
        return [
            optuna.trial.create_trial(
                params={key: _parameter(entry, one.member.values[key]) for key, entry in self.space},
                distributions=distributions,
                value=worst if one.measured.smoothed is None else one.measured.smoothed,
                constraints=self._constraints(one),
            )
            for one in ended
        ]

    def _constraints(self, one: Trained) -> dict[str, float] | None:
        """Optuna's convention: a value above 0 breaks the constraint."""
        if self.ranking.limit is None:
            return None
        tail = one.measured.smoothed_tail
        # A failed trial has no tail: as far below the limit as the limit is from 0, so that the model stays finite.
        return {"tail": abs(self.ranking.limit) if tail is None else self.ranking.limit - tail}


def _distribution(optuna: Any, entry: Range | Choice) -> BaseDistribution:
    """Levels of a scale, which every range has between 0 and 1; the place of a choice."""
    if isinstance(entry, Range):
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    return optuna.distributions.CategoricalDistribution(list(range(len(entry.choices))))


def _parameter(entry: Range | Choice, value: Value) -> float | int:
    if isinstance(entry, Choice):
        return entry.choices.index(value)
    return min(max(entry.level(float(value)), 0.0), 1.0)

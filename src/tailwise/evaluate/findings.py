"""What can be said about one account beyond its numbers: intervals, comparisons, odds, and stress tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.baselines import buy_and_hold
from tailwise.evaluate.ensemble import Trader
from tailwise.evaluate.evidence import Comparison, PathEvidence, compare_paths, path_evidence
from tailwise.evaluate.judgement import POLICY, Judgement
from tailwise.evaluate.monte_carlo import AccountOdds, account_odds
from tailwise.evaluate.players import policy_player, rule_player
from tailwise.evaluate.statistics import annualisation_doubt, window_returns
from tailwise.evaluate.stress import StressResult, stress
from tailwise.market.leaks.features import LeakVerdict
from tailwise.market.path import AccountPath
from tailwise.run.checkpoint import Training
from tailwise.run.worlds import MarketWorld

LEAST_REPETITIONS, MOST_REPETITIONS = 200, 1000
_RESAMPLED = 4_000_000  # values per statistic: more bars get fewer resamples, so that minutes do not become hours
_FUTURES = 2000


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

    def to_json(self) -> dict[str, Any]:
        """What the judgement says, and the evidence beside it."""
        return {
            **self.judged.to_json(),
            "evidence": self.evidence.to_json(),
            "leak_check": None if self.leak_check is None else self.leak_check.model_dump(mode="json"),
            "against": {name: comparison.to_json() for name, comparison in self.against.items()},
            "odds": {name: asdict(found) for name, found in self.odds.items()},
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
    seed: int = 0,
) -> Findings:
    """Intervals of the policy, its differences to every baseline, and odds; stress tests are given, if any were run."""
    policy, tried = judged.paths[POLICY], trials or Trials()
    alpha = judged.statistics[POLICY].alpha
    count = repetitions_for(policy.planned)
    chosen = {name: judged.paths[name] for name in (POLICY, judged.reference)}
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
        odds={name: _odds(path, seed) for name, path in chosen.items() if path.planned > 1},
        repetitions=count,
        doubt=annualisation_doubt(policy),
        trials=tried,
        stressed=stressed or {},
        not_stressed=not_stressed,
        rhythm=rhythm,
        trained=trained,
        leak_check=leak_check,
    )


def repetitions_for(bars: int) -> int:
    """Resamples per interval: a thousand for daily bars, at least two hundred however long the window is."""
    return int(np.clip(_RESAMPLED // bars, LEAST_REPETITIONS, MOST_REPETITIONS))


def _odds(path: AccountPath, seed: int) -> AccountOdds:
    """Over a year, or over as many bars as were seen where those are fewer."""
    bars = min(path.planned, max(round(path.periods_per_year), 1))
    futures = int(np.clip(20_000_000 // path.planned, LEAST_REPETITIONS, _FUTURES))
    return account_odds(window_returns(path), path.periods_per_year, bars=bars, repetitions=futures, seed=seed)


def stress_policy(
    policy: Trader, judged: Judgement, symbol: int, *, world: MarketWorld, deterministic: bool, seed: int
) -> tuple[dict[str, list[StressResult]], str | None]:
    """The policy and buy and hold through every scenario; or nothing, with the reason."""
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

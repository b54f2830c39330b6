"""A trained run judged on the bars of its test window: evidence against simple rules, stress tests, its background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwise.bars.data_config import Purpose
from tailwise.core.atomic import write_json
from tailwise.core.config import dump_yaml
from tailwise.evaluate.findings import Findings, stress_policy, weigh
from tailwise.evaluate.judgement import POLICY, Judgement, judge_policy
from tailwise.evaluate.members import play_members
from tailwise.evaluate.opened_run import Team
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.portfolio import judge_portfolio, one_portfolio
from tailwise.evaluate.statistics import PathStatistics, path_statistics
from tailwise.evaluate.stress import StressResult
from tailwise.evaluate.windows import Windows, play_other_windows
from tailwise.market.path import AccountPath
from tailwise.run.checkpoint import Training
from tailwise.run.config import Config
from tailwise.run.leak_check import read_leak_verdict, worst_verdict
from tailwise.run.run_folder import read_manifest
from tailwise.run.seeds import alerts_of, metrics_of
from tailwise.run.trials import count_trials
from tailwise.run.worlds import MarketWorld

if TYPE_CHECKING:
    import pandas as pd

CAVEAT = "One policy of one seed on one path of history: it shows that everything works, not that it earns."
CAVEAT_OF_SEVERAL = "One path of history: several seeds tell how much chance of training there is, not that it earns."
PREFIX = "calibration/"
SUMMARY = "summary.json"
MOST_STRESSED = 3  # symbols; each is some thirty replays


@dataclass(frozen=True)
class Playing:
    """How a policy was played."""

    checkpoint: str
    deterministic: bool
    seed: int
    members: tuple[str, ...] = ()  # of an ensemble: how they decide together, then run/checkpoint of each
    trained: Training | None = None  # of an ensemble: its least trained member

    @property
    def caveat(self) -> str:
        """What the result is no evidence of."""
        return CAVEAT_OF_SEVERAL if self.members else CAVEAT

    @property
    def sentence(self) -> str:
        how = "the most likely action" if self.deterministic else f"sampled actions, seed {self.seed}"
        if self.members:
            return f"{len(self.members) - 1} policies together ({self.members[0]}): {how}"
        return f"checkpoint {self.checkpoint}: {how}"

    def policy_sentence(self, config: Config) -> str:
        """Who decided, and how, for the verdict; config: of the run."""
        how = "its most likely action" if self.deterministic else f"sampled actions, seed {self.seed}"
        if self.members:
            return f"{len(self.members) - 1} policies decide together ({self.members[0]}), by {how}."
        return f"Policy: checkpoint {self.checkpoint} of the run with seed {config.seed}, by {how}."


@dataclass(frozen=True)
class Background:
    """Where a policy comes from; what is not known is empty."""

    facts: Sequence[str] = ()
    metrics: pd.DataFrame | None = None
    calibration: Mapping[str, float] | None = None
    alerts: Sequence[Mapping[str, Any]] | None = None  # None: it was not trained by a run
    configuration: str = ""  # YAML
    hashes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # purpose -> symbol -> sha256
    versions: Mapping[str, str] = field(default_factory=dict)


def background_of(config: Config, world: MarketWorld, played: Playing, run: Path) -> Background:
    """Read what the run of a policy wrote down."""
    facts = [
        *world.dataset.describe(),
        f"Core {config.model.core.kind}, {config.model.critic.kind} critic, seed {config.seed}, "
        f"{config.run.total_steps:,} steps; fills: {world.settings.fill.replace('_', ' ')}; "
        f"costs of an order: {world.costs.taker_rate * 1e4:g} bps and impact. Played: {played.sentence}.",
        played.caveat,
    ]
    return Background(
        facts=facts,
        metrics=metrics_of(run),
        calibration=newest_calibration(run),
        alerts=alerts_of(run),
        configuration=dump_yaml(config),
        hashes={str(purpose): codes for purpose, codes in world.dataset.hashes().items()},
        versions=read_manifest(run)["versions"],
    )


def newest_calibration(run_dir: str | Path) -> dict[str, float] | None:
    """Read the last calibration of a training, names without `calibration/`; None if it wrote none. Of several seeds
    their mean."""
    rows = metrics_of(Path(run_dir))
    names = [name for name in rows if name.startswith(PREFIX)]
    if not names:
        return None
    complete = rows[names].dropna()
    if complete.empty:
        return None
    return {name.removeprefix(PREFIX): float(value) for name, value in complete.iloc[-1].items()}


@dataclass(frozen=True)
class RunJudgement:
    """A run on the bars of its test window.

    run        its folder; of an ensemble that of the first
    played     which checkpoint, and how
    accounts   numbers, evidence, odds and stress tests of each account
    folder     with summary.json, the paths as Parquet and report.html
    notes      sentences about checkpoints that cannot be used
    portfolio  the evidence of all accounts together; None where there is one account
    """

    run: Path
    played: Playing
    accounts: tuple[Findings, ...]
    folder: Path
    notes: tuple[str, ...] = ()
    portfolio: Findings | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "run_dir": str(self.run),
            **asdict(self.played),
            "portfolio": None if self.portfolio is None else self.portfolio.to_json(),
            "symbols": [account.to_json() for account in self.accounts],
            "folder": str(self.folder),
        }


def findings_of(
    team: Team, played: Playing, world: MarketWorld, *, stressed: bool
) -> tuple[list[Findings], Findings | None]:
    """Judge every account of the test window and weigh the evidence, then all of them together (None for one account);
    the first few are put to stress tests."""
    policy, findings = team.trader, []
    counted = count_trials(team.run)
    leaks = worst_verdict(read_leak_verdict(one.run, world.features) for one in team.runs)
    accounts = judge_policy(policy, deterministic=played.deterministic, seed=played.seed, market=world, sampled=True)
    trials = counted.of_each(len(accounts))
    others = play_other_windows(
        policy, world, accounts=len(accounts), deterministic=played.deterministic, seed=played.seed
    )
    members = play_members(team.policies, accounts, market=world, deterministic=played.deterministic, seed=played.seed)
    for number, (judged, other) in enumerate(zip(accounts, others, strict=True)):
        results: dict[str, list[StressResult]] = {}
        reason = None
        if stressed and number < MOST_STRESSED:
            results, reason = stress_policy(
                policy, judged, number, world=world, deterministic=played.deterministic, seed=played.seed
            )
        elif stressed:
            reason = f"only the first {MOST_STRESSED} symbols are, to save time."
        rhythm = world.dataset.bars[number].frequency.sentence
        findings.append(
            weigh(
                judged,
                trials=trials,
                gamma=policy.config.learner.gamma,
                stressed=results,
                not_stressed=reason,
                rhythm=rhythm,
                trained=played.trained,
                leak_check=leaks,
                windows=_windows(judged, other, policy.config),
                members=members[number] if members else None,
            )
        )
    return findings, _together(team, played, findings, others) if len(findings) > 1 else None


def _together(
    team: Team, played: Playing, accounts: Sequence[Findings], others: Sequence[Mapping[Purpose, AccountPath]]
) -> Findings:
    """Weigh the equal-risk portfolio of several accounts; others: their paths in other windows."""
    config = team.trader.config
    judged = judge_portfolio([one.judged for one in accounts], gamma=config.learner.gamma)
    common = [purpose for purpose in others[0] if all(purpose in paths for paths in others)]
    windows = {purpose: one_portfolio([paths[purpose] for paths in others], judged.symbol) for purpose in common}
    return weigh(
        judged,
        trials=count_trials(team.run),
        gamma=config.learner.gamma,
        rhythm=accounts[0].rhythm,
        trained=played.trained,
        leak_check=accounts[0].leak_check,
        windows=_windows(judged, windows, config),
    )


def _windows(judged: Judgement, others: Mapping[Purpose, AccountPath], config: Config) -> Windows:
    test = judged.statistics[POLICY]
    statistics: dict[Purpose, PathStatistics] = {
        purpose: path_statistics(path, alpha=test.alpha, gamma=config.learner.gamma) for purpose, path in others.items()
    }
    verdict = judged.limits.get(POLICY)
    return Windows({**statistics, "test": test}, None if verdict is None else verdict.limit)


def save_judgement(
    folder: Path, judgement: RunJudgement, *, name: str, calibration: Mapping[str, float] | None
) -> None:
    """Write summary.json and the paths of all accounts as Parquet into `folder`.

    name: title of the report; calibration: the newest of the run's training.
    """
    symbols = [account.to_json() for account in judgement.accounts]
    together = None if judgement.portfolio is None else judgement.portfolio.to_json()
    summary = {
        "name": name,
        **asdict(judgement.played),
        "calibration": calibration,
        "portfolio": together,
        "symbols": symbols,
    }
    write_json(folder / SUMMARY, summary)
    save_paths(folder, {account.judged.symbol: account.judged.paths for account in judgement.accounts})

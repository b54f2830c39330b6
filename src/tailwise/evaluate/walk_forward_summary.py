"""All folds and seeds of a walk-forward together: stitched paths, evidence, verdict. Layout: see walk_forward.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.core.discount import tail_horizon
from tailwise.core.errors import DataError
from tailwise.evaluate import walk_forward_words as words
from tailwise.evaluate.evidence import compare_paths, path_evidence
from tailwise.evaluate.judgement import DEFAULT_ALPHA, MOST_LIKELY, POLICY, SAMPLED
from tailwise.evaluate.limit import judge_limit
from tailwise.evaluate.monte_carlo import account_odds
from tailwise.evaluate.overfitting import BLOCKS, overfitting
from tailwise.evaluate.path_files import EQUITY, read_paths, save_paths
from tailwise.evaluate.seeds import summarise_seeds
from tailwise.evaluate.statistics import annualisation_doubt, path_statistics, window_returns
from tailwise.evaluate.stitching import stitch
from tailwise.evaluate.walk_forward_result import StoredFolds
from tailwise.evaluate.walk_forward import FORMAT, SUMMARY, limit_json
from tailwise.evaluate.walk_forward_plan import Plan, iso, json_spans
from tailwise.market.path import AccountPath
from tailwise.run.config import Config
from tailwise.run.run_files import LARGE, read_stored
from tailwise.run.trials import TrialBook, config_hash, plan_hash
from tailwise.run.worlds import MarketWorld

STITCHED = "stitched"
_LOWEST = 1e-6  # wealth whose logarithm a ruined account is given
Row = Mapping[str, Any]
Named = dict[str, AccountPath]  # policy and baselines by name


@dataclass(frozen=True)
class Whole:
    """What the parts of a summary share."""

    out: Path
    name: str
    config: Config
    plan: Plan
    seeds: tuple[int, ...]
    world: MarketWorld  # of any fold: its bars are those of all
    book: TrialBook
    how: str | None  # how the seeds decide together; None with a single one

    @property
    def alpha(self) -> float:
        return self.config.tail_alpha or DEFAULT_ALPHA

    @property
    def speakers(self) -> list[int | None]:
        """Seeds, and None for all of them together."""
        return [*self.seeds, *([None] if self.how is not None else [])]

    @property
    def cut(self) -> str:
        return cut_of(self.plan)


def cut_of(plan: Plan) -> str:
    """What tells this plan of folds from others on the same bars."""
    return plan_hash(plan.identity())


def summarise(whole: Whole, rows: Sequence[Row], facts: Sequence[str]) -> dict[str, Any]:
    """Everything that walk_forward.json holds; writes the stitched paths beside it."""
    plan, config, data = whole.plan, whole.config, whole.world.dataset
    paths = {seed: _stitched(whole, rows, seed) for seed in whole.speakers}
    for seed, accounts in paths.items():
        save_paths(whole.out / _folder_of(seed), accounts)
    data_hash = data.data_hash()
    stitched, trials = _judged(whole, paths, data_hash)
    pbo, reason = _overfitting(whole, paths, data_hash)
    leaks = whole.world.leak_verdict()
    told = {
        "format": FORMAT,
        "name": whole.name,
        "label": data.label,
        "symbols": list(paths[whole.seeds[0]]),
        "kind": plan.settings.kind,
        "folds": len(plan.folds),
        "seeds": list(whole.seeds),
        "purge": plan.purge,
        "embargo": plan.settings.embargo,
        "look_back": plan.look_back,
        "label_horizon": plan.label_horizon,
        "clock_bars": len(plan.clock),
        "periods_per_year": data.bars[0].frequency.periods_per_year,
        "alpha": whole.alpha,
        "gamma": config.learner.gamma,
        "horizon": tail_horizon(config.learner.gamma),
        "data_hash": data_hash,
        "config_hash": config_hash(config),
        "cut": whole.cut,
        "config": config.model_dump(mode="json"),
        "facts": list(facts),
        "leak_check": leaks.model_dump(mode="json"),
        "windows": [{"fold": fold.number + 1, **json_spans(plan.spans(fold))} for fold in plan.folds],
        "rows": list(rows),
        "ensemble": None if whole.how is None else {"how": whole.how, "seeds": list(whole.seeds)},
        "stitched": stitched,
        "across_seeds": _across_seeds(whole, rows),
        "overfitting": pbo,
        "overfitting_reason": reason,
        "trials": trials,
        "headline": {"account": next(iter(paths[whole.seeds[0]])), "seed": whole.speakers[-1]},
    }
    doubts = dict.fromkeys(
        doubt for path in _policies(paths[whole.seeds[0]]) if (doubt := annualisation_doubt(path)) is not None
    )
    if leaks.doubtful:
        doubts = {f"leak-check: {leaks.sentence}": None, **doubts}
    return {**told, "doubts": list(doubts), "verdict": [*doubts, *words.verdict(told)]}


def _folder_of(seed: int | None) -> str:
    return f"{STITCHED}/{'ensemble' if seed is None else f'seed_{seed}'}"


def _policies(accounts: Mapping[str, Named]) -> list[AccountPath]:
    return [named[POLICY] for named in accounts.values()]


def _stitched(whole: Whole, rows: Sequence[Row], seed: int | None) -> dict[str, Named]:
    """account -> name -> path over the test windows of all folds."""
    own = sorted((row for row in rows if row["seed"] == seed), key=lambda row: int(row["fold"]))
    folders = list(dict.fromkeys(row["evaluation"] for row in own))
    if len(folders) != len(whole.plan.folds):
        raise DataError(f"{whole.out}: {len(folders)} of {len(whole.plan.folds)} folds are there for seed {seed}.")
    parts = [read_paths(whole.out / folder) for folder in folders]
    return {
        account: {name: stitch([part[account][name] for part in parts]) for name in parts[0][account]}
        for account in parts[0]
    }


def _judged(
    whole: Whole, paths: Mapping[int | None, Mapping[str, Named]], data_hash: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The list `stitched` and what is known of the trials, this one included."""
    accounts = list(paths[whole.seeds[0]])
    first = paths[whole.seeds[0]][accounts[0]][POLICY]
    bar = whole.plan.bar
    window = f"{iso(first.time[0] + bar)} {iso(first.time[-1] + bar)} {', '.join(accounts)}"
    for seed in whole.seeds:
        # One number per trial: the mean over accounts, each of which one policy trades.
        ratios = [_statistics(whole, path)["sharpe"] for path in _policies(paths[seed])]
        known = [ratio for ratio in ratios if ratio is not None]
        whole.book.result(
            data=data_hash,
            config=config_hash(whole.config),
            cut=whole.cut,
            seed=seed,
            window=window,
            sharpe=float(np.mean(known)) if known else None,
        )
    found = whole.book.look_up(data_hash, window=window)
    counted = max(found.counted, len(whole.seeds))
    stitched = []
    for speaker in whole.speakers:
        for account in accounts:
            named = paths[speaker][account]
            path = named[POLICY]
            evidence = path_evidence(path, alpha=whole.alpha, trials=counted, trial_sharpes=found.sharpes)
            rules = {name: one for name, one in named.items() if name not in (POLICY, SAMPLED, MOST_LIKELY)}
            speaks = speaker == whole.speakers[-1]
            stitched.append(
                {
                    "account": account,
                    "seed": speaker,
                    "first_bar": iso(path.time[0]),
                    "last_bar": iso(path.time[-1]),
                    "bars": path.planned,
                    "ruined": path.ruined,
                    "statistics": {name: _statistics(whole, one) for name, one in named.items()},
                    "limit": limit_json(judge_limit(path, whole.config)),
                    "evidence": evidence.to_json(),
                    "against": {name: compare_paths(path, rule).to_json() for name, rule in rules.items() if speaks},
                    "odds": _odds(path) if speaks else None,
                    "evaluation": _folder_of(speaker),
                }
            )
    return stitched, {"counted": counted, "known_sharpes": len(found.sharpes), "file": str(found.file)}


def _odds(path: AccountPath) -> dict[str, Any]:
    """Of a year ahead like these bars, or of as many bars as there are if that is less."""
    bars = min(round(path.periods_per_year), path.planned)
    return asdict(account_odds(window_returns(path), path.periods_per_year, bars=bars))


def _statistics(whole: Whole, path: AccountPath) -> dict[str, Any]:
    return asdict(path_statistics(path, alpha=whole.alpha, gamma=whole.config.learner.gamma))


def _across_seeds(whole: Whole, rows: Sequence[Row]) -> dict[str, Any]:
    """Interquartile means over seeds [rows] and folds x accounts [columns]."""
    own = [row for row in rows if row["seed"] is not None]
    tasks = sorted({(row["fold"], row["account"]) for row in own})
    found: dict[str, Any] = {}
    for name in ("sharpe", "mean_return"):
        scores = {(row["seed"], row["fold"], row["account"]): _score(row, name) for row in own}
        table = [[scores[seed, *task] for task in tasks] for seed in whole.seeds]
        known = all(value is not None for line in table for value in line)
        found[name] = asdict(summarise_seeds(np.array(table, dtype=np.float64))) if known else None
    return found


def _score(row: Row, name: str) -> float | None:
    numbers = row["statistics"][POLICY]
    if name == "sharpe":
        return None if numbers["sharpe"] is None else float(numbers["sharpe"])
    return float(np.log(max(1 + numbers["total_return"], _LOWEST)) / numbers["years"])


def _overfitting(
    whole: Whole, paths: Mapping[int | None, Mapping[str, Named]], data_hash: str
) -> tuple[dict[str, Any] | None, str | None]:
    """PBO over the seeds, and over what was tried before on the same bars by the same folds; or why there is none."""
    trials = [_returns(paths[seed]) for seed in whole.seeds]
    for other in sorted(whole.out.absolute().parent.glob(f"*/{SUMMARY}")):
        if other.parent == whole.out.absolute():
            continue
        told = read_stored(other, StoredFolds, root=other.parent, limit=LARGE)
        if told.data_hash == data_hash and told.cut == whole.cut:
            folders = [other.parent / _folder_of(seed) for seed in told.seeds]
            # Somebody may have deleted the paths of an older one; that must not cost this one its verdict.
            trials += [
                _returns(read_paths(folder, root=other.parent)) for folder in folders if (folder / EQUITY).exists()
            ]
    if len(trials) < 2:
        return None, "a single trial was not chosen among others"
    bars = len(trials[0])
    if bars < 2 * BLOCKS:
        return None, f"{bars} bars are too few for {BLOCKS} blocks"
    found = overfitting(np.stack(trials, axis=1))
    return {
        "probability": found.probability,
        "loss_probability": found.loss_probability,
        "trials": len(trials),
        "bars": bars,
    }, None


def _returns(accounts: Mapping[str, Mapping[str, AccountPath]]) -> Any:
    """Log-returns [bars] of one trial, the mean over its accounts (as many bars as the shortest has)."""
    each = [window_returns(named[POLICY]) for named in accounts.values()]
    bars = min(len(one) for one in each)
    return np.mean([one[:bars] for one in each], axis=0)

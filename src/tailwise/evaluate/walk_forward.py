"""Walk-forward: what all folds and seeds come to. `OUT/walk_forward.json` has this layout (format 2):

format            2
name              name of the configuration
label             "real", or what synthetic bars are
symbols           names of the accounts, one for each symbol (one for all of them in a portfolio)
kind              "anchored" (training grows from the first bar) or "rolling" (it keeps its length)
folds, seeds      number of folds; list of seeds
purge, embargo    bars left out between train, select and test; look_back and label_horizon: what purge must cover
clock_bars        bars of all symbols' common clock; periods_per_year: bars per year
alpha, gamma, horizon    of the tails: probability, discount per bar, bars
data_hash, config_hash   of all bars; of the configuration without seed and split. cut: hash of the plan of folds
config            the whole configuration, as JSON; `data.split` of it is not used
facts             sentences: what was trained on what
windows           [{fold, train, select, test}]: {first_bar, last_bar, bars} each; select null if none.
                  Times are UTC, ISO 8601, and those at which bars open. bars: of the common clock
rows              one per fold, seed and account; seed null: the seeds of the fold deciding together (see ensemble)
    fold, seed, account    folds count from 1
    folder        of the run, relative to OUT (null for the ensemble)
    evaluation    folder with equity.parquet, decisions.parquet, trades.parquet, summary.json, relative to OUT
    checkpoint    that was tested: "best" by the select window, or the newest (null for the ensemble)
    updates       of training that are behind that checkpoint (of the ensemble: behind its least trained member)
    limit_acted   whether the limit acted in that training (of the ensemble: in all of them); null without a limit
    steps, ended, refused    of the training (null for the ensemble); refused: it ended by refused updates
    windows       train, select, test as above, bars of this account
    statistics    {"policy": {...}, "buy and hold": {...}, ...}: all of PathStatistics by name, after costs
    cvar_return   realised, of the policy (null: the test window is shorter than the horizon)
    limit         null without a limit, else {limit, realised, kept, sentence}
ensemble          null with one seed, else {how: "vote" or "average", seeds}
stitched          one per account and seed (null: the ensemble): the test windows of all folds one after the other
    account, seed, first_bar, last_bar, bars, ruined
    statistics    as in rows
    limit         as in rows
    evidence      {mean_return, sharpe, volatility, cvar_bar: {estimate, low, high, level, above_zero, block},
                  verdict: "above zero" | "below zero" | "no evidence",
                  deflated: null or {probabilistic, deflated, expected_best, trials}}
    against       {baseline: {mean_return: interval, sharpe: interval, verdict: "better" | "worse" | "no evidence"}};
                      empty for paths that are not the headline
        odds          of the headline, else null: AccountOdds over a year (or the bars there are) like these bars
    evaluation    folder with equity.parquet, decisions.parquet, trades.parquet of all accounts, relative to OUT;
                  equity.parquet: index time (open, UTC), columns symbol, policy, wealth, log_return, exposure, ...
across_seeds      {sharpe, mean_return}: null or {iqm, low, high, level, seeds, tasks}; tasks are folds x accounts
overfitting       null, or {probability, loss_probability, trials, bars}: PBO over the seeds (and the configurations
                  tried before on these data with the same folds)
overfitting_reason    why it is null, a sentence; null otherwise
trials            {counted, known_sharpes, file}: configurations and seeds that were trained on these bars so far
headline          which stitched path speaks: {account, seed}; the ensemble, or the only seed
doubts            sentences about the bars per year, mostly none
verdict           sentences: the doubts, what was tested, whether it earns, and the rest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tailwise.core.atomic import atomic_folder, write_json
from tailwise.core.config import differences
from tailwise.core.errors import DataError
from tailwise.core.stored import as_stored
from tailwise.evaluate.ensemble import Ensemble, How, Trader
from tailwise.evaluate.judgement import POLICY, Judgement, judge
from tailwise.evaluate.limit import LimitVerdict
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.splits import Fold
from tailwise.evaluate.walk_forward_result import FoldPlan, FoldResult
from tailwise.evaluate.walk_forward_plan import Plan, base_config, check_fitted, json_spans, spans_of_account
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import Policy, choose_checkpoint, policy_of
from tailwise.run.config import Config
from tailwise.run.policy_files import load_policy
from tailwise.run.run_files import LARGE, check_links, read_json, read_stored
from tailwise.run.run_folder import CONFIG
from tailwise.run.worlds import MarketWorld

FORMAT = 2
SUMMARY, PLAN, RESULT = "walk_forward.json", "walk_forward.plan.json", "fold_result.json"
EVALUATION = "evaluations/walk-forward"
PLAYED = "summary.json"


@dataclass(frozen=True)
class Cell:
    """One run: a fold, counted from 1, and a seed (None: all seeds of the fold together)."""

    fold: int
    seed: int | None

    @property
    def label(self) -> str:
        return f"fold {self.fold}, {'ensemble' if self.seed is None else f'seed {self.seed}'}"

    @property
    def folder(self) -> str:
        return f"fold_{self.fold}_{'ensemble' if self.seed is None else f'seed_{self.seed}'}"


def cells_of(plan: Plan, seeds: Sequence[int]) -> list[Cell]:
    """Every run: seed by seed, so that a whole walk-forward of the first seed is there early."""
    return [Cell(fold.number + 1, seed) for seed in seeds for fold in plan.folds]


# ---------------------------------------------------------------- whose folder it is


def claim_folder(folder: Path, base: Config, plan: Plan, *, data_hash: str) -> None:
    """Write down what a new folder is for; raise unless an old one is for the same (seeds may be added)."""
    if (folder / CONFIG).exists():
        raise DataError(f"{folder} is the folder of one run; choose another folder with --out.")
    own = {"format": FORMAT, "config": base_config(base), "plan": plan.identity(), "data_hash": data_hash}
    path = folder / PLAN
    if path.exists():
        check_links(folder)
        try:
            stored = read_stored(path, FoldPlan, root=folder)
        except DataError as error:
            raise DataError(f"{error}\n{path} cannot be read; restore it, or choose another folder.") from error
        if stored.data_hash != data_hash:
            raise DataError(
                f"{folder} holds a walk-forward on other bars (their hash was {stored.data_hash[:12]}, it "
                f"is {data_hash[:12]} now); restore those bars, or choose another folder with --out."
            )
        differing = differences(stored.config, own["config"]) + differences(stored.plan, own["plan"])
        if differing:
            raise DataError(
                f"{folder} holds another walk-forward: {'; '.join(differing)}. Call the command as it was called "
                "then, or choose another folder with --out."
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty and holds no walk-forward; choose another folder with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, own)


def finished(folder: Path) -> list[dict[str, Any]] | None:
    """The rows of a fold and seed that was trained and tested before; None when there is something left to do."""
    path = folder / RESULT
    if not path.exists():
        return None
    result = _result(path)
    return None if result is None else result.model_dump()["rows"]


def _result(path: Path) -> FoldResult | None:
    """The rows of a fold; None where another version wrote them."""
    try:
        data = read_json(path, root=path.parent, limit=LARGE)
        if isinstance(data, dict) and data.get("format") != FORMAT:
            return None  # rows of another version have other fields: the fold is tested again, not trained
        return as_stored(FoldResult, data, source=str(path))
    except DataError as error:
        raise DataError(f"{error}\n{path} cannot be read; delete it, and the fold is tested again.") from error


# ---------------------------------------------------------------- one fold and seed


def judge_cell(
    cell: Cell, out: Path, world: MarketWorld, plan: Plan, *, steps: int, ended: str, refused: bool
) -> list[dict[str, Any]]:
    """Test the checkpoint that speaks for a trained run on the test window of its fold, and mark it as finished."""
    run = out / cell.folder
    policy, checkpoint, behind = _policy(run, world.config)
    fold = plan.folds[cell.fold - 1]
    assert policy.features is not None
    check_fitted(policy.features, world.dataset.bars, plan, fold)
    training = {
        "folder": cell.folder,
        "checkpoint": checkpoint,
        **asdict(behind),
        "steps": steps,
        "ended": ended,
        "refused": refused,
    }
    rows = _test(cell, policy, world, out, f"{cell.folder}/{EVALUATION}", training)
    write_json(run / RESULT, {"format": FORMAT, "rows": rows})
    return rows


def judge_ensemble(
    fold: Fold, seeds: Sequence[int], out: Path, world: MarketWorld, *, how: How
) -> list[dict[str, Any]]:
    """Test all seeds of a fold as one; what was tested before with the same seeds is read."""
    cell = Cell(fold.number + 1, None)
    folder = out / cell.folder
    members = {str(seed): _policy(out / Cell(cell.fold, seed).folder, world.config) for seed in seeds}
    own = {
        "format": FORMAT,
        "how": how,
        "members": {seed: checkpoint for seed, (_, checkpoint, _) in members.items()},
    }
    path = folder / RESULT
    if path.exists():
        result = _result(path)
        stored = {} if result is None else result.model_dump()
        if {key: stored.get(key) for key in own} == own:
            return list(stored["rows"])
    ensemble = Ensemble([policy for policy, _, _ in members.values()], how)
    behind = ckpt.least_trained([training for _, _, training in members.values()])
    training = {"folder": None, "checkpoint": None, **asdict(behind), "steps": None, "ended": None, "refused": None}
    rows = _test(cell, ensemble, world, out, cell.folder, training)
    write_json(path, {**own, "rows": rows})
    return rows


def ensemble_kind(config: Config) -> How:
    """Votes where actions are choices, averages where they are numbers."""
    assert config.env.kind == "market"
    return "vote" if config.env.action.kind == "positions" else "average"


def _policy(run: Path, config: Config) -> tuple[Policy, str, ckpt.Training]:
    """The policy that speaks for a run, the name of its checkpoint, and the training behind it; the code that `config`
    names is executed already."""
    checkpoint, _ = choose_checkpoint(run)
    return policy_of(load_policy(checkpoint, trust=config)), checkpoint.name, ckpt.training_behind(checkpoint)


def _test(
    cell: Cell, trader: Trader, world: MarketWorld, out: Path, evaluation: str, training: Mapping[str, Any]
) -> list[dict[str, Any]]:
    config = trader.config
    torch.set_num_threads(config.run.threads)
    judgements = judge(trader, deterministic=trader.deterministic, market=world)
    folder = out / evaluation
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as draft:
        save_paths(draft, {judged.symbol: judged.paths for judged in judgements})
        write_json(draft / PLAYED, {"name": cell.label, "symbols": [judged.to_json() for judged in judgements]})
    return [_row(cell, judged, world, evaluation, training) for judged in judgements]


def _row(
    cell: Cell, judged: Judgement, world: MarketWorld, evaluation: str, training: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "fold": cell.fold,
        "seed": cell.seed,
        "account": judged.symbol,
        **training,
        "evaluation": evaluation,
        "windows": json_spans(spans_of_account(world, judged.symbol)),
        "statistics": {name: asdict(numbers) for name, numbers in judged.statistics.items()},
        "cvar_return": judged.statistics[POLICY].cvar_return,
        "limit": limit_json(judged.limits.get(POLICY)),
    }


def limit_json(verdict: LimitVerdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "limit": verdict.limit,
        "realised": verdict.realised,
        "kept": verdict.kept,
        "sentence": verdict.sentence("out of sample"),
    }

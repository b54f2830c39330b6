"""One fold and seed of a walk-forward: whose folder it is, what is finished, how a trained run is tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailwise.core.atomic import atomic_folder, write_json
from tailwise.core.config import differences
from tailwise.core.errors import DataError
from tailwise.core.parsing import as_stored
from tailwise.evaluate.ensemble import Ensemble, How, Trader
from tailwise.evaluate.judgement import POLICY, Judgement, judge_policy
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.splits import Fold
from tailwise.evaluate.walk_forward_plan import Plan, base_config, check_fitted, windows_of_account
from tailwise.evaluate.walk_forward_result import FORMAT, PLAN, RESULT, FoldLimit, FoldPlan, FoldResult, FoldRow
from tailwise.market.action_kinds import action_kind
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import Policy, choose_checkpoint, policy_of
from tailwise.run.config import Config
from tailwise.run.policy_files import load_policy
from tailwise.run.run_files import LARGE, check_links, read_json, read_stored
from tailwise.run.run_folder import CONFIG
from tailwise.run.worlds import MarketWorld

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


def finished(folder: Path) -> tuple[FoldRow, ...] | None:
    """The rows of a fold and seed that was trained and tested before; None when there is something left to do."""
    path = folder / RESULT
    if not path.exists():
        return None
    result = _result(path)
    return None if result is None else result.rows


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


@dataclass(frozen=True)
class _Behind:
    """The training behind what is tested, as a row tells it."""

    folder: str | None
    checkpoint: str | None
    updates: int
    limit_acted: bool | None
    steps: int | None
    ended: str | None
    refused: bool | None


def judge_cell(
    cell: Cell, out: Path, world: MarketWorld, plan: Plan, *, steps: int, ended: str, refused: bool
) -> tuple[FoldRow, ...]:
    """Test the checkpoint that speaks for a trained run on the test window of its fold, and mark it as finished."""
    run = out / cell.folder
    policy, checkpoint, behind = _policy(run, world.config)
    fold = plan.folds[cell.fold - 1]
    assert policy.features is not None
    check_fitted(policy.features, world.dataset.bars, plan, fold)
    training = _Behind(cell.folder, checkpoint, behind.updates, behind.limit_acted, steps, ended, refused)
    rows = _test(cell, policy, world, out, f"{cell.folder}/{EVALUATION}", training)
    _write_result(run / RESULT, {"format": FORMAT}, rows)
    return rows


def judge_ensemble(fold: Fold, seeds: Sequence[int], out: Path, world: MarketWorld, *, how: How) -> tuple[FoldRow, ...]:
    """Test all seeds of a fold as one; what was tested before with the same seeds is read."""
    cell = Cell(fold.number + 1, None)
    folder = out / cell.folder
    members = {str(seed): _policy(out / Cell(cell.fold, seed).folder, world.config) for seed in seeds}
    checkpoints = {seed: checkpoint for seed, (_, checkpoint, _) in members.items()}
    path = folder / RESULT
    result = _result(path) if path.exists() else None
    if result is not None and (result.how, result.members) == (how, checkpoints):
        return result.rows
    ensemble = Ensemble([policy for policy, _, _ in members.values()], how)
    behind = ckpt.least_trained([training for _, _, training in members.values()])
    training = _Behind(None, None, behind.updates, behind.limit_acted, None, None, None)
    rows = _test(cell, ensemble, world, out, cell.folder, training)
    _write_result(path, {"format": FORMAT, "how": how, "members": checkpoints}, rows)
    return rows


def _write_result(path: Path, head: dict[str, Any], rows: Sequence[FoldRow]) -> None:
    write_json(path, {**head, "rows": [row.model_dump(mode="json") for row in rows]})


def ensemble_kind(config: Config) -> How:
    """Votes where actions are choices, averages where they are numbers."""
    market = config.env.market
    assert market is not None  # the plan refuses anything else
    return action_kind(market.action).together


def _policy(run: Path, config: Config) -> tuple[Policy, str, ckpt.Training]:
    """The policy that speaks for a run, the name of its checkpoint, and the training behind it; the code that `config`
    names is executed already."""
    checkpoint, _ = choose_checkpoint(run)
    return policy_of(load_policy(checkpoint, trust=config)), checkpoint.name, ckpt.training_behind(checkpoint)


def _test(
    cell: Cell, trader: Trader, world: MarketWorld, out: Path, evaluation: str, training: _Behind
) -> tuple[FoldRow, ...]:
    config = trader.config
    torch.set_num_threads(config.run.threads)
    judgements = judge_policy(trader, deterministic=trader.deterministic, market=world)
    folder = out / evaluation
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as draft:
        save_paths(draft, {judged.symbol: judged.paths for judged in judgements})
        write_json(draft / PLAYED, {"name": cell.label, "symbols": [judged.to_json() for judged in judgements]})
    return tuple(_row(cell, judged, world, evaluation, training) for judged in judgements)


def _row(cell: Cell, judged: Judgement, world: MarketWorld, evaluation: str, training: _Behind) -> FoldRow:
    return FoldRow(
        fold=cell.fold,
        seed=cell.seed,
        account=judged.symbol,
        **vars(training),
        evaluation=evaluation,
        windows=windows_of_account(world, judged.symbol),
        statistics=dict(judged.statistics),
        cvar_return=judged.statistics[POLICY].cvar_return,
        limit=FoldLimit.of(judged.limits.get(POLICY)),
    )

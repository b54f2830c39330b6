"""The folds of a walk-forward, also combinatorial ones: one configuration for each fold and seed, with the checks that
nothing of the test reaches into the training; whose folder it is, what is finished, how a trained run is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tailwise.bars.bars import Bars, data_hash_of
from tailwise.bars.data_config import Purpose, RangesSplit, SharesSplit, TimesSplit
from tailwise.core.atomic import atomic_folder, write_json
from tailwise.core.config import differences
from tailwise.core.errors import ConfigError, DataError
from tailwise.core.parsing import as_stored
from tailwise.evaluate.judgement import POLICY, judge_limit, judge_policy
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.splits import (
    Fold,
    Range,
    Times,
    check_fold,
    combinatorial,
    common_clock,
    least_purge,
    rows_of_symbol,
    walk_forward,
)
from tailwise.evaluate.walk_forward_result import (
    FORMAT,
    PLAN,
    RESULT,
    FoldLimit,
    FoldPlan,
    FoldResult,
    FoldRow,
    Span,
    Windows,
)
from tailwise.features.spec import FeatureSpec, columns_of, longest_warm_up
from tailwise.market.dataset import SHORTEST_WINDOW, judged_and_helping, load_data
from tailwise.market.path import AccountPath
from tailwise.market.split import PURPOSES
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config, parse_config
from tailwise.run.ensemble import Ensemble, EnsembleMethod
from tailwise.run.policy import Policy, Trader, choose_checkpoint, policy_of
from tailwise.run.policy_files import load_policy
from tailwise.run.run_files import LARGE, check_links, read_json, read_stored
from tailwise.run.run_folder import CONFIG
from tailwise.run.training_job import Trained
from tailwise.run.worlds import MarketWorld

Kind = Literal["anchored", "rolling"]
KINDS: tuple[Kind, ...] = ("anchored", "rolling")
EVALUATION = "evaluations/walk-forward"
PLAYED = "summary.json"


@dataclass(frozen=True)
class Settings:
    """How the folds are cut. purge None: as long as features look back and decisions look ahead."""

    folds: int = 5
    kind: Kind = "anchored"
    purge: int | None = None
    embargo: int = 0
    tested: float = 0.5  # share of the bars, the newest, that all test windows cover together
    select: float | None = None  # share of the bars in each select window; None: that of data.split, else 0.15

    def cut(self, rows: int, *, purge: int, select: int) -> list[Fold]:
        """Cut the folds; purge and select in rows."""
        return walk_forward(
            rows,
            folds=self.folds,
            purge=purge,
            embargo=self.embargo,
            anchored=self.kind == "anchored",
            tested=self.tested,
            select=select,
        )


@dataclass(frozen=True)
class CombinatorialSettings:
    """How combinatorial folds are cut: every choice of `test_folds` of `folds` groups is tested."""

    folds: int = 5
    test_folds: int = 2
    kind: Literal["combinatorial"] = "combinatorial"
    purge: int | None = None  # bars on both sides of a test range; None: as for walk-forward
    embargo: int = 0  # further bars after a test range
    select: float | None = None  # share of the bars that select, the newest of the longest train range

    def cut(self, rows: int, *, purge: int, select: int) -> list[Fold]:
        """Cut the folds; purge and select in rows."""
        return combinatorial(
            rows, folds=self.folds, test_folds=self.test_folds, purge=purge, embargo=self.embargo, select=select
        )


AnySettings = Settings | CombinatorialSettings


@dataclass(frozen=True, eq=False)
class Plan:
    """All folds over one clock. bar: length of a bar; look_back and label_horizon: what the purge covers, bars."""

    settings: AnySettings
    folds: tuple[Fold, ...]
    clock: Times
    bar: np.timedelta64
    purge: int
    look_back: int
    label_horizon: int

    def split(self, fold: Fold) -> TimesSplit | RangesSplit:
        """Return the windows of a fold as a configuration names them."""
        train, test = (tuple(map(self._moments, ranges)) for ranges in (fold.train, fold.test))
        select = None if fold.select is None else self._moments(fold.select)
        if fold.paths:
            return RangesSplit(train=train, select=select, test=test)
        return TimesSplit(train=train[0], select=select, test=test[0])

    def _moments(self, part: Range) -> tuple[datetime, datetime]:
        end = self.clock[part.end] if part.end < len(self.clock) else self.clock[-1] + self.bar
        return _moment(self.clock[part.first]), _moment(end)

    def windows(self, fold: Fold) -> Windows:
        """train, select and test by the common clock; of folds with one window each."""
        spans = {purpose: one for purpose, (one,) in self.spans(fold).items()}
        return Windows(train=spans["train"], select=spans.get("select"), test=spans["test"])

    def spans(self, fold: Fold) -> dict[Purpose, list[Span]]:
        """The ranges of each purpose by the common clock."""
        ranges = _ranges(fold)
        return {
            purpose: [span_of(self.clock[one.first : one.end]) for one in ranges[purpose]]
            for purpose in PURPOSES
            if purpose in ranges
        }

    def identity(self) -> dict[str, Any]:
        """What another call must share to continue this one, as JSON values."""
        return {**asdict(self.settings), "purge": self.purge, "clock_bars": len(self.clock)}


def _ranges(fold: Fold) -> dict[Purpose, tuple[Range, ...]]:
    """Rows of each purpose; select is missing where nothing is selected."""
    ranges: dict[Purpose, tuple[Range, ...]] = {"train": fold.train, "test": fold.test}
    if fold.select is not None:
        ranges["select"] = (fold.select,)
    return ranges


def as_kind(text: str) -> Kind:
    """Return the kind of that name."""
    for kind in KINDS:
        if text == kind:
            return kind
    raise ConfigError(f"the kind of walk-forward is '{text}'; choose {' or '.join(KINDS)}.")


def make_plan(base: Config, settings: AnySettings) -> Plan:
    """Cut the bars of a market configuration into folds and check every one of them."""
    if base.env.market is None or base.data is None or base.features is None or base.costs is None:
        raise ConfigError("walk-forward cuts bars into folds, and env.kind is gym; use env.kind market.")
    judged, _ = judged_and_helping(base.data, load_data(base.data))  # symbols that only train move no fold
    bars = [item.bars for item in judged]
    clock, bar = common_clock([one.time for one in bars]), bars[0].frequency.bar
    step = int(bar.astype("timedelta64[ns]").astype(np.int64))
    look_back = longest_warm_up(columns_of(base.features), step)
    label_horizon = 1 + base.costs.latency
    purge = settings.purge
    if purge is None:
        purge = least_purge(label_horizon=label_horizon, look_back=look_back)
    folds = settings.cut(len(clock), purge=purge, select=_select_rows(base, settings, len(clock)))
    for fold in folds:
        check_fold(fold, len(clock), label_horizon=label_horizon, look_back=look_back)
        if fold.paths:
            _check_ranges(fold, bars, clock, look_back)
    return Plan(settings, tuple(folds), clock, bar, purge, look_back, label_horizon)


def _check_ranges(fold: Fold, bars: Sequence[Bars], clock: Times, look_back: int) -> None:
    """Raise unless every symbol has enough bars in each range; features warm up inside each train range."""
    for purpose, ranges in _ranges(fold).items():
        needed = SHORTEST_WINDOW + (look_back if purpose == "train" else 0)
        for one, part in ((one, part) for one in bars for part in ranges):
            rows = rows_of_symbol(one.time, clock, part)
            if len(rows) < needed:
                raise ConfigError(
                    f"fold {fold.number + 1}: {one.symbol} has {len(rows)} bars in the {purpose} range "
                    f"{str(clock[part.first])[:10]} to {str(clock[part.end - 1])[:10]}, and {needed} are needed "
                    f"(features look back {look_back}); use fewer folds, features that look back less, or more bars."
                )


def _select_rows(base: Config, settings: AnySettings, rows: int) -> int:
    """Rows of a select window: none where nothing is selected."""
    if base.evaluate.every is None:
        if settings.select:
            raise ConfigError(
                "a select window was asked for, and evaluate.every is null, so nothing would be selected on it; set "
                "evaluate.every, e.g. -s evaluate.every=5."
            )
        return 0
    assert base.data is not None
    share = settings.select
    if share is None:
        share = base.data.split.select if isinstance(base.data.split, SharesSplit) else SharesSplit().select
    count = int(rows * share)
    if count < 1:
        raise ConfigError(
            f"evaluate.every is {base.evaluate.every}, which selects by a window, and --select {share:g} leaves none; "
            "name a share, e.g. --select 0.15, or set evaluate.every to null."
        )
    return count


def fold_config(base: Config, plan: Plan, fold: Fold, seed: int) -> Config:
    """Build the configuration of one run: its windows and its seed."""
    data = base.model_dump(mode="json")
    data["seed"] = seed
    data["data"]["split"] = plan.split(fold).model_dump(mode="json")
    return parse_config(data, source=f"fold {fold.number + 1}, seed {seed}")


def base_config(config: Config) -> dict[str, Any]:
    """What all runs of a walk-forward share: JSON values without seed and split."""
    data = config.model_dump(mode="json")
    del data["seed"], data["data"]["split"]
    return data


def check_world(world: MarketWorld, plan: Plan, fold: Fold) -> None:
    """Raise unless the market that a run was built on keeps its fold apart, whatever built it.

    Its windows are cut anew from the times of the bars and must be those of the fold; the features must have been
    fitted on the train rows of the fold and nothing else.
    """
    check_fold(fold, len(plan.clock), label_horizon=plan.label_horizon, look_back=plan.look_back)
    for at, bars in enumerate(world.dataset.bars):
        for purpose, ranges in _ranges(fold).items():
            built = [Range(window.first, window.end) for window in world.dataset.all_ranges()[purpose][at]]
            rows = [rows_of_symbol(bars.time, plan.clock, one) for one in ranges]
            if built != rows:
                raise DataError(
                    f"fold {fold.number + 1}: the {purpose} window of {bars.symbol} has the rows "
                    f"{' and '.join(map(str, built))}, and the fold {' and '.join(map(str, rows))}; the run was built "
                    "on another cut."
                )
    check_fitted(world.features, world.dataset.bars, plan, fold)


def check_fitted(spec: FeatureSpec, bars: Sequence[Bars], plan: Plan, fold: Fold) -> None:
    """Raise unless the features were fitted on exactly the train rows of the fold."""
    for one in bars:
        rows = [rows_of_symbol(one.time, plan.clock, part) for part in fold.train]
        window = spec.windows.get(one.symbol)
        if window is None or window.data_hash != data_hash_of([one.slice(part.first, part.end) for part in rows]):
            fitted = "nothing" if window is None else f"{window.rows} bars, {window.first[:10]} to {window.last[:10]}"
            raise DataError(
                f"fold {fold.number + 1}: the features of {one.symbol} were fitted on {fitted}, and the train window "
                f"is {sum(map(len, rows))} bars, {str(one.time[rows[0].first])[:10]} to "
                f"{str(one.time[rows[-1].end - 1])[:10]}; what is fitted must see the train rows of its fold and "
                "nothing else."
            )


def windows_of_account(world: MarketWorld, symbol: str) -> Windows:
    """train, select and test of one symbol; of all of them for an account that holds them all.

    Several train ranges: the first bar of the first, the last bar of the last, and the number of bars in them.
    """
    spans: dict[str, Span | None] = dict.fromkeys(PURPOSES)
    for purpose, each in world.dataset.all_ranges().items():
        times = [
            bars.time[window.first : window.end]
            for bars, ranges in zip(world.dataset.bars, each, strict=True)
            for window in ranges
            if world.portfolio or bars.symbol == symbol
        ]
        spans[purpose] = span_of(common_clock(times))
    return Windows.model_validate(spans)


def span_of(times: Times) -> Span:
    """The window of bars that open at these times."""
    return Span(first_bar=iso(times[0]), last_bar=iso(times[-1]), bars=len(times))


def iso(moment: np.datetime64) -> str:
    """UTC, ISO 8601, to the second."""
    return f"{moment.astype('datetime64[s]')}Z"


def _moment(time: np.datetime64) -> datetime:
    whole = time.astype("datetime64[us]")
    if whole != time:
        raise DataError(f"a bar opens at {time}, between two microseconds; round the times of the bars.")
    moment = whole.astype(datetime)
    assert isinstance(moment, datetime)
    return moment.replace(tzinfo=UTC)


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
    """Read the rows of a fold and seed that was trained and tested before; None when there is something left to do."""
    result = _read_result(folder / RESULT)
    return None if result is None else result.rows


def _read_result(path: Path) -> FoldResult | None:
    """Read the result of a fold; None where there is none, or another version wrote it."""
    if not path.exists():
        return None
    try:
        data = read_json(path, root=path.parent, limit=LARGE)
        if isinstance(data, dict) and data.get("format") != FORMAT:
            return None  # rows of another version have other fields: the fold is tested again, not trained
        return as_stored(FoldResult, data, source=str(path))
    except DataError as error:
        raise DataError(f"{error}\n{path} cannot be read; delete it, and the fold is tested again.") from error


# ---------------------------------------------------------------- one fold and seed


def judge_cell(cell: Cell, out: Path, run: Trained, plan: Plan) -> tuple[FoldRow, ...]:
    """Test the checkpoint that speaks for a trained run on the test window of its fold, and mark it as finished."""
    folder, world = out / cell.folder, run.agent.market()
    policy, checkpoint, behind = _policy(folder, world.config)
    assert policy.features is not None
    check_fitted(policy.features, world.dataset.bars, plan, plan.folds[cell.fold - 1])
    training = {
        "folder": cell.folder,
        "checkpoint": checkpoint,
        "updates": behind.updates,
        "limit_acted": behind.limit_acted,
        "steps": run.agent.trainer.steps,
        "ended": run.ended,
        "refused": run.agent.trainer.failed,
    }
    rows = _test_ranges(cell, policy, world, out, plan.folds[cell.fold - 1], training)
    _write_result(folder / RESULT, {"format": FORMAT}, rows)
    return rows


def judge_ensemble(
    fold: Fold, seeds: Sequence[int], out: Path, world: MarketWorld, *, how: EnsembleMethod
) -> tuple[FoldRow, ...]:
    """Test all seeds of a fold as one; what was tested before with the same seeds is read."""
    cell = Cell(fold.number + 1, None)
    folder = out / cell.folder
    members = {str(seed): _policy(out / Cell(cell.fold, seed).folder, world.config) for seed in seeds}
    checkpoints = {seed: checkpoint for seed, (_, checkpoint, _) in members.items()}
    path = folder / RESULT
    result = _read_result(path)
    if result is not None and (result.how, result.members) == (how, checkpoints):
        return result.rows
    ensemble = Ensemble([policy for policy, _, _ in members.values()], how)
    behind = ckpt.least_trained([training for _, _, training in members.values()])
    training = {"updates": behind.updates, "limit_acted": behind.limit_acted, "refused": None}
    rows = _test_ranges(cell, ensemble, world, out, fold, training)
    _write_result(path, {"format": FORMAT, "how": how, "members": checkpoints}, rows)
    return rows


def stitched_limit(path: AccountPath, base: Config, rows: Sequence[FoldRow]) -> FoldLimit | None:
    """Judge the limit on a path that was stitched of the tests of `rows`.

    A relative limit is another number on the train bars of every fold; the path is held against their mean, weighted by
    the bars of each test.
    """
    limits = [row.limit.limit for row in rows if row.limit is not None]
    if not limits:
        return None
    same = len(set(limits)) == 1
    level = limits[0] if same else float(np.average(limits, weights=[row.windows.test.bars for row in rows]))
    return FoldLimit.of(judge_limit(path, base, level=level))


def _write_result(path: Path, head: dict[str, Any], rows: Sequence[FoldRow]) -> None:
    write_json(path, {**head, "rows": [row.model_dump(mode="json") for row in rows]})


def _policy(run: Path, config: Config) -> tuple[Policy, str, ckpt.Training]:
    """Load the policy that speaks for a run; return it, the name of its checkpoint and the training behind it.

    config: of the run; the code that it names is executed already.
    """
    checkpoint, _ = choose_checkpoint(run)
    return policy_of(load_policy(checkpoint, trust=config)), checkpoint.name, ckpt.training_behind(checkpoint)


def _test_ranges(
    cell: Cell, trader: Trader, world: MarketWorld, out: Path, fold: Fold, training: Mapping[str, Any]
) -> tuple[FoldRow, ...]:
    """Play each test range of a fold by accounts of its own; walk-forward has one."""
    parts = zip(world.each_test_range(), evaluations_of(cell, fold), strict=True)
    return tuple(row for part, evaluation in parts for row in _test(cell, trader, part, out, evaluation, training))


def evaluations_of(cell: Cell, fold: Fold) -> list[str]:
    """Folders, relative to that of the study, with the paths of each test range of a fold."""
    folder = cell.folder if cell.seed is None else f"{cell.folder}/{EVALUATION}"
    return [f"{folder}/test_{number}" for number in range(1, len(fold.test) + 1)] if fold.paths else [folder]


def _test(
    cell: Cell, trader: Trader, world: MarketWorld, out: Path, evaluation: str, training: Mapping[str, Any]
) -> tuple[FoldRow, ...]:
    """Play the test window and keep its paths. training: fields of a row that tell the training behind the trader."""
    torch.set_num_threads(trader.config.run.threads)
    judgements = judge_policy(trader, deterministic=trader.deterministic, market=world)
    folder = out / evaluation
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as draft:
        save_paths(draft, {judged.symbol: judged.paths for judged in judgements})
        write_json(draft / PLAYED, {"name": cell.label, "symbols": [judged.to_json() for judged in judgements]})
    return tuple(
        FoldRow(
            fold=cell.fold,
            seed=cell.seed,
            account=judged.symbol,
            **training,
            evaluation=evaluation,
            windows=windows_of_account(world, judged.symbol),
            statistics=dict(judged.statistics),
            cvar_return=judged.statistics[POLICY].cvar_return,
            limit=FoldLimit.of(judged.limits.get(POLICY)),
        )
        for judged in judgements
    )

"""Combinatorial purged cross-validation: train once for each choice of test groups, put the tests together to paths
over all bars, and say how the Sharpe ratio is distributed over them.

`OUT/combinatorial.json` is `CombinatorialCV.to_json()`; everything else in OUT is as for a walk-forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from tailwise.core.atomic import write_json
from tailwise.core.errors import DataError, NotBuiltError
from tailwise.core.numerics import tail_horizon
from tailwise.core.parsing import Stored
from tailwise.evaluate.judgement import POLICY, always_in
from tailwise.evaluate.path_files import read_paths, save_paths
from tailwise.evaluate.splits import stitch
from tailwise.evaluate.study import open_study, run_study, warn_about
from tailwise.evaluate.walk_forward import Accounts, FoldsStudy, Rows, folder_of, plan_folds
from tailwise.evaluate.walk_forward_folds import (
    Cell,
    CombinatorialSettings,
    evaluations_of,
    iso,
    stitched_limit,
)
from tailwise.evaluate.walk_forward_result import (
    EnsembleOf,
    FoldLimit,
    FoldRow,
    Headline,
    Seed,
    Statistics,
    account_cells,
    account_headings,
    who,
)
from tailwise.evaluate.words import plain, reservations
from tailwise.market.leaks.features import LeakVerdict
from tailwise.run.config import ConfigLike, Effective, effective_config
from tailwise.run.jobs import Say, Stop, never, silent
from tailwise.run.run_files import LARGE, Count, read_stored
from tailwise.run.trials import config_hash

FORMAT: Final = 1
SUMMARY = "combinatorial.json"


class CombinatorialPath(Stored):
    """All bars once, each tested by a policy that was not trained on it: one path, account and seed."""

    path: Count = Field(description="number of the path, from 1")
    account: str
    seed: Seed | None = Field(description="None: all seeds of a fold decide together")
    first_bar: str
    last_bar: str
    bars: Count
    ruined: bool
    statistics: Statistics = Field(description="of the policy and of each simple rule, by name, after costs")
    limit: FoldLimit | None = Field(description="None without a limit")
    evaluation: str = Field(description="folder with equity.parquet, decisions.parquet and trades.parquet")


class SharpeDistribution(Stored):
    """Sharpe ratios per year over the paths of one account and seed; None where no path has one."""

    account: str
    seed: Seed | None
    paths: Count = Field(description="with a Sharpe ratio; an account that never moved has none")
    mean: float | None
    deviation: float | None = Field(description="standard deviation; None for a single path")
    lowest: float | None
    lower_quartile: float | None
    median: float | None
    upper_quartile: float | None
    highest: float | None
    above_zero: Count = Field(description="paths with a Sharpe ratio above 0")
    above_rule: Count = Field(description="paths with a Sharpe ratio above that of the rule on the same path")
    rule: str = Field(description="the simple rule that is always invested")
    rule_mean: float | None = Field(description="mean of its Sharpe ratio over the paths")

    @classmethod
    def of(cls, account: str, seed: int | None, paths: Sequence[Mapping[str, Any]]) -> SharpeDistribution:
        """Summarise the statistics of each path, by name."""
        rule = always_in(paths[0])
        pairs = [(one[POLICY].sharpe, one[rule].sharpe) for one in paths]
        ratios = np.array([own for own, _ in pairs if own is not None], dtype=np.float64)
        of_rule = [other for _, other in pairs if other is not None]
        points = [float(one) for one in np.quantile(ratios, [0, 0.25, 0.5, 0.75, 1])] if len(ratios) else [None] * 5
        return cls(
            account=account,
            seed=seed,
            paths=len(ratios),
            mean=float(ratios.mean()) if len(ratios) else None,
            deviation=float(ratios.std(ddof=1)) if len(ratios) > 1 else None,
            lowest=points[0],
            lower_quartile=points[1],
            median=points[2],
            upper_quartile=points[3],
            highest=points[4],
            above_zero=int((ratios > 0).sum()),
            above_rule=sum(own is not None and other is not None and own > other for own, other in pairs),
            rule=rule,
            rule_mean=float(np.mean(of_rule)) if of_rule else None,
        )


class CombinatorialCV(Stored):
    """The result of combinatorial purged cross-validation over all choices of test groups and all seeds."""

    format: Literal[1]
    name: str = Field(description="of the configuration")
    label: str = Field(description='"real", or what synthetic bars are')
    symbols: tuple[str, ...] = Field(description="accounts, one for each symbol")
    groups: Count = Field(description="groups of bars, one after the other")
    test_groups: Count = Field(description="groups that each fold tests")
    folds: Count = Field(description="choices of the tested groups, each a training per seed")
    seeds: tuple[Seed, ...]
    purge: Count = Field(description="bars left out on both sides of a test range")
    embargo: Count = Field(description="further bars left out after a test range")
    look_back: Count = Field(description="bars that features look back; purge covers them")
    label_horizon: Count = Field(description="bars ahead by which a decision is judged; purge covers them")
    clock_bars: Count = Field(description="bars of the common clock of all symbols")
    periods_per_year: float = Field(description="bars per year")
    alpha: Annotated[float, Field(gt=0, lt=1)] = Field(description="tail probability")
    gamma: float = Field(description="discount per bar")
    horizon: Count = Field(description="bars over which a discounted return is realised")
    data_hash: str = Field(description="of all bars")
    config_hash: str = Field(description="of the configuration without seed and split")
    cut: str = Field(description="hash of the plan of folds")
    config: dict[str, Any] = Field(description="the whole configuration; its data.split is not used")
    facts: tuple[str, ...] = Field(description="sentences: what was trained on what")
    leak_check: LeakVerdict | None = Field(description="of own features")
    rows: Annotated[tuple[FoldRow, ...], Field(min_length=1)] = Field(
        description="per fold, seed, test range and account; train is named by its outer bars and counted without gaps"
    )
    ensemble: EnsembleOf | None = Field(description="None with one seed")
    paths: Annotated[tuple[CombinatorialPath, ...], Field(min_length=1)] = Field(
        description="per seed, path and account"
    )
    sharpe: Annotated[tuple[SharpeDistribution, ...], Field(min_length=1)] = Field(
        description="over the paths, per seed and account"
    )
    headline: Headline = Field(description="whose distribution speaks: that of the ensemble, or of the only seed")
    doubts: tuple[str, ...] = Field(description="sentences about leaks and bars per year, mostly none")
    verdict: tuple[str, ...] = Field(description="sentences: the doubts, what was tested, the distribution, the rest")
    folder: Path | None = Field(default=None, exclude=True, description="where its files lie; not in them")

    @property
    def headlines(self) -> list[SharpeDistribution]:
        """The distributions that speak, one per account."""
        return [one for one in self.sharpe if one.seed == self.headline.seed]

    @property
    def refused(self) -> bool:
        """Whether a training ended because too many updates in a row were refused."""
        return any(row.refused for row in self.rows)

    def paths_of(self, account: str, seed: int | None) -> list[CombinatorialPath]:
        """The paths of one account and seed (None: all seeds together), in their order."""
        return [one for one in self.paths if (one.account, one.seed) == (account, seed)]

    def limit_acted(self, seed: int | None) -> bool | None:
        """Whether the limit acted in any training of a seed; None without a limit."""
        acted = [row.limit_acted for row in self.rows if row.seed == seed]
        return None if None in acted else any(acted)

    def to_json(self) -> dict[str, Any]:
        """What combinatorial.json holds."""
        return self.model_dump(mode="json")


def combinatorial_cv(
    config: ConfigLike,
    *,
    overrides: Sequence[str] = (),
    folds: int = 5,
    test_folds: int = 2,
    seeds: int | Sequence[int] = 3,
    purge: int | None = None,
    embargo: int = 0,
    select: float | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    stop: Stop = never,
    say: Say = silent,
) -> CombinatorialCV:
    """Train and test every choice of test groups; return the paths and the distribution of their Sharpe ratio.

    folds       groups into which the bars are cut, one after the other
    test_folds  groups that are tested at a time; training uses the others, before and after them
    purge       bars left out on both sides of a test range; None: as far as features look back and decisions ahead
    embargo     further bars left out after a test range
    select      share of the bars that select, the newest of the longest train range; None: data.split's, else 0.15

    The other arguments are those of `tailwise.walk_forward`; a folder that was begun before is continued.

        result = tailwise.combinatorial_cv("sp500", folds=6, test_folds=2, seeds=2, out="runs/sp500-cv")
        print(result.headlines[0].median, [path.statistics["policy"].sharpe for path in result.paths])
    """
    settings = CombinatorialSettings(folds, test_folds, purge=purge, embargo=embargo, select=select)
    study = plan_combinatorial(effective_config(config, overrides), settings, seeds=seeds)
    warn_about(study)
    return run_study(study, open_study(study, out), jobs=jobs, stop=stop, say=say)


def plan_combinatorial(
    effective: Effective, settings: CombinatorialSettings, *, seeds: int | Sequence[int] = 3
) -> CombinatorialStudy:
    """Cut the folds and check them, the features included, before hours are spent on training."""
    study = plan_folds(CombinatorialStudy, effective, settings, seeds=seeds)
    if study.world.portfolio:
        raise NotBuiltError(
            "combinatorial folds train accounts with one asset each, and env.action gives weights of all symbols in "
            "one account; use walk-forward folds for a portfolio."
        )
    return study


class CombinatorialStudy(FoldsStudy[CombinatorialCV]):
    """Every choice of test groups with every seed."""

    def combine(self, folder: Path, results: Sequence[Rows]) -> CombinatorialCV:
        result = _summarise(self, folder, self.with_ensemble(folder, results))
        write_json(folder / SUMMARY, result.to_json())
        return result


def read_combinatorial(folder: str | Path) -> CombinatorialCV:
    """Read the result that combinatorial folds left in their folder."""
    place = Path(folder)
    try:
        result = read_stored(place / SUMMARY, CombinatorialCV, root=place, limit=LARGE)
        if not result.headlines or len(result.verdict) < len(result.doubts) + 2:
            raise DataError(f"{place / SUMMARY}: the headline names no path, or the verdict has no two sentences.")
    except (OSError, DataError) as error:
        raise DataError(
            f"{error}\n{place / SUMMARY} cannot be read. Run the same command again with --out {place}: nothing is "
            "trained again."
        ) from error
    return result.model_copy(update={"folder": place})


def _summarise(study: CombinatorialStudy, folder: Path, rows: Sequence[FoldRow]) -> CombinatorialCV:
    """Put the test ranges of all folds together to paths, and write those beside the folds."""
    plan, config, data = study.plan, study.base, study.world.dataset
    paths: list[CombinatorialPath] = []
    for seed in study.speakers:
        for number, (accounts, tests) in enumerate(_stitched_paths(study, folder, seed), start=1):
            evaluation = f"{folder_of(seed)}/path_{number}"
            save_paths(folder / evaluation, accounts)
            own = [row for row in rows if row.evaluation in tests]
            paths += _judge(study, number, seed, accounts, own, evaluation)
    symbols = tuple(accounts)
    doubts = study.doubts(accounts)
    result = CombinatorialCV(
        format=FORMAT,
        name=study.name,
        label=data.label,
        symbols=symbols,
        groups=plan.settings.folds,
        test_groups=len(plan.folds[0].test),
        folds=len(plan.folds),
        seeds=study.seeds,
        purge=plan.purge,
        embargo=plan.settings.embargo,
        look_back=plan.look_back,
        label_horizon=plan.label_horizon,
        clock_bars=len(plan.clock),
        periods_per_year=data.bars[0].frequency.periods_per_year,
        alpha=study.alpha,
        gamma=config.learner.gamma,
        horizon=tail_horizon(config.learner.gamma),
        data_hash=data.data_hash(),
        config_hash=config_hash(config),
        cut=study.cut,
        config=config.model_dump(mode="json"),
        facts=study.facts,
        leak_check=study.world.leak_verdict(),
        rows=tuple(rows),
        ensemble=None if study.ensemble is None else EnsembleOf(how=study.ensemble, seeds=study.seeds),
        paths=tuple(paths),
        sharpe=tuple(
            SharpeDistribution.of(
                account, seed, [one.statistics for one in paths if (one.account, one.seed) == (account, seed)]
            )
            for seed in study.speakers
            for account in symbols
        ),
        headline=Headline(account=symbols[0], seed=study.speakers[-1]),
        doubts=tuple(doubts),
        verdict=(),
        folder=folder,
    )
    return result.model_copy(update={"verdict": (*doubts, *_verdict(result))})


def _stitched_paths(study: CombinatorialStudy, folder: Path, seed: int | None) -> list[tuple[Accounts, set[str]]]:
    """For each path its accounts over all bars, by symbol and name, and the evaluations that it was stitched of."""
    parts: dict[int, list[tuple[int, str]]] = {}
    for fold in study.plan.folds:
        evaluations = evaluations_of(Cell(fold.number + 1, seed), fold)
        for path, test, evaluation in zip(fold.paths, fold.test, evaluations, strict=True):
            parts.setdefault(path, []).append((test.first, evaluation))
    stitched: list[tuple[Accounts, set[str]]] = []
    for path in sorted(parts):
        evaluations = [evaluation for _, evaluation in sorted(parts[path])]
        tests = [read_paths(folder / evaluation) for evaluation in evaluations]
        accounts = {
            account: {name: stitch([test[account][name] for test in tests]) for name in tests[0][account]}
            for account in tests[0]
        }
        stitched.append((accounts, set(evaluations)))
    return stitched


def _judge(
    study: CombinatorialStudy,
    number: int,
    seed: int | None,
    accounts: Accounts,
    rows: Sequence[FoldRow],
    evaluation: str,
) -> list[CombinatorialPath]:
    return [
        CombinatorialPath(
            path=number,
            account=account,
            seed=seed,
            first_bar=iso(named[POLICY].time[0]),
            last_bar=iso(named[POLICY].time[-1]),
            bars=named[POLICY].planned,
            ruined=named[POLICY].ruined,
            statistics={name: study.statistics(one) for name, one in named.items()},
            limit=stitched_limit(named[POLICY], study.base, [row for row in rows if row.account == account]),
            evaluation=evaluation,
        )
        for account, named in accounts.items()
    ]


# ---------------------------------------------------------------- words and tables


def _verdict(result: CombinatorialCV) -> list[str]:
    """What was tested, how the Sharpe ratio is distributed, what the paths are no evidence of, is the limit kept."""
    sentences = [_what(result), *(_distribution(result, one) for one in result.headlines)]
    sentences.append(
        "The paths are the same bars in the hands of other policies, trained on bars before and after them: their "
        "spread is what the choice of the training bars changes, and no interval of what the future brings. "
        "Walk-forward tests what could have been traded, with training on earlier bars alone."
    )
    for one in result.headlines:
        limits = [path.limit for path in result.paths_of(one.account, one.seed)]
        judged = [limit.kept for limit in limits if limit is not None and limit.kept is not None]
        if judged:
            sentences.append(f"{_of(result, one.account)}the limit was kept on {sum(judged)} of {len(judged)} paths.")
    return [sentence[0].upper() + sentence[1:] for sentence in sentences]


def _what(result: CombinatorialCV) -> str:
    one = result.paths_of(*_named(result.headlines[0]))
    seeds = f"{len(result.seeds)} seeds" if len(result.seeds) > 1 else "one seed"
    times = "once" if len(one) == 1 else f"{len(one)} times"
    return (
        f"Tested on {one[0].bars:,} bars ({result.label}) from {one[0].first_bar[:10]} to {one[0].last_bar[:10]}, each "
        f"{times}: {result.folds} combinatorial folds, {result.test_groups} of {result.groups} groups of bars each, "
        f"with {seeds}; no policy saw the bars that it is tested on, nor {result.purge} bars before and "
        f"{result.purge + result.embargo} after them. All numbers after costs."
    )


def _distribution(result: CombinatorialCV, one: SharpeDistribution) -> str:
    start = f"{_of(result, one.account)}{who(result.seeds, result.ensemble)}: "
    if not one.paths:
        return f"{start}no path has a Sharpe ratio, because the account never moved."
    paths = result.paths_of(*_named(one))
    exposure = float(np.mean([path.statistics[POLICY].mean_exposure for path in paths]))
    reasons = reservations(exposure, min(row.updates for row in result.rows if row.seed == one.seed))
    spread = "" if one.deviation is None else f", standard deviation {plain(one.deviation)}"
    count = "1 path" if one.paths == 1 else f"{one.paths} paths"
    return (
        f"{start}the Sharpe ratio over {count} has mean {plain(one.mean)}{spread}, median "
        f"{plain(one.median)}, lowest {plain(one.lowest)} and highest {plain(one.highest)}; it is above 0 on "
        f"{one.above_zero} and above that of {one.rule} (mean {plain(one.rule_mean)}) on {one.above_rule}"
        f"{'; but ' + ' and '.join(reasons) if reasons else ''}."
    )


def _named(one: SharpeDistribution) -> tuple[str, int | None]:
    return one.account, one.seed


def _of(result: CombinatorialCV, account: str) -> str:
    return f"{account}: " if len(result.symbols) > 1 else ""


def path_headings(result: CombinatorialCV) -> tuple[str, ...]:
    """Titles of the columns of `path_rows`, with their units."""
    return ("path", *account_headings(result.alpha, result.horizon, result.sharpe[0].rule))


def path_rows(result: CombinatorialCV) -> list[list[str]]:
    """One row per path of those that speak, account by account."""
    return [
        [
            f"{_of(result, one.account)}path {path.path}",
            *account_cells(path.statistics, path.limit, result.limit_acted(one.seed)),
        ]
        for one in result.headlines
        for path in result.paths_of(*_named(one))
    ]


def sharpe_headings(result: CombinatorialCV) -> tuple[str, ...]:
    """Titles of the columns of `sharpe_rows`."""
    rule = f"{result.sharpe[0].rule}: mean"
    return ("Sharpe of paths", "paths", "mean", "std", "lowest", "25%", "median", "75%", "highest", "above 0", rule)


def sharpe_rows(result: CombinatorialCV) -> list[list[str]]:
    """The distribution over the paths, one row per seed and account, all seeds together last."""
    return [
        [
            f"{_of(result, one.account)}{'ensemble' if one.seed is None else f'seed {one.seed}'}",
            f"{one.paths}",
            plain(one.mean),
            plain(one.deviation),
            plain(one.lowest),
            plain(one.lower_quartile),
            plain(one.median),
            plain(one.upper_quartile),
            plain(one.highest),
            f"{one.above_zero} of {one.paths}",
            plain(one.rule_mean),
        ]
        for one in result.sharpe
    ]

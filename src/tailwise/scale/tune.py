"""`tailwise.tune`: search hyperparameters by training, with a population or with independent trials; resumable.

After every step of the search its file is written, whole or not at all; what is decided next follows from that file
alone. So a search that was killed at any moment and is run again with its folder ends as if nothing had happened.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwise.core.atomic import write_json, write_text
from tailwise.core.config import Section, SectionType, differences, dump_yaml, parse
from tailwise.core.errors import ConfigError, ConfigWarning, DataError
from tailwise.evaluate.study import StudyStopped, leak_verdict_of, training_facts
from tailwise.learner.risk_config import RiskConstraint
from tailwise.market.leaks.features import LeakVerdict
from tailwise.pages.population import PAGE, PopulationView, write_population_page
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config, ConfigLike, Effective, effective_config, require_environment, warnings_of
from tailwise.run.controllers import Hyperparameters
from tailwise.run.jobs import Executor, Line, Say, Stop, local_executor, never, silent
from tailwise.run.run_files import LARGE, read_stored
from tailwise.run.run_folder import CONFIG, new_folder
from tailwise.run.training_job import TrainingJob
from tailwise.run.trials import TrialBook, plan_hash
from tailwise.run.worlds import World, make_world
from tailwise.scale.member_job import MemberJob
from tailwise.scale.optuna_search import OptunaProposer, load_optuna
from tailwise.scale.pbt import PbtSettings, PopulationBasedTraining, check_changeable
from tailwise.scale.population import Member, Ranking, Search, Step, Trained
from tailwise.scale.space import Space, read_space, value_of, with_values
from tailwise.scale.trials import GridProposer, RandomProposer, TrialSearch, TrialSettings, checked_grid
from tailwise.scale.tune_result import FILE, TuneFile, TuneResult

KIND = "tune"  # default folders are runs/tune-<n>
BASE = "base.yaml"  # the configuration that the search began with
SEARCHES = ("pbt", "random", "grid", "optuna")
SEARCH = "search"  # label of the lines about whole steps


@dataclass(frozen=True, eq=False)
class TunePlan:
    """A search that was checked and not begun.

    base        of all members, with the numbers that the bars gave
    forget      whether copies begin with a fresh optimiser
    generations parts of a training
    facts       sentences: what is searched on what
    warnings    sentences about settings that work but are likely not meant
    """

    name: str
    base: Config
    space: Space
    search: Search
    ranking: Ranking
    generations: int
    forget: bool
    environment: str
    facts: tuple[str, ...]
    warnings: tuple[str, ...]
    leak_check: LeakVerdict | None

    @property
    def kind(self) -> str:
        """Name of the search."""
        return str(self.search.plan()["search"])

    @property
    def size(self) -> str:
        """How much is trained, in words."""
        return f"{self.search.size()} of {self.base.run.total_steps:,} steps in {self.generations} generations"

    def to_json(self) -> dict[str, Any]:
        """All that the search follows from."""
        return {**self.search.plan(), "space": self.space.to_json(), "config": self.base.model_dump(mode="json")}

    def claim(self, folder: Path) -> None:
        """Make `folder` the one of this search; raise where it holds something else."""
        if (folder / CONFIG).exists():
            raise DataError(f"{folder} is the folder of one run; choose another folder for the search.")
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder} is a file; choose another folder for the search.")
        if (folder / FILE).exists():
            self.done(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / BASE, dump_yaml(self.base))
        self.keep(folder, [])

    def done(self, folder: Path) -> list[Step]:
        """The steps that are done; raises when they are those of another search."""
        stored = read_stored(folder / FILE, TuneFile, root=folder, limit=LARGE)
        differing = differences(stored.plan, self.to_json())
        if differing:
            raise DataError(
                f"{folder} belongs to another search: {'; '.join(differing)}. Call the command with that one's "
                "configuration and options, or choose another folder with --out."
            )
        for number, step in enumerate(stored.steps):
            if not self.search.follows([one.member for one in step], stored.steps[:number]):
                raise DataError(
                    f"{folder / FILE}: step {number} is not what follows from the steps before it; the file was "
                    "changed or written by another version. Restore it, or search again in another folder."
                )
        return list(stored.steps)

    def keep(self, folder: Path, done: Sequence[Step], *, best: str | None = None) -> None:
        """Write the file of the search."""
        steps = tuple(tuple(step) for step in done)
        write_json(
            folder / FILE, TuneFile(format=1, plan=self.to_json(), steps=steps, best=best).model_dump(mode="json")
        )

    def job(self, folder: Path, member: Member) -> MemberJob:
        """The training of a member."""
        total = self.base.run.total_steps
        trials, part = TrialBook.beside(folder), None
        changes: Hyperparameters | None
        if self.kind == "pbt":  # else trials differ in their configurations
            part = f"{plan_hash(self.to_json())}: {member.label}"
            config = self.base.model_copy(update={"seed": member.seed})
            changes = Hyperparameters.of_keys({key: float(value) for key, value in member.values.items()})
        else:
            config, changes = with_values(self.base, member.values), None
        training = TrainingJob(
            label=member.label,
            config=config,
            folder=folder / member.folder,
            checkpoint=None if member.begins is None else _newest(folder / member.begins, member.begins),
            steps=-(-total * (member.generation + 1) // self.generations),
            trials=TrialBook(trials.file, part=part),
            changes=changes,
            forget=self.forget and member.copied,
        )
        return MemberJob(training, member, score_seed=self.base.seed)

    def result(self, folder: Path, done: Sequence[Step]) -> TuneResult:
        """What the steps come to."""
        finalists = self.search.finalists(done)
        return TuneResult(
            name=self.name,
            search=self.kind,
            environment=self.environment,
            words=self.base.env.words,
            ranking=self.ranking,
            space=self.space,
            steps=tuple(done),
            finalists=finalists,
            best=self.ranking.best(finalists),
            configured={key: value for key, _ in self.space if (value := value_of(self.base, key)) is not None},
            facts=self.facts,
            folder=folder,
        )


def _newest(run: Path, name: str) -> Path:
    """The checkpoint that a member of the generation before ended with."""
    newest, rejected = ckpt.latest_good(run)
    if newest is None:
        why = "; ".join(item.reason for item in rejected) or "it has none"
        raise DataError(f"{run}: the checkpoint that a member begins from cannot be used ({why}); restore {name}.")
    return newest


def plan_tune(
    effective: Effective,
    *,
    search: str = "pbt",
    space: Mapping[str, Any] | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TunePlan:
    """Check what is searched, and on what members are scored, before hours are spent on training."""
    if search not in SEARCHES:
        raise ConfigError(f"the search is '{search}'; choose {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]}.")
    require_environment(effective)
    world = make_world(effective.config)
    base = _quiet(world.config)
    searched = read_space(space, base)
    _check_gamma(searched, base)
    ranking = Ranking(base.risk.level if isinstance(base.risk, RiskConstraint) else None)
    chosen = _search(search, searched, ranking, base, dict(settings or {}))
    generations = chosen.settings.generations
    _check_length(base, generations)
    _check_scored(effective, base, world)
    warned = (*warnings_of(base), *world.warnings(), *searched.absent, *_about_evaluations(effective.config))
    leaks = leak_verdict_of(world, warned)
    return TunePlan(
        name=effective.name,
        base=base,
        space=searched,
        search=chosen,
        ranking=ranking,
        generations=generations,
        forget=isinstance(chosen, PopulationBasedTraining) and chosen.settings.optimiser == "reset",
        environment=world.name,
        facts=(
            *(world.describe() or [f"environment {world.name}"]),
            *training_facts(base, leaks),
            f"searched: {', '.join(searched.entries)}",
        ),
        warnings=warned,
        leak_check=leaks,
    )


def _quiet(config: Config) -> Config:
    """Without evaluations of its own: the search scores, and one that stopped a member early would cut its budget. A
    member is one policy, also where the configuration names several seeds."""
    return config.model_copy(
        update={
            "evaluate": config.evaluate.model_copy(update={"every": None, "patience": None}),
            "run": config.run.model_copy(update={"keep": 1, "seeds": 1}),
        }
    )


def _about_evaluations(config: Config) -> list[str]:
    if config.evaluate.every is None:
        return []
    return ["evaluate.every and evaluate.patience are left out: members are scored after each generation instead"]


def _search(
    name: str, space: Space, ranking: Ranking, base: Config, settings: dict[str, Any]
) -> PopulationBasedTraining | TrialSearch:
    if name == "pbt":
        check_changeable(space, base)
        return PopulationBasedTraining(_settings(PbtSettings, settings, name), space, ranking, base.seed)
    chosen = _settings(TrialSettings, settings, name)
    if name == "grid":
        chosen = checked_grid(space, chosen)
        return TrialSearch(chosen, GridProposer(space, chosen.points), ranking, base.seed)
    if name == "random":
        return TrialSearch(chosen, RandomProposer(space, base.seed), ranking, base.seed)
    load_optuna()
    return TrialSearch(chosen, OptunaProposer(space, ranking, base.seed), ranking, base.seed)


def _settings(model: type[SectionType], settings: dict[str, Any], name: str) -> SectionType:
    return parse(model, settings, source=f"search {name}")


def _check_gamma(space: Space, base: Config) -> None:
    if "learner.gamma" in space.entries and base.acting_risk is not None:
        raise ConfigError(
            "learner.gamma cannot be searched while risk acts on the policy: a limit or a penalty speaks of returns "
            f"discounted by {base.learner.gamma:g}, so members with another one could not be compared; leave it out."
        )


def _check_length(base: Config, generations: int) -> None:
    per_update = base.run.environments * base.run.rollout_steps
    if base.run.total_steps < generations * per_update:
        raise ConfigError(
            f"run.total_steps {base.run.total_steps:,} in {generations} generations are less than one update of "
            f"{per_update:,} steps each; give more steps or fewer generations."
        )


def _check_scored(effective: Effective, base: Config, world: World) -> None:
    """Raise where members could not be scored."""
    if base.env.judged_whole and (base.data is None or not base.data.split.select):
        raise ConfigError(f"{effective.label}: members are scored on the select window, and data.split has none.")
    world.eval_env("select", episodes=base.evaluate.episodes, seed=base.seed).close()


def open_tune(plan: TunePlan, out: str | Path | None = None) -> Path:
    """Claim the folder of a search: `out`, new or begun before by the same search, or the first free runs/tune-<n>."""
    with new_folder(None if out is None else Path(out), KIND) as folder:
        plan.claim(folder)
    return folder


def run_tune(
    plan: TunePlan,
    folder: Path,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    stop: Stop = never,
    say: Say = silent,
) -> TuneResult:
    """Do what is not done yet.

    jobs       trainings side by side, a process each; they change no result
    executor   where jobs run; default: this machine
    stop       asked after every update; once it says True, runs end with a checkpoint and StudyStopped is raised
    say        is given the lines of the runs, and one after each step
    """
    executor = local_executor(jobs) if executor is None else executor
    done = plan.done(folder)
    while members := plan.search.next(done):
        results = executor.run([plan.job(folder, member) for member in members], stop=stop, say=say)
        if results is None:
            raise StudyStopped(folder)
        step = [
            Trained(member=member, measured=plan.search.smooth(member, measured, done))
            for member, measured in zip(members, results, strict=True)
        ]
        done.append(step)
        plan.keep(folder, done)
        say(Line(SEARCH, _step_sentence(plan, done)))
    result = plan.result(folder, done)
    plan.keep(folder, done, best=None if result.best is None else result.best.member.folder)
    return result


def _step_sentence(plan: TunePlan, done: Sequence[Step]) -> str:
    step = done[-1]
    best = plan.ranking.best(step)
    words = plan.base.env.words
    failed = sum(one.measured.value is None for one in step)
    said = "all failed"
    if best is not None and best.measured.value is not None:
        tail = "" if best.measured.tail is None else f", tail {words.amount(best.measured.tail)}"
        said = f"best is member {best.member.number} with {words.amount(best.measured.value)}{tail}"
        said += f", {failed} failed" if failed else ""
    copied = [f"{one.member.number} from {one.member.parent}" for one in step if one.member.copied]
    copies = f"; copies: {', '.join(copied)}" if copied else ""
    return f"generation {step[0].member.generation} is done, {len(step)} members: {said}{copies}"


def keep_tune_page(result: TuneResult) -> Path:
    """Write the page of a search into its folder; its path."""
    # The page may be sent to others: it names the run, not where it lies.
    best, *others = result.verdict(None if result.best_run is None else result.best_run.name)
    view = PopulationView(
        title=f"{result.name}: search by {result.search}",
        headline=[best],
        facts=[*others, *result.facts],
        warnings=result.space.absent,
        score="log-return per year, select window" if result.words.percent else "mean return, episodes of selection",
        points=result.points,
        keys=list(result.space.entries),
        logarithmic=result.logarithmic,
        configured=result.configured,
        learnt=result.learnt(),
        headings=result.headings(),
        rows=result.table(),
    )
    write_population_page(result.folder / PAGE, view)
    return result.folder / PAGE


def tune(
    config: ConfigLike,
    space: Mapping[str, Any] | str | Path | None = None,
    *,
    search: str = "pbt",
    settings: Section | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    stop: Stop = never,
    say: Say = silent,
) -> TuneResult:
    """Search hyperparameters; files lie in `result.folder`, the best run in `result.best_run`.

    config      a `Config`, a nested dictionary, a YAML file or the name of a preset
    space       what is searched: {"learner.learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"}}, or the path of
                a YAML file; None: step size, clip and entropy
    search      "pbt" (population-based training), "random", "grid" or "optuna"
    settings    of that search: {"population": 8, "generations": 10, ...}; docs/tuning.md lists them
    overrides   "learner.clip=0.1" and the like, changes of the configuration
    out         folder; one in which the same search was begun is continued
    jobs        trainings side by side; executor, stop, say: see `run_tune`

    >>> result = tailwise.tune("cartpole.yaml", settings={"population": 4})  # doctest: +SKIP
    >>> policy = tailwise.load(result.best_run)  # doctest: +SKIP
    """
    given = settings.model_dump() if isinstance(settings, Section) else settings
    plan = plan_tune(effective_config(config, overrides), search=search, space=space, settings=given)
    for sentence in plan.warnings:
        warnings.warn(sentence, ConfigWarning, stacklevel=2)
    if plan.leak_check is not None and plan.leak_check.doubtful:
        warnings.warn(f"leak-check: {plan.leak_check.sentence}", ConfigWarning, stacklevel=2)
    result = run_tune(plan, open_tune(plan, out), jobs=jobs, executor=executor, stop=stop, say=say)
    keep_tune_page(result)
    return result

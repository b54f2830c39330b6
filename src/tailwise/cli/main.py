"""The command line: every command with its options; the modules that do the work are imported on use."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tailwise.cli.config import config_app
from tailwise.cli.data import data_app
from tailwise.cli.first_steps import demo
from tailwise.cli.help import START, with_examples
from tailwise.cli.live_commands import decide, export, paper
from tailwise.cli.options import (
    AddressOption,
    AdjustAllOption,
    AdjustOption,
    CheckpointOption,
    CloseOnlyOption,
    ConfigArgument,
    JobsOption,
    JsonOption,
    OnOption,
    PeriodsOption,
    QuietOption,
    RepairOption,
    RunArgument,
    SeedJobsOption,
    SetOption,
    StochasticOption,
    StressOption,
    StudyOutOption,
    TimeUnitOption,
    TrackOption,
    TrustOption,
    as_path,
)
from tailwise.cli.output import BAD_INPUT, CHECK_FAILED, DONE, tolerant_streams
from tailwise.cli.runs import runs_app
from tailwise.core.errors import ConfigWarning, TailwiseError
from tailwise.run.placement import Placement

app = typer.Typer(
    name="tailwise",
    help="Train trading agents that respect tail risk, on your bars or on any Gymnasium environment.",
    no_args_is_help=True,
    epilog=START,
    pretty_exceptions_enable=False,
)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(runs_app, name="runs")
for command in (demo, decide, export, paper):
    app.command()(command)


@app.command()
def train(
    config: ConfigArgument,
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=as_path, metavar="DIR", help="Folder of the run; default: runs/NAME-N, the first free N."),
    ] = None,
    track: TrackOption = None,
    jobs: SeedJobsOption = None,
    on: OnOption = "local",
    address: AddressOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train as a configuration says, into a new run folder; with run.seeds several policies that decide as one."""
    from tailwise.cli.ranks import on_all_ranks
    from tailwise.cli.seeds import How
    from tailwise.cli.training import start_run

    how = How(json, quiet, Placement(on, jobs, address), tuple(track or ()))
    raise typer.Exit(on_all_ranks(partial(start_run, config, overrides or [], how, out=out)))


@app.command()
def resume(
    run: RunArgument,
    track: TrackOption = None,
    jobs: SeedJobsOption = None,
    on: OnOption = "local",
    address: AddressOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Continue a run from its newest good checkpoint, as if it had never stopped."""
    from tailwise.cli.ranks import on_all_ranks
    from tailwise.cli.seeds import How
    from tailwise.cli.training import resume_run

    how = How(json, quiet, Placement(on, jobs, address), tuple(track or ()))
    raise typer.Exit(on_all_ranks(partial(resume_run, run, how, trust=trust)))


@app.command()
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(parser=as_path, metavar="RUN...", help="The folder of a run; several with --ensemble."),
    ],
    episodes: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Episodes; default: evaluate.episodes.")
    ] = None,
    stochastic: StochasticOption = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes; default: the run's seed.")] = None,
    checkpoint: CheckpointOption = None,
    stress: StressOption = True,
    ensemble: Annotated[
        str | None, typer.Option(metavar="vote|average", help="Let the policies of all RUNs decide together.")
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Play a trained policy over fixed, seeded episodes; the result is kept in RUN/evaluations."""
    from tailwise.cli.evaluating import Playing, evaluate_run

    how = Playing(episodes=episodes, stochastic=stochastic, seed=seed, stressed=stress)
    evaluate_run(runs, how, ensemble=ensemble, checkpoint=checkpoint, trust=trust, as_json=json)


@app.command()
def attack(
    run: RunArgument,
    kind: Annotated[
        str, typer.Option(metavar="observations|path", help="Move what the policy is shown, or the test bars.")
    ] = "observations",
    budgets: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Largest moves of an entry; default: four, by the unit.")
    ] = None,
    unit: Annotated[
        str, typer.Option(metavar="std|bps", help="Of the budgets: standard deviations, or basis points of prices.")
    ] = "std",
    entry: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SHARE", help="Another share of the budget for entries of that name, * for any."),
    ] = None,
    attacks: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="random, critic, mad, pgd, learned; default: all.")
    ] = None,
    adversary_steps: Annotated[
        int, typer.Option(min=1, max=10**12, help="Steps that the learned adversary trains for, per budget.")
    ] = 50_000,
    episodes: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Episodes; default: evaluate.episodes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of episodes and attacks; default: the run's.")] = None,
    checkpoint: CheckpointOption = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=as_path, metavar="FILE", help="Default: RUN/attack.html (path: attack-path.html)."),
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Show a trained policy moved observations, or other paths of its market: what it loses over a sweep of budgets."""
    from tailwise.cli.attacking import attack_one

    attack_one(
        run,
        kind=kind,
        budgets=budgets,
        unit=unit,
        entries=entry or [],
        attacks=attacks,
        adversary_steps=adversary_steps,
        episodes=episodes,
        seed=seed,
        checkpoint=checkpoint,
        out=out,
        trust=trust,
        as_json=json,
    )


@app.command()
def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(parser=as_path, metavar="FILE", help="Where to write it; default: RUN/report.html.")
    ] = None,
    stochastic: StochasticOption = False,
    checkpoint: CheckpointOption = None,
    stress: StressOption = True,
    judge: Annotated[
        str | None, typer.Option(metavar="NAME", help="Ask another judge too: sharpebench, where it is installed.")
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Write the report of a run or of a walk-forward: verdict first, then every panel, one file that works offline."""
    from tailwise.cli.evaluating import report_run

    report_run(
        run,
        out=out,
        stochastic=stochastic,
        checkpoint=checkpoint,
        stressed=stress,
        trust=trust,
        judge=judge,
        as_json=json,
    )


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(parser=as_path, metavar="RUN...", help="Folders of runs on the same bars, two or more."),
    ],
    out: Annotated[
        Path | None, typer.Option(parser=as_path, metavar="FILE", help="Page; default: compare.html here.")
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Compare runs pair by pair on the same test bars, with intervals; the first is the one the others are held to."""
    from tailwise.cli.evaluating import compare_runs

    compare_runs(runs, out=out, trust=trust, as_json=json)


@app.command()
def presets(name: Annotated[str | None, typer.Argument(help="Print the YAML of this preset.")] = None) -> None:
    """List the configurations that are shipped, or print one."""
    from tailwise.run.presets import load_preset, preset_names

    if name is not None:
        print(load_preset(name).text, end="")
        return
    shipped = [load_preset(each) for each in preset_names()]
    width = max(len(preset.name) for preset in shipped)
    for preset in shipped:
        print(f"{preset.name:<{width}}  {preset.description}")


@app.command()
def frontier(
    config: ConfigArgument,
    limits: Annotated[
        str | None, typer.Option(metavar="L,L,...", help="Limits on CVaR, e.g. -0.02,-0.05,-0.1; losses are negative.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs per limit: seeds SEED, SEED + 1, ...")] = 3,
    unconstrained: Annotated[
        bool,
        typer.Option("--include-unconstrained/--no-unconstrained", help="Also train each seed without a limit."),
    ] = True,
    episodes: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Test episodes of each run; not for a market.")
    ] = None,
    overrides: SetOption = None,
    out: StudyOutOption = None,
    jobs: JobsOption = 1,
    on: OnOption = "local",
    address: AddressOption = None,
    json: JsonOption = False,
) -> None:
    """Train the same seeds at several limits; draw return against the CVaR that was realised out of sample."""
    from tailwise.cli.studies import Cells, run_frontier

    cells = Cells(limits, seeds, unconstrained, episodes)
    where = Placement(on, jobs, address)
    raise typer.Exit(run_frontier(config, overrides or [], cells, out=out, where=where, as_json=json))


@app.command("walk-forward")
def walk_forward(
    config: ConfigArgument,
    splits: Annotated[
        str,
        typer.Option(
            metavar="walk-forward|combinatorial",
            help="Test windows one after the other, or every choice of --test-folds of --folds groups of bars.",
        ),
    ] = "walk-forward",
    folds: Annotated[
        int, typer.Option(min=1, max=200, help="Test windows, one after the other; groups of combinatorial splits.")
    ] = 5,
    test_folds: Annotated[
        int | None, typer.Option(metavar="K", help="Groups that are tested at a time; combinatorial, 2 by default.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N|S,S,...", help="How many seeds, from the configuration's on; or a list of them.")
    ] = "3",
    kind: Annotated[
        str, typer.Option(metavar="anchored|rolling", help="Training grows from the first bar, or keeps its length.")
    ] = "anchored",
    purge: Annotated[
        str,
        typer.Option(metavar="auto|BARS", help="Bars left out between windows; auto: as far as features look back."),
    ] = "auto",
    embargo: Annotated[int, typer.Option(min=0, metavar="BARS", help="Further bars left out.")] = 0,
    tested: Annotated[
        float, typer.Option(min=0.01, max=0.95, help="Share of the bars, the newest, that all test windows cover.")
    ] = 0.5,
    select: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.8, help="Share of the bars in a select window; default: data.split's."),
    ] = None,
    overrides: SetOption = None,
    out: StudyOutOption = None,
    jobs: JobsOption = 1,
    on: OnOption = "local",
    address: AddressOption = None,
    json: JsonOption = False,
) -> None:
    """Train, select and test fold by fold with several seeds; say what the result is evidence of."""
    from tailwise.cli.studies import read_purge, read_splits, run_walk_forward
    from tailwise.evaluate.walk_forward_folds import Settings, as_kind

    windows = Settings(folds, as_kind(kind), read_purge(purge), embargo, tested, select)
    settings, where = read_splits(splits, windows, test_folds), Placement(on, jobs, address)
    code = run_walk_forward(config, overrides or [], settings=settings, seeds=seeds, out=out, where=where, as_json=json)
    raise typer.Exit(code)


@app.command()
def tune(
    config: ConfigArgument,
    space: Annotated[
        Path | None,
        typer.Option(
            parser=as_path, metavar="FILE", help="YAML of what is searched; default: step size, clip and entropy."
        ),
    ] = None,
    search: Annotated[
        str, typer.Option(metavar="pbt|random|grid|optuna", help="A population that copies its best, or trials.")
    ] = "pbt",
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="Of the search, e.g. -o population=8 -o generations=10; repeatable.",
        ),
    ] = None,
    overrides: SetOption = None,
    out: StudyOutOption = None,
    jobs: JobsOption = 1,
    on: OnOption = "local",
    address: AddressOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Search hyperparameters: train a population, or trials, and score them on the select window, the limit first."""
    from tailwise.cli.tuning import run_tuning
    from tailwise.core.config import apply_overrides

    settings = apply_overrides({}, options or [])
    code = run_tuning(
        config,
        overrides or [],
        search=search,
        space=space,
        settings=settings,
        where=Placement(on, jobs, address),
        out=out,
        as_json=json,
        quiet=quiet,
    )
    raise typer.Exit(code)


@app.command()
def init(
    bars: Annotated[
        list[Path], typer.Argument(parser=as_path, metavar="BARS...", help="CSV or Parquet files, one symbol each.")
    ],
    out: Annotated[Path, typer.Option(parser=as_path, metavar="FILE", help="Where to write the configuration.")] = Path(
        "tailwise.yaml"
    ),
    repair: RepairOption = "none",
    adjust: AdjustOption = "refuse",
    adjust_all: AdjustAllOption = False,
    time_unit: TimeUnitOption = None,
    periods_per_year: PeriodsOption = None,
    close_only: CloseOnlyOption = "refuse",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a commented configuration that fits these bars."""
    from tailwise.cli.bars import init_config, reading_of

    how = reading_of(repair, adjust, time_unit, periods_per_year, adjust_all=adjust_all, close_only=close_only)
    init_config(bars, how, out=out, force=force)


@app.command()
def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(parser=as_path, metavar="[RUNS]...", help="Runs, or folders of runs; default: runs."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; another than this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(metavar="SECRET", envvar="TAILWISE_WATCH_TOKEN", help="Asked of every reader.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """A live page on runs that are going on: curves with healthy bands, alerts, equity, the tail against its limit."""
    from tailwise.cli.inspecting import watch_runs

    watch_runs(runs or [], host=host, port=port, token=token, browse=browse)


@app.command()
def doctor(
    run: Annotated[
        Path | None, typer.Argument(parser=as_path, metavar="[RUN]", help="The folder of a run, as train made it.")
    ] = None,
    itself: Annotated[bool, typer.Option("--self", help="Check this installation by the formulas instead.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With --self: compile what is missing, check it too.")] = False,
    page: Annotated[
        Path | None, typer.Option("--html", parser=as_path, metavar="FILE", help="Also write the audit as a page.")
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Audit a run from its files, or this installation: verdict, evidence, what it means, what to do."""
    from tailwise.cli.inspecting import run_doctor

    raise typer.Exit(run_doctor(run, itself=itself, full=full, trust=trust, as_json=json, page=page))


with_examples(app)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 a check failed, 2 bad input, 130 interrupted."""
    # numba colours even its internal messages while it compiles, which takes 0.4 of 14 seconds.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    warnings.simplefilter("ignore", ConfigWarning)  # commands print these themselves
    try:
        with tolerant_streams():
            return _run(arguments)
    except OSError as error:  # standard output itself: a full disk
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _run(arguments: list[str] | None) -> int:
    try:
        app(arguments, prog_name="tailwise")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else DONE if stop.code is None else CHECK_FAILED
    except TailwiseError as error:
        for sentence in str(error).splitlines():
            print(f"error: {sentence}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        # A folder that may not be written, a full disk: the system's own sentence says it best.
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except MemoryError as error:
        print(f"error: there is not enough memory for this: {error}; ask for less", file=sys.stderr)
        return BAD_INPUT
    return DONE


def _print_version(wanted: bool) -> None:
    if wanted:
        from tailwise import __version__

        print(f"tailwise {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train trading agents that respect tail risk, on your bars or on any Gymnasium environment."""

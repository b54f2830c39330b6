"""The commands on bars that arrive, with their options; the modules that do the work are imported on use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailwise.cli.options import (
    CheckpointOption,
    JsonOption,
    PeriodsOption,
    QuietOption,
    RunArgument,
    StochasticOption,
    TrustOption,
    as_path,
)
from tailwise.core.errors import ConfigError


def decide(
    runs: Annotated[
        list[Path],
        typer.Argument(parser=as_path, metavar="RUN...", help="The folder of a run; several with --ensemble."),
    ],
    bars: Annotated[
        list[str] | None,
        typer.Option(metavar="[SYMBOL=]FILE", help="Bars up to now; one for each symbol. Default: those of the run."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="First bar traded (UTC); default: the first after the train bars."),
    ] = None,
    units: Annotated[float | None, typer.Option(help="What is really held, in units; with --equity.")] = None,
    equity: Annotated[float | None, typer.Option(help="What the account is worth, with --units.")] = None,
    entry: Annotated[float | None, typer.Option(help="Average price of the position; default: the last close.")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=as_path, metavar="FILE", help="Also write a page with the predicted law.")
    ] = None,
    stochastic: StochasticOption = False,
    checkpoint: CheckpointOption = None,
    ensemble: Annotated[
        str | None, typer.Option(metavar="vote|average", help="Let the policies of all RUNs decide together.")
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """What to hold now: target, probabilities, predicted law and tail, guards, and what drove the decision."""
    from tailwise.cli.live import Opened, holding_of
    from tailwise.cli.live import decide as print_decision

    print_decision(
        Opened(runs, ensemble, checkpoint, trust),
        bars or [],
        since=since,
        account=holding_of(units, equity, entry),
        stochastic=stochastic,
        out=out,
        as_json=json,
    )


def export(
    run: RunArgument,
    onnx: Annotated[bool, typer.Option("--onnx", help="As one ONNX file, which onnxruntime plays.")] = False,
    out: Annotated[
        Path | None, typer.Option(parser=as_path, metavar="FILE", help="Where to write it; default: RUN/policy.onnx.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=10_000_000, help="Decisions that are compared with torch.")] = 10_000,
    checkpoint: CheckpointOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Write a policy as one file for other programs, compared with torch on real observations."""
    from tailwise.cli.live import export as write_export

    if not onnx:
        raise ConfigError("say what to export: --onnx is the format there is.")
    raise typer.Exit(write_export(run, out, checkpoint=checkpoint, steps=steps, trust=trust, as_json=json))


def paper(
    runs: Annotated[
        list[Path],
        typer.Argument(parser=as_path, metavar="RUN...", help="The folder of a run; several with --ensemble."),
    ],
    feed: Annotated[
        list[str] | None,
        typer.Option(metavar="-|[SYMBOL=]FILE|ccxt:...", help="Where bars come from; see the page of this command."),
    ] = None,
    bars: Annotated[
        list[str] | None, typer.Option(metavar="[SYMBOL=]FILE", help="Bars from before, which warm the features up.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="First bar traded (UTC); default: as soon as it can be.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end of the file.")] = False,
    speed: Annotated[
        float | None, typer.Option(min=1e-6, metavar="X", help="Bars per second of a replay; default: at once.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=as_path, metavar="DIR", help="Folder of the session, continued; default: RUN/paper."),
    ] = None,
    guard: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A guard of the feed, e.g. stale_seconds=90.")
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Train challengers aside; one that is proven better takes over.")
    ] = False,
    learning: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of --learn, e.g. every=250.")
    ] = None,
    acknowledge: Annotated[
        list[str] | None, typer.Option(metavar="REASON", help="Trade again although this reason held; repeatable.")
    ] = None,
    stochastic: StochasticOption = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Of sampled actions; default: the run's seed.")] = None,
    periods_per_year: PeriodsOption = None,
    checkpoint: CheckpointOption = None,
    ensemble: Annotated[
        str | None, typer.Option(metavar="vote|average", help="Let the policies of all RUNs decide together.")
    ] = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Trade on paper: a feed of bars through the simulator's own account, journaled, guarded; no real order is sent."""
    from tailwise.cli.live import Opened
    from tailwise.cli.paper import Source, run_paper
    from tailwise.live.paper import Beginning

    if learning and not learn:
        raise ConfigError("--learning sets what --learn does; give --learn as well.")
    source = Source(feed or [], bars or [], follow, speed, periods_per_year)
    code = run_paper(
        Opened(runs, ensemble, checkpoint, trust),
        source,
        Beginning(since, False if stochastic else None, seed),
        out=out,
        guards=guard or [],
        learning=(learning or []) if learn else None,
        acknowledge=acknowledge or [],
        as_json=json,
        quiet=quiet,
    )
    raise typer.Exit(code)

"""`tailwise data`: every command with its options. The work is in the modules beside this one, imported on use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailwise.cli.options import (
    AdjustAllOption,
    AdjustOption,
    CloseOnlyOption,
    ConfigArgument,
    ForceOption,
    JsonOption,
    PeriodsOption,
    RepairOption,
    SetOption,
    TimeUnitOption,
    as_path,
)

data_app = typer.Typer(help="Check, make, list and fetch bars.", no_args_is_help=True)


@data_app.command("check")
def data_check(
    files: Annotated[
        list[Path], typer.Argument(parser=as_path, metavar="FILE...", help="CSV or Parquet files with bars.")
    ],
    repair: RepairOption = "none",
    adjust: AdjustOption = "refuse",
    adjust_all: AdjustAllOption = False,
    time_unit: TimeUnitOption = None,
    periods_per_year: PeriodsOption = None,
    close_only: CloseOnlyOption = "refuse",
    symbol: Annotated[str | None, typer.Option(metavar="S", help="Name of the bars, or which symbol to take.")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=as_path, metavar="FILE", help="Save the checked bars as .csv or .parquet.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Read bars as training would, and say what was understood, repaired and looks odd (exit code 2 if unusable)."""
    from tailwise.cli.bars import check_files, reading_of

    how = reading_of(
        repair, adjust, time_unit, periods_per_year, adjust_all=adjust_all, close_only=close_only, symbol=symbol
    )
    raise typer.Exit(check_files(files, how, out=out, force=force, as_json=json))


@data_app.command("synth")
def data_synth(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="One of the markets that `tailwise data sets` lists.")],
    out: Annotated[Path, typer.Option(parser=as_path, metavar="FILE", help="Where to write: .csv or .parquet.")],
    bars: Annotated[int | None, typer.Option(min=2, help="Number of bars; default: the market's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="A parameter of KIND, e.g. -s phi=0.5; repeatable."),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a synthetic market, labelled as one, and print its truth."""
    from tailwise.cli.bars import synthesise

    synthesise(kind, parameters or [], bars=bars, seed=seed, out=out, force=force, as_json=json)


@data_app.command("sets")
def data_sets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Say what is in this set, or save it.")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=as_path, metavar="FILE", help="Save NAME as .csv or .parquet.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """List the bars that are at hand without a network, and the synthetic markets."""
    from tailwise.cli.bars import show_sets

    show_sets(name, out=out, force=force, as_json=json)


@data_app.command("leak-check")
def data_leak_check(
    config: ConfigArgument,
    overrides: SetOption = None,
    cuts: Annotated[int, typer.Option(min=1, max=10_000, help="Moments at which the future is changed.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the changed futures.")] = 0,
    json: JsonOption = False,
) -> None:
    """Change the future and look whether features, fit or environment knew it (exit code 1 if so)."""
    from tailwise.cli.bars import check_leaks

    raise typer.Exit(check_leaks(config, overrides or [], cuts=cuts, seed=seed, as_json=json))


@data_app.command("fetch")
def data_fetch(
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE", help="As ccxt calls it: binance, kraken, ...")],
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL", help="As ccxt calls it: BTC/USDT.")],
    since: Annotated[str, typer.Option(metavar="DATE", help="First bar (UTC), e.g. 2020-01-01.")],
    out: Annotated[
        Path,
        typer.Option(parser=as_path, metavar="FILE", help="Where to save: .csv or .parquet; continued if it exists."),
    ],
    timeframe: Annotated[str, typer.Option(metavar="T", help="Length of a bar, e.g. 1m, 1h, 1d.")] = "1h",
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only bars that open before (UTC); default: now.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask this address instead of the exchange's own: a mirror.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fetch the history of an exchange; a file that exists is continued (needs the extra `live`)."""
    from tailwise.bars.fetch import Series
    from tailwise.cli.bars import fetch

    series = Series(exchange, symbol, timeframe, since, until)
    raise typer.Exit(fetch(series, out, url=url, as_json=json))

"""`tailwise config`: check, show and explain configurations."""

from __future__ import annotations

from typing import Annotated

import typer

from tailwise.cli.options import ConfigArgument, SetOption
from tailwise.cli.output import note

config_app = typer.Typer(help="Check, show and explain configurations.", no_args_is_help=True)


@config_app.command("show")
def config_show(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Print the complete effective configuration, every default included."""
    from tailwise.core.config import dump_yaml
    from tailwise.run.config import effective_config

    print(dump_yaml(effective_config(config, overrides or []).config), end="")


@config_app.command("check")
def config_check(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Say "ok", or everything that is wrong, a sentence each (exit code 2)."""
    from tailwise.run.config import effective_config, warnings_of

    for sentence in warnings_of(effective_config(config, overrides or []).config):
        note(f"warning: {sentence}")
    print(f"{config}: ok")


@config_app.command("explain")
def config_explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="For example learner.clip, or a section.")],
) -> None:
    """Say what a key means, its default and what is allowed."""
    from tailwise.core.config_keys import entries_below
    from tailwise.run.config import Config

    for entry in entries_below(Config, key):
        kind = f"  (where {entry.switch} is {entry.kind.replace(', ', ' or ')})" if entry.kind else ""
        print(f"{entry.key}{kind}")
        print(f"  {entry.meaning}")
        default = entry.default if entry.default == "required" else f"default {entry.default}"
        print(f"  {default}; allowed: {entry.allowed}")

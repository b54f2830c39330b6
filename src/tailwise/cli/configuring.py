"""`tailwise config show|check|explain`."""

from __future__ import annotations

from tailwise.cli.output import note
from tailwise.core.config import dump_yaml
from tailwise.core.config_keys import Entry, entries_below
from tailwise.run.config import Config, warnings_of
from tailwise.run.effective_config import effective_config


def show(config: str, overrides: list[str]) -> None:
    """Print the complete effective YAML."""
    print(dump_yaml(effective_config(config, overrides).config), end="")


def check(config: str, overrides: list[str]) -> None:
    """Raise a ConfigError for what is wrong; else print warnings, then ok."""
    for sentence in warnings_of(effective_config(config, overrides).config):
        note(f"warning: {sentence}")
    print(f"{config}: ok")


def explain(key: str) -> None:
    """Print the key in each kind that has it, or all keys of a section."""
    for entry in entries_below(Config, key):
        _print_entry(entry)


def _print_entry(entry: Entry) -> None:
    kind = f"  (where {entry.switch} is {entry.kind.replace(', ', ' or ')})" if entry.kind else ""
    print(f"{entry.key}{kind}")
    print(f"  {entry.meaning}")
    default = entry.default if entry.default == "required" else f"default {entry.default}"
    print(f"  {default}; allowed: {entry.allowed}")

"""`tailwise config show|check|explain`, and how a configuration is read for every command."""

from __future__ import annotations

import difflib
from pathlib import Path

from tailwise.cli.output import note
from tailwise.core.config_reference import Entry, reference
from tailwise.core.config import apply_overrides, dump_yaml
from tailwise.core.errors import ConfigError
from tailwise.run.config import Config, parse_config, warnings_of
from tailwise.run.presets import Source, load_source, with_full_paths


def read_effective(config: str, overrides: list[str]) -> tuple[Source, Config]:
    """Where a configuration comes from (a file or a preset), and what it is with its overrides, checked."""
    source = load_source(config)
    label = source.label if not overrides else f"{source.label} with -s"
    # Paths of a file are full by now; those on the command line are meant from here.
    data = with_full_paths(apply_overrides(source.data, overrides), Path.cwd())
    return source, parse_config(data, source=label)


def show(config: str, overrides: list[str]) -> None:
    """The complete effective YAML on standard output."""
    print(dump_yaml(read_effective(config, overrides)[1]), end="")


def check(config: str, overrides: list[str]) -> None:
    """Raises what is wrong; prints warnings, then ok."""
    for sentence in warnings_of(read_effective(config, overrides)[1]):
        note(f"warning: {sentence}")
    print(f"{config}: ok")


def explain(key: str) -> None:
    """Every entry under this key: the key itself in each kind that has it, or all keys of a section."""
    entries = reference(Config)
    found = [entry for entry in entries if entry.key == key]
    if not found or any(entry.section for entry in found):
        found = [*found, *(entry for entry in entries if entry.key.startswith(f"{key}."))]
    if not found:
        keys = list(dict.fromkeys(entry.key for entry in entries))
        ending = [known for known in keys if known.rsplit(".", 1)[-1] == key]
        near = ending or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        quoted = " or ".join(f"'{known}'" for known in near)
        hint = f"did you mean {quoted}?" if near else "docs/configuration.md lists all keys."
        raise ConfigError(f"key '{key}' is unknown; {hint}")
    for entry in found:
        _print_entry(entry)


def _print_entry(entry: Entry) -> None:
    kind = f"  (where {entry.switch} is {entry.kind.replace(', ', ' or ')})" if entry.kind else ""
    print(f"{entry.key}{kind}")
    print(f"  {entry.meaning}")
    default = entry.default if entry.default == "required" else f"default {entry.default}"
    print(f"  {default}; allowed: {entry.allowed}")

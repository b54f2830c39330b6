"""Writes docs/configuration.md, metrics.md and health-rules.md from the code they describe: `python docs/generate.py`.

A test compares the files with what this script would write, so they cannot fall behind.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tailwise.core.config_keys import Entry, reference
from tailwise.core.metrics import DECLARATIONS, MetricSpec
from tailwise.run.config import Config
from tailwise.run.health import RULES, Condition, Rule

DOCS = Path(__file__).parent

CONFIGURATION_HEAD = """# Configuration

Made from the models by `python docs/generate.py`; do not edit. `tailwise config explain KEY` prints the same in the
terminal, `tailwise config show CONFIG` a configuration with every default.

- A file holds only what differs from the defaults. An unknown key is an error with the nearest valid name.
- Where there are several kinds, `kind` may be left out and means the default one: `critic: {quantiles: 32}`.
- `true` and `false` are truth values; `on`, `off`, `yes` and `no` are words. `3e-4` is a number, `null` is nothing.
- `backend: fused` refuses, with a sentence, options that it does not cover; `auto` takes torch for them and says so.
- A file has at most 1 MB, 20,000 values with aliases and merges written out, and 32 levels; whole numbers fit into 64
  bits; tags (`!!...`) are refused.
- `-s key=value` changes one value on the command line: `-s learner.clip=0.1 -s 'model.encoder.hidden=[32, 32]'`.
"""

METRICS_HEAD = """# Metrics

Made from `tailwise.core.metrics` by `python docs/generate.py`; do not edit. Each update writes one line with these
names into `metrics.jsonl` of the run folder and to TensorBoard; at the end the lines are also written as a table,
`metrics.parquet`. A name in angle brackets stands for several, one per critic, parameter group or loss term. Names
under `time/` and `machine/` depend on the machine and are left out when two runs are compared.
"""

HEALTH_HEAD = """# Health rules

Made from `tailwise.run.health` by `python docs/generate.py`; do not edit. [Health](health.md) explains severities and
actions.
A rule fires after its condition held as many times in a row as `raise` says, and clears after `clear` times without.
"""


def configuration_page() -> str:
    """Every key of the configuration, a table per section."""
    parts = [CONFIGURATION_HEAD]
    keys_only = (entry for entry in reference(Config) if not entry.section)
    for section, keys in groupby(keys_only, key=_section):
        title = f"## `{section}`" if section else "## Top level"
        rows = [_row(entry) for entry in keys]
        parts.append(
            "\n".join([f"{title}\n", "| key | default | allowed | meaning |", "|---|---|---|---|", *rows]) + "\n"
        )
    return "\n".join(parts)


def metrics_page() -> str:
    """Every metric, a table per group."""
    parts = [METRICS_HEAD]
    for group, specs in groupby(DECLARATIONS, key=lambda spec: spec.name.split("/")[0]):
        rows = [_cells(f"`{spec.name}`", spec.unit, spec.meaning, _healthy(spec)) for spec in specs]
        parts.append(
            "\n".join([f"## {group}\n", "| name | unit | meaning | healthy |", "|---|---|---|---|", *rows]) + "\n"
        )
    return "\n".join(parts)


def health_page() -> str:
    """Every built-in rule, a table per severity."""
    parts = [HEALTH_HEAD]
    for severity in ("error", "warn", "info"):
        rows = [
            _cells(
                f"`{rule.name}`",
                "; ".join(f"`{signal}` {_condition(condition)}" for signal, condition in rule.reads),
                _patience(rule),
                rule.reason,
                rule.advice,
                rule.action,
            )
            for rule in RULES
            if rule.severity == severity
        ]
        head = ["| rule | condition | raise, clear | threshold from | advice | action |", "|---|---|---|---|---|---|"]
        parts.append("\n".join([f"## {severity}\n", *head, *rows]) + "\n")
    return "\n".join(parts)


def _condition(condition: Condition) -> str:
    limits = [f"> {condition.above:g}"] if condition.above is not None else []
    limits += [f"< {condition.below:g}"] if condition.below is not None else []
    text = " or ".join(limits).replace("<", "&lt;")
    return text if condition.statistic == "last" else f"{condition.statistic} of {condition.window} {text}"


def _patience(rule: Rule) -> str:
    late = f", not before update {rule.not_before + 1}" if rule.not_before else ""
    return f"{rule.raise_after}, {rule.clear_after}{late}"


def _section(entry: Entry) -> str:
    """The heading that a key stands under: its first name, and the second one within the model."""
    names = entry.key.split(".")
    depth = 2 if names[0] == "model" and len(names) > 2 else 1
    return ".".join(names[:depth]) if len(names) > 1 else ""


def _row(entry: Entry) -> str:
    kind = f" ({entry.kind})" if entry.kind else ""
    return _cells(f"`{entry.key}`{kind}", f"`{entry.default}`", entry.allowed.replace("<", "&lt;"), entry.meaning)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _healthy(spec: MetricSpec) -> str:
    if spec.healthy is None:
        return ""
    low, high = spec.healthy
    if low is not None and low == high:
        return f"{low:g}"
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return f"at least {low:g}" if low is not None else f"at most {high:g}"


def pages() -> dict[Path, str]:
    """Path -> text of everything that is generated."""
    return {
        DOCS / "configuration.md": configuration_page(),
        DOCS / "metrics.md": metrics_page(),
        DOCS / "health-rules.md": health_page(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")

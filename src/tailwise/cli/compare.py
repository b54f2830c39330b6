"""`tailwise compare`: several runs, pair by pair, on the same test bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tailwise.cli.output import note, print_json, print_table, say_leak_check
from tailwise.evaluate.compare_accounts import PAIR_HEADS, Compared, pair_rows
from tailwise.evaluate.words import columns
from tailwise.market.leaks.own_features import LeakVerdict
from tailwise.pages.compare import PAGE, compare


def compare_runs(runs: list[Path], *, out: Path | None, trust: bool, as_json: bool) -> None:
    """Compare, write the page, print."""
    compared = compare(runs, page=PAGE if out is None else out, trust=trust)
    for sentence in compared.notes:
        note(f"note: {sentence}")
    if as_json:
        print_json(compared.to_json())
        return
    for account in compared.accounts:
        _print(account, compared.leak_check)
    for verdict in compared.leak_check.values():
        say_leak_check(verdict)
    print(f"page: {compared.file}")


def _print(compared: Compared, leaks: Mapping[str, LeakVerdict | None]) -> None:
    heads = columns(next(iter(compared.statistics.values())))
    rows = [(name, *(show(numbers) for numbers in compared.statistics.values())) for name, show in heads]
    statuses = {name: verdict.status for name, verdict in leaks.items() if verdict is not None}
    if statuses:
        rows.append(("leak-check", *(statuses.get(name, "-") for name in compared.statistics)))
    print_table(compared.symbol, ("after all costs", *compared.statistics), rows)
    print_table("pair by pair", PAIR_HEADS, pair_rows(compared))
    for sentence in compared.sentences():
        print(sentence)

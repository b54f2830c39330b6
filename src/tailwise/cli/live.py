"""`tailwise decide` and `tailwise export`: call and print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailwise.cli.output import CHECK_FAILED, DONE, note, print_json, print_table
from tailwise.core.errors import ConfigError
from tailwise.evaluate.opened_run import open_team
from tailwise.live.decide import DRIVE_HEADS, decisions, drive_rows, sentences, write_decisions
from tailwise.run.decide import doubts_of
from tailwise.run.decision import Holding


@dataclass(frozen=True)
class Opened:
    """Which policies decide: options of every live command."""

    runs: list[Path]
    ensemble: str | None
    checkpoint: str | None
    trust: bool


def holding_of(units: float | None, equity: float | None, entry: float | None) -> Holding | None:
    """What is really held, from the options; None where the played account counts."""
    if (units is None) != (equity is None):
        raise ConfigError("--units and --equity belong together: what is held, and what the account is worth.")
    if units is None or equity is None:
        if entry is not None:
            raise ConfigError("--entry is the price of a position; give --units and --equity too.")
        return None
    return Holding(units, equity, entry)


def decide(
    opened: Opened,
    files: list[str],
    *,
    since: str | None,
    account: Holding | None,
    stochastic: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print what to hold now, and write the page."""
    team = open_team(opened.runs, checkpoint=opened.checkpoint, ensemble=opened.ensemble, trust=opened.trust)
    for sentence in team.notes:
        note(f"note: {sentence}")
    made = decisions(team.trader, files, since=since, account=account, stochastic=stochastic)
    for sentence in doubts_of(team.trader, [name for one in made for name in one.symbols], since=since, trades=False):
        note(f"note: {sentence}")
    if out is not None:
        write_decisions(out, made, title=f"{team.run.resolve().name}: what to hold")
    if as_json:
        print_json(
            {
                "run_dir": str(team.run),
                "checkpoint": team.name,
                "members": list(team.members),
                "decisions": [one.to_json() for one in made],
                "page": None if out is None else str(out),
            }
        )
        return
    for one in made:
        for sentence in sentences(one):
            print(sentence)
        print_table("what drove it: each entry replaced by its train mean", DRIVE_HEADS, drive_rows(one))
    if out is not None:
        print(f"page: {out}")


def export(run: Path, out: Path | None, *, checkpoint: str | None, steps: int, trust: bool, as_json: bool) -> int:
    """Write the file, compare it with torch, print; the exit code."""
    from tailwise.evaluate.opened_run import open_run
    from tailwise.live.export import export_onnx

    opened = open_run(run, checkpoint, trust=trust)
    for sentence in opened.notes:
        note(f"note: {sentence}")
    made = export_onnx(
        opened.single("exported"), run / "policy.onnx" if out is None else out, steps=steps, name=opened.name
    )
    if as_json:
        print_json({"run_dir": str(run), "checkpoint": opened.name, **made.to_json()})
    else:
        for sentence in made.sentences():
            print(sentence)
    return DONE if made.passed else CHECK_FAILED

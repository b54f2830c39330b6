"""`tailwise attack`: a trained policy that is shown something else than what is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailwise.cli.output import note, print_json, print_table
from tailwise.core.errors import ConfigError
from tailwise.evaluate.attack import ATTACKS, Unit
from tailwise.pages.attack import KINDS, Kind, attack, headings, sentences, table_rows

PAGES: dict[Kind, str] = {"observations": "attack.html", "path": "attack-path.html"}


def numbers_of(text: str | None) -> list[float] | None:
    """Numbers with commas between them; None for None."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--budgets is '{text}'; write numbers with commas, such as 0.05,0.1") from error


def shares_of(texts: Sequence[str]) -> dict[str, float]:
    """NAME=SHARE each."""
    shares = {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        try:
            shares[name] = float(share)
        except ValueError as error:
            raise ConfigError(f"--entry is '{text}'; write NAME=SHARE, such as 'return_*=0.5'") from error
        if not equals or not name:
            raise ConfigError(f"--entry is '{text}'; write NAME=SHARE, such as 'return_*=0.5'")
    return shares


def attack_one(
    run: Path,
    *,
    kind: str,
    budgets: str | None,
    unit: str,
    entries: Sequence[str],
    attacks: str | None,
    adversary_steps: int,
    episodes: int | None,
    seed: int | None,
    checkpoint: str | None,
    out: Path | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Attack the policy of a run, print a table and what it comes to, keep the result and write the page."""
    if kind not in KINDS:
        raise ConfigError(f"--kind is '{kind}'; choose {' or '.join(KINDS)}")
    what: Kind = "path" if kind == "path" else "observations"
    own: Unit = "bps" if unit == "bps" else "std"
    if unit not in ("std", "bps"):
        raise ConfigError(f"--unit is '{unit}'; choose std or bps")
    result = attack(
        run,
        kind=what,
        budgets=numbers_of(budgets),
        unit=own,
        entries=shares_of(entries),
        attacks=ATTACKS if attacks is None else attacks.split(","),
        adversary_steps=adversary_steps,
        episodes=episodes,
        seed=seed,
        checkpoint=checkpoint,
        page=run / PAGES[what] if out is None else out,
        trust=trust,
    )
    for sentence in result.notes:
        note(f"note: {sentence}")
    if as_json:
        print_json(result.to_json())
        return
    print_table(f"{run.resolve().name}, checkpoint {result.checkpoint}", headings(result), table_rows(result))
    for sentence in sentences(result):
        print(sentence)
    print(f"page: {result.page}")

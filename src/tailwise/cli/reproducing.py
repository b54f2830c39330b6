"""`tailwise runs reproduce`: train a run again and say whether anything is different."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tailwise.cli.main import CHECK_FAILED, DONE
from tailwise.cli.output import print_json
from tailwise.cli.training import make_display
from tailwise.run.reproduction import repeat
from tailwise.run.run_folder import read_config


def reproduce(run: Path, *, out: Path | None, trust: bool, as_json: bool) -> int:
    """Train, compare, say it; the exit code is 1 when anything differs."""
    config = read_config(run)
    folder = out or _free(run)
    found = repeat(run, folder, make_display(config, silent=as_json), trust=trust)
    if as_json:
        print_json({**asdict(found), "same": found.same})
        return DONE if found.same else CHECK_FAILED
    for sentence in found.notes:
        print(f"note: {sentence}")
    print(f"{run} again, {found.updates} updates, in {folder}")
    if found.same:
        print(f"the same bit for bit: all metrics, and the weights of {found.checkpoint}")
        return DONE
    for what, same in (("metrics", found.same_metrics), ("weights", found.same_weights)):
        print(f"{what}: {'the same' if same else 'different'}")
    print(f"first difference: {found.first_difference}")
    return CHECK_FAILED


def _free(run: Path) -> Path:
    number, named = 1, run if run.name else run.resolve()
    while (folder := named.with_name(f"{named.name}-again-{number}")).exists():
        number += 1
    return folder

"""Commands that torchrun starts on several ranks: the first one is the command, the others follow it."""

from __future__ import annotations

import os
from typing import Protocol

from tailwise.cli.output import DONE
from tailwise.core.errors import ConfigError
from tailwise.run.config import Config
from tailwise.run.ranks import joined, place_of
from tailwise.run.seeds import several


class Command(Protocol):
    """A command that several ranks may share; returns its exit code."""

    def __call__(self, *, ranks: int) -> int: ...


def on_all_ranks(command: Command) -> int:
    """Run a command, or follow the rank that runs it; return the exit code."""
    place = place_of(os.environ)
    if place is None:
        return command(ranks=1)
    with joined(place):
        if place.first:
            return command(ranks=place.ranks)
        from tailwise.run.follower import follow

        follow()
    return DONE


def check_one_policy(config: Config, ranks: int) -> None:
    """Raise where several ranks would share several policies."""
    if ranks > 1 and several(config):
        raise ConfigError(
            f"run.seeds is {config.run.seeds} and torchrun started {ranks} ranks, which share the training of one "
            "policy; set run.seeds to 1, or leave torchrun out: seeds are trained side by side with --jobs."
        )

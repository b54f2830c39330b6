"""A verdict from outside: what another package says of the same returns, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from tailwise.core.errors import ConfigError
from tailwise.evaluate.statistics import NOTHING, window_returns
from tailwise.evaluate.words import percent, plain
from tailwise.market.path import AccountPath


def check_judge(name: str) -> None:
    """Raise unless a judge of that name is known."""
    if name not in _JUDGES:
        raise ConfigError(f"--judge is '{name}'; choose {' or '.join(_JUDGES)}.")


def outside_sentences(name: str, path: AccountPath, trials: int) -> list[str]:
    """What the judge called `name` says of the log-returns of a path that is the best of so many trials; a sentence
    that says how to install it where it is not there."""
    check_judge(name)
    if find_spec(name) is None:
        return [f"{name} is not installed, so it was not asked; pip install {name}"]
    returns = window_returns(path)
    if returns.std() <= NOTHING:
        return [f"{name} was not asked: the equity of the account never moved."]
    return [_JUDGES[name](returns, path.periods_per_year, trials)]


def _sharpebench(returns: np.ndarray[Any, Any], periods_per_year: float, trials: int) -> str:
    import sharpebench

    # The spread of the trials is that of chance, 1 / n per bar, as in `evidence.deflated_sharpe`; its own default, half
    # a unit per year, knows nothing of how long the window is.
    spread = float(np.sqrt(periods_per_year / len(returns)))
    found = sharpebench.is_my_sharpe_real(
        returns.tolist(), n_trials=trials, trials_sr_std=spread, periods_per_year=periods_per_year
    )
    needed = found.get("min_track_record_len")
    years = (
        "" if needed is None or not np.isfinite(needed) else f"; {needed / periods_per_year:.1f} years would show it"
    )
    return (
        f"sharpebench {version('sharpebench')} says {found['verdict']}: its deflated Sharpe ratio after {trials:,} "
        f"trial{'s' if trials > 1 else ''} is {percent(found['deflated_sharpe'], 0)}, where 95% passes (expected best "
        f"without edge {plain(found['expected_max_sharpe'] * np.sqrt(periods_per_year))} per year{years})."
    )


_JUDGES: Mapping[str, Callable[[np.ndarray[Any, Any], float, int], str]] = {"sharpebench": _sharpebench}

"""What may be disturbed of an observation, and how far: its entries by name, and what wrong prices do to features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.learner.adversary import NAME, Budgets, Entries, SaPpoLoss, raw_budgets, std_budgets
from tailwise.learner.config import Adversary, SaPpo, StdBudget
from tailwise.learner.losses import AuxiliaryLoss
from tailwise.market.dataset import Dataset
from tailwise.model.observation import ObservationSpec

_PRICES = ("open", "high", "low", "close")
DRAWS = 4  # times that the prices of the train bars are disturbed
LEVEL = 0.95  # of the moves of a feature: in one bar of twenty the same error moves it further


def entries_of(spec: ObservationSpec) -> Entries:
    """Entries named after their leaf and place ("observation.2", "speed.0"); flags and one-hots are not open."""
    names, is_open = [], []
    for leaf in spec.leaves:
        names += [f"{leaf.name}.{place}" for place in range(leaf.width)]
        is_open += [leaf.kind == "box"] * leaf.width
    return Entries(tuple(names), tuple(is_open))


def moves_of_features(dataset: Dataset, bps: float, *, seed: int) -> list[float]:
    """How far each feature moves where the prices of every train bar are off by `bps` basis points, raw units [F].

    The four prices of a bar are off together, up or down by chance, independently of other bars. Features are computed
    again from such bars; of the moves of all train rows in four draws the 95% quantile counts, and of several symbols
    the largest. It is what such errors do, not the most that errors chosen by an adversary could do.
    """
    moves: list[list[float]] = []
    for symbol, (bars, table) in enumerate(zip(dataset.bars, dataset.features, strict=True)):
        rows = np.zeros(len(bars), dtype=np.bool_)
        for window in dataset.all_ranges()["train"][symbol]:
            rows[window.first : window.end] = True
        rows[: table.first_valid] = False
        found = []
        for draw in range(DRAWS):
            other = dataset.spec.table(_off(bars, bps, symbol, draw, seed))
            width = other.values.shape[1]  # columns that the data bring are no features of prices
            found.append(np.abs(other.values[rows] - table.values[rows, :width]))
        moves.append(np.quantile(np.concatenate(found), LEVEL, axis=0).tolist())
    return np.max(np.array(moves, dtype=np.float64), axis=0).tolist()


def _off(bars: Bars, bps: float, symbol: int, draw: int, seed: int) -> Bars:
    """The bars with the prices of each one off by so much, up or down."""
    uniform = Streams(seed).uniforms(
        "adversary/prices", update=draw, environments=np.array([symbol]), steps=len(bars), draws=1
    )
    factor = np.where(uniform[:, 0, 0] < 0.5, 1.0 - bps * 1e-4, 1.0 + bps * 1e-4)
    columns = {name: getattr(bars, name) * factor for name in _PRICES}
    return replace(bars, **columns, label=f"synthetic: prices off by {bps:g} bps, of {bars.symbol} ({bars.label})")


def adversary_losses(
    adversary: Adversary, entries: Entries, moves_of_prices: Sequence[float] | None
) -> list[tuple[str, AuxiliaryLoss]]:
    """The auxiliary losses of learner.adversary; moves_of_prices [D]: for a budget in basis points."""
    if not isinstance(adversary, SaPpo):
        return []
    return [(NAME, SaPpoLoss(adversary, _budgets(adversary, entries, moves_of_prices)))]


def _budgets(adversary: SaPpo, entries: Entries, moves: Sequence[float] | None) -> Budgets:
    if isinstance(adversary.budget, StdBudget):
        return std_budgets(adversary.budget, entries)
    assert moves is not None
    if not any(moves):
        raise ConfigError("learner.adversary.budget: no feature moves with the prices; use kind std")
    return raw_budgets(moves)

"""The worst path within a budget for a policy, found by turns: projected gradients with its decisions held fixed, then
its decisions on the path that this gave."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import NotBuiltError
from tailwise.learner.path_account import HeldPath, slopes
from tailwise.market.dataset import Purpose
from tailwise.market.path import AccountPath
from tailwise.market.shifts import (
    ROUNDING,
    ShiftBudget,
    joined_symbols,
    project,
    random_shifts,
    shifted_dataset,
    shifted_rows,
    volatility_before,
)
from tailwise.run.play import Player
from tailwise.run.worlds import MarketWorld, trade_window

Floats = npt.NDArray[np.float64]
#: Derivatives [n] of the log-return of a path by the shift of each bar; see `path_account.slopes`.
Slope = Callable[[HeldPath], Floats]


@dataclass(frozen=True)
class ShiftedPath:
    """What a path does to a policy. shifts [n] of each symbol, in units of volatility; log_return: of each symbol, the
    sum over the accounts that trade pieces of its window."""

    shifts: tuple[Floats, ...]
    log_return: Floats


class PathSearch:
    """Plays a policy on shifted bars of a window, and looks for shifts that hurt it.

    player   a player of the policy, for each playback afresh
    length   bars of the pieces that accounts trade side by side; None: the window, whole
    """

    def __init__(
        self,
        world: MarketWorld,
        purpose: Purpose,
        player: Callable[[], Player],
        budget: ShiftBudget,
        *,
        seed: int,
        length: int | None = None,
    ) -> None:
        refuse_portfolio(world)
        self.world, self.purpose, self.player, self.budget, self.seed = world, purpose, player, budget, seed
        self.rows = shifted_rows(world.dataset, purpose)
        self.length = max(end - first for first, end in self.rows) if length is None else length
        self.units = [
            volatility_before(bars)[first:end] for bars, (first, end) in zip(world.dataset.bars, self.rows, strict=True)
        ]

    def within(self, shifts: Floats) -> bool:
        """Whether shifts [n] of a symbol keep the budget, but for rounding."""
        return bool(np.isfinite(shifts).all()) and self.budget.excess(shifts) <= ROUNDING * self.budget.largest

    @property
    def counts(self) -> list[int]:
        """Bars of each symbol that may be shifted."""
        return [end - first for first, end in self.rows]

    def unshifted(self) -> tuple[Floats, ...]:
        """Shifts of 0."""
        return tuple(np.zeros(count) for count in self.counts)

    def random(self, draw: int) -> tuple[Floats, ...]:
        """Random shifts that use up the budget; the same for the same number."""
        return tuple(
            random_shifts(count, self.budget, seed=self.seed, draw=draw, symbol=symbol)
            for symbol, count in enumerate(self.counts)
        )

    def play(self, shifts: Sequence[Floats]) -> tuple[ShiftedPath, list[HeldPath]]:
        """What the policy gets on shifted bars, and what it held there, by symbol."""
        return self.play_all([shifts])[0]

    def play_all(self, paths: Sequence[Sequence[Floats]]) -> list[tuple[ShiftedPath, list[HeldPath]]]:
        """`play` of several paths side by side."""
        assert all(self.within(own) for shifts in paths for own in shifts), "shifts exceed their budget"
        cut = [shifted_world(self.world, self.purpose, shifts).in_pieces(self.purpose, self.length) for shifts in paths]
        together = copy.copy(self.world)
        together.dataset = joined_symbols([one.dataset for one in cut], self.purpose)
        lived = iter(
            zip(
                trade_window(self.player(), together, self.purpose, seed=self.seed),
                together.dataset.bars,
                strict=True,
            )
        )
        return [self._outcome(shifts, lived) for shifts in paths]

    def _outcome(
        self, shifts: Sequence[Floats], lived: Iterator[tuple[AccountPath, Bars]]
    ) -> tuple[ShiftedPath, list[HeldPath]]:
        held, got = [], []
        cost, at_open = self.world.costs.taker_rate, self.world.settings.fill == "next_open"
        for count in self.counts:
            own = list(islice(lived, -(-count // self.length)))
            held.append(_joined([_lived(path, piece) for path, piece in own], cost=cost, at_open=at_open))
            got.append(sum(float(np.log(path.wealth[-1])) for path, _ in own))
        return ShiftedPath(tuple(shifts), np.array(got)), held

    def worst(
        self, *, steps: int, start: Sequence[Floats] | None = None, slope: Slope = slopes
    ) -> tuple[ShiftedPath, ShiftedPath]:
        """(the path as it is, the worst that was found, symbol by symbol); start: shifts to begin at, by default 0.

        A step of the largest shift, by the size of the gradient against the largest of its symbol, shrinking to a
        fifth over the steps: far enough to come from the wrong edge, short enough to settle.
        """
        clean, held = self.play(self.unshifted())
        shifts = list(clean.shifts)
        if start is not None:
            shifts = [project(one, self.budget) for one in start]
            first, held = self.play(shifts)
            worst = _worse(clean, first)
        else:
            worst = clean
        for step in range(steps):
            size = self.budget.largest * (1.0 - 0.8 * step / max(steps - 1, 1))
            for symbol, decisions in enumerate(held):
                gradient = slope(decisions) * self.units[symbol]
                largest = float(np.abs(gradient).max(initial=0.0))
                if largest > 0:
                    shifts[symbol] = project(shifts[symbol] - size * gradient / largest, self.budget)
            path, held = self.play(shifts)
            worst = _worse(worst, path)
        return clean, worst


def shifted_world(world: MarketWorld, purpose: Purpose, shifts: Sequence[Floats]) -> MarketWorld:
    """The same market with shifted bars in a window."""
    other = copy.copy(world)
    other.dataset = shifted_dataset(world.dataset, purpose, shifts, base=world.settings.base, scales=world.scales)
    return other


def refuse_portfolio(world: MarketWorld) -> None:
    """Raise where an account holds several assets."""
    if world.portfolio:
        raise NotBuiltError(
            "an adversary on the path shifts the bars of accounts with one asset, and env.action gives weights of all "
            "symbols in one account; use positions or exposure, or another adversary."
        )


def _worse(one: ShiftedPath, other: ShiftedPath) -> ShiftedPath:
    """The worse of two paths, for each symbol by itself: accounts of one do not depend on those of another."""
    pairs = zip(one.shifts, other.shifts, one.log_return, other.log_return, strict=True)
    shifts = tuple(b if lower < first else a for a, b, first, lower in pairs)
    return ShiftedPath(shifts, np.minimum(one.log_return, other.log_return))


def _lived(path: AccountPath, piece: Bars) -> HeldPath:
    """What an account held in a piece, whose bar 0 is that of its first decision; a ruined one holds nothing after."""
    ledger, lived, planned = path.ledger, len(path), len(piece) - 1
    close_before, opened, close = piece.close[:-1], piece.open[1:], piece.close[1:]
    units, order = ledger["units"][:, 0], ledger["order_units"][:, 0]
    before = np.concatenate([[0.0], units[:-1]])
    equity = ledger["equity_before"]
    at_open = path.ledger["order_price"][:, 0]
    worth = np.where(order != 0, equity + before * (at_open - close_before[:lived]), 1.0)  # where the order is filled
    held, target, ordered = np.zeros(planned), np.zeros(planned), np.zeros(planned, dtype=np.bool_)
    held[:lived] = before * close_before[:lived] / equity
    target[:lived] = np.where(order != 0, (before + order) * at_open / worth, 0.0)
    ordered[:lived] = order != 0
    return HeldPath(held, target, ordered, np.log(opened / close_before), np.log(close / opened), 0.0, True)


def _joined(parts: Sequence[HeldPath], *, cost: float, at_open: bool) -> HeldPath:
    """Pieces of a window, one after the other; each begins flat."""

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    return HeldPath(
        held=column("held"),
        target=column("target"),
        ordered=column("ordered"),
        gap=column("gap"),
        body=column("body"),
        cost=cost,
        at_open=at_open,
    )

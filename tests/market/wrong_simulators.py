"""Simulators that people really write, each the reference with one mistake; the tests tell them from the engine."""

from __future__ import annotations

from decimal import Decimal

from tests.market.reference import ZERO, Bar, Parts, Reference


class FillsAtObservedClose(Reference):
    """Buys at the price the decision was made from, which nobody can get."""

    def fill_price_and_volume(self, before: Bar, bar: Bar) -> tuple[Decimal, Decimal]:
        return before.close, bar.volume


class StopPriceThroughGap(Reference):
    """Fills a stop at its level although the market opened beyond it: a coin flip then earns money."""

    def price_of_gapped_stop(self, open_: Decimal, stop: Decimal) -> Decimal:
        return stop


class ChargesTwice(Reference):
    """Takes costs from cash and again when reporting equity."""

    def pay(self, cost: Decimal) -> None:
        self.cash -= 2 * cost


class ChargesNothing(Reference):
    """Reports costs without taking them from cash."""

    def pay(self, cost: Decimal) -> None:
        return


class NoMarkToMarket(Reference):
    """Values the position at its entry price until it is closed."""

    def mark(self, bar: Bar) -> Decimal:
        return self.cash + self.units * (self.entry if self.units != 0 else bar.close)


class TakeProfitFirst(Reference):
    """Assumes the friendly order of high and low inside a bar."""

    def first_of(self, down: tuple[str, Decimal], up: tuple[str, Decimal]) -> tuple[str, Decimal]:
        return up if up[0] != "none" else down


class SharesAreLots(Reference):
    """Takes units for lots of 100."""

    def order(self, target: Decimal, equity: Decimal, price: Decimal) -> Decimal:
        return super().order(target, equity, price) * 100 if self.units == 0 else super().order(target, equity, price)


class IgnoresMargin(Reference):
    """Lets a levered account wait for better times."""

    def exit_inside(self, bar: Bar) -> tuple[str, Decimal]:
        event, price = super().exit_inside(bar)
        return ("none", ZERO) if event == "liquidation" else (event, price)


class ShortsBorrowForFree(Reference):
    """Forgets that shares are lent at a price."""

    def finance(self, price: Decimal, bar: Bar, parts: Parts) -> None:
        super().finance(price, bar, parts)
        self.cash += parts.borrow
        parts.borrow = ZERO


class NoLatency(Reference):
    """Fills today what was declared to arrive later."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.waiting = []


WRONG: tuple[type[Reference], ...] = (
    FillsAtObservedClose,
    StopPriceThroughGap,
    ChargesTwice,
    ChargesNothing,
    NoMarkToMarket,
    TakeProfitFirst,
    SharesAreLots,
    IgnoresMargin,
    ShortsBorrowForFree,
    NoLatency,
)

"""Portfolio simulators that people really write; the comparison must tell each from the engine."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from tests.market.portfolio_reference import PortfolioReference, PortfolioResult
from tests.market.reference import ZERO, Bar


class SizesBeforeCosts(PortfolioReference):
    """Turns weights into units with the equity before the orders: the account ends up levered by its own costs."""

    def equity_after(self, equity: Decimal, targets: dict[int, Decimal]) -> Decimal:
        return equity


class SizesForOneOrder(PortfolioReference):
    """Counts the costs of the cheapest order only, as if the others were free."""

    def equity_after(self, equity: Decimal, targets: dict[int, Decimal]) -> Decimal:
        return max(
            (super(SizesForOneOrder, self).equity_after(equity, {a: x}) for a, x in targets.items()), default=equity
        )


class ChecksMarginAtTheCloseOnly(PortfolioReference):
    """Does not look inside the bar for a margin call."""

    def moment_of_call(
        self, opens: dict[int, Decimal], extremes: dict[int, Decimal], earliest: Decimal
    ) -> Decimal | None:
        return None


class MarginAssetByAsset(PortfolioReference):
    """Compares equity with the margin of the largest position instead of all of them."""

    def margin(self, values: Sequence[Decimal]) -> Decimal:
        return self.settings.maintenance * max(map(abs, values))


class StopPriceThroughGap(PortfolioReference):
    """Fills a stop at its level although the market opened beyond it."""

    def gapped_stop(self, open_: Decimal, stop: Decimal) -> Decimal:
        return stop


class ShortProceedsEarnInterest(PortfolioReference):
    """Takes all cash for own cash."""

    def finance(self, bars: Sequence[Bar | None]) -> None:
        shorts = sum((max(-position.value, ZERO) for position in self.positions), ZERO)
        super().finance(bars)
        extra = (self.cash + shorts) * self.settings.cash_rate / self.clock_per_year if shorts > 0 else ZERO
        self.parts.interest += extra
        self.cash += extra


class FillsWithoutABar(PortfolioReference):
    """Trades an asset that has no bar now, at its last close."""

    def fill(self, weights: Sequence[Decimal], tradable: Sequence[Bar | None]) -> None:
        stale = [
            bar or Bar(*(position.price,) * 4, volume=Decimal(10**6))
            for bar, position in zip(tradable, self.positions, strict=True)
        ]
        super().fill(weights, stale)


class IgnoresWhatIsStuck(PortfolioReference):
    """Forgets that a position that cannot be sold still uses up the gross limit."""

    def room(self, equity: Decimal, stuck: Decimal) -> Decimal:
        return self.gross


class NoSettlement(PortfolioReference):
    """Keeps a position in an asset whose history has ended, at its last close for ever."""

    def leave(self, a: int, event: str, price: Decimal, bar: Bar) -> None:
        if event != "settlement":
            super().leave(a, event, price, bar)


class NoLatency(PortfolioReference):
    """Fills today what was declared to arrive later."""

    def step(self, weights: Sequence[Decimal]) -> PortfolioResult:
        self.waiting = []
        return super().step(weights)


WRONG: tuple[type[PortfolioReference], ...] = (
    SizesBeforeCosts,
    SizesForOneOrder,
    ChecksMarginAtTheCloseOnly,
    MarginAssetByAsset,
    StopPriceThroughGap,
    ShortProceedsEarnInterest,
    FillsWithoutABar,
    IgnoresWhatIsStuck,
    NoSettlement,
    NoLatency,
)

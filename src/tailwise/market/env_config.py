"""The configuration section `env`: what may be done, when it is filled, and when an episode ends."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tailwise.core.config import Section
from tailwise.core.errors import ConfigError
from tailwise.market.costs import CostConfig
from tailwise.market.guards_config import NO_GUARDS, GuardsConfig
from tailwise.market.portfolio_config import WeightsAction


class PositionsAction(Section):
    """Discrete(K): the policy chooses one of K target exposures."""

    kind: Literal["positions"] = "positions"
    positions: tuple[float, ...] = Field(
        (-1.0, 0.0, 1.0), min_length=2, max_length=256, description="target exposures, as multiples of equity"
    )

    @field_validator("positions")
    @classmethod
    def _distinct(cls, positions: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(positions)) != len(positions):
            raise ConfigError(f"positions are {list(positions)}; each target exposure may occur once.")
        if max(map(abs, positions)) > 100:
            raise ConfigError(f"positions are {list(positions)}; an exposure beyond 100 x equity is refused.")
        return positions

    @property
    def largest(self) -> float:
        return max(map(abs, self.positions))


class ExposureAction(Section):
    """Box of shape (1,): the policy names the target exposure itself; values outside [low, high], and outside the
    narrower range of infos["action_mask"] where there is one, are clipped."""

    kind: Literal["exposure"] = "exposure"
    low: float = Field(-1.0, ge=-100, le=100, description="smallest exposure as a multiple of equity; negative: short")
    high: float = Field(1.0, ge=-100, le=100, description="largest exposure as a multiple of equity; above 1: a loan")

    @model_validator(mode="after")
    def _ordered(self) -> ExposureAction:
        if self.low >= self.high:
            raise ConfigError(f"low is {self.low} and high is {self.high}; low must be below high.")
        return self

    @property
    def largest(self) -> float:
        return max(abs(self.low), abs(self.high))


Action = Annotated[PositionsAction | ExposureAction | WeightsAction, Field(discriminator="kind")]


class MarketEnvConfig(Section):
    """An account and its rules. docs/market.md tells what happens in a bar, docs/portfolio.md with several assets."""

    action: Action = Field(default=PositionsAction(), description="how the policy names its target exposure")
    fill: Literal["next_open", "close"] = Field(
        "next_open",
        description="price of a fill: the open of the next bar, or the close that was just seen (optimistic)",
    )
    initial_cash: float = Field(100_000.0, gt=0, description="equity at the start of an episode, account currency")
    episode_length: int | None = Field(
        None, ge=1, description="bars until an episode is truncated; null: only the end of the data truncates"
    )
    start: Literal["random", "first"] = Field(
        "random", description="an episode begins at a random bar, or at the first bar whose features are valid"
    )
    symbol: Literal["random", "fixed"] = Field(
        "random",
        description="random: drawn for each episode in proportion to its possible starts; fixed: environment i keeps "
        "symbol i modulo their number; of no effect with weights, where each account has all",
    )
    tolerance: float = Field(
        0.01,
        ge=0,
        le=1,
        description="no order while target and exposure differ by at most this multiple of equity; a target of 0 "
        "always closes",
    )
    stop_loss: float | None = Field(
        None,
        gt=0,
        le=10,
        description="loss, as a fraction of the entry price, that closes the position; null: off",
    )
    take_profit: float | None = Field(
        None, gt=0, le=10, description="gain, as a fraction of the entry price, that closes the position; null: off"
    )
    maintenance_margin: float = Field(
        0.25, ge=0, le=0.9, description="smallest equity as a fraction of the position's notional; below: liquidation"
    )
    guards: GuardsConfig = Field(
        default=NO_GUARDS, description="limits between the policy and its orders; all off by default"
    )
    report: bool = Field(False, description="every step reports each cost component, fills and exits in infos['parts']")

    def whole_window(self) -> Self:
        """The same account over all bars of its table, once, with every component reported: for playback."""
        return self.model_copy(update={"start": "first", "symbol": "fixed", "episode_length": None, "report": True})

    def check_with(self, costs: CostConfig) -> None:
        """Refuse exposures that the margin rule or the costs make impossible to hold."""
        largest = self.action.largest
        if largest * self.maintenance_margin >= 1:
            raise ConfigError(
                f"env.action allows an exposure of {largest}, but env.maintenance_margin {self.maintenance_margin} "
                f"liquidates from {1 / self.maintenance_margin:.4g} on; lower one of the two."
            )
        if largest * costs.taker_rate >= 0.5:
            raise ConfigError(
                f"env.action allows an exposure of {largest} and one order costs {costs.taker_rate * 1e4:.4g} bps: "
                "reaching it would cost half of the equity or more; lower the exposure or the costs."
            )

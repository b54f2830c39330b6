"""The configuration section `env`: what may be done, when it is filled, which limits stand between a policy and its
orders, and when an episode ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from tailwise.core.config import Section
from tailwise.core.errors import ConfigError
from tailwise.core.modules import load_function
from tailwise.market.costs import CostConfig

FUNCTION = r"^.+:[A-Za-z_]\w*$"  # how a configuration names a function
_NEEDS_TIME = ("daily_turnover", "daily_loss", "stale_bars")


class GuardsConfig(Section):
    """Every limit is null, which is off. A day is a UTC date, taken from the open time of the bar."""

    max_exposure: float | None = Field(
        None, gt=0, le=100, description="largest |position| after an order, as a multiple of equity; clips the target"
    )
    order_fraction: float | None = Field(
        None, gt=0, le=200, description="largest order, as a multiple of equity; clips the order"
    )
    order_units: float | None = Field(None, gt=0, description="largest order, in units (not lots); clips the order")
    order_notional: float | None = Field(
        None, gt=0, description="largest order, in account currency before costs; clips the order"
    )
    daily_turnover: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="largest notional traded in a day, as a multiple of the equity at its start; clips what adds risk, "
        "never what reduces it",
    )
    daily_loss: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="loss since the start of the day, as a fraction of the equity then, that halts it",
    )
    drawdown: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="loss from the highest equity at a close, as a fraction of it, that halts the rest of the episode",
    )
    on_halt: Literal["reduce_only", "flatten"] = Field(
        "reduce_only",
        description="what daily_loss and drawdown do: let only orders pass that reduce the position, or close it",
    )
    stale_bars: float | None = Field(
        None,
        ge=1,
        le=1e6,
        description="a bar that opens more than this many bar lengths after the one before is ignored: no order",
    )
    absurd_gap: float | None = Field(
        None, gt=0, le=100, description="|open / close before - 1| above which a bar is ignored: no order"
    )
    absurd_move: float | None = Field(
        None, gt=0, le=100, description="|close / close before - 1| above which a bar is ignored: no order"
    )
    absurd_volatility: float | None = Field(
        None,
        ge=1,
        le=1000,
        description="log-return, in multiples of the recent volatility, above which a bar is ignored: no order",
    )
    volatility_bars: int = Field(
        50, ge=2, le=100_000, description="bars over which absurd_volatility measures the recent volatility"
    )
    absurd_flat_bars: int | None = Field(
        None, ge=1, le=1_000_000, description="bars in a row with high = low from which on bars are ignored: no order"
    )

    @property
    def active(self) -> bool:
        """Whether any limit is set."""
        settings = ("on_halt", "volatility_bars")
        return any(value is not None for name, value in self if name not in settings)

    @property
    def needing_time(self) -> tuple[str, ...]:
        """Names of the limits that are set and need the time of each bar."""
        return tuple(name for name in _NEEDS_TIME if getattr(self, name) is not None)


NO_GUARDS = GuardsConfig()


class RewardConfig(Section):
    """Terms that training adds to the log-return, all off by default; playback and evaluation have none of them."""

    drawdown_penalty: float = Field(
        0.0, ge=0, le=100, description="subtracts this x the drawdown at the close, a fraction of the highest equity"
    )
    recovery_bonus: float = Field(
        0.0, ge=0, le=100, description="adds this x what a step takes off the drawdown; at most drawdown_penalty"
    )
    turnover_penalty: float = Field(
        0.0, ge=0, le=100, description="subtracts this x the traded notional / equity, on top of the real costs"
    )
    function: str | None = Field(
        None,
        pattern=FUNCTION,
        description="adds what one's own function of a RewardStep returns; file.py:name, from the folder of the "
        "configuration, or module:name; null: none",
    )

    @model_validator(mode="after")
    def _losing_does_not_pay(self) -> RewardConfig:
        if self.recovery_bonus > self.drawdown_penalty:
            raise ConfigError(
                f"recovery_bonus {self.recovery_bonus:g} is above drawdown_penalty {self.drawdown_penalty:g}: losing "
                "and winning back would pay more than not losing; make drawdown_penalty at least as large."
            )
        return self

    @property
    def active(self) -> bool:
        """Whether any term is on."""
        return self != NO_TERMS

    @property
    def words(self) -> str:
        """The terms that are on, as one writes them."""
        return ", ".join(f"{name} {value}" for name, value in self if value)


NO_TERMS = RewardConfig()


Floats = npt.NDArray[np.float64]


class WeightsAction(Section):
    """Box of shape (A,): a weight per asset, as a multiple of equity; cash is the rest.

    Weights are clipped to [low, high]; then, if the sum of their absolute values exceeds `gross`, all are scaled down
    by the same factor. So 0 must lie within the bounds of every asset.
    """

    kind: Literal["weights"] = "weights"
    low: float | tuple[float, ...] = Field(
        -1.0, description="smallest weight, one number for all assets or one per asset; negative: short"
    )
    high: float | tuple[float, ...] = Field(
        1.0, description="largest weight, one number for all assets or one per asset; above 1: a loan"
    )
    gross: float = Field(1.0, gt=0, le=100, description="largest sum of the absolute weights, as a multiple of equity")

    @model_validator(mode="after")
    def _ordered(self) -> WeightsAction:
        low, high = np.atleast_1d(self.low), np.atleast_1d(self.high)
        if low.size > 1 and high.size > 1 and low.size != high.size:
            raise ConfigError(
                f"low has {low.size} entries and high has {high.size}; give one number, or one for each asset."
            )
        if low.size == 0 or high.size == 0:
            raise ConfigError("low and high need at least one entry; give one number, or one for each asset.")
        wrong = ~((low >= -100) & (low <= 0) & (high >= 0) & (high <= 100) & (low < high))
        if wrong.any():
            raise ConfigError(
                f"low is {self.low} and high is {self.high}; -100 <= low <= 0 <= high <= 100 and low < high must hold "
                "for each asset: 0 is what an asset without bars is forced to."
            )
        return self

    @property
    def largest(self) -> float:
        """Largest exposure of the account, all assets together."""
        return self.gross

    @property
    def has_one(self) -> bool:
        """Whether an action of 1 is possible, for every asset."""
        return bool((np.atleast_1d(self.high) >= 1).all())

    def bounds(self, assets: int) -> tuple[Floats, Floats]:
        """(low, high) float64 [A] each."""
        result = []
        for name, value in (("low", self.low), ("high", self.high)):
            numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
            if numbers.size not in (1, assets):
                raise ConfigError(
                    f"env.action.{name} has {numbers.size} entries and the account has {assets} assets; give one "
                    "number, or one for each asset."
                )
            result.append(np.broadcast_to(numbers, (assets,)).copy())
        return result[0], result[1]


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

    @property
    def has_one(self) -> bool:
        return 1.0 in self.positions


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

    @property
    def has_one(self) -> bool:
        return self.low <= 1 <= self.high


Action = Annotated[PositionsAction | ExposureAction | WeightsAction, Field(discriminator="kind")]


class BaseRule(Section):
    """What every base rule has. Actions multiply its exposure: 1 is the rule itself, 0 is flat."""

    scale: float | None = Field(
        None,
        gt=0,
        le=100,
        description="factor on the rule's exposure; null: 1, or under risk.mode constraint what brings the rule to the "
        "limit on the train bars, found when training begins",
    )

    @property
    def factor(self) -> float:
        """The scale as a number."""
        return 1.0 if self.scale is None else self.scale

    @property
    def code(self) -> str | None:
        """Code of the user's that the rule executes."""
        return None


class BuyAndHoldBase(BaseRule):
    """The equity's worth, always."""

    kind: Literal["buy_and_hold"]
    largest: ClassVar[float] = 1.0


class VolatilityTargetBase(BaseRule):
    """Risk units: `target` / forecast volatility, so that 1 is the same risk at every bar and for every symbol."""

    kind: Literal["volatility_target"]
    target: float = Field(0.10, gt=0, le=5, description="volatility per year that an action of 1 aims at, a fraction")
    largest: float = Field(1.5, gt=0, le=100, description="largest exposure, scaled, as a multiple of equity")


class MomentumBase(BaseRule):
    """In risk units, long after rises and short after falls: the mean sign of the moves over several look-backs."""

    kind: Literal["momentum"]
    look_back: tuple[int, ...] = Field(
        (), description="bars; empty: 1, 3 and 12 months of daily bars, or a twelfth, a quarter and all of a month"
    )
    target: float = Field(0.10, gt=0, le=5, description="volatility per year of a position of full size, a fraction")
    largest: float = Field(1.5, gt=0, le=100, description="largest exposure, scaled, as a multiple of equity")


class FunctionBase(BaseRule):
    """One's own function of `Bars` that returns an exposure for each bar, from bars up to that one."""

    kind: Literal["function"]
    function: str = Field(
        pattern=FUNCTION, description="file.py:name, from the folder of the configuration, or module:name"
    )
    largest: float = Field(1.0, gt=0, le=100, description="largest exposure that it returns")

    @property
    def code(self) -> str:
        return self.function

    def load(self) -> Callable[[Any], Any]:
        """The function."""
        return load_function(self.function, key="env.base.function")


Base = BuyAndHoldBase | VolatilityTargetBase | MomentumBase | FunctionBase


class MarketEnvConfig(Section):
    """An account and its rules. docs/market.md tells what happens in a bar, docs/portfolio.md with several assets."""

    action: Action = Field(default=PositionsAction(), description="how the policy names its target exposure")
    base: BuyAndHoldBase | VolatilityTargetBase | MomentumBase | FunctionBase | None = Field(
        None,
        discriminator="kind",
        description="a rule whose exposure actions multiply; null: actions are exposures themselves",
    )
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
    reward: RewardConfig = Field(
        default=NO_TERMS, description="terms that training adds to the log-return; all off by default"
    )
    report: bool = Field(False, description="every step reports each cost component, fills and exits in infos['parts']")

    @property
    def largest_exposure(self) -> float:
        """Largest |exposure| that an action can ask for, all assets together."""
        multiplied = self.base is not None and not isinstance(self.action, WeightsAction)
        return self.action.largest * (self.base.largest if self.base and multiplied else 1.0)

    @model_validator(mode="after")
    def _base_can_be_followed(self) -> Self:
        if self.base is not None and not self.action.has_one:
            raise ConfigError(
                f"env.action has no 1 ({self.action}), which is the action that follows env.base; add it, or remove "
                "env.base."
            )
        return self

    def whole_window(self) -> Self:
        """The same account over all bars of its table, once, with every component reported and the log-return as its
        reward: for playback."""
        update = {"start": "first", "symbol": "fixed", "episode_length": None, "report": True, "reward": NO_TERMS}
        return self.model_copy(update=update)

    def check_with(self, costs: CostConfig) -> None:
        """Refuse exposures that the margin rule or the costs make impossible to hold."""
        largest = self.largest_exposure
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

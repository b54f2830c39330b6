"""The configuration section `env.guards`: limits that stand between a policy and its orders. docs/guards.md."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailwise.core.config import Section

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

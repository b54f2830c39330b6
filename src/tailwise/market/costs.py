"""What trading costs: the configuration section `costs`, one field per cost that the simulator charges."""

from __future__ import annotations

from pydantic import Field

from tailwise.core.config import Section


class CostConfig(Section):
    """Every cost is charged once, inside equity, and reported under its own name.

    1 bps is 1e-4 of the traded notional, which is |units| x the price of the fill before costs. An annual rate r
    costs r / (bars per year) of the amount in each bar.
    """

    taker_fee_bps: float = Field(
        2.0, ge=0, le=500, description="fee of orders that take liquidity, in bps: the policy's, stops, liquidations"
    )
    maker_fee_bps: float = Field(1.0, ge=0, le=500, description="fee of resting orders, in bps: take-profit exits")
    half_spread_bps: float = Field(
        1.0, ge=0, le=500, description="half of the bid-ask spread, in bps; paid by each order that takes liquidity"
    )
    slippage_bps: float = Field(
        1.0, ge=0, le=500, description="further loss of an order that takes liquidity, in bps of its notional"
    )
    impact_bps: float = Field(
        10.0,
        ge=0,
        le=10_000,
        description="square-root impact in bps: an order pays impact_bps x sqrt(units traded / volume of the bar)",
    )
    borrow_rate: float = Field(
        0.01, ge=0, le=5, description="annual rate on the notional of a short position; 0.01 is 1% a year"
    )
    loan_rate: float = Field(0.05, ge=0, le=5, description="annual rate on negative cash, the loan of a levered long")
    cash_rate: float = Field(
        0.0, ge=0, le=5, description="annual rate that own cash earns (the proceeds of a short earn nothing)"
    )
    funding_bps: float = Field(
        0.0,
        ge=-500,
        le=500,
        description="funding per bar in bps of the notional, added to the data's own; positive: longs pay, shorts get",
    )
    liquidation_bps: float = Field(
        50.0, ge=0, le=5000, description="penalty of a forced liquidation in bps, on top of the other costs"
    )
    latency: int = Field(
        0, ge=0, le=64, description="bars between a decision and its fill, beyond the delay that `fill` has by itself"
    )
    lot_size: float = Field(
        0.0, ge=0, description="smallest tradable amount in units; positions are whole lots; 0: any amount"
    )
    minimum_notional: float = Field(
        0.0, ge=0, description="smallest order in account currency; orders that close a position are exempt"
    )

    @property
    def taker_rate(self) -> float:
        """Cost of a taking order without impact, as a fraction of its notional."""
        return (self.taker_fee_bps + self.half_spread_bps + self.slippage_bps) * 1e-4


NO_COSTS = CostConfig(
    taker_fee_bps=0.0,
    maker_fee_bps=0.0,
    half_spread_bps=0.0,
    slippage_bps=0.0,
    impact_bps=0.0,
    borrow_rate=0.0,
    loan_rate=0.0,
    liquidation_bps=0.0,
)

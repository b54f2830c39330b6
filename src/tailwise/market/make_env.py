"""The environment that a configuration asks for: one asset per account, or all of them in each."""

from __future__ import annotations

from collections.abc import Sequence

from tailwise.market.costs import CostConfig
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.portfolio_config import WeightsAction
from tailwise.market.portfolio_env import PortfolioEnv
from tailwise.market.tables import SymbolTable


def make_market_env(
    symbols: Sequence[SymbolTable], config: MarketEnvConfig, costs: CostConfig, *, num_envs: int
) -> MarketEnv:
    """`PortfolioEnv` for the action kind `weights`, `MarketEnv` for the others."""
    kind = PortfolioEnv if isinstance(config.action, WeightsAction) else MarketEnv
    return kind(symbols, config, costs, num_envs=num_envs)

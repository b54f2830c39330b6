"""The environment that a configuration asks for: one asset per account, or all of them in each."""

from __future__ import annotations

from collections.abc import Sequence

from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.portfolio_env import PortfolioEnv
from tailwise.market.tables import SymbolTable


def make_market_env(
    symbols: Sequence[SymbolTable], config: MarketEnvConfig, costs: CostConfig, *, num_envs: int
) -> MarketEnv:
    """`PortfolioEnv` for kinds of actions that name all assets of an account, `MarketEnv` for the others."""
    kind = PortfolioEnv if action_kind(config.action).portfolio else MarketEnv
    return kind(symbols, config, costs, num_envs=num_envs)

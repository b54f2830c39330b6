"""`PortfolioEnv`: N accounts that each hold several assets, as one Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from tailwise.market.costs import CostConfig
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.portfolio_config import WeightsAction
from tailwise.market.portfolio_simulator import PortfolioSimulator
from tailwise.market.tables import SymbolTable

__all__ = ["PortfolioEnv", "WeightsAction"]


class PortfolioEnv(MarketEnv):
    """`MarketEnv` with all assets in each account: same methods, same infos, Box actions of shape (A,).

    infos["action_mask"]  float32 [N, A, 2], [low, high] of each weight for the next decision; there when some asset has
                          a shorter history than the clock
    infos["parts"]        with `report`: `records.PORTFOLIO_LEDGER` [N] and ASSET_LEDGER [N, A]
    """

    simulator: PortfolioSimulator  # type: ignore[assignment]  # the same interface; see its docstring

    def __init__(
        self,
        symbols: Sequence[SymbolTable],
        config: MarketEnvConfig,
        costs: CostConfig | None = None,
        *,
        num_envs: int = 1,
        seed: int = 0,
        first_environment: int = 0,
    ) -> None:
        self.simulator = PortfolioSimulator(
            symbols, config, costs or CostConfig(), accounts=num_envs, first_environment=first_environment
        )
        self.simulator.seed(seed)
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (self.simulator.size,), np.float32)
        self.single_action_space = self.simulator.kind.space(self.simulator.assets)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._started = False

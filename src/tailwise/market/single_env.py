"""`tailwise/Market-v0`: one account as an ordinary Gymnasium environment, for other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError, EnvironmentContractError
from tailwise.market.costs import CostConfig
from tailwise.market.env import action_space, observation_space
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.simulator import Simulator, first_episode
from tailwise.market.tables import SymbolTable

ENV_ID = "tailwise/Market-v0"


class SingleMarketEnv(gym.Env[Any, Any]):
    """The same simulator as `MarketEnv` with one account and without autoreset.

    info has the equity, the cost components and fills of the step (names of `records.LEDGER`), and "action_mask" ([K]
    for `positions`, [low, high] for `exposure`, [A, 2] for `weights`) where something can narrow the choice; see
    `MarketEnv`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it as an instance attribute)

    def __init__(
        self,
        symbols: Sequence[SymbolTable] | None = None,
        config: MarketEnvConfig | None = None,
        costs: CostConfig | None = None,
        *,
        render_mode: None = None,
    ) -> None:
        if symbols is None:
            raise ConfigError(
                f"{ENV_ID} needs bars: pass symbols=[SymbolTable, ...] to gymnasium.make; there is no default market."
            )
        config = (config or MarketEnvConfig()).model_copy(update={"report": True})
        self.render_mode = render_mode
        self.simulator = Simulator(symbols, config, costs or CostConfig(), accounts=1)
        self.observation_space = observation_space(self.simulator)
        self.action_space = action_space(self.simulator)
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin the first episode of `seed`, or the next one without it; options as in `MarketEnv.reset`."""
        super().reset(seed=seed)
        if seed is not None:
            self.simulator.seed(seed)
        obs = self.simulator.reset(**first_episode(options))
        self._running = True
        return obs[0], self._info({"equity": float(self.simulator.state.records["equity"][0])})

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise EnvironmentContractError("The episode is over or has not begun; call reset before step.")
        result = self.simulator.step(self.simulator.targets(np.asarray(action).reshape(1, -1)), autoreset=False)
        terminated, truncated = bool(result.terminated[0]), bool(result.truncated[0])
        self._running = not (terminated or truncated)
        assert result.ledger is not None  # report is on
        entry = result.ledger[0]
        info = {name: _plain(entry[name]) for name in result.ledger.dtype.names or ()}
        return result.obs[0], float(result.reward[0]), terminated, truncated, self._info(info)

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit."""
        return {**self.simulator.get_state(), "running": np.array([self._running])}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.simulator.set_state(state)
        self._running = bool(np.asarray(state["running"])[0])

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        if self.simulator.has_mask:
            info["action_mask"] = self.simulator.mask()[0]
        return info


def _plain(value: Any) -> Any:
    """A number, or an array with one for each asset."""
    return value.item() if np.ndim(value) == 0 else np.array(value)


def register_market() -> None:
    """Make `gymnasium.make("tailwise/Market-v0", symbols=...)` work; calling it again changes nothing."""
    if ENV_ID not in gym.registry:
        gym.register(id=ENV_ID, entry_point="tailwise.market.single_env:SingleMarketEnv")

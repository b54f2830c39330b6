"""Gymnasium environments of the market: `MarketEnv` with N accounts as a vector environment (SAME_STEP autoreset, exact
save and restore), and `tailwise/Market-v0` with one account as an ordinary one, for other libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tailwise.core.errors import ConfigError, EnvironmentContractError
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import ExposureAction, MarketEnvConfig, PositionsAction, WeightsAction
from tailwise.market.simulator import Simulator, first_episode
from tailwise.market.tables import SymbolTable

__all__ = [
    "ENV_ID",
    "ExposureAction",
    "MarketEnv",
    "MarketEnvConfig",
    "PositionsAction",
    "SingleMarketEnv",
    "WeightsAction",
    "action_space",
    "observation_space",
    "register_market",
]


def action_space(simulator: Simulator) -> spaces.Space[Any]:
    """What one account may choose from: Discrete(K) for `positions`, a Box for `exposure` and, [A], for `weights`."""
    return simulator.kind.space(simulator.assets)


def observation_space(simulator: Simulator) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (simulator.size,), np.float32)


class MarketEnv(VectorEnv):  # type: ignore[type-arg]
    """N accounts over shared bars, with one asset each or, with `weights`, all of them. docs/market.md has the order of
    events and all names in infos, docs/portfolio.md what is different with several assets.

    infos["action_mask"]  int8 [N, K] with `positions`, [low, high] float32 [N, 2] with `exposure`, [N, A, 2] with
                          `weights`; there when a lot size, a minimum notional, guards, (`exposure`) the margin or
                          (`weights`) a history shorter than the clock can narrow the choice
    infos["final_obs"]    float32 [N, D] when an episode ended, meaningful in those rows (marked in "_final_obs")
    infos["final_info"]   with it: equity and shortfall of the ended episodes, zero elsewhere
    infos["reward_parts"] with `reward`: one array [N] per part of the reward, "base" (the log-return) and the terms
    infos["parts"]        with `report`: one array [N] per field of `records.LEDGER`; with `weights` of
                          PORTFOLIO_LEDGER, and [N, A] of ASSET_LEDGER
    """

    def __init__(
        self,
        symbols: Sequence[SymbolTable],
        config: MarketEnvConfig | None = None,
        costs: CostConfig | None = None,
        *,
        num_envs: int = 1,
        seed: int = 0,
        first_environment: int = 0,
        resampled: float = 0.0,
    ) -> None:
        """resampled: share of the episodes that begin in symbols whose bars are resampled, where there are any."""
        self.simulator = Simulator(
            symbols,
            config or MarketEnvConfig(),
            costs or CostConfig(),
            accounts=num_envs,
            first_environment=first_environment,
            resampled=resampled,
        )
        self.simulator.seed(seed)
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = observation_space(self.simulator)
        self.single_action_space = action_space(self.simulator)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._started = False

    @property
    def observation_names(self) -> tuple[str, ...]:
        return self.simulator.names

    def spread_first_episodes(self) -> None:
        """For training: cut the first episodes after each `reset(seed=...)` to different lengths, so that accounts of
        all ages are alive at any time."""
        self.simulator.spread_first_episodes()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin new episodes everywhere: the first ones of `seed`, or the next ones without it.

        options: "start" (bar numbers) and "symbol" (indices), one number or one per environment, fix the first episode.
        """
        if seed is not None:
            self.simulator.seed(seed)
        obs = self.simulator.reset(**first_episode(options))
        self._started = True
        return obs, self._with_mask({})

    def step(
        self, actions: Any
    ) -> tuple[
        npt.NDArray[np.float32], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
    ]:
        if not self._started:
            raise EnvironmentContractError("step was called before reset; call reset or set_state first.")
        result = self.simulator.step(self.simulator.targets(actions), autoreset=True)
        infos: dict[str, Any] = {}
        if result.final_obs is not None:
            ended = result.terminated | result.truncated
            infos["final_obs"], infos["_final_obs"] = result.final_obs, ended
        if result.reward_parts is not None:
            infos["reward_parts"] = result.reward_parts
        if result.ledger is not None:
            infos["parts"] = {name: result.ledger[name] for name in result.ledger.dtype.names or ()}
            if result.final_obs is not None:
                infos["final_info"] = {
                    name: np.where(infos["_final_obs"], result.ledger[name], 0.0) for name in ("equity", "shortfall")
                }
                infos["_final_info"] = infos["_final_obs"]
        return result.obs, result.reward, result.terminated, result.truncated, self._with_mask(infos)

    def replace_bars(self, first: int, tables: Sequence[SymbolTable]) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """`Simulator.replace_bars`; what all accounts observe after it, [N, D], and infos with the mask."""
        self.simulator.replace_bars(first, tables)
        return self.simulator.observe(), self._with_mask({})

    def guard_counts(self) -> dict[str, int]:
        """In how many steps each guard changed a target or an order, over all accounts; empty without guards."""
        return self.simulator.guard_counts()

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays; `set_state` in an environment with the same data and settings continues bit for bit."""
        return self.simulator.get_state()

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.simulator.set_state(state)
        self._started = True

    def _with_mask(self, infos: dict[str, Any]) -> dict[str, Any]:
        if self.simulator.has_mask:
            infos["action_mask"] = self.simulator.mask()
        return infos


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
        info: dict[str, Any] = {name: _plain(entry[name]) for name in result.ledger.dtype.names or ()}
        if result.reward_parts is not None:
            info["reward_parts"] = {name: float(part[0]) for name, part in result.reward_parts.items()}
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
        gym.register(id=ENV_ID, entry_point="tailwise.market.env:SingleMarketEnv")

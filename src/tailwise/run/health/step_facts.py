"""What environments tell in their infos about the reward and the account, gathered over one rollout."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import EnvironmentContractError

PARTS, BASE, EQUITY = "reward_parts", "base", "equity"


class StepFacts:
    """Sums over one rollout. An environment may give info["reward_parts"] = {"base": ..., "shaping name": ...} and
    info["equity"]; without them nothing is told."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}  # sum of |part|
        self.counts: dict[str, int] = {}
        self.equity_jump: float | None = None
        self.seconds = 0.0  # that looking took
        self._equity: npt.NDArray[np.float64] | None = None

    def see(self, infos: Mapping[str, Any], episode_start: npt.NDArray[np.bool_]) -> None:
        """Take in the infos of one vector step; episode_start [B]: rows whose account is a new one."""
        clock = time.perf_counter()
        self._see(infos, episode_start)
        self.seconds += time.perf_counter() - clock

    def _see(self, infos: Mapping[str, Any], episode_start: npt.NDArray[np.bool_]) -> None:
        parts = infos.get(PARTS)
        if isinstance(parts, Mapping):
            for name, values in parts.items():
                if not str(name).startswith("_"):
                    self._add(str(name), _numbers(values, f"info['{PARTS}']['{name}']"))
        equity = infos.get(EQUITY)
        if equity is None and isinstance(infos.get("parts"), Mapping):
            equity = infos["parts"].get(EQUITY)
        if equity is not None:
            self._see_equity(_numbers(equity, f"info['{EQUITY}']"), episode_start)

    def _add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        finite = values[np.isfinite(values)]
        self.parts[name] = self.parts.get(name, 0.0) + float(np.abs(finite).sum())
        self.counts[name] = self.counts.get(name, 0) + finite.size

    def _see_equity(self, equity: npt.NDArray[np.float64], episode_start: npt.NDArray[np.bool_]) -> None:
        before, self._equity = self._equity, equity
        if before is None or before.shape != equity.shape or equity.shape != episode_start.shape:
            return
        known = ~episode_start & (before > 0) & (equity > 0) & np.isfinite(equity) & np.isfinite(before)
        if known.any():
            jump = float(np.abs(np.log(equity[known] / before[known])).max())
            self.equity_jump = max(jump, self.equity_jump or 0.0)

    def metrics(self) -> dict[str, float]:
        """Means of the parts, how the largest shaping part compares with the base, and the largest jump of equity."""
        means = {name: self.parts[name] / count for name, count in self.counts.items() if count}
        found = {f"reward/part/{name}": value for name, value in means.items()}
        shaping = [value for name, value in means.items() if name != BASE]
        if shaping and means.get(BASE, 0.0) > 0:
            found["reward/shaping_share"] = max(shaping) / means[BASE]
        if self.equity_jump is not None:
            found["env/equity_jump"] = self.equity_jump
        return found


def _numbers(values: Any, name: str) -> npt.NDArray[np.float64]:
    """float64 [B] of what the environments gave under `name`; NaN where one gave None."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EnvironmentContractError(
            f"An environment gave {name} that is no number ({error}); give numbers, or leave it out."
        ) from error

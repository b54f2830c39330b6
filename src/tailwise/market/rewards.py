"""Named terms that training adds to the log-return of a step. Off by default; playback and evaluation have none.

A term is computed from what is known at the close that ends the step. The reward is the sum of its parts, which
`infos["reward_parts"]` and the metrics report by name: `base` is the log-return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import DataError
from tailwise.core.modules import load_function
from tailwise.market.env_config import RewardConfig
from tailwise.market.records import BANKRUPT

Floats = npt.NDArray[np.float64]
BASE, DRAWDOWN, RECOVERY, TURNOVER, OWN = "base", "drawdown_penalty", "recovery_bonus", "turnover_penalty", "own"
KEY = "env.reward.function"
_ROUNDING = 1e-5


@dataclass(frozen=True)
class RewardStep:
    """One step of N accounts, as a reward function of one's own sees it: nothing later than the close that ends it.

    log_return       ln(equity / equity_before), float64 [N]
    equity_before, equity   at the close of the decision and one bar later, account currency, [N]
    drawdown_before, drawdown   1 - equity / highest equity at a close of the episode, at the same closes, [N]
    turnover         notional traded in the step / equity_before, [N]
    observation      what the policy sees at the close that ends the step, float32 [N, D]
    names            of the D entries
    """

    log_return: Floats
    equity_before: Floats
    equity: Floats
    drawdown_before: Floats
    drawdown: Floats
    turnover: Floats
    observation: npt.NDArray[np.float32]
    names: tuple[str, ...]

    def seen(self, name: str) -> Floats:
        """The entry `name` of the observation: [N]."""
        if name not in self.names:
            raise DataError(f"{KEY}: there is no observation '{name}'; there are {', '.join(self.names)}.")
        return self.observation[:, self.names.index(name)].astype(np.float64)

    def of(self, rows: npt.NDArray[np.int64]) -> RewardStep:
        """The same step of the accounts `rows` alone."""
        return RewardStep(
            self.log_return[rows],
            self.equity_before[rows],
            self.equity[rows],
            self.drawdown_before[rows],
            self.drawdown[rows],
            self.turnover[rows],
            self.observation[rows],
            self.names,
        )


def _kept(values: Any) -> Any:
    """A copy that cannot be written to: what a function of somebody else does with it changes nothing here."""
    copy = values.copy()
    copy.flags.writeable = False
    return copy


class Before(NamedTuple):
    """What a step changes: equity, highest equity and bankruptcy floor [N] at the close of the decision."""

    equity: Floats
    peak: Floats
    floor: Floats


class RewardTerms:
    """The terms of a configuration, for accounts whose observations have these names."""

    def __init__(self, config: RewardConfig, names: tuple[str, ...]) -> None:
        self._config, self._names = config, names
        self._own: Callable[[RewardStep], Any] | None = None
        if config.function is not None:
            self._own = load_function(config.function, key=KEY)
        self._checked = False  # whether the own function was seen to be one: the same accounts, the same numbers

    @staticmethod
    def before(records: npt.NDArray[Any]) -> Before:
        """Copies of what the step that follows will change; records [N] ACCOUNT or PORTFOLIO."""
        return Before(records["equity"].copy(), records["peak"].copy(), BANKRUPT * records["start_equity"])

    def parts(
        self, base: Floats, before: Before, ledger: npt.NDArray[Any], observation: npt.NDArray[np.float32]
    ) -> dict[str, Floats]:
        """What the reward of a step is the sum of, by name, [N] each; those that are off are left out.

        base: log-returns [N]; ledger: records [N] of the step; observation [N, D]: at the close that ends it.
        """
        step = self._step(base, before, ledger, observation)
        config, parts = self._config, {BASE: base}
        if config.drawdown_penalty:
            parts[DRAWDOWN] = -config.drawdown_penalty * step.drawdown
        if config.recovery_bonus:
            parts[RECOVERY] = config.recovery_bonus * np.maximum(step.drawdown_before - step.drawdown, 0.0)
        if config.turnover_penalty:
            parts[TURNOVER] = -config.turnover_penalty * step.turnover
        if self._own is not None:
            parts[OWN] = self._own_part(step)
        return parts

    def _step(
        self, base: Floats, before: Before, ledger: npt.NDArray[Any], observation: npt.NDArray[np.float32]
    ) -> RewardStep:
        equity = np.maximum(ledger["equity"], before.floor)
        traded = np.abs(ledger["order_units"]) * ledger["order_price"]
        traded += np.abs(ledger["exit_units"]) * ledger["exit_price"]
        return RewardStep(
            log_return=_kept(base),
            equity_before=_kept(before.equity),
            equity=_kept(equity),
            drawdown_before=_kept(1.0 - before.equity / before.peak),
            drawdown=_kept(1.0 - equity / np.maximum(before.peak, equity)),
            turnover=_kept(traded.reshape(len(equity), -1).sum(axis=1) / before.equity),  # over the assets, if several
            observation=_kept(observation),
            names=self._names,
        )

    def _own_part(self, step: RewardStep) -> Floats:
        values = self._called(step)
        if not self._checked:
            self._check_rows(step, values)
            # While all accounts are flat, a function that mixes them gives them the same.
            self._checked = len(values) == 1 or bool((step.log_return != step.log_return[0]).any())
        return values

    def _called(self, step: RewardStep) -> Floats:
        assert self._own is not None
        function = self._config.function
        try:
            values = np.array(self._own(step), dtype=np.float64)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise DataError(f"{KEY} {function} failed: {type(error).__name__}: {error}") from error
        if values.shape != step.log_return.shape:
            raise DataError(
                f"{KEY} {function} returned shape {values.shape} for {len(step.log_return)} accounts; return one "
                "number for each of them."
            )
        if not np.isfinite(values).all():
            row = int(np.argmax(~np.isfinite(values)))
            raise DataError(f"{KEY} {function} returned {values[row]} for account {row}; return finite numbers.")
        return values

    def _check_rows(self, step: RewardStep, values: Floats) -> None:
        """Refuse a function that remembers calls or mixes accounts: no run of it could be resumed or repeated."""
        for row in range(min(len(values), 4)):
            alone = self._called(step.of(np.array([row])))[0]
            # numpy adds up rows of another length in another order, and observations are float32.
            if abs(alone - values[row]) > _ROUNDING * max(abs(values[row]), 1.0):
                raise DataError(
                    f"{KEY} {self._config.function} gives account {row} {values[row]:g} beside others and {alone:g} "
                    "alone; let it depend on the step of that account alone, without random numbers or memory of calls."
                )

"""A policy that follows bars: one account of the market, observed and given an order at every close.

Evaluation, `decide` and paper trading must decide alike. The account is a row of the simulator (`market.account`), the
player is that of every playback (`run.play`), and a decision does not depend on what is decided beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.errors import CheckpointError, DataError
from tailwise.core.numerics import surely_finite
from tailwise.market.account import Account, AccountStep, FeedBar
from tailwise.model.action_spec import ActionSpec
from tailwise.model.observation import as_mask, check_mask
from tailwise.run.play import KeepingPlayer

_STATE, _HIDDEN = "account:", "hidden:"


class Moment(NamedTuple):
    """What a decision is made on: obs float32 [1, D], start bool [1], mask bool [1, K] or None, hidden states of the
    models [1, S, H] before it, step: decisions before it."""

    obs: npt.NDArray[np.float32]
    start: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_] | None
    hidden: list[Tensor]
    step: int


@dataclass(frozen=True)
class Choice:
    """A decision: the action as the environment takes it, and the target exposure [A] that waits for the next bar."""

    action: npt.NDArray[Any]
    target: npt.NDArray[np.float64]


class Follower:
    """An account and the player that trades it. action: of the policy; observed: D, entries of its observation."""

    def __init__(self, account: Account, player: KeepingPlayer, *, action: ActionSpec, observed: int) -> None:
        if len(account.names) != observed:
            raise CheckpointError(
                f"the policy observes {observed} numbers and this account shows {len(account.names)} "
                f"({', '.join(account.names[:4])}, ...); it was trained with other features (columns that come with "
                "synthetic bars cannot be fed), another latency or other guards."
            )
        self.account, self.player, self._action = account, player, action
        self._step = 0

    @property
    def begun(self) -> bool:
        """Whether the account is open."""
        return self.account.bars_lived >= 0

    def begin(self) -> None:
        """Open the account at the last close, flat; the hidden state is that of an episode's start."""
        self.account.begin()
        self.player.begin(1)
        self._step = 0

    def moment(self) -> Moment:
        """What the decision at the last close is made on."""
        obs, mask = self._seen()
        return Moment(obs, np.array([self._step == 0]), mask, self.player.hidden(), self._step)

    def _seen(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_] | None]:
        """The observation [1, D] and the mask [1, K] at the last close."""
        obs = self.account.observe()[None]
        if not surely_finite(obs) and not np.isfinite(obs).all():
            at = int(np.argmin(np.isfinite(obs[0])))
            raise DataError(f"'{self.account.names[at]}' is {obs[0, at]}; a policy cannot decide on it.")
        mask = None
        if self._action.kind != "box" and self.account.has_mask:
            mask = as_mask(self.account.mask().reshape(1, self._action.logits))
            check_mask(mask, self._action.sizes)
        return obs, mask

    def choose(self) -> Choice:
        """Decide at the last close; the order waits for the next bar. Once a close: it moves the hidden state."""
        obs, mask = self._seen()
        action = self.player.act(obs, np.array([self._step == 0]), mask, self._step)
        self._step += 1
        return Choice(action[0], self.account.order(action[0]))

    def advance(self, bars: Sequence[FeedBar | None], time: np.datetime64) -> AccountStep:
        """The next bar, or the bars of several assets: the waiting order is filled and the account valued."""
        return self.account.step(bars, time)

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays with which `set_state` continues bit for bit."""
        state = {_STATE + name: values for name, values in self.account.get_state().items()}
        state |= {f"{_HIDDEN}{k}": one.numpy() for k, one in enumerate(self.player.hidden())}
        return {**state, "step": np.array([self._step])}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `get_state` of the same policy and account."""
        count = sum(name.startswith(_HIDDEN) for name in state)
        self.player.restore([torch.from_numpy(np.array(state[f"{_HIDDEN}{k}"])) for k in range(count)])
        cut = len(_STATE)
        self.account.set_state({name[cut:]: value for name, value in state.items() if name.startswith(_STATE)})
        self._step = int(state["step"][0])

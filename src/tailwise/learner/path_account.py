"""A differentiable account: what the log-return of fixed decisions becomes when the bars are shifted.

Features of a market are compiled functions and may be a user's own, so decisions cannot be differentiated by prices.
An adversary on the path therefore takes the gradient of this account with the decisions of the last playback held
fixed, moves the bars, and lets the policy decide again: the two alternate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeldPath:
    """n bars in the life of accounts with one asset, and the decisions that are held fixed.

    held      exposure at the close before each bar, a multiple of equity
    target    exposure after the order, before its costs; of no meaning without an order
    ordered   whether there was an order
    gap       log-return from the close before to the open
    body      log-return from the open to the close
    cost      of an order, a fraction of its notional
    at_open   whether orders are filled at the open, else at the close before
    """

    held: Floats
    target: Floats
    ordered: npt.NDArray[np.bool_]
    gap: Floats
    body: Floats
    cost: float
    at_open: bool


def log_returns(path: HeldPath, shift: Tensor) -> Tensor:
    """Log-returns [n] of the account in each bar where `shift` [n] is added to the log-return over its gap.

    Proportional costs; without impact, financing and exits inside a bar.
    """
    held, target, gap, body = (torch.from_numpy(x) for x in (path.held, path.target, path.gap, path.body))
    ordered = torch.from_numpy(path.ordered)
    gap_return, body_return = torch.expm1(gap + shift), torch.expm1(body)
    if not path.at_open:
        # The order is filled before the gap, which is then lived through with the body; the move of a bar shows in the
        # costs of the next order, which begins where the position has drifted to.
        whole = torch.expm1(gap + shift + body)
        fixed = path.cost * torch.where(ordered, (target - held).abs(), 0.0)
        lived = torch.where(ordered, target, held) / (1.0 - fixed)
        drifted = lived * (1.0 + whole) / (1.0 + lived * whole)
        before = torch.where(held == 0, held, torch.cat([held[:1], drifted[:-1]]))
        paid = path.cost * torch.where(ordered, (target - before).abs(), 0.0)
        exposure = torch.where(ordered, target, held) / (1.0 - paid)
        return torch.log1p(-paid) + torch.log1p(exposure * whole)
    over_gap = 1.0 + held * gap_return
    at_open = held * (1.0 + gap_return) / over_gap
    paid = path.cost * torch.where(ordered, (target - at_open).abs(), 0.0)
    exposure = torch.where(ordered, target, at_open) / (1.0 - paid)
    return torch.log(over_gap) + torch.log1p(-paid) + torch.log1p(exposure * body_return)


def slopes(path: HeldPath) -> Floats:
    """Derivatives [n] of the log-return of the whole path by the shift of each bar; 0 where they are not finite,
    because the account is ruined there."""
    shift = torch.zeros(len(path.held), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(log_returns(path, shift).sum(), shift)
    finite: Floats = np.nan_to_num(slope.numpy(), nan=0.0, posinf=0.0, neginf=0.0)
    return finite

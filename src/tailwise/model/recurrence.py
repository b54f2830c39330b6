"""LSTM and GRU over whole sequences with resets inside, in one call and without a Python loop over steps.

A sequence [T, B] is cut at every episode start into segments; the segments, sorted by length, form one packed batch, so
no padding is computed and nothing flows across a reset. The plain twin (a loop over steps) lives in the tests.
The hidden state is one tensor [B, S, H]: S = layers for a GRU, 2 x layers for an LSTM (all h, then all c).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tailwise.model.config import GruCore, LstmCore

FORGET_BIAS = 1.0  # LSTM: sigmoid(1) = .73 of the cell is kept at every step
# GRU: sigmoid(2) = .88 of the state is kept at every step; .12 after 17 steps. With 0 it is 1e-6 after 20, and no
# gradient reaches the step that has to be remembered; with 1 it takes three times as many updates as with 2.
UPDATE_BIAS = 2.0


@dataclass(frozen=True)
class SegmentPlan:
    """How rows (t, b) of a [T, B] block map to a packed batch of reset-free segments.

    rows [T*B]: flat row index (t*B + b) of each packed position. inverse [T*B]: packed position of each flat row.
    batch_sizes [L]: segments still running at offset 0, 1, ...; environment [G], fresh [G]: per segment, longest
    first, its environment and whether it begins from the zero state; last [B]: the segment that ends at T-1.
    """

    rows: Tensor
    inverse: Tensor
    batch_sizes: Tensor
    environment: Tensor
    fresh: Tensor
    last: Tensor


def plan_segments(start: Tensor) -> SegmentPlan:
    """Segments of `start` [T, B] bool: True where an episode begins, so the state before that step is zero."""
    begins = start.cpu().numpy()
    steps, envs = begins.shape
    opens = begins.copy()
    opens[0] = True
    # Segments are numbered environment by environment, so the last segment of an environment has the highest id there.
    segment = (np.cumsum(opens.T.reshape(-1)) - 1).reshape(envs, steps)
    first_row = np.flatnonzero(opens.T.reshape(-1))
    offset = np.arange(envs * steps) - first_row[segment.reshape(-1)]
    lengths = np.bincount(segment.reshape(-1))
    order = np.argsort(-lengths, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    packed_order = np.lexsort((rank[segment.reshape(-1)], offset))  # by offset, then by rank
    env_of, step_of = packed_order // steps, packed_order % steps
    rows = step_of * envs + env_of
    inverse = np.empty_like(rows)
    inverse[rows] = np.arange(len(rows))
    return SegmentPlan(
        rows=torch.from_numpy(rows),
        inverse=torch.from_numpy(inverse),
        batch_sizes=torch.from_numpy(np.bincount(offset)),
        environment=torch.from_numpy(first_row[order] // steps),
        fresh=torch.from_numpy(begins.T.reshape(-1)[first_row][order] | (first_row[order] % steps != 0)),
        last=torch.from_numpy(rank[segment[:, -1]]),
    )


class Recurrent(nn.Module):
    """x [T, B, I], state [B, S, H], start [T, B] -> y [T, B, H], state after the last step [B, S, H]."""

    def __init__(self, config: LstmCore | GruCore, in_features: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.is_lstm = isinstance(config, LstmCore)
        self.hidden = config.hidden
        self.layers = config.layers
        self.slots = config.layers * (2 if self.is_lstm else 1)
        self.net: nn.LSTM | nn.GRU = (nn.LSTM if self.is_lstm else nn.GRU)(in_features, config.hidden, config.layers)
        for name, parameter in self.net.named_parameters():
            if name.startswith("weight"):
                for gate in parameter.chunk(4 if self.is_lstm else 3):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                nn.init.zeros_(parameter)
                if name.startswith("bias_ih"):
                    # An open gate lets memory survive before anything is learnt.
                    keep = parameter.chunk(4 if self.is_lstm else 3)[1]  # LSTM: forget gate, GRU: update gate
                    nn.init.constant_(keep, FORGET_BIAS if self.is_lstm else UPDATE_BIAS)

    def forward(self, x: Tensor, state: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """See the class; `start[t, b]` zeroes the state of b before step t."""
        steps, envs = x.shape[:2]
        if steps == 1 or not bool(start[1:].any()):
            begin = torch.where(start[0][:, None, None], torch.zeros_like(state), state)
            y, after = self._run(x, begin)
            return y, after
        plan = plan_segments(start)
        begin = torch.where(plan.fresh[:, None, None], torch.zeros((), dtype=state.dtype), state[plan.environment])
        packed = PackedSequence(x.reshape(steps * envs, -1)[plan.rows], plan.batch_sizes)
        y_packed, after = self._run(packed, begin)
        y = y_packed.data[plan.inverse].reshape(steps, envs, self.hidden)
        return y, after[plan.last]

    def _run(self, x: Tensor | PackedSequence, begin: Tensor) -> tuple[Tensor, Tensor]:
        """Run torch's kernel from `begin` [G, S, H]; the result's state has the same layout."""
        hidden = begin.transpose(0, 1).contiguous()
        if self.is_lstm:
            y, (h, c) = self.net(x, (hidden[: self.layers], hidden[self.layers :]))
            return y, torch.cat([h, c]).transpose(0, 1)
        y, h = self.net(x, hidden)
        return y, h.transpose(0, 1)

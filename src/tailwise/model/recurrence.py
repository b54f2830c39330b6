"""LSTM and GRU over whole sequences with resets inside.

The inputs of all steps are multiplied at once; only what depends on the step before is computed step by step, on all
environments together, and a state is zeroed where an episode starts. The gradients are written out: autograd would keep
a graph of every step and add its gradient into a whole sequence of zeros, which is several times the arithmetic. The
plain twin, a loop over steps that autograd differentiates, lives in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tailwise.model.config import GruCore, LstmCore

FORGET_BIAS = 1.0  # LSTM: sigmoid(1) = .73 of the cell is kept at every step
# GRU: sigmoid(2) = .88 of the state is kept at every step; .12 after 17 steps. With 0 it is 1e-6 after 20, and no
# gradient reaches the step that has to be remembered; with 1 it takes three times as many updates as with 2.
UPDATE_BIAS = 2.0


class Weights(NamedTuple):
    """Of one layer, torch's names: weight_ih [G, I], weight_hh [G, H], bias_ih [G], bias_hh [G]; G = gates x H."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


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
        if x.shape[0] == 1:
            begin = torch.where(start[0][:, None, None], torch.zeros_like(state), state)
            return self._one_step(x, begin)
        resets = Resets(start)
        slots = state.unbind(1)
        h_after, c_after = [], []
        for layer in range(self.layers):
            weights = Weights(*(getattr(self.net, f"{name}_l{layer}") for name in Weights._fields))
            if self.is_lstm:
                x, c = _Lstm.apply(x, slots[layer], slots[self.layers + layer], resets, *weights)  # type: ignore[no-untyped-call]
                c_after.append(c)
            else:
                x = _Gru.apply(x, slots[layer], resets, *weights)  # type: ignore[no-untyped-call]
            h_after.append(x[-1])
        return x, torch.stack([*h_after, *c_after], dim=1)

    def _one_step(self, x: Tensor, begin: Tensor) -> tuple[Tensor, Tensor]:
        """torch's own kernel on x [1, B, I] from `begin` [B, S, H]: one call, and one that can be exported."""
        hidden = begin.transpose(0, 1).contiguous()
        if self.is_lstm:
            y, (h, c) = self.net(x, (hidden[: self.layers], hidden[self.layers :]))
            return y, torch.cat([h, c]).transpose(0, 1)
        y, h = self.net(x, hidden)
        return y, h.transpose(0, 1)


class Resets:
    """Where the state before a step is zeroed, from start [T, B]; `before(t)`: bool [B, 1], None where nobody resets.

    Zeroed means replaced: NaN times 0 is NaN.
    """

    def __init__(self, start: Tensor) -> None:
        rows = start.unsqueeze(-1).unbind(0)
        # Reading which steps reset nobody saves work, but would wait for a device.
        somebody = start.any(1).tolist() if start.device.type == "cpu" else [True] * len(rows)
        self._before = [row if any_of else None for row, any_of in zip(rows, somebody, strict=True)]

    def before(self, t: int) -> Tensor | None:
        """See the class."""
        return self._before[t]


def _entering(first: Tensor, after: Tensor, resets: Resets) -> Tensor:
    """The state before each step [T, B, H] from the one before step 0 [B, H] and those after all steps [T, B, H]."""
    entering = torch.cat([first[None], after[:-1]])
    for t, state in enumerate(entering.unbind(0)):
        reset = resets.before(t)
        if reset is not None:
            state.masked_fill_(reset, 0.0)
    return entering


def _steps(tensor: Tensor, gates: int) -> Sequence[Sequence[Tensor]]:
    """Views [B, H] by gate and step of [T, B, gates x H]: made at once, since indexing costs as much as arithmetic."""
    return [part.unbind(0) for part in tensor.chunk(gates, dim=-1)]


def _weight_gradients(
    ctx: Any, x: Tensor, h: Tensor, of_inputs: Tensor, of_hidden: Tensor, weight_ih: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of (x, weight_ih, weight_hh, bias_ih, bias_hh) by those of what was added up for the gates
    [T, B, G]; h [T, B, H]: states before each step."""
    from_x, from_h = of_inputs.flatten(0, 1), of_hidden.flatten(0, 1)
    dx = (from_x @ weight_ih).view_as(x) if ctx.needs_input_grad[0] else None
    weight_in = from_x.t() @ x.flatten(0, 1)
    bias_in = from_x.sum(0)
    bias_hidden = bias_in if of_hidden is of_inputs else from_h.sum(0)
    return dx, weight_in, from_h.t() @ h.flatten(0, 1), bias_in, bias_hidden


class _Lstm(torch.autograd.Function):
    """i, f, o = sigmoid, g = tanh of W x + U h + b;  c' = f c + i g;  h' = o tanh(c'). -> (h' [T, B, H], last c)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        c0: Tensor,
        resets: Resets,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
    ) -> tuple[Tensor, Tensor]:
        steps, envs = x.shape[:2]
        gates = torch.addmm(bias_ih + bias_hh, x.flatten(0, 1), weight_ih.t()).view(steps, envs, -1)
        y, cells, bent = (x.new_empty(steps, envs, h0.shape[-1]) for _ in range(3))
        to_gates, h, c = weight_hh.t(), h0, c0
        in_forget = gates[..., : 2 * h0.shape[-1]].unbind(0)
        views = zip(
            gates.unbind(0), in_forget, *_steps(gates, 4), y.unbind(0), cells.unbind(0), bent.unbind(0), strict=True
        )
        for t, (gate, both, i, f, g, o, next_h, next_c, tanh_c) in enumerate(views):
            reset = resets.before(t)
            if reset is not None:
                h, c = h.masked_fill(reset, 0.0), c.masked_fill(reset, 0.0)
            gate.addmm_(h, to_gates)
            both.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c, out=next_c)
            next_c.addcmul_(i, g)
            torch.tanh(next_c, out=tanh_c)
            torch.mul(o, tanh_c, out=next_h)
            h, c = next_h, next_c
        ctx.save_for_backward(x, h0, c0, weight_ih, weight_hh, gates, y, cells, bent)
        ctx.resets = resets
        return y, cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy, dc = grads
        x, h0, c0, weight_ih, weight_hh, gates, y, cells, bent = ctx.saved_tensors
        resets: Resets = ctx.resets
        h_before, c_before = _entering(h0, y, resets), _entering(c0, cells, resets)
        i, f, g, o = gates.chunk(4, dim=-1)
        # What each gate's gradient is a multiple of, for all steps at once: dc for i, f and g, dh for o and for c.
        slope = torch.stack([g * i * (1.0 - i), c_before * f * (1.0 - f), i * (1.0 - g * g)], dim=2)
        slope_o, slope_c = bent * o * (1.0 - o), o * (1.0 - bent * bent)
        steps, envs, hidden = y.shape
        back = torch.empty_like(gates)
        by_gate = back.view(steps, envs, 4, hidden)
        views = list(
            zip(
                dy.unbind(0),
                slope.unbind(0),
                slope_o.unbind(0),
                slope_c.unbind(0),
                f.unbind(0),
                back.unbind(0),
                by_gate[:, :, :3].unbind(0),
                by_gate[:, :, 3].unbind(0),
                strict=True,
            )
        )
        dh = torch.zeros_like(h0)
        for t in range(steps - 1, -1, -1):
            out, to_ifg, to_o, to_c, forget, d_gates, d_ifg, d_o = views[t]
            dh = dh + out
            dc = torch.addcmul(dc, dh, to_c)
            torch.mul(to_ifg, dc.unsqueeze(1), out=d_ifg)
            torch.mul(dh, to_o, out=d_o)
            dh, dc = d_gates @ weight_hh, dc * forget
            reset = resets.before(t)
            if reset is not None:
                dh.masked_fill_(reset, 0.0)
                dc.masked_fill_(reset, 0.0)
        dx, *weights = _weight_gradients(ctx, x, h_before, back, back, weight_ih)
        return dx, dh, dc, None, *weights


class _Gru(torch.autograd.Function):
    """r, z = sigmoid of W x + b + U h + d;  n = tanh(W x + b + r (U h + d));  h' = (1 - z) n + z h. -> h' [T, B, H]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        resets: Resets,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
    ) -> Tensor:
        steps, envs, hidden = *x.shape[:2], h0.shape[-1]
        gates = torch.addmm(bias_ih, x.flatten(0, 1), weight_ih.t()).view(steps, envs, -1)
        of_hidden, y = torch.empty_like(gates), x.new_empty(steps, envs, hidden)
        to_gates, h = weight_hh.t(), h0
        r_z, own_r_z = (part[..., : 2 * hidden].unbind(0) for part in (gates, of_hidden))
        views = zip(
            of_hidden.unbind(0), r_z, own_r_z, *_steps(gates, 3), _steps(of_hidden, 3)[2], y.unbind(0), strict=True
        )
        for t, (own, both, own_both, r, z, n, own_n, next_h) in enumerate(views):
            reset = resets.before(t)
            if reset is not None:
                h = h.masked_fill(reset, 0.0)
            torch.addmm(bias_hh, h, to_gates, out=own)
            both.add_(own_both).sigmoid_()
            n.addcmul_(r, own_n).tanh_()
            torch.lerp(n, h, z, out=next_h)
            h = next_h
        ctx.save_for_backward(x, h0, weight_ih, weight_hh, gates, of_hidden[..., 2 * hidden :], y)
        ctx.resets = resets
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = grads
        x, h0, weight_ih, weight_hh, gates, own_n, y = ctx.saved_tensors
        resets: Resets = ctx.resets
        h_before = _entering(h0, y, resets)
        r, z, n = gates.chunk(3, dim=-1)
        # All gates' gradients are multiples of dh.
        slope_n = (1.0 - z) * (1.0 - n * n)
        slope = torch.stack([slope_n * own_n * r * (1.0 - r), (h_before - n) * z * (1.0 - z), slope_n * r], dim=2)
        steps, envs, hidden = y.shape
        back, whole = torch.empty_like(gates), torch.empty_like(y)
        views = list(
            zip(
                dy.unbind(0),
                slope.unbind(0),
                z.unbind(0),
                back.unbind(0),
                back.view(steps, envs, 3, hidden).unbind(0),
                whole.unbind(0),
                strict=True,
            )
        )
        dh = torch.zeros_like(h0)
        for t in range(steps - 1, -1, -1):
            out, to_gates, keep, d_gates, d_by_gate, d_whole = views[t]
            torch.add(dh, out, out=d_whole)
            torch.mul(to_gates, d_whole.unsqueeze(1), out=d_by_gate)
            dh = torch.addcmul(d_gates @ weight_hh, d_whole, keep)
            reset = resets.before(t)
            if reset is not None:
                dh.masked_fill_(reset, 0.0)
        of_inputs = torch.cat([back[..., : 2 * hidden], whole * slope_n], dim=-1)
        dx, *weights = _weight_gradients(ctx, x, h_before, of_inputs, back, weight_ih)
        return dx, dh, None, *weights

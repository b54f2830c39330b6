"""The fast recurrent path, whose gradients are written out, against a plain loop with the gates by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tailwise.model.config import GruCore, LstmCore
from tailwise.model.recurrence import Recurrent

TOLERANCE = 4e-6


def plain_step(core: Recurrent, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One step of all layers, gates by hand: x [B, I], state [B, S, H] -> y [B, H], new state [B, S, H]."""
    p = dict(core.net.named_parameters())
    h_new, c_new = [], []
    for layer in range(core.layers):
        h = state[:, layer]
        a = x @ p[f"weight_ih_l{layer}"].T + p[f"bias_ih_l{layer}"]
        b = h @ p[f"weight_hh_l{layer}"].T + p[f"bias_hh_l{layer}"]
        if core.is_lstm:
            i, f, g, o = (a + b).chunk(4, dim=-1)
            c = torch.sigmoid(f) * state[:, core.layers + layer] + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            c_new.append(c)
        else:
            (ra, za, na), (rb, zb, nb) = a.chunk(3, dim=-1), b.chunk(3, dim=-1)
            r, z = torch.sigmoid(ra + rb), torch.sigmoid(za + zb)
            h = (1 - z) * torch.tanh(na + r * nb) + z * h
        h_new.append(h)
        x = h
    return x, torch.stack([*h_new, *c_new], dim=1)


def plain_loop(core: Recurrent, x: Tensor, state: Tensor, start: Tensor, *, zero: bool = True) -> tuple[Tensor, Tensor]:
    """The twin: one step after another; `zero=False` is the wrong version that keeps the state across a reset."""
    outputs = []
    for t in range(x.shape[0]):
        if zero:
            state = torch.where(start[t][:, None, None], torch.zeros_like(state), state)
        y, state = plain_step(core, x[t], state)
        outputs.append(y)
    return torch.stack(outputs), state


def build(kind: str, layers: int, seed: int = 0) -> Recurrent:
    config: Any = LstmCore(hidden=5, layers=layers) if kind == "lstm" else GruCore(hidden=5, layers=layers)
    return Recurrent(config, 3, generator=torch.Generator().manual_seed(seed))


def run(core: Recurrent, forward: Any, x: Tensor, state: Tensor, start: Tensor) -> dict[str, Tensor]:
    """Outputs, final state and all gradients of a fixed scalar of both."""
    core.zero_grad()
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    y, after = forward(x, state, start)
    weight = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    ((y * weight).mean() + after.square().mean()).backward()
    assert x.grad is not None and state.grad is not None
    found = {"y": y.detach(), "after": after.detach(), "dx": x.grad, "dstate": state.grad}
    return found | {f"d{name}": p.grad.clone() for name, p in core.named_parameters() if p.grad is not None}


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_sequences_equal_a_plain_loop_on_100_reset_patterns(kind: str, layers: int) -> None:
    """Outputs, final state and gradients within 4e-6. Rejects a state that is not zeroed at a reset (asserted)."""
    core = build(kind, layers)
    g = torch.Generator().manual_seed(layers)
    caught = resets = 0
    for pattern in range(100):
        steps, envs = int(torch.randint(1, 11, (), generator=g)), int(torch.randint(1, 5, (), generator=g))
        share = (0.0, 0.1, 0.3, 0.7, 1.0)[pattern % 5]
        start = torch.rand(steps, envs, generator=g) < share
        x = torch.randn(steps, envs, 3, generator=g)
        state = torch.randn(envs, core.slots, core.hidden, generator=g)
        truth = run(core, lambda *a: plain_loop(core, *a), x, state, start)
        assert largest_difference(run(core, core, x, state, start), truth) <= TOLERANCE, (pattern, start)
        if bool(start.any()):
            resets += 1
            wrong = run(core, lambda *a: plain_loop(core, *a, zero=False), x, state, start)
            caught += largest_difference(wrong, truth) > 1e-2
    assert resets > 50 and caught == resets


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_nothing_flows_across_a_reset(kind: str) -> None:
    """Bit for bit: what happened before a reset, NaN included, changes nothing after it."""
    core = build(kind, 2)
    x, start = torch.randn(6, 1, 3), torch.zeros(6, 1, dtype=torch.bool)
    start[3] = True
    before = core(x, torch.zeros(1, core.slots, 5), start)
    x[:3] = torch.nan
    after = core(x, torch.full((1, core.slots, 5), torch.nan), start)
    assert torch.equal(before[0][3:], after[0][3:]) and torch.equal(before[1], after[1])
    assert bool(after[0][:3].isnan().all())


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_written_gradients_are_those_of_differences(kind: str, layers: int) -> None:
    """Finite differences in float64, of outputs and final state by inputs, state and all weights, with resets inside.
    Rejects a gradient that is only close, which float32 would not show."""
    core = build(kind, layers).double()
    g = torch.Generator().manual_seed(3)
    start = torch.tensor([[True, False], [False, False], [False, True], [True, False]])
    x = torch.randn(4, 2, 3, generator=g, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, core.slots, 5, generator=g, dtype=torch.float64, requires_grad=True)
    weights = list(core.parameters())
    assert torch.autograd.gradcheck(lambda x, state, *_: core(x, state, start), (x, state, *weights))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_sequence_is_its_steps_one_by_one(kind: str) -> None:
    """Training sees the features that decisions were made with, to rounding: rejects two recurrences that differ."""
    core = build(kind, 2)
    g = torch.Generator().manual_seed(5)
    x, start = torch.randn(30, 4, 3, generator=g), torch.rand(30, 4, generator=g) < 0.1
    state = first = torch.randn(4, core.slots, 5, generator=g)
    steps = []
    with torch.no_grad():
        for t in range(30):
            y, state = core(x[t : t + 1], state, start[t : t + 1])
            steps.append(y[0])
        whole, after = core(x, first, start)
    torch.testing.assert_close(whole, torch.stack(steps), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(after, state, atol=TOLERANCE, rtol=0)


def test_lstm_starts_with_an_open_forget_gate() -> None:
    """Rejects zero forget biases, with which half of the memory is gone after every step."""
    net = build("lstm", 1).net
    forget = (net.bias_ih_l0 + net.bias_hh_l0)[5:10]
    assert torch.equal(forget, torch.ones(5))
    for gate in net.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(5), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layers", [1, 2])
def test_gru_starts_with_an_open_update_gate(layers: int) -> None:
    """Rejects zero biases (asserted): half of the state is gone after every step, and all of it after 20.

    What remains of a difference between two states after 20 steps without input is .88^20 = .08 of it, times what the
    candidate adds; with zero biases about 1e-5.
    """

    def remains(bias: float | None) -> float:
        core = build("gru", layers)
        if bias is not None:
            for layer in range(layers):
                getattr(core.net, f"bias_ih_l{layer}").data[5:10] = bias
        start = torch.zeros(20, 1, dtype=torch.bool)
        state = torch.full((1, layers, 5), 0.5)
        with torch.no_grad():
            _, kept = core(torch.zeros(20, 1, 3), state, start)
            _, empty = core(torch.zeros(20, 1, 3), torch.zeros_like(state), start)
        return float((kept - empty).norm() / state.norm())

    assert remains(None) > 0.05
    assert remains(0.0) < 0.01
    net = build("gru", layers).net
    for layer in range(layers):
        biases = getattr(net, f"bias_ih_l{layer}") + getattr(net, f"bias_hh_l{layer}")
        assert biases.tolist() == [0.0] * 5 + [2.0] * 5 + [0.0] * 5  # reset, update, candidate

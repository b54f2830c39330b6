"""AdamW, UPGD, AdaUPGD, decay and fresh weights against arithmetic written out and torch's own optimisers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.lasting import (
    FRESH,
    PERTURBATION,
    AdamW,
    AdaUpgd,
    Lasting,
    Upgd,
    fresh_law,
    normal_draws,
    protection,
)

STREAMS = Streams(0)
SHAPES = ((3, 4), (4,), (2, 3))
KINDS = (AdamW, Upgd, AdaUpgd)
FULL: dict[str, Any] = {
    "lr": 0.01, "weight_decay": 0.1, "decay_to_initial": True, "shrink_perturb": 0.01, "noise": 0.1,
}  # fmt: skip


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for shape in SHAPES]


def gradients(step: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    g = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(shape, generator=g, dtype=dtype) for shape in SHAPES]


def walk(optimiser: torch.optim.Optimizer, some: list[Tensor], steps: range) -> None:
    for step in steps:
        for p, grad in zip(some, gradients(step, some[0].dtype), strict=True):
            p.grad = grad
        optimiser.step()


def options(kind: type[Lasting], values: dict[str, Any] = FULL) -> dict[str, Any]:
    """Noise is an option of those that protect."""
    return {key: value for key, value in values.items() if key != "noise" or kind.protective}


# ------------------------------------------------------------------ equal to torch's


@pytest.mark.parametrize(("decay", "betas"), [(0.0, (0.9, 0.999)), (0.3, (0.99, 0.99))])
def test_adamw_equals_that_of_torch(decay: float, betas: tuple[float, float]) -> None:
    """Decay of w itself and not through the gradient, which Adam would divide away (asserted to differ)."""
    ours, theirs, coupled = parameters(), parameters(), parameters()
    settings: dict[str, Any] = {"beta1": betas[0], "beta2": betas[1], "eps": 1e-5, "weight_decay": decay}
    walk(AdamW(ours, streams=STREAMS, lr=0.05, **settings), ours, range(20))
    walk(torch.optim.AdamW(theirs, lr=0.05, betas=betas, eps=1e-5, weight_decay=decay), theirs, range(20))
    walk(torch.optim.Adam(coupled, lr=0.05, betas=betas, eps=1e-5, weight_decay=decay), coupled, range(20))
    for mine, other, wrong in zip(ours, theirs, coupled, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        assert decay == 0.0 or float((mine - wrong).detach().abs().max()) > 0.01


@pytest.mark.parametrize(("kind", "plain"), [(Upgd, torch.optim.SGD), (AdaUpgd, torch.optim.Adam)])
def test_without_utility_it_is_gradient_descent_or_adam(kind: type[Lasting], plain: Any) -> None:
    """Weights of 0 have utility 0, whatever their gradient: steps equal those of SGD and Adam, ten times over."""
    ours, theirs = ([torch.zeros(shape, requires_grad=True) for shape in SHAPES] for _ in range(2))
    first, second = kind(ours, streams=STREAMS, lr=0.05, eps=1e-8), plain(theirs, lr=0.05)
    for step in range(10):
        before = [p.detach().clone() for p in theirs]
        walk(first, ours, range(step, step + 1))
        walk(second, theirs, range(step, step + 1))
        for mine, other, start in zip(ours, theirs, before, strict=True):
            torch.testing.assert_close(mine.detach(), other.detach() - start, rtol=1e-4, atol=1e-7)
            mine.data.zero_()


# ------------------------------------------------------------------ the formulas, written out


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("to_initial", [False, True])
def test_three_steps_written_out(adaptive: bool, to_initial: bool) -> None:
    """w <- (1 - lr wd) w - 2 lr (d + xi)(1 - s), with numbers in float64. Rejects a maximum per parameter instead of
    one for all, and protection of the wrong sign."""
    kind = AdaUpgd if adaptive else Upgd
    lr, wd, beta, sd, b1, b2, eps = 0.1, 0.5, 0.9, 0.2, 0.8, 0.95, 1e-3
    ours = parameters(dtype=torch.float64)
    w = torch.cat([p.detach().reshape(-1) for p in ours])
    start, u, m, v = w.clone(), torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w)
    optimiser = kind(
        ours, streams=STREAMS, lr=lr, weight_decay=wd, utility_beta=beta, noise=sd, beta1=b1, beta2=b2, eps=eps,
        decay_to_initial=to_initial,
    )  # fmt: skip
    for step in range(1, 4):
        g = torch.cat([x.reshape(-1) for x in gradients(step, torch.float64)])
        u = beta * u + (1 - beta) * (-g * w)
        corrected = u / (1 - beta**step)
        s = 1 / (1 + torch.exp(-corrected / corrected.max()))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        d = (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + eps) if adaptive else g
        xi = sd * normal_draws(STREAMS, PERTURBATION, step=step, size=len(w), dtype=torch.float64)
        target = start if to_initial else torch.zeros_like(w)
        w = w - lr * wd * (w - target) - 2 * lr * (d + xi) * (1 - s)
        walk(optimiser, ours, range(step, step + 1))
        torch.testing.assert_close(torch.cat([p.detach().reshape(-1) for p in ours]), w, rtol=1e-12, atol=1e-12)
    assert float(corrected[12:].max()) < float(corrected.max())  # one maximum per parameter would be another


def test_protection_of_all_negative_all_zero_and_mixed_utilities() -> None:
    """Rejects a maximum that is not clamped: -1 / -1 would protect the most harmful weight (.73)."""
    negative = torch.tensor([-1.0, -2.0])
    assert protection(negative, negative.max()).tolist() == [0.0, 0.0]
    zero = torch.zeros(3)
    assert protection(zero, zero.max()).tolist() == [0.5] * 3
    mixed = torch.tensor([2.0, 0.0, -2.0])
    sigmoid = 1 / (1 + math.exp(-1))
    assert protection(mixed, mixed.max()).tolist() == pytest.approx([sigmoid, 0.5, 1 - sigmoid])


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 2.0), (0.0, 1.0), (-1.0, 2 * (1 - 1 / (1 + math.exp(-1))))])
def test_the_first_step_by_the_sign_of_the_utility(weight: float, expected: float) -> None:
    """Gradient 1: utility -weight. A harmful weight takes the whole step of 2 lr, one without utility lr, a useful one
    .54 lr. The bias is corrected: with beta .999 an uncorrected utility over a corrected maximum would be near 0."""
    p = torch.full((2, 2), weight, requires_grad=True)
    optimiser = Upgd([p], streams=STREAMS, lr=0.1)
    p.grad = torch.ones(2, 2)
    optimiser.step()
    torch.testing.assert_close(p.detach(), torch.full((2, 2), weight - 0.1 * expected), rtol=1e-6, atol=1e-7)


def test_shrink_and_perturb_written_out() -> None:
    """w <- (1-a) w + a w_fresh after the step: fresh matrices are normal with the rms of the initial one, fresh vectors
    are the initial ones. Rejects noise without shrinking, which would grow (the spread settles at the initial one)."""
    share, some = 0.05, parameters(dtype=torch.float64)
    initial = [p.detach().clone() for p in some]
    optimiser = AdamW(some, streams=STREAMS, lr=1e-3, shrink_perturb=share)
    for p in some:
        p.grad = torch.zeros_like(p)
    optimiser.step()
    draws = normal_draws(STREAMS, FRESH, step=1, size=sum(p.numel() for p in some), dtype=torch.float64)
    parts = draws.split([p.numel() for p in some])
    for p, start, part in zip(some, initial, parts, strict=True):
        rms = start.square().mean().sqrt()
        fresh = rms * part.view(p.shape) if start.dim() > 1 else start
        torch.testing.assert_close(p.detach(), (1 - share) * start + share * fresh, rtol=1e-12, atol=1e-12)
    big = torch.randn(60, 60, generator=torch.Generator().manual_seed(0)).requires_grad_()
    lasting = AdamW([big], streams=STREAMS, lr=1e-3, shrink_perturb=0.5)
    big.grad = torch.zeros_like(big)
    for _ in range(30):
        lasting.step()
    # (1-a)^2 x + a^2 = x has x = a / (2 - a) = 1/3: a mixture of independent draws.
    assert float(big.detach().var()) == pytest.approx(1 / 3, rel=0.1)
    mean, spread = fresh_law([torch.full((5,), 2.0)])
    assert mean.tolist() == [2.0] * 5 and spread.tolist() == [0.0] * 5


def test_decay_to_the_start_pulls_there_and_not_to_zero() -> None:
    some = parameters()
    initial = [p.detach().clone() for p in some]
    optimiser = AdamW(some, streams=STREAMS, lr=0.1, weight_decay=1.0, decay_to_initial=True)
    with torch.no_grad():
        for p in some:
            p.add_(1.0)
            p.grad = torch.zeros_like(p)
    optimiser.step()
    for p, start in zip(some, initial, strict=True):
        torch.testing.assert_close(p.detach() - start, torch.full_like(start, 0.9), rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ the contract of torch.optim.Optimizer


@pytest.mark.parametrize("kind", KINDS)
def test_foreach_equals_the_loop(kind: type[Lasting]) -> None:
    """One vector per group or parameter by parameter, with every option on: the same noise at the same place."""
    flat, single = parameters(), parameters()
    for some, foreach in ((flat, True), (single, False)):
        walk(kind(some, streams=STREAMS, foreach=foreach, **options(kind)), some, range(12))
    for first, second in zip(flat, single, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_round_trip_continues_bit_for_bit(kind: type[Lasting]) -> None:
    """Half way, with a fresh optimiser on copies. Rejects noise that counts from the start of the process, an initial
    weight that is taken anew, and state that shares memory."""
    some = parameters()
    optimiser = kind(some, streams=STREAMS, **options(kind))
    walk(optimiser, some, range(6))
    others = [p.detach().clone().requires_grad_() for p in some]
    other = kind(others, streams=STREAMS, **options(kind))
    other.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    walk(optimiser, some, range(6, 12))
    walk(other, others, range(6, 12))
    assert all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
    keys = {key for state in other.state.values() for key in state}
    assert keys == {"step", "initial", *(("exp_avg", "exp_avg_sq") if kind.adaptive else ())} | (
        {"utility"} if kind.protective else set()
    )
    before = [p.detach().clone() for p in some]
    walk(other, others, range(12, 14))
    assert all(torch.equal(a, b) for a, b in zip(some, before, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_closure_makes_the_gradients_and_its_loss_is_returned(kind: type[Lasting]) -> None:
    p = torch.full((2, 2), 3.0, requires_grad=True)
    optimiser = kind([p], streams=STREAMS, lr=0.1)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    losses = [float(optimiser.step(closure).detach()) for _ in range(20)]
    assert losses[0] == 36.0 and losses[-1] < losses[0] / 2


def test_noise_is_that_of_seed_and_step() -> None:
    """Standard normal, another one at each step and seed, the same at the same address."""
    draws = normal_draws(STREAMS, PERTURBATION, step=3, size=20_001, dtype=torch.float32)
    assert draws.shape == (20_001,)
    assert float(draws.mean()) == pytest.approx(0.0, abs=0.03) and float(draws.std()) == pytest.approx(1.0, abs=0.03)
    assert float((draws.abs() > 1.96).float().mean()) == pytest.approx(0.05, abs=0.01)
    assert torch.equal(draws, normal_draws(STREAMS, PERTURBATION, step=3, size=20_001, dtype=torch.float32))
    for other in ((STREAMS, 4), (Streams(1), 3)):
        assert not torch.equal(
            draws, normal_draws(other[0], PERTURBATION, step=other[1], size=20_001, dtype=torch.float32)
        )


def test_the_noise_factor_acts_on_the_step_and_not_on_decay() -> None:
    """Half the step of Adam, the whole decay. Rejects a factor on the gradient, which Adam divides away (asserted)."""

    def moved(factor: float, gradient: float, decay: float) -> float:
        p = torch.ones(2, 2, requires_grad=True)
        optimiser = AdamW([{"params": [p], "noise_factor": factor}], streams=STREAMS, lr=0.1, weight_decay=decay)
        p.grad = torch.full((2, 2), gradient)
        optimiser.step()
        return 1.0 - float(p[0, 0].detach())

    assert moved(1.0, 1.0, 0.0) == pytest.approx(0.1, rel=1e-5)
    assert moved(1.0, 0.5, 0.0) == pytest.approx(0.1, rel=1e-5)  # a smaller gradient takes the same step
    assert moved(0.5, 1.0, 0.0) == pytest.approx(0.05, rel=1e-5)
    assert moved(0.5, 1.0, 0.2) == pytest.approx(0.05 + 0.02, rel=1e-5)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="AdamW has no option beta; it has"):
        AdamW(parameters(), streams=STREAMS, lr=0.1, beta=0.9)

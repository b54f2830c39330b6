"""PopArt: the affine scale between critic outputs and raw returns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tailwise.model.scales import ReturnScale, preserve_outputs


def seen(*batches: torch.Tensor, rate: float = 0.05, floor: float = 1e-4) -> ReturnScale:
    scale = ReturnScale(rate=rate, floor=floor)
    for batch in batches:
        scale.absorb(batch)
    return scale


def test_round_trip_raw_normalised_raw() -> None:
    """000-7: one invertible transform."""
    scale = seen(torch.tensor([10.0, 30.0, 50.0]))
    raw = torch.tensor([-7.0, 0.0, 30.0, 1234.5])
    torch.testing.assert_close(scale.to_raw(scale.to_normalised(raw)), raw, rtol=1e-6, atol=1e-5)
    assert float(scale.to_normalised(torch.tensor(30.0))) == 0.0


@pytest.mark.parametrize("factor", [1e-4, 0.5, 3.0, 1e3])
def test_rescaled_head_keeps_its_raw_outputs(factor: float) -> None:
    """Raw outputs unchanged to 1e-6 of their size. Rejects rescaling the weights alone (the bias stays; asserted)."""
    torch.manual_seed(0)
    head, x = nn.Linear(8, 5), torch.randn(20, 8)
    old_mu, old_sigma, mu, sigma = 3.0, 2.0, -40.0, 2.0 * factor
    before = old_mu + old_sigma * head(x).detach().double()
    wrong = nn.Linear(8, 5)
    wrong.load_state_dict(head.state_dict())
    preserve_outputs(head, old_mu=old_mu, old_sigma=old_sigma, mu=mu, sigma=sigma)
    after = mu + sigma * head(x).detach().double()
    size = max(float(before.abs().max()), abs(mu))
    assert float((after - before).abs().max()) <= 1e-6 * size
    with torch.no_grad():
        wrong.weight.mul_(old_sigma / sigma)
    assert float((mu + sigma * wrong(x).detach() - before).abs().max()) > 1.0


def test_first_rollout_initialises_and_later_ones_move_by_the_rate() -> None:
    """Rejects an EMA that starts at (0, 1): it would need dozens of rollouts to reach returns of 1e4."""
    first, second = torch.tensor([9_000.0, 11_000.0]), torch.tensor([19_000.0, 21_000.0])
    scale = seen(first)
    assert float(scale.mu) == 10_000.0 and float(scale.sigma) == 1_000.0
    scale.absorb(second)
    assert float(scale.mu) == pytest.approx(0.95 * 10_000 + 0.05 * 20_000)
    # Mixture of two laws: the average variance plus the variance between their means.
    assert float(scale.variance) == pytest.approx(1e6 + 0.05 * 0.95 * 1e8)


def test_only_zeros_leave_the_scale_untouched_and_raw_values_zero() -> None:
    """Before any return the prediction is exactly 0 in raw units, whatever the critic says."""
    scale = seen(torch.zeros(10))
    assert not scale.initialised
    assert torch.equal(scale.to_raw(torch.tensor([5.0, -3.0])), torch.zeros(2))
    assert torch.equal(scale.to_normalised(torch.zeros(2)), torch.zeros(2))


@pytest.mark.parametrize("value", [1e-3, 1.0, -250.0])
def test_identical_returns_use_their_size_as_scale(value: float) -> None:
    scale = seen(torch.full((10,), value))
    assert float(scale.sigma) == pytest.approx(abs(value)) and float(scale.mu) == pytest.approx(value)
    assert bool(torch.isfinite(scale.to_normalised(torch.tensor([0.0, value]))).all())


def test_tiny_variance_gives_bounded_targets() -> None:
    """003-1. The spread collapses by 1e8: the floor keeps targets bounded. Rejects dividing by the std of the day."""
    g = torch.Generator().manual_seed(0)
    scale = seen(torch.randn(512, generator=g))
    for _ in range(600):
        scale.absorb(1e-8 * torch.randn(512, generator=g))
    assert float(scale.sigma) >= 1e-4 * float(scale.peak) * 0.999
    noise = 1e-8 * torch.randn(512, generator=g)
    assert float(scale.to_normalised(noise).abs().max()) < 1e-2
    assert float((noise / noise.std()).abs().max()) > 2


def test_floor_bounds_the_target_of_a_large_return_after_a_collapse() -> None:
    """The spread collapses by 1e8, then one return is as large as before. With a floor of .1 its target is about 10 of
    the old standard deviations; rejects the fixed floor of 1e-4 (asserted: 10,000), and one that acts while the spread
    is sound (bit-identical)."""
    g = torch.Generator().manual_seed(0)
    sound = [torch.randn(512, generator=g) for _ in range(5)]
    collapsed = [1e-8 * torch.randn(512, generator=g) for _ in range(600)]
    targets = {}
    for floor in (0.1, 1e-4):
        scale = seen(*sound, *collapsed, floor=floor)
        assert float(scale.sigma) == floor * float(scale.peak)
        targets[floor] = abs(float(scale.to_normalised(torch.tensor(-1.0))))
        assert float(scale.to_normalised(collapsed[-1]).abs().max()) < 1e-3
    assert 8 < targets[0.1] < 12 and targets[1e-4] > 8_000
    high, low = seen(*sound, floor=0.1), seen(*sound)
    assert torch.equal(high.sigma, low.sigma) and torch.equal(high.mu, low.mu)


@pytest.mark.parametrize("power", [-14, 14])
def test_scale_is_equivariant_to_powers_of_two(power: int) -> None:
    """Rejects any absolute epsilon inside the transform: normalised values are then no longer bit-identical."""
    g = torch.Generator().manual_seed(0)
    batches = [torch.randn(64, generator=g) + 1 for _ in range(4)]
    plain, scaled = seen(*batches), seen(*(batch * 2.0**power for batch in batches))
    assert torch.equal(plain.to_normalised(batches[0]), scaled.to_normalised(batches[0] * 2.0**power))


def test_fixed_scale_is_the_identity() -> None:
    scale = ReturnScale(rate=None)
    scale.absorb(torch.tensor([100.0, 300.0]))
    x = torch.tensor([1.5, -2.0])
    assert scale.initialised and torch.equal(scale.to_raw(x), x) and torch.equal(scale.to_normalised(x), x)


@pytest.mark.parametrize("shape", [(), (0,), (5, 3, 2)])
def test_compiled_and_plain_units_are_the_same_bits(shape: tuple[int, ...]) -> None:
    """Also for numbers whose distance from a large mean float32 would lose; and a gradient passes."""
    scale = ReturnScale(rate=0.5)
    scale.absorb(torch.tensor([1e6, 1e6 + 0.25, 1e6 - 0.5]))
    raw = 1e6 + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    learnt = raw.clone().requires_grad_()
    plain = scale.to_normalised(learnt)
    assert torch.equal(scale.to_normalised(raw), plain.detach())
    turned = tuple(reversed(range(raw.ndim)))
    assert torch.equal(scale.to_normalised(raw.permute(turned)), plain.detach().permute(turned))
    plain.sum().backward()
    assert learnt.grad is not None and torch.equal(learnt.grad, torch.full(shape, float(1 / scale.sigma)))

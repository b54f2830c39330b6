"""Laws over actions against torch.distributions, and what masks do to them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributions as td

from tailwise.core.streams import Streams
from tailwise.model.distributions import CategoricalLaw, GaussianLaw, SquashedGaussianLaw, mask_logits
from tests.support import small_backend


def uniforms(rows: int, draws: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(Streams(seed).uniforms("test", update=0, environments=1, steps=rows, draws=draws)[:, 0])


def test_categorical_log_prob_and_entropy_equal_torch() -> None:
    law, logits = CategoricalLaw((5,)), torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    action = torch.arange(20)[:, None] % 5
    twin = td.Categorical(logits=logits)
    torch.testing.assert_close(law.log_prob(logits, action), twin.log_prob(action[:, 0]))
    torch.testing.assert_close(law.entropy(logits), twin.entropy())


def test_multidiscrete_entropy_is_the_sum_over_components_once() -> None:
    """001-5. Shape [B]. Rejects an entropy per component ([B, A]) and a sum that counts a component twice."""
    law, params = CategoricalLaw((3, 2)), torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    first, second = td.Categorical(logits=params[:, :3]), td.Categorical(logits=params[:, 3:])
    assert law.entropy(params).shape == (7,)
    torch.testing.assert_close(law.entropy(params), first.entropy() + second.entropy())
    action = torch.tensor([[2, 1]] * 7)
    torch.testing.assert_close(
        law.log_prob(params, action), first.log_prob(action[:, 0]) + second.log_prob(action[:, 1])
    )
    assert law.max_entropy == pytest.approx(math.log(6))


def test_gaussian_equals_torch() -> None:
    law, g = GaussianLaw(3), torch.Generator().manual_seed(0)
    params, action = torch.randn(9, 6, generator=g), torch.randn(9, 3, generator=g)
    twin = td.Independent(td.Normal(params[:, :3], params[:, 3:].exp()), 1)
    torch.testing.assert_close(law.log_prob(params, action), twin.log_prob(action))
    torch.testing.assert_close(law.entropy(params), twin.entropy())
    assert law.entropy(params).shape == (9,)
    assert torch.equal(law.mode(params), params[:, :3])


def test_squashed_density_equals_torch_and_integrates_to_one() -> None:
    """Rejects a density without the Jacobian: its integral over (-1, 1) is not 1 (asserted)."""
    law, params = SquashedGaussianLaw(1), torch.tensor([[0.4, -0.3]]).double()
    base = td.Normal(params[:, 0], params[:, 1].exp())
    twin = td.TransformedDistribution(base, [td.TanhTransform()])
    raw = torch.linspace(-3, 3, 50).double()[:, None]
    torch.testing.assert_close(law.log_prob(params.expand(50, 2), raw), twin.log_prob(torch.tanh(raw[:, 0])))
    y = torch.linspace(-1, 1, 20_003).double()[1:-1]
    x = torch.atanh(y)[:, None]
    density = law.log_prob(params.expand(len(y), 2), x).exp()
    assert float(torch.trapezoid(density, y)) == pytest.approx(1.0, abs=1e-3)
    plain = GaussianLaw(1).log_prob(params.expand(len(y), 2), x).exp()
    assert abs(float(torch.trapezoid(plain, y)) - 1.0) > 0.05


def test_squashed_jacobian_stays_finite_far_out() -> None:
    """Rejects ln(1 - tanh(x)^2 + eps), which is wrong from |x| = 8 on in float32 (asserted)."""
    law = SquashedGaussianLaw(1)
    for x in (-50.0, -9.0, 9.0, 50.0):
        params, raw = torch.tensor([[x, 0.0]]), torch.tensor([[x]])
        jacobian = 2 * (math.log(2) - abs(x))  # ln(1 - tanh^2) -> 2 ln 2 - 2|x|
        got = float(law.log_prob(params, raw))
        assert got == pytest.approx(-0.5 * math.log(2 * math.pi) - jacobian, rel=1e-4)
        naive = float(torch.log(1 - torch.tanh(raw) ** 2 + 1e-6))
        assert abs(naive - jacobian) > 0.5


def test_squashed_entropy_estimate_is_unbiased_and_differentiable() -> None:
    law = SquashedGaussianLaw(1)
    params = torch.tensor([[0.2, -0.5]]).repeat(40_000, 1).requires_grad_()
    entropy = law.entropy(params, uniforms(40_000, 1))
    y = torch.linspace(-1, 1, 40_003).double()[1:-1]
    logp = law.log_prob(torch.tensor([[0.2, -0.5]]).double().expand(len(y), 2), torch.atanh(y)[:, None])
    truth = float(torch.trapezoid(-logp.exp() * logp, y))
    assert float(entropy.detach().mean()) == pytest.approx(truth, abs=0.02)
    entropy.mean().backward()
    assert params.grad is not None and float(params.grad.abs().sum()) > 0
    assert float(entropy.detach().mean()) <= law.max_entropy
    with pytest.raises(ValueError, match="pass uniform"):
        law.entropy(params)


def test_sampling_follows_the_probabilities() -> None:
    law, logits = CategoricalLaw((4,)), torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    picks = law.sample(logits.expand(40_000, 4), uniforms(40_000, 1))[:, 0]
    share = np.bincount(picks.numpy(), minlength=4) / 40_000
    np.testing.assert_allclose(share, [0.1, 0.2, 0.3, 0.4], atol=0.01)
    gauss = GaussianLaw(1).sample(torch.tensor([[2.0, math.log(0.5)]]).expand(40_000, 2), uniforms(40_000, 1))
    assert float(gauss.mean()) == pytest.approx(2.0, abs=0.01) and float(gauss.std()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("level", [2.0**-53, 0.5, 1 - 2.0**-53, 1.0])
def test_masked_action_is_never_sampled(level: float) -> None:
    """Also at the ends of the unit interval. Rejects an inverse CDF that falls off its end onto a masked action."""
    law = CategoricalLaw((5,))
    g = torch.Generator().manual_seed(0)
    mask = torch.rand(200, 5, generator=g) < 0.4
    mask[torch.arange(200), torch.arange(200) % 5] = True
    params = mask_logits(3 * torch.randn(200, 5, generator=g), mask)
    action = law.sample(params, torch.full((200, 1), level, dtype=torch.float64))
    assert bool(mask.gather(-1, action).all())
    assert bool(mask.gather(-1, law.mode(params)).all())


def test_each_component_is_drawn_with_its_own_number() -> None:
    """Rejects the first number for all of them, with which components always move together."""
    uniform = torch.tensor([[0.1, 0.9], [0.9, 0.1]], dtype=torch.float64)
    assert CategoricalLaw((2, 2)).sample(torch.zeros(2, 4), uniform).tolist() == [[0, 1], [1, 0]]
    drawn = GaussianLaw(2).sample(torch.zeros(2, 4), uniform)
    torch.testing.assert_close(drawn, torch.special.ndtri(uniform).float())


def test_masked_gradient_is_finite_and_zero_on_masked_logits() -> None:
    """Rejects filling with -inf: the gradient of the entropy is NaN then (asserted)."""
    law, mask = CategoricalLaw((3,)), torch.tensor([[True, False, True]])

    def gradient(fill: float) -> torch.Tensor:
        logits = torch.tensor([[0.3, 0.7, -0.2]], requires_grad=True)
        params = torch.where(mask, logits, fill)
        log_p = torch.log_softmax(params, -1)
        naive = -(log_p.exp() * log_p).sum()
        loss = law.entropy(params).sum() + law.log_prob(params, torch.tensor([[2]])).sum() if fill > -1e39 else naive
        loss.backward()
        assert logits.grad is not None
        return logits.grad

    good = gradient(torch.finfo(torch.float32).min)
    assert bool(torch.isfinite(good).all()) and float(good[0, 1]) == 0.0 and float(good[0, 0]) != 0.0
    assert bool(gradient(-math.inf).isnan().any())
    assert float(law.entropy(mask_logits(torch.zeros(1, 3), mask))) == pytest.approx(math.log(2))


@pytest.mark.parametrize("action", ["discrete", "multidiscrete"])
def test_initial_entropy_is_nearly_uniform(action: str) -> None:
    """004-6: at least .99 ln K at the default gain .01. A gain of 5 starts far below (asserted)."""
    obs = 3 * torch.randn(200, 3, generator=torch.Generator().manual_seed(0))

    def entropy(gain: float) -> tuple[float, float]:
        model = small_backend(model={"actor": {"gain": gain}}, action=action).model
        features = model.latent(obs[None], torch.zeros(200, 0, 0), torch.zeros(1, 200).bool()).features[0]
        assert isinstance(model.law, CategoricalLaw)
        return float(model.law.entropy(model.policy(features, None)).min().detach()), model.law.max_entropy

    lowest, largest = entropy(0.01)
    assert lowest >= 0.99 * largest
    assert entropy(5.0)[0] < 0.9 * largest


def test_overshoot_is_the_squared_distance_from_the_unit_range() -> None:
    """By hand: .5^2 + 1^2; nothing inside, nothing of a law whose actions are not cut there."""
    params = torch.tensor([[1.5, -2.0, 0.0, 0.0], [1.0, -0.3, 0.0, 0.0]])
    assert GaussianLaw(2, cut=True).overshoot(params).tolist() == [1.25, 0.0]
    assert GaussianLaw(2).overshoot(params).tolist() == SquashedGaussianLaw(2).overshoot(params).tolist() == [0.0, 0.0]

"""003-C4: the factor that follows from how far microbatches agree acts on the step, after preconditioning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tailwise.core.errors import ConfigError
from tailwise.learner.optimiser_config import NoVarianceScaling, VarianceScaling
from tailwise.learner.optimisers import StepSize
from tailwise.learner.variance_scaling import (
    GradientNoise,
    NoiseAverage,
    averaged,
    from_json,
    noise_factors,
    to_json,
)
from tailwise.run.controllers import Controllers
from tests.support import knobs, play, random_world, same, small_backend, snapshot

ON = VarianceScaling(strength=1.0, low=0.1, rate=0.5)
OFF = NoVarianceScaling()


def measured(gradients: list[Tensor], *, minibatches: int = 1) -> tuple[float, float]:
    """(|g|^2, noise) of microbatches of equal size."""
    parameter = nn.Parameter(torch.zeros_like(gradients[0]))
    noise = GradientNoise({"all": [parameter]})
    parts = len(gradients) // minibatches
    for i in range(minibatches):
        for gradient in gradients[i * parts : (i + 1) * parts]:
            parameter.grad = gradient / parts
            noise.part(1 / parts)
        noise.complete(rows=100)
        assert parameter.grad is not None
        mean = torch.stack(gradients[i * parts : (i + 1) * parts]).mean(0)
        torch.testing.assert_close(parameter.grad, mean, rtol=1e-5, atol=1e-6)
    return noise.measured()["all"]


def factor_after(gradients: list[Tensor], **options: Any) -> float:
    config = ON.model_copy(update=options)
    return noise_factors(config, averaged(config, {}, {"all": measured(gradients)}))["all"]


def test_a_constant_gradient_gives_one_and_pure_noise_the_bound() -> None:
    """Also of a thousandth and a thousand times the size: it is a ratio."""
    g = torch.Generator().manual_seed(0)
    for size in (1e-3, 1.0, 1e3):
        constant = [size * torch.full((50, 40), 0.3)] * 4
        assert factor_after(constant) == pytest.approx(1.0, abs=1e-6)
        noise = [size * torch.randn(50, 40, generator=g) for _ in range(4)]
        assert factor_after(noise) == 0.1
        assert factor_after(noise, low=0.02, strength=10.0) == 0.02


def test_noise_and_signal_are_unbiased() -> None:
    """Gradients m + e with |m|^2 = 1 and E|e|^2 = 4, K = 4: the mean has squared error 1, so n = 1 and the factor 1/2.
    Rejects the variance with K instead of K-1 (n = .75 of it) and |g|^2 taken as the signal (n = 1/2)."""
    g = torch.Generator().manual_seed(1)
    size = 4000
    mean = torch.full((size,), size**-0.5)
    gradients = [mean + 2 * size**-0.5 * torch.randn(size, generator=g) for _ in range(4 * 50)]
    square, noise = measured(gradients, minibatches=50)
    assert noise == pytest.approx(1.0, rel=0.02) and square == pytest.approx(2.0, rel=0.02)
    assert noise_factors(ON, averaged(ON, {}, {"all": (square, noise)}))["all"] == pytest.approx(0.5, rel=0.03)


def test_microbatches_of_different_sizes_weigh_by_their_rows() -> None:
    """Shares 3/4 and 1/4 of gradients 1 and 5: mean 2, variance 2 (3/4 x 1 + 1/4 x 9 - 0 = 3, doubled for K - 1 = 1,
    over K = 2: noise 3)."""
    parameter = nn.Parameter(torch.zeros(1))
    noise = GradientNoise({"all": [parameter]})
    for share, value in ((0.75, 1.0), (0.25, 5.0)):
        parameter.grad = torch.tensor([share * value])
        noise.part(share)
    noise.complete(rows=8)
    assert parameter.grad is not None and parameter.grad.tolist() == [2.0]
    assert noise.measured()["all"] == pytest.approx((4.0, 3.0))
    assert noise.metrics()["grad/noise_scale"] == pytest.approx(8 * 3.0 / 1.0)


def test_one_microbatch_alone_shows_nothing() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    noise = GradientNoise({"all": [parameter]})
    parameter.grad = torch.ones(1)
    noise.part(1.0)
    noise.complete(rows=8)
    assert noise.measured() == {} and noise.metrics() == {}


def test_numerator_and_denominator_are_averaged_and_not_their_ratio() -> None:
    """Noise 1, 3 and signal 1, 0: averages 2 and 1/2, so n = 4. The mean of ratios would be infinite."""
    first = averaged(ON, {}, {"actor": (2.0, 1.0)})
    assert first["actor"] == NoiseAverage(1.0, 1.0)
    second = averaged(ON, first, {"actor": (1.0, 3.0)})
    assert second["actor"] == NoiseAverage(2.0, 0.5) and second["actor"].ratio == 4.0
    assert noise_factors(ON, second)["actor"] == pytest.approx(0.2)
    assert averaged(ON, second, {}) == second  # nothing was measured
    assert NoiseAverage(0.0, 0.0).ratio == 0.0
    assert averaged(OFF, {}, {"actor": (2.0, 1.0)}) == {} and noise_factors(OFF, second) == {}


def test_state_survives_a_checkpoint_and_goes_back_with_a_roll_back() -> None:
    averages = {"actor": NoiseAverage(2.0, 0.5), "critic_0": NoiseAverage(1e-9, 1e-12)}
    assert from_json(to_json(averages)) == averages
    controllers = Controllers(gradient_noise=dict(averages))
    other = Controllers()
    other.load({**controllers.to_json()})
    assert other.gradient_noise == averages
    other.restore(Controllers().to_json())
    assert other.gradient_noise == {}


@pytest.mark.parametrize("kind", ["adam", "adamw", "upgd", "ada_upgd"])
def test_the_real_step_under_adam_is_shorter_by_the_factor(kind: str) -> None:
    """A whole update with one step: half the factor, half the way of that group, and the same way of the others.
    Rejects a factor on the gradient: Adam takes the same step (asserted), and clipping would undo it as well."""
    optimiser: dict[str, Any] = {"kind": kind}
    if kind in ("adamw", "ada_upgd"):
        optimiser["weight_decay"] = 0.0
    if "upgd" in kind:
        optimiser["noise"] = 0.0
    moved = {}
    for name, factors in {"whole": {}, "half": {"actor": 0.5}}.items():
        backend = small_backend(learner={"epochs": 1, "minibatches": 1, "optimiser": optimiser})
        before = {p: p.detach().clone() for p in backend.model.parameters()}
        step = StepSize(1e-3, 1.0, 1.0, 1.0, factors)
        plain = knobs()
        given = type(plain)(step, plain.entropy_weight)
        assert backend.update(play(backend, random_world()), given).committed
        moved[name] = {
            group: torch.cat([(p.detach() - before[p]).reshape(-1) for p in members])
            for group, members in backend.model.groups().items()
        }
    for group, whole in moved["whole"].items():
        factor = 0.5 if group == "actor" else 1.0
        torch.testing.assert_close(moved["half"][group], factor * whole, rtol=1e-3, atol=3e-7)
    p = torch.ones(3, requires_grad=True)
    steps = []
    for scale in (1.0, 0.5):
        adam = torch.optim.Adam([p], lr=0.1)
        start = p.detach().clone()
        p.grad = torch.full((3,), scale)
        adam.step()
        steps.append(float((start - p.detach())[0]))
    assert steps[1] == pytest.approx(steps[0], rel=1e-5)


def test_an_update_measures_and_the_next_one_is_scaled() -> None:
    """Through the learner: microbatches of a real rollout, averages in the controllers, factors in the next knobs."""
    options = {"microbatches": 2, "variance_scaling": {"kind": "on", "low": 0.01}}
    backend = small_backend(learner=options)
    controllers = Controllers()
    factors: list[dict[str, float]] = []
    scales: list[float | None] = []
    for update in range(3):
        given = controllers.knobs(
            backend.config, None, None, update=update, steps=0, total_steps=100, measure_terms=False
        )
        factors.append(dict(given.step_size.noise_factor))
        report = backend.update(play(backend, random_world(seed=update), update=update), given)
        controllers.adapt(backend.config, report, update=update + 1, noise=1, prior=None)
        scales.append(report.metrics.get("grad/noise_scale"))  # none where noise hid the signal
        assert report.committed
    assert any(scale is not None and scale > 0 for scale in scales)
    assert factors[0] == {} and set(factors[1]) == set(backend.model.groups())
    assert all(0.01 <= value < 1 for value in factors[1].values()) and factors[2] != factors[1]


def test_measuring_alone_changes_nothing() -> None:
    """strength 0: gradients of microbatches are summed as before, to the last bit."""
    plain = small_backend(learner={"microbatches": 2})
    measuring = small_backend(learner={"microbatches": 2, "variance_scaling": {"kind": "on", "strength": 0.0}})
    for backend in (plain, measuring):
        assert backend.update(play(backend, random_world()), knobs()).committed
    assert same(snapshot(plain), snapshot(measuring))


def test_one_microbatch_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"set learner\.microbatches to 2 or more"):
        small_backend(learner={"variance_scaling": {"kind": "on"}})

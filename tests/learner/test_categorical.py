"""C51 projection and its cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.critic_losses import cross_entropy, out_of_support_fraction, project

ATOMS = torch.linspace(-1, 1, 5, dtype=torch.float64)


def project_by_definition(values: Tensor, weights: Tensor, atoms: Tensor) -> Tensor:
    """m_i = sum_j clip(1 - |clip(y_j) - z_i| / dz, 0, 1) p_j, with all pairs written out."""
    gap = atoms[1] - atoms[0]
    clipped = values.clamp(float(atoms[0]), float(atoms[-1]))
    share = (1 - (clipped[..., None, :] - atoms[:, None]).abs() / gap).clamp(0, 1)
    return (share * weights[..., None, :]).sum(-1)


def floor_and_ceil_projection(values: Tensor, weights: Tensor, atoms: Tensor) -> Tensor:
    """WRONG: the well-known slip, weight (u - b) and (b - l) with l == u on an atom, which loses the whole mass."""
    b = (values.clamp(float(atoms[0]), float(atoms[-1])) - atoms[0]) / (atoms[1] - atoms[0])
    low, high = b.floor().long(), b.ceil().long()
    result = torch.zeros(*values.shape[:-1], atoms.shape[0], dtype=values.dtype)
    return result.scatter_add(-1, low, weights * (high - b)).scatter_add(-1, high, weights * (b - low))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_golden_bellman_projection(dtype: torch.dtype) -> None:
    """FORMULAS 2: r = .3, gamma = .9, uniform p: [.04, .22, .22, .22, .30]; terminal: [0, 0, .4, .6, 0]."""
    atoms = ATOMS.to(dtype)
    uniform = torch.full((5,), 0.2, dtype=dtype)
    result = project(0.3 + 0.9 * atoms, uniform, atoms)
    assert result.dtype == dtype
    assert result.tolist() == pytest.approx([0.04, 0.22, 0.22, 0.22, 0.30], abs=1e-6)
    terminal = project(0.3 + 0.0 * atoms, uniform, atoms)
    assert terminal.tolist() == pytest.approx([0, 0, 0.4, 0.6, 0], abs=1e-6)


def test_a_value_on_an_atom_keeps_its_mass() -> None:
    """Rejects the floor/ceil form without its correction (included)."""
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    torch.testing.assert_close(project(ATOMS, weights, ATOMS), weights)
    assert float(floor_and_ceil_projection(ATOMS, weights, ATOMS).sum()) < 0.5


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 5.0]), count=st.integers(2, 21))
def test_projection_equals_its_definition_and_keeps_mass_and_mean(seed: int, scale: float, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.linspace(-2, 3, count, dtype=torch.float64)
    values = scale * torch.randn(4, 7, generator=generator, dtype=torch.float64)
    weights = torch.softmax(torch.randn(4, 7, generator=generator, dtype=torch.float64), -1)
    result = project(values, weights, atoms)
    torch.testing.assert_close(result, project_by_definition(values, weights, atoms), rtol=0, atol=1e-12)
    torch.testing.assert_close(result.sum(-1), torch.ones(4, dtype=torch.float64))
    mean = (values.clamp(-2, 3) * weights).sum(-1)
    torch.testing.assert_close((result * atoms).sum(-1), mean, rtol=0, atol=1e-12)


def test_no_weights_means_equal_weights() -> None:
    values = torch.tensor([[0.1, 5.0, -0.7]], dtype=torch.float64)
    torch.testing.assert_close(project(values, None, ATOMS), project(values, torch.full((1, 3), 1 / 3).double(), ATOMS))


def test_projection_is_differentiable_in_values_and_weights() -> None:
    """The value clip sends gradients through it. Rejects a projection with detached fractions."""
    values = torch.tensor([[0.1, -0.33, 0.72]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, w: project(v, w, ATOMS), (values, weights))


def test_nan_stays_in_its_own_row() -> None:
    """Rejects an index made of NaN, which is out of range or writes into another row."""
    values = torch.tensor([[0.3, math.nan], [0.3, 0.3]], dtype=torch.float64)
    result = project(values, None, ATOMS)
    assert bool(torch.isnan(result[0]).any())
    assert result[1].tolist() == pytest.approx([0, 0, 0.4, 0.6, 0])


def test_out_of_support_values_are_counted() -> None:
    """The edges belong to the support; NaN does not."""
    values = torch.tensor([[-1.0, 1.0, 0.0, -1.1], [1.1, math.nan, 0.5, 0.5]])
    assert float(out_of_support_fraction(values, ATOMS)) == pytest.approx(3 / 8)


@pytest.mark.parametrize("count", [2, 5, 51, 64])
def test_a_uniform_prediction_costs_exactly_one(count: int) -> None:
    """Rejects the plain cross-entropy, whose size depends on the number of atoms."""
    target = torch.softmax(torch.randn(3, count, generator=torch.Generator().manual_seed(0)), -1)
    logits = torch.full((3, count), 7.0)
    assert cross_entropy(logits, target).tolist() == pytest.approx([1.0] * 3, abs=1e-6)
    plain = -(target * torch.log_softmax(logits, -1)).sum(-1)
    assert abs(float(plain[0]) - 1) > 0.2


def test_cross_entropy_is_least_at_the_target_and_gives_it_no_gradient() -> None:
    """The gradient of the logits is (softmax - target) / log N."""
    target = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64, requires_grad=True)
    logits = torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    cross_entropy(logits, target).backward()
    assert target.grad is None
    expected = (torch.softmax(logits, -1) - target).detach() / math.log(3)
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("atoms", [[0.0, 1.0, 3.0], [1.0, 0.0, -1.0], [0.0, 0.0, 0.0], [1.0]])
def test_uneven_atoms_are_refused(atoms: list[float]) -> None:
    """The projection divides by one gap; on uneven atoms it would be silently wrong."""
    with pytest.raises(ConfigError, match="atoms"):
        project(torch.zeros(2), None, torch.tensor(atoms))


def test_atoms_of_normal_rounding_are_accepted() -> None:
    """A float32 linspace far from zero has gaps that differ by rounding."""
    atoms = torch.linspace(1000.0, 1010.0, 51)
    assert float(project(torch.tensor([1005.0]), None, atoms).sum()) == pytest.approx(1.0)

"""Advantage normalisation and the seam for risk."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.learner.losses import policy_loss_terms
from tailwise.learner.returns import NormaliseMode, mix_advantages, normalise


def everything(adv: Tensor) -> Tensor:
    return torch.ones_like(adv, dtype=torch.bool)


def with_epsilon(adv: Tensor) -> Tensor:
    """WRONG: the usual (A - mean) / (std + 1e-8), here in float32."""
    return (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_zero_and_std_one_over_valid_rows(dtype: torch.dtype) -> None:
    """Rejects statistics that include invalid rows, and the unbiased std."""
    adv = torch.tensor([[1.0, 999.0], [3.0, 5.0], [7.0, -999.0]], dtype=dtype)
    valid = torch.tensor([[True, False], [True, True], [True, False]])
    result, report = normalise(adv, valid, mode="global")
    # Valid: 1, 3, 5, 7: mean 4, population std sqrt(5).
    root = math.sqrt(5)
    assert result.dtype == dtype
    assert result[valid].tolist() == pytest.approx([-3 / root, -1 / root, 1 / root, 3 / root])
    assert result[~valid].tolist() == [0.0, 0.0]
    assert (report.mean, report.minimum, report.maximum, report.count) == (4.0, 1.0, 7.0, 4)
    assert report.std == pytest.approx(root)
    assert (report.groups, report.no_signal, report.non_finite) == (1, 0, 0)


def test_per_env_normalises_each_environment_on_its_own() -> None:
    """Rejects global statistics: a loud environment would silence a quiet one."""
    adv = torch.tensor([[1.0, 1000.0, 5.0], [3.0, 3000.0, 5.0]])
    result, report = normalise(adv, everything(adv), mode="per_env")
    assert result.tolist() == [[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]
    assert (report.groups, report.no_signal) == (3, 1)
    together, _ = normalise(adv, everything(adv), mode="global")
    assert float(together[:, 0].std()) < 0.01
    # An environment without any valid row is neither a group nor a warning.
    valid = torch.tensor([[True, False, True], [True, False, True]])
    result, report = normalise(adv, valid, mode="per_env")
    assert result[:, 1].tolist() == [0.0, 0.0]
    assert (report.groups, report.no_signal, report.count) == (2, 1, 4)


@pytest.mark.parametrize("mode", ["global", "per_env"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.1, -37.123, 1e4 + 0.1, 0.0, 1e-30])
def test_constants_and_single_samples_become_exactly_zero(
    constant: float, dtype: torch.dtype, mode: NormaliseMode
) -> None:
    """Ledger 001-2, 004-8. Rejects an absolute epsilon: rounding of 1e4 + .1 in float32 comes out as signal."""
    for shape in ((128, 8), (37, 3), (1, 1)):
        adv = torch.full(shape, constant, dtype=dtype)
        result, report = normalise(adv, everything(adv), mode=mode)
        assert bool((result == 0.0).all())
        assert report.no_signal == report.groups == (shape[1] if mode == "per_env" else 1)


@pytest.mark.parametrize(("relative", "no_signal"), [(1e-12, 1), (1e-8, 1), (1e-4, 0)])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_the_floor_is_relative_to_the_size_of_the_advantages(size: float, relative: float, no_signal: int) -> None:
    """A constant with rounding noise carries no signal at any size. Rejects std == 0 as the test, absolute floors."""
    noise = torch.randn(32, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    adv = size * (1 + relative * noise)
    result, report = normalise(adv, everything(adv), mode="global")
    assert report.no_signal == no_signal
    assert float(result.std(correction=0)) == pytest.approx(1.0 - no_signal)
    assert bool((result == 0.0).all()) == bool(no_signal)


def test_the_additive_epsilon_is_rejected_by_the_same_checks() -> None:
    """The wrong implementation is not exactly 0 on a constant, and kills small-scale rewards."""
    assert float(with_epsilon(torch.full((37, 3), 1e4 + 0.1)).abs().max()) > 1e-3
    tiny = 1e-9 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    assert float(with_epsilon(tiny).std(correction=0)) < 0.2
    result, _ = normalise(tiny, everything(tiny), mode="global")
    assert float(result.std(correction=0)) == pytest.approx(1.0, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-200, 1e-12, 1e-4, 1e4, 1e12, 1e200]),
    mode=st.sampled_from(["global", "per_env"]),
)
def test_the_result_does_not_depend_on_the_scale_of_rewards(seed: int, scale: float, mode: NormaliseMode) -> None:
    """Ledger 004-1. Rejects additive epsilons and squares that overflow or vanish."""
    adv = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plain, _ = normalise(adv, everything(adv), mode=mode)
    scaled, report = normalise(scale * adv, everything(adv), mode=mode)
    torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-10)
    assert report.no_signal == 0


def test_nan_in_invalid_rows_does_not_leak_and_in_valid_rows_does_not_hide() -> None:
    """Rejects adv * valid: 0 * NaN is NaN."""
    adv = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    valid = everything(adv)
    valid[2] = False
    clean, _ = normalise(adv, valid, mode="global")
    adv[2] = torch.tensor([math.nan, math.inf])
    dirty, report = normalise(adv, valid, mode="global")
    assert torch.equal(clean, dirty)
    assert report.non_finite == 0
    adv[3, 0] = math.nan
    per_env, report = normalise(adv, valid, mode="per_env")
    assert bool(torch.isnan(per_env[valid[:, 0], 0]).all())
    assert bool(torch.isfinite(per_env[:, 1]).all())
    assert report.non_finite == 1


def test_no_valid_row_at_all_is_reported_as_such() -> None:
    adv = torch.full((3, 2), math.nan)
    result, report = normalise(adv, torch.zeros(3, 2, dtype=torch.bool), mode="global")
    assert bool((result == 0.0).all())
    assert (report.mean, report.std, report.count, report.groups, report.no_signal) == (None, None, 0, 0, 0)


def test_the_gradient_does_not_depend_on_the_microbatch_split() -> None:
    """Ledger 000-F3: 1 x 64 equals 4 x 16. Rejects normalising inside each microbatch (included)."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(16, 4, generator=generator, dtype=torch.float64).cumsum(0)
    features = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    old = torch.zeros(64, dtype=torch.float64)
    normal, _ = normalise(raw, everything(raw), mode="global")

    def gradient(advantage: Tensor, parts: int, again: bool) -> Tensor:
        weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        for rows in torch.arange(64).chunk(parts):
            part = advantage[rows]
            if again:
                part = normalise(part[:, None], everything(part[:, None]), mode="global")[0][:, 0]
            terms = policy_loss_terms(features[rows] @ weight, old[rows], part, clip=0.2, dual_clip=3.0)
            (terms.loss.mean() * (len(rows) / 64)).backward()
        assert weight.grad is not None
        return weight.grad

    torch.testing.assert_close(gradient(normal.flatten(), 4, False), gradient(normal.flatten(), 1, False))
    assert not torch.allclose(gradient(raw.flatten(), 4, True), gradient(raw.flatten(), 1, True), rtol=1e-2)


def test_the_mixture_of_mean_and_risk() -> None:
    """(A_mean + mult A_risk) / (1 + mult). Rejects the sum, whose size grows with the multiplier."""
    mean, risk = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, -4.0]])
    assert mix_advantages(mean, risk, multiplier=3.0).tolist() == [[(1 + 12) / 4, (2 - 12) / 4]]
    assert float(mix_advantages(mean, risk, multiplier=1e9).abs().max()) == pytest.approx(4.0)
    assert torch.equal(mix_advantages(mean, None, multiplier=0.0), mean)
    assert torch.equal(mix_advantages(mean, risk * math.nan, multiplier=0.0), mean)


def test_bad_input_is_a_sentence() -> None:
    adv = torch.zeros(2, 2)
    with pytest.raises(ConfigError, match="no risk advantages"):
        mix_advantages(adv, None, multiplier=0.5)
    with pytest.raises(ConfigError, match=r"multiplier is -1\.0"):
        mix_advantages(adv, adv, multiplier=-1.0)
    with pytest.raises(ShapeError, match="risk advantages"):
        mix_advantages(adv, adv[:1], multiplier=0.5)
    with pytest.raises(ConfigError, match="'batch'"):
        normalise(adv, everything(adv), mode="batch")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="valid has shape"):
        normalise(adv, everything(adv)[:1], mode="global")
    with pytest.raises(ShapeError, match="expected \\[T, B\\]"):
        normalise(adv[0], everything(adv[0]), mode="global")

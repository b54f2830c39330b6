"""Running standardisation of observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailwise.model.scales import ObservationNormaliser


def normaliser(size: int = 2, clip: float | None = 10.0) -> ObservationNormaliser:
    return ObservationNormaliser(torch.ones(size, dtype=torch.bool), clip=clip)


def test_merged_moments_are_those_of_all_rows_together() -> None:
    """Rejects averaging the batches' variances (asserted to differ): it forgets the spread between batch means."""
    g = np.random.default_rng(0)
    batches = [g.normal(loc, 2.0, (n, 2)) for loc, n in ((0, 50), (5, 10), (-3, 200))]
    merged = normaliser()
    for batch in batches:
        merged.absorb(torch.from_numpy(batch))
    everything = np.concatenate(batches)
    np.testing.assert_allclose(merged.mean.numpy(), everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(merged.variance.numpy(), everything.var(0), rtol=1e-12)
    averaged = sum(batch.var(0) * len(batch) for batch in batches) / len(everything)
    assert np.abs(averaged / everything.var(0) - 1).min() > 0.2
    assert float(merged.count) == 260 and int(merged.version) == 3


def test_statistics_are_float64_so_that_prices_keep_their_digits() -> None:
    """Rejects float32 statistics: E[x^2] - E[x]^2 of prices near 1e5 with a spread of .01 has no digit left."""
    prices = 1e5 + 0.01 * np.random.default_rng(0).standard_normal((4000, 1))
    kept = normaliser(1)
    kept.absorb(torch.from_numpy(prices))
    assert float(kept.variance) == pytest.approx(1e-4, rel=0.1)
    single = torch.from_numpy(prices.astype(np.float32))
    wrong = float((single**2).mean() - single.mean() ** 2)
    assert abs(wrong / 1e-4 - 1) > 0.5


def test_one_hots_pass_unchanged_and_boxes_are_standardised_and_clipped() -> None:
    mixed = ObservationNormaliser(torch.tensor([True, False]), clip=3.0)
    mixed.absorb(torch.tensor([[0.0, 1.0], [4.0, 0.0]], dtype=torch.float64))  # mean 2, std 2
    got = mixed(torch.tensor([[4.0, 1.0], [100.0, 1.0], [-100.0, 0.0]]))
    assert torch.equal(got, torch.tensor([[1.0, 1.0], [3.0, 1.0], [-3.0, 0.0]]))


def test_none_passes_everything_and_learns_nothing() -> None:
    off = normaliser(clip=None)
    x = torch.tensor([[1e9, -5.0]])
    assert off.absorb(x).outliers == 0.0 and torch.equal(off(x), x) and int(off.version) == 0


@pytest.mark.parametrize("value", [0.0, 0.1, -37.123, 1e5])
def test_constant_feature_becomes_zero(value: float) -> None:
    """Rejects (x - mean) / (std + eps), which turns the rounding of a constant into +-10."""
    constant = normaliser(1)
    for _ in range(3):
        constant.absorb(torch.full((7, 1), value))
    assert float(constant(torch.tensor([[value]]))) == 0.0
    noisy = torch.tensor([[np.nextafter(np.float32(value), np.float32(np.inf))]])
    assert abs(float(constant(noisy))) < 1e-3


@pytest.mark.parametrize("value", [1e12, -1e12])
def test_one_wild_entry_does_not_blind_the_statistics(value: float) -> None:
    """A single one after the first rollout: drawn in and counted. Rejects absorbing it as it is, on either side."""
    steady = torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    careful = normaliser(1)
    careful.absorb(steady)
    wild = steady.clone()
    wild[3] = value
    share = careful.absorb(wild).outliers
    assert share == pytest.approx(1 / 500)
    assert float(careful.variance) < 20
    assert abs(float(careful(torch.tensor([[1.0]])))) > 0.2
    naive = torch.cat([steady, wild]).double()
    assert float(naive.var()) > 1e20


def test_wild_entry_in_the_very_first_rollout_does_not_blind_the_statistics() -> None:
    """Nothing is known before the first rollout, so its own bulk has to tell what is wild."""
    wild = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    wild[3, 0] = 1e12
    first = normaliser(2)
    share = first.absorb(wild).outliers
    assert share > 0
    assert float(first.variance[0]) < 100
    assert abs(float(first(torch.tensor([[1.0, 0.0]]))[0, 0])) > 0.1


def test_rare_flags_in_the_first_rollout_are_no_outliers() -> None:
    """A Box entry that is 0 nearly always and 1 in 1% of rows keeps its true moments."""
    flags = torch.zeros(1000, 1)
    flags[:10] = 1.0
    kept = normaliser(1)
    assert kept.absorb(flags).outliers == 0.0
    assert float(kept.mean) == pytest.approx(0.01) and float(kept.variance) == pytest.approx(0.0099)


def test_true_change_of_scale_arrives() -> None:
    """Rejects a clamp that freezes the statistics for ever: after observations x 1e4 the scale follows."""
    g = torch.Generator().manual_seed(0)
    follows = normaliser(1)
    follows.absorb(torch.randn(256, 1, generator=g))
    for _ in range(40):
        follows.absorb(1e4 * torch.randn(256, 1, generator=g))
    assert float(follows.variance.sqrt()) > 5e3


def test_a_jump_of_all_rows_moves_the_mean_by_100_standard_deviations_at_most() -> None:
    """Rejects the whole jump at once: with it the variance is that of the jump, and nothing else is left to see."""
    g = torch.Generator().manual_seed(0)
    follows = normaliser(1)
    follows.absorb(torch.randn(256, 1, generator=g))
    mean, deviation = float(follows.mean), float(follows.variance.sqrt())
    follows.absorb(1e6 + torch.randn(256, 1, generator=g))
    assert float(follows.mean) == pytest.approx(mean + 100 * deviation / 2)
    assert float(follows.variance.sqrt()) == pytest.approx(100 * deviation / 2, rel=1e-3)


def test_empty_batch_changes_nothing() -> None:
    still = normaliser()
    assert still.absorb(torch.zeros(0, 2)).outliers == 0.0
    assert int(still.version) == 0 and float(still.count) == 0.0


def test_only_entries_are_drawn_in_and_not_the_bounds_of_their_moments() -> None:
    """Bounds of moments are wider than the entries: one at 90 standard deviations stays, one at 110 is drawn in.
    Rejects taking the bounds themselves for the extremes."""
    g = torch.Generator().manual_seed(0)
    for far, drawn_in in ((90.0, 0.0), (110.0, 1 / 300)):
        kept = normaliser(1)
        kept.absorb(torch.randn(3000, 1, generator=g))
        batch = torch.randn(300, 1, generator=g)
        batch[7] = kept.mean + far * kept.variance.sqrt()
        assert kept.absorb(batch).outliers == pytest.approx(drawn_in)


def spread_against_clean(rows: torch.Tensor, wild: torch.Tensor, *, before: torch.Tensor | None = None) -> float:
    """Standard deviation known after `wild`, over the one known after `rows`; both after `before`, if given."""
    known = []
    for batch in (rows, wild):
        kept = normaliser(1)
        if before is not None:
            kept.absorb(before)
        kept.absorb(batch)
        known.append(float(kept.variance.sqrt()))
    return known[1] / known[0]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("count", "most"), [(256, 1.2), (7680, 1.01)])
def test_one_observation_of_a_million_hardly_moves_the_scale(count: int, most: float, later: bool) -> None:
    """In the first rollout or after it. Rejects drawing it in to 100 standard deviations (asserted): among 256 rows
    that alone makes the scale six times as wide, among 7,680 by half."""
    g = torch.Generator().manual_seed(0)
    rows, before = torch.randn(count, 1, generator=g), torch.randn(count, 1, generator=g) if later else None
    wild = rows.clone()
    wild[7] = 1e6
    assert 1.0 <= spread_against_clean(rows, wild, before=before) < most
    old = rows.clone()
    old[7] = 100.0
    assert float(old.std() / rows.std()) > 1 + 5 * (most - 1)


def test_rare_flag_survives_a_wild_entry_in_the_first_rollout() -> None:
    """A flag in .3% of the rows has a constant bulk. Rejects taking everything for plausible there (asserted): the flag
    would be 1/11,000 of a standard deviation, invisible for good."""
    flags = torch.zeros(7680, 1)
    flags[::333] = 1.0
    wild = flags.clone()
    wild[5] = 1e6
    kept = normaliser(1)
    assert kept.absorb(wild).outliers == pytest.approx(1 / 7680)
    on, off = kept(torch.tensor([[1.0], [0.0]]))[:, 0].tolist()
    assert on - off > 8  # the ordinary scale of such a flag is 18
    assert 1.0 / float(wild.double().std()) < 1e-4


@pytest.mark.parametrize("first", [0.0, 0.1, -3.0])
def test_wild_entry_in_a_constant_column_does_not_hide_what_comes_later(first: float) -> None:
    """A column that never moved has no scale to judge by: the single entry that differs is judged by the size of the
    constant, and left out. Later the column begins to vary by 1. Rejects absorbing it."""
    g = torch.Generator().manual_seed(0)
    for rollouts_before in (0, 1, 5):
        kept = normaliser(1)
        for _ in range(rollouts_before):
            kept.absorb(torch.full((256, 1), first))
        wild = torch.full((256, 1), first)
        wild[9] = 1e6
        assert kept.absorb(wild).outliers == pytest.approx(1 / 256)
        assert float(kept(torch.tensor([[first]]))) == 0.0
        for _ in range(10):
            kept.absorb(first + torch.randn(256, 1, generator=g))
        assert abs(float(kept(torch.tensor([[first + 1.0]])))) > 0.8


def test_single_flag_in_a_constant_column_is_kept() -> None:
    """Rejects leaving out whatever is single: a flag that is up once in the first rollout is no outlier."""
    flags = torch.zeros(1000, 1)
    flags[4] = 1.0
    kept = normaliser(1)
    assert kept.absorb(flags).outliers == 0.0
    assert float(kept.mean) == pytest.approx(1e-3)


def test_wild_entry_in_every_rollout_does_not_let_the_scale_run_away() -> None:
    """Rejects drawing in to 100 known standard deviations: one in 256 rows multiplies the scale with every rollout."""
    g = torch.Generator().manual_seed(0)
    kept = normaliser(1)
    for _ in range(100):
        rows = torch.randn(256, 1, generator=g)
        rows[int(torch.randint(256, (), generator=g))] = 1e6
        kept.absorb(rows)
    assert 0.9 < float(kept.variance.sqrt()) < 1.3


@pytest.mark.parametrize("factor", [30.0, 1e3, 1e6])
@pytest.mark.parametrize("history", [1, 20])
def test_true_change_of_scale_is_followed_within_ten_rollouts(factor: float, history: int) -> None:
    """Rejects drawing in every entry beyond 100 standard deviations to 10: a change of scale would take hundreds."""
    g = torch.Generator().manual_seed(0)
    kept = normaliser(1)
    for _ in range(history):
        kept.absorb(torch.randn(256, 1, generator=g))
    shares = [kept.absorb(factor * torch.randn(256, 1, generator=g)).outliers for _ in range(10)]
    assert float(kept.variance.sqrt()) > 0.25 * factor
    assert shares[0] > 0.3 or factor == 30.0  # and the alert fires
    assert shares[-1] == 0.0


def test_change_of_level_is_followed() -> None:
    """A column that moves from 0 +- 1 to 1e4 +- 1. Rejects taking the new level for outliers."""
    g = torch.Generator().manual_seed(0)
    kept = normaliser(1)
    kept.absorb(torch.randn(256, 1, generator=g))
    for _ in range(10):
        kept.absorb(1e4 + torch.randn(256, 1, generator=g))
    assert float(kept.mean) > 5e3  # the first steps towards it are bounded; without a bound it would be 9,091
    assert abs(float(kept(torch.tensor([[1e4]])))) < 1.0


def test_moments_without_outliers_are_returned_for_those_who_compare_rollouts() -> None:
    """Rejects handing on the raw moments: the watch for drift would be blind for hundreds of rollouts."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(512, 2, generator=g)
    kept = normaliser(2)
    clean = kept.absorb(rows).moments
    rows[3, 1] = 1e6
    moments = kept.absorb(rows).moments
    assert moments.mean[0] == clean.mean[0] and moments.variance[0] == clean.variance[0]
    assert moments.variance[1] == pytest.approx(clean.variance[1], rel=0.25)
    assert moments.count == 512 and moments.high[1] < 200

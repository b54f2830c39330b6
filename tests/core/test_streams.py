"""A draw is a function of (seed, name, update, epoch, environment, step, draw) and of nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.core.streams import Streams

MASK = (1 << 64) - 1


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 as in Salmon et al. 2011: ten rounds of two wide products, round keys of Weyl sequences."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 1 << 64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def key_by_hand(seed: int, purpose: str, name: str) -> list[int]:
    text = f"{len(str(seed))}:{seed}{len(purpose)}:{purpose}{len(name)}:{name}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")]


def uniform_by_hand(seed: int, name: str, *, update: int, epoch: int, env: int, step: int, draw: int) -> float:
    counter = [(draw // 4) * 2**40 + step, epoch, env, update]
    word = philox_by_hand(counter, key_by_hand(seed, "draws", name))[draw % 4]
    return ((word >> 12) + 0.5) / 2**52


def short_uniform_by_hand(seed: int, name: str, *, update: int, epoch: int, env: int, step: int, draw: int) -> float:
    counter = [(draw // 16) * 2**40 + step, epoch, env, update]
    words = philox_by_hand(counter, key_by_hand(seed, "draws", name))
    word, quarter = divmod(draw % 16, 4)
    own, shared = words[word] >> 16 * quarter & 0xFFFF, words[(word + 1) % 4] >> 32
    return (own * 2**32 + shared + 0.5) / 2**48


def test_the_cipher_written_by_hand_gives_the_published_answers() -> None:
    """The known answers of the Random123 distribution for philox4x64-10; without them the next test proves little."""
    assert philox_by_hand([0] * 4, [0] * 2) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]
    assert philox_by_hand([MASK] * 4, [MASK] * 2) == [
        0x87B092C3013FE90B,
        0x438C3C67BE8D0224,
        0x9CC7D7C69CD777B6,
        0xA09CAEBF594F0BA0,
    ]


@pytest.mark.parametrize(
    ("update", "epoch", "first_step"), [(0, 0, 0), (0, 0, 1), (7, 0, 0), (0, 3, 0), (5, 2, 9), (1, 0, 127)]
)
def test_every_draw_equals_its_address_computed_one_by_one(update: int, epoch: int, first_step: int) -> None:
    """Rejects a counter that ignores numpy's increment before the first block (off by one step everywhere), and one
    whose borrow at step 0 is lost (first block of epoch, environment or update > 0 wrong)."""
    drawn = Streams(11).uniforms(
        "action", update=update, environments=3, steps=4, draws=6, epoch=epoch, first_step=first_step
    )
    expected = [
        [
            [
                uniform_by_hand(11, "action", update=update, epoch=epoch, env=env, step=first_step + step, draw=draw)
                for draw in range(6)
            ]
            for env in range(3)
        ]
        for step in range(4)
    ]
    assert drawn.tolist() == expected
    off_by_one = uniform_by_hand(11, "action", update=update, epoch=epoch, env=0, step=first_step + 1, draw=0)
    assert drawn[0, 0, 0] != off_by_one


def test_every_short_draw_equals_its_address_computed_one_by_one() -> None:
    """Rejects quarters of a word in another order, and low bits from the word that a draw has its own bits from."""
    at: dict[str, Any] = {"update": 5, "epoch": 2}
    drawn = Streams(11).uniforms("coin", environments=2, steps=3, draws=37, first_step=9, short=True, **at)
    for step, env, draw in np.ndindex(drawn.shape):
        expected = short_uniform_by_hand(11, "coin", env=env, step=9 + step, draw=draw, **at)
        assert drawn[step, env, draw] == expected
    part = Streams(11).uniforms("coin", environments=np.array([1]), steps=1, draws=18, first_step=10, short=True, **at)
    np.testing.assert_array_equal(part[0, 0], drawn[1, 1, :18])
    words = philox_by_hand([9, 2, 0, 5], key_by_hand(11, "draws", "coin"))
    assert drawn[0, 0, 0] != ((words[0] & 0xFFFF) * 2**32 + (words[0] >> 32) + 0.5) / 2**48


def test_short_uniforms_are_uniform_and_pairs_of_them_are_independent() -> None:
    """Also pairs that share their low bits, or of which one owns those of the other: draws 0, 1 and 0, 6. Rejects draws
    that share their high bits: those of one word then agree."""
    drawn = Streams(0).uniforms("u", update=0, environments=64, steps=400, draws=16, short=True)
    assert 0.0 < drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1.0
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 0.01
    flat = drawn.reshape(-1, 16)
    for a, b in [(0, 1), (0, 6), (0, 7), (3, 4), (15, 2)]:
        table = np.histogram2d(flat[:, a], flat[:, b], bins=16, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(table.ravel()).pvalue > 0.001, (a, b)
    together = np.histogram2d(flat[:, 0], flat[:, 0], bins=16, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(together.ravel()).pvalue < 0.001
    # Low bits are fair as well: each of the 48 is set in half of the draws. One draw of each word, as those of a word
    # share their low bits: 102,400 are independent, standard deviation .0016.
    bits = (flat[:, ::4].ravel()[:, None] * 2.0 ** np.arange(1, 49)).astype(np.int64) & 1
    assert np.abs(bits.mean(0) - 0.5).max() < 0.008


@given(
    envs=st.integers(1, 6),
    steps=st.integers(1, 9),
    draws=st.integers(1, 11),
    first=st.integers(0, 20),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_draw_does_not_depend_on_how_much_is_asked_for(
    envs: int, steps: int, draws: int, first: int, data: st.DataObject
) -> None:
    """Rejects one sequential generator per call: its values shift with every one of these four numbers."""
    whole = Streams(3).uniforms("x", update=4, environments=6, steps=29, draws=11)
    part = Streams(3).uniforms("x", update=4, environments=envs, steps=steps, draws=draws, first_step=first)
    np.testing.assert_array_equal(part, whole[first : first + steps, :envs, :draws])
    ids = np.array(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6)))
    chosen = Streams(3).uniforms("x", update=4, environments=ids, steps=steps, draws=draws, first_step=first)
    np.testing.assert_array_equal(chosen, whole[first : first + steps][:, ids, :draws])


def test_a_sequential_generator_fails_that_check() -> None:
    """The wrong implementation, to see that the check above can fail."""

    def sequential(envs: int) -> np.ndarray:
        return np.random.default_rng(3).random((29, envs, 11))

    assert not np.array_equal(sequential(5), sequential(6)[:, :5])


def test_each_part_of_the_address_changes_every_value() -> None:
    base: dict[str, Any] = {"update": 2, "environments": np.array([1]), "steps": 50, "draws": 4}

    def draw(seed: int = 5, name: str = "action", **change: Any) -> np.ndarray:
        return Streams(seed).uniforms(name, **{**base, **change})

    reference = draw()
    np.testing.assert_array_equal(reference, draw())
    others = {
        "seed": draw(seed=6),
        "negative seed": draw(seed=-5),
        "name": draw(name="particle"),
        "update": draw(update=3),
        "epoch": draw(epoch=1),
        "environment": draw(environments=np.array([2])),
        "step": draw(first_step=50),
    }
    for what, other in others.items():
        assert not np.any(other == reference), what
        assert abs(np.corrcoef(other.ravel(), reference.ravel())[0, 1]) < 0.25, what


def test_seed_and_name_are_not_glued_together() -> None:
    """Rejects a key that hashes `f"{seed}{name}"`, for which (1, "2x") and (12, "x") are one stream."""
    assert Streams(1).integer("2x") != Streams(12).integer("x")


def test_uniforms_lie_in_the_open_interval_and_are_uniform() -> None:
    drawn = Streams(0).uniforms("u", update=0, environments=50, steps=100, draws=4)
    assert drawn.shape == (100, 50, 4)
    assert drawn.dtype == np.float64
    assert 0.0 < drawn.min() < 1e-3
    assert 1 - 1e-3 < drawn.max() < 1.0
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 0.01
    for axis in range(3):  # neighbours along each axis are uncorrelated: 20,000 pairs, sd of the estimate .007
        a, b = np.take(drawn, range(drawn.shape[axis] - 1), axis), np.take(drawn, range(1, drawn.shape[axis]), axis)
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03


def test_normals_are_standard_normal_and_finite() -> None:
    request: dict[str, Any] = {"update": 0, "environments": 50, "steps": 100, "draws": 4}
    drawn = Streams(0).normals("n", **request)
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 0.01
    assert stats.kstest(drawn.ravel() * 1.05, "norm").pvalue < 0.01  # the check sees a scale that is 5% off
    np.testing.assert_allclose(stats.norm.cdf(drawn), Streams(0).uniforms("n", **request), atol=1e-14)


@pytest.mark.parametrize("n", [0, 1, 5, 8192])
def test_permutation_is_a_permutation(n: int) -> None:
    order = Streams(9).permutation("minibatch", n, update=1, epoch=2)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_permutations_differ_between_epochs_and_every_order_is_equally_likely() -> None:
    streams = Streams(9)
    orders = [tuple(streams.permutation("m", 4, update=u, epoch=e).tolist()) for u in range(600) for e in range(4)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.01


def test_permutations_of_several_epochs_are_those_of_each() -> None:
    """Rejects a cipher that goes on from where the epoch before left it."""
    streams = Streams(9)
    for n in (1, 6, 8, 5000):
        found = streams.permutations("m", n, update=3, epochs=range(2, 5))
        assert np.array_equal(found, [streams.permutation("m", n, update=3, epoch=epoch) for epoch in (2, 3, 4)])


def test_integers_are_seeds_and_differ_between_addresses() -> None:
    values = [Streams(1).integer("reset", environment=e, index=i) for e in range(30) for i in range(30)]
    assert len(set(values)) == 900
    assert 0 <= min(values) < 2**27
    assert 2**31 - 2**27 < max(values) < 2**31


def test_streams_keep_their_values_from_version_to_version() -> None:
    """Golden values. If this test fails, runs that were saved before can no longer be resumed bit for bit."""
    streams = Streams(1)
    assert streams.integer("env") == 1382810300
    assert streams.integer("env", environment=1, index=3) == 175857333
    assert streams.permutation("p", 8, update=2, epoch=1).tolist() == [2, 0, 4, 7, 5, 6, 3, 1]
    assert streams.uniforms("action", update=3, environments=1, steps=1, draws=2).tolist() == [
        [[0.8628071188703353, 0.8168261410021104]]
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"update": -1}, "update is -1"),
        ({"epoch": -2}, "epoch is -2"),
        ({"first_step": -1}, "first_step is -1"),
        ({"first_step": 2**40}, "first_step"),
        ({"environments": np.array([0, -3])}, "environment id is -3"),
        ({"environments": np.array([0.5])}, "dtype float64"),
        ({"environments": np.zeros((2, 2), dtype=int)}, r"shape \(2, 2\)"),
    ],
)
def test_an_impossible_address_is_a_sentence(change: dict[str, Any], sentence: str) -> None:
    request: dict[str, Any] = {"update": 0, "environments": 1, "steps": 1, "draws": 1}
    with pytest.raises(ShapeError, match=sentence):
        Streams(0).uniforms("x", **{**request, **change})


@pytest.mark.parametrize("seed", [1.5, "1", None, True])
def test_a_seed_that_is_no_integer_is_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed is"):
        Streams(seed)

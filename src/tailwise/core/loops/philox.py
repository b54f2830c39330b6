"""Random streams inside kernels: the words of numpy's Philox at the addresses of `tailwise.core.streams`.

Philox4x64-10 (Salmon et al. 2011): ten rounds of two 64 x 64 -> 128 bit products turn a counter of four words and a key
of two into four random words. An address (update, environment, epoch, step, block of draws) is the counter; a block is
four draws, or sixteen short ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tailwise.core.compiled import compiler_is_off, kernel

_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_STEP_BITS, _DROPPED = np.uint64(40), np.uint64(12)
_ONE, _HALF, _SHORT, _QUARTER = np.uint64(1), np.uint64(32), np.uint64(49), np.uint64(0xFFFF)


def _high_word_in_python(a: np.uint64, b: np.uint64) -> np.uint64:
    return np.uint64(int(a) * int(b) >> 64)


@intrinsic
def _compiled_high_word(context: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of a product of two uint64."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(values[0], wide), builder.zext(values[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_high_word = _high_word_in_python if compiler_is_off() else _compiled_high_word


@kernel
def four_words(
    key0: int, key1: int, step: int, block: int, epoch: int, environment: int, update: int
) -> tuple[int, int, int, int]:
    """The random words of a block; all uint64."""
    c0 = np.uint64(block) << _STEP_BITS | np.uint64(step)
    c1, c2, c3 = np.uint64(epoch), np.uint64(environment), np.uint64(update)
    k0, k1 = np.uint64(key0), np.uint64(key1)
    for _ in range(10):
        high0, low0 = _high_word(_M0, c0), _M0 * c0
        high1, low1 = _high_word(_M1, c2), _M1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += _W0
        k1 += _W1
    return c0, c1, c2, c3


@kernel
def to_uniform(word: int) -> float:
    """A number in the open interval (0, 1), float64: 52 bits and a half."""
    return (np.float64(word >> _DROPPED) + 0.5) * 2.0**-52


@kernel
def to_short_uniform(words: tuple[int, int, int, int], k: int) -> float:
    """The k-th of the 16 numbers in (0, 1) that four words give, float64: 48 bits and a half.

    Its first 16 bits are its own, a quarter of word k // 4, the lowest one first; the other 32 are the upper half of
    the next word.
    """
    own = words[k // 4] >> np.uint64(16 * (k % 4)) & _QUARTER
    return (np.float64(own << _HALF | words[(k // 4 + 1) % 4] >> _HALF) + 0.5) * 2.0**-48


@kernel
def choose_particles(
    key: np.ndarray,
    update: int,
    epoch: int,
    environments: np.ndarray,
    particles: np.ndarray,
    first: int,
    end: int,
    sampled: np.ndarray,
) -> None:
    """Draw one particle of each stratum of particles [T*B, M], rows `first` to `end`, into sampled float32 [T*B, m].

    Which one of a stratum of `width` is floor(u * width) for a short uniform u, in whole numbers: converting them takes
    as long as drawing them. A target has at most 1,024 particles, so that 49 bits times `width` fit into a word.
    """
    count, envs = sampled.shape[1], environments.shape[0]
    width = np.uint64(particles.shape[1] // count)  # an index without a sign is not looked at for one
    step, column = first // envs, first % envs  # counted on: two divisions a row are a fifth of its time
    for r in range(first, end):
        row, out, j = particles[r], sampled[r], 0
        for block in range((count + 15) // 16):
            a, b, c, d = four_words(key[0], key[1], step, block, epoch, environments[column], update)
            for word, after in ((a, b), (b, c), (c, d), (d, a)):
                rest = after >> _HALF
                for k in range(min(4, count - j)):
                    bits = (word >> np.uint64(16 * k) & _QUARTER) << _HALF | rest
                    out[j] = row[np.uint64(j) * width + ((bits + bits + _ONE) * width >> _SHORT)]
                    j += 1
        column += 1
        if column == envs:
            step, column = step + 1, 0


@kernel
def fill_uniforms(
    key: np.ndarray, update: int, epoch: int, environments: np.ndarray, first_step: int, short: bool, result: np.ndarray
) -> None:
    """Uniforms of the steps from `first_step` on, or short ones: result float64 [steps, envs, draws]; everything else
    uint64, key [2], environments [envs]."""
    steps, envs, draws = result.shape
    per_block = 16 if short else 4
    for step in range(steps):
        for b in range(envs):
            for block in range((draws + per_block - 1) // per_block):
                at = first_step + np.uint64(step)
                words = four_words(key[0], key[1], at, block, epoch, environments[b], update)
                for k in range(min(per_block, draws - per_block * block)):
                    drawn = to_short_uniform(words, k) if short else to_uniform(words[k])
                    result[step, b, per_block * block + k] = drawn

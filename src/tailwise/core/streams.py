"""Random streams in which a draw is a function of what it is for, not of what was drawn before.

Each value is addressed by (seed, stream name, update, epoch, environment, step, draw). Asking for more environments,
for a later part of the rollout or for fewer draws gives the same values at the same addresses, so exact resume,
equality across backends and equality across ranks follow without any state to save. The words are those of numpy's
Philox4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"); docs/decisions/0001 says why. Draws come
from compiled code, which reads many short pieces of the stream in a twentieth of numpy's time.

How an address becomes a value: the key of the cipher is a hash of (seed, purpose, stream name); its 256-bit counter is
    word 0: block * 2**40 + step      word 1: epoch      word 2: environment      word 3: update
where block = draw // 4, because the cipher gives four 64-bit words per counter value. The step is the low end of the
counter so that one call draws a whole rollout of an environment.

Short draws take 16 bits of a block each (block = draw // 16), for the millions of small decisions of an update. Each
has 48 bits, so that its own law is as good as uniform: the other 32 are those of another word of the block, shared with
the three draws beside it and not independent of those that own them. Two short draws are therefore independent to 16
bits, which is all that coins and choices among a few can see.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tailwise.core.errors import ConfigError, ShapeError

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

_WORDS_PER_BLOCK = 4
_SHORT_PER_BLOCK = 16  # short draws
_STEP_BITS = 40
_STEP_LIMIT = 1 << _STEP_BITS
_BLOCK_LIMIT = 1 << (64 - _STEP_BITS)
_WORD_LIMIT = 1 << 64
_COUNTER_LIMIT = 1 << 256


@lru_cache(maxsize=256)
def _digest(seed: int, purpose: str, name: str) -> bytes:
    """16 bytes. Lengths are hashed too, so that no two (seed, purpose, name) read the same."""
    text = "".join(f"{len(part)}:{part}" for part in (str(seed), purpose, name))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _key(seed: int, purpose: str, name: str) -> Words:
    """The 128-bit key of a stream."""
    return np.frombuffer(_digest(seed, purpose, name), dtype="<u8").astype(np.uint64)


class _Cipher:
    """Philox with one key, read at any value of its counter. Moving it costs a quarter of making a new one."""

    def __init__(self, key: Words) -> None:
        self._key = key
        self._empty_buffer = np.zeros(_WORDS_PER_BLOCK, dtype=np.uint64)
        self._philox = np.random.Philox(key=key)

    def words(self, *, word0: int, epoch: int, environment: int, update: int, blocks: int) -> Words:
        """The output for `blocks` successive values of the counter: uint64 [4 * blocks]."""
        # numpy increments the counter before it computes a block, so it has to start one below.
        first = word0 | epoch << 64 | environment << 128 | update << 192
        before = ((first - 1) % _COUNTER_LIMIT).to_bytes(32, "little")
        self._philox.state = {
            "bit_generator": "Philox",
            "state": {"counter": np.frombuffer(before, dtype="<u8"), "key": self._key},
            "buffer": self._empty_buffer,
            "buffer_pos": _WORDS_PER_BLOCK,  # nothing is left in the buffer
            "has_uint32": 0,
            "uinteger": 0,
        }
        return self._philox.random_raw(_WORDS_PER_BLOCK * blocks)


def _check(what: str, value: int, limit: int = _WORD_LIMIT, *, least: int = 0) -> int:
    if not least <= value < limit:
        raise ShapeError(f"random stream: {what} is {value}; it must be at least {least} and below {limit}.")
    return int(value)


def _environment_ids(environments: int | NDArray[np.integer]) -> Words:
    if isinstance(environments, int | np.integer):
        return np.arange(_check("the number of environments", int(environments)), dtype=np.uint64)
    ids = np.asarray(environments)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ShapeError(
            f"random stream: environment ids have shape {ids.shape} and dtype {ids.dtype}; "
            "a flat array of integers is needed."
        )
    if ids.dtype.kind == "i" and len(ids):
        _check("an environment id", int(ids.min()))
    return ids.astype(np.uint64)


class Streams:
    """All random streams of one seed. Has no state besides the seed: there is nothing to save or restore."""

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise ConfigError(f"seed is {seed!r}; it must be an integer.")
        self.seed = int(seed)

    def uniforms(
        self,
        name: str,
        *,
        update: int,
        environments: int | NDArray[np.integer],
        steps: int,
        draws: int,
        epoch: int = 0,
        first_step: int = 0,
        short: bool = False,
    ) -> Floats:
        """Uniform numbers in the open interval (0, 1): float64 [steps, environments, draws].

        `environments` is their number (ids 0, 1, ...) or an array of ids; `first_step` is the address of row 0.
        Both 0 and 1 are excluded, so that logarithms and inverse distribution functions are finite. `short`: in a
        quarter of the time, 48 bits each, of which 16 are independent of other draws.
        """
        from tailwise.core.loops.philox import fill_uniforms  # compiled code: not before somebody draws

        per_block = _SHORT_PER_BLOCK if short else _WORDS_PER_BLOCK
        ids = _environment_ids(environments)
        epoch, update = _check("epoch", epoch), _check("update", update)
        steps, draws = _check("steps", steps), _check("draws", draws, _BLOCK_LIMIT * per_block)
        _check("first_step + steps", _check("first_step", first_step) + steps, _STEP_LIMIT)
        uniforms: Floats = np.empty((steps, len(ids), draws))
        with np.errstate(over="ignore"):  # without compilation numpy would warn of each product modulo 2**64
            fill_uniforms(
                self.key(name), np.uint64(update), np.uint64(epoch), ids, np.uint64(first_step), short, uniforms
            )
        return uniforms

    def key(self, name: str) -> Words:
        """The key of a stream's draws, uint64 [2], for compiled code that draws by itself."""
        return _key(self.seed, "draws", name)

    def normals(
        self,
        name: str,
        *,
        update: int,
        environments: int | NDArray[np.integer],
        steps: int,
        draws: int,
        epoch: int = 0,
        first_step: int = 0,
    ) -> Floats:
        """Standard normal numbers, float64 [steps, environments, draws]: the normal quantiles of `uniforms`."""
        levels = self.uniforms(
            name,
            update=update,
            environments=environments,
            steps=steps,
            draws=draws,
            epoch=epoch,
            first_step=first_step,
        )
        normals: Floats = ndtri(levels)
        return normals

    def permutation(self, name: str, n: int, *, update: int, epoch: int = 0) -> Integers:
        """A uniformly random order of 0 .. n-1, int64 [n].

        The order of n random words: unlike a library's shuffle, it stays the same when that library changes.
        """
        order: Integers = self.permutations(name, n, update=update, epochs=range(epoch, epoch + 1))[0]
        return order

    def permutations(self, name: str, n: int, *, update: int, epochs: range) -> Integers:
        """`permutation` for each of some epochs, int64 [epochs, n]: together they take half the time."""
        n, update = _check("the length of the permutation", n, _STEP_LIMIT), _check("update", update)
        cipher, blocks = _Cipher(_key(self.seed, "permutation", name)), -(-n // _WORDS_PER_BLOCK)
        marked: Words = np.empty((len(epochs), n), dtype=np.uint64)
        for row, epoch in zip(marked, epochs):
            at = _check("epoch", epoch)
            row[:] = cipher.words(word0=0, epoch=at, environment=0, update=update, blocks=blocks)[:n]
        # Sorting words that end in their own place takes half the time of an argsort. What is left of a random word, 24
        # bits at least and 51 for a rollout of 8,192 rows, ties so rarely that the order is uniform to float64.
        place = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
        marked &= ~place
        marked |= np.arange(n, dtype=np.uint64)
        marked.sort()
        marked &= place
        return marked.view(np.int64)

    def integer(self, name: str, *, environment: int = 0, index: int = 0) -> int:
        """An integer in [0, 2**31): the seed of an environment, of its `index`-th episode, or of an initialisation."""
        index, environment = _check("index", index, _STEP_LIMIT), _check("environment", environment)
        cipher = _Cipher(_key(self.seed, "integer", name))
        words = cipher.words(word0=index, epoch=0, environment=environment, update=0, blocks=1)
        return int(words[0]) >> 33

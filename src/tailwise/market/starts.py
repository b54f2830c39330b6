"""Where episodes begin: a pure function of (seed, environment, index of the episode), prepared in blocks.

The kernel cannot ask Python for a random number when an episode ends in the middle of a step, so the starts of the
next episodes lie ready in two arrays [N, BLOCK]. Nothing here needs to be saved: the arrays follow from the addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError
from tailwise.core.numerics import golden_fractions
from tailwise.core.streams import Streams
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.portfolio_tables import PortfolioTable
from tailwise.market.tables import MarketTable

BLOCK = 32
STREAM = "market/start"

Integers = npt.NDArray[np.int64]


class StartPlan:
    """Starts of the current block of episodes: `rows` and `symbols` int64 [N, BLOCK], episode e in column e % BLOCK."""

    def __init__(
        self,
        table: MarketTable | PortfolioTable,
        config: MarketEnvConfig,
        environments: int,
        first_environment: int,
    ) -> None:
        """The clock of a `PortfolioTable` is one symbol."""
        self._fixed_symbol = config.symbol == "fixed"
        self._first_rows = table.first_rows
        if config.start == "first":
            self._counts = np.ones_like(table.first_rows)
        else:
            # Episodes fit into the data where they can; a symbol shorter than an episode starts at its first row.
            reach = table.last_rows - (config.episode_length or 1)
            self._counts = np.maximum(reach - table.first_rows + 1, 1)
        self._bounds = np.cumsum(self._counts)
        self._first_environment = first_environment
        self.seeds: Integers = np.zeros(environments, dtype=np.int64)
        self.ids: Integers = np.zeros(environments, dtype=np.int64)
        self.seed_all(0)
        self.rows: Integers = np.zeros((environments, BLOCK), dtype=np.int64)
        self.symbols: Integers = np.zeros((environments, BLOCK), dtype=np.int64)
        self._first_ages: Integers = np.zeros(environments, dtype=np.int64)

    def spread_first_episodes(self, length: int | None) -> None:
        """Cut the first episodes to different lengths, so that the environments never end and begin all at once.

        In step with one another, the accounts of a rollout would all be young or all be old; what is measured on it
        then swings with the age, and what was learnt from the young is applied to the old. Environment i begins at the
        age frac(i x golden ratio) of an episode: evenly spread for any number of environments, and the same whether
        they are simulated together or in parts. length: bars of an episode; None (only the data ends) spreads nothing.
        """
        if length is not None:
            ids = self._first_environment + np.arange(len(self._first_ages))
            self._first_ages[:] = np.floor(golden_fractions(ids) * length)

    def ages(self, which: Integers, episodes: Integers) -> Integers:
        """Ages at which the given episodes begin: 0, but for spread first ones."""
        return np.where(episodes == 0, self._first_ages[which], 0)

    def seed_all(self, seed: int) -> None:
        """One seed for all; environment i draws at the address of its id."""
        self.seeds[:] = seed
        self.ids[:] = self._first_environment + np.arange(len(self.ids))

    def seed_one(self, row: int, seed: int) -> None:
        """A seed of its own: the environment draws at the address 0, whatever its number is."""
        self.seeds[row] = seed
        self.ids[row] = 0

    def seed(self, seeds: int | Sequence[int | None], episodes: Integers) -> None:
        """Begin the streams of episodes again, and set `episodes` [N] of the environments concerned to -1, before the
        first one: one seed for all (environment i draws at its own address), or a list with a seed per environment
        (None leaves that environment as it is), each drawing at the address 0."""
        if isinstance(seeds, (int, np.integer)):
            self.seed_all(_checked_seed(int(seeds)))
            episodes[:] = -1
            return
        if len(seeds) != len(self.seeds):
            raise ConfigError(f"reset got {len(seeds)} seeds for {len(self.seeds)} environments; give one for each.")
        for i, seed in enumerate(seeds):
            if seed is not None:
                self.seed_one(i, _checked_seed(int(seed)))
                episodes[i] = -1

    def get_state(self) -> dict[str, Integers]:
        """Copies of the addresses that episodes are drawn from."""
        return {"seeds": self.seeds.copy(), "ids": self.ids.copy()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]], episodes: Integers) -> None:
        """Continue from `get_state` in the middle of `episodes` [N]; the ones that follow them lie ready."""
        self.seeds[:] = state["seeds"]
        self.ids[:] = state["ids"]
        self.prepare(np.arange(len(self.seeds)), episodes + 1)

    def prepare_following(self, which: Integers, episodes: Integers) -> None:
        """Lay ready what follows `episodes` [N] of the environments `which`, where a new block begins."""
        following = episodes[which] + 1
        fresh = following % BLOCK == 0
        if fresh.any():
            self.prepare(which[fresh], following[fresh])

    def prepare(self, which: Integers, episodes: Integers) -> None:
        """Lay ready the blocks that contain episode `episodes[j]` of environment `which[j]`."""
        blocks = episodes // BLOCK
        addresses = np.stack([self.seeds[which], blocks], axis=1)
        for seed, block in np.unique(addresses, axis=0).tolist():
            chosen = which[(addresses[:, 0] == seed) & (addresses[:, 1] == block)]
            levels = (
                Streams(seed)
                .uniforms(
                    STREAM, update=0, environments=self.ids[chosen], steps=BLOCK, draws=1, first_step=block * BLOCK
                )[:, :, 0]
                .T
            )
            self.rows[chosen], self.symbols[chosen] = self._place(levels, self.ids[chosen])

    def at(self, which: Integers, episodes: Integers) -> tuple[Integers, Integers]:
        """(rows, symbols) at which the given episodes begin; their blocks must have been prepared."""
        columns = episodes % BLOCK
        return self.rows[which, columns], self.symbols[which, columns]

    def _place(self, levels: npt.NDArray[np.float64], ids: Integers) -> tuple[Integers, Integers]:
        """Turn uniform levels [M, BLOCK] into starts."""
        if self._fixed_symbol:
            symbols = np.broadcast_to((ids % len(self._counts))[:, None], levels.shape)
            inside = np.floor(levels * self._counts[symbols]).astype(np.int64)
        else:
            position = np.floor(levels * self._bounds[-1]).astype(np.int64)
            symbols = np.searchsorted(self._bounds, position, side="right")
            inside = position - (self._bounds - self._counts)[symbols]
        return self._first_rows[symbols] + inside, np.array(symbols, dtype=np.int64)


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed}; it must be at least 0 and below 2**63.")
    return seed
